// SPDX-License-Identifier: Apache-2.0 OR MIT
/* iterate RANK COUNT: iterations that OUTLIVE_INJECT may end, see outlive_inject.h. */
#include <stdio.h>

#include "../../../kernel/user/outlive_inject.h"

int main(int argc, char **argv)
{
	long rank = argc > 1 ? atol(argv[1]) : 0, count = argc > 2 ? atol(argv[2]) : 10;

	for (long i = 0; i < count; i++) {
		int err = outlive_inject_step(rank, i);

		printf("rank %ld iteration %ld inject %d\n", rank, i, err);
		fflush(stdout);
	}
	return 0;
}
