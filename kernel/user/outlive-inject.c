// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * outlive-inject KIND [CPU|any [DELAY_MS [PID]]]: kills this kernel, see
 * outlive_inject.h. For tests: it needs the module outlive_inject.
 */
#include <stdio.h>

#include "outlive_inject.h"

int main(int argc, char **argv)
{
	unsigned int kind = argc > 1 ? outlive_inject_kind(argv[1], strlen(argv[1])) : 0;
	unsigned int cpu = OMI_ANY_CPU, delay = 0, pid = 0;
	size_t i;
	int err;

	if (!kind || argc > 5) {
		fprintf(stderr, "usage: outlive-inject KIND [CPU|any [DELAY_MS [PID]]]\nKIND:");
		for (i = 0; i < sizeof(outlive_inject_kinds) / sizeof(*outlive_inject_kinds); i++)
			fprintf(stderr, " %s", outlive_inject_kinds[i].word);
		fprintf(stderr, "\n");
		return 64;
	}
	if (argc > 2 && strcmp(argv[2], "any"))
		cpu = (unsigned int)strtoul(argv[2], NULL, 10);
	if (argc > 3)
		delay = (unsigned int)strtoul(argv[3], NULL, 10);
	if (argc > 4)
		pid = (unsigned int)strtoul(argv[4], NULL, 10);
	err = outlive_inject(kind, cpu, pid, delay);
	if (err) {
		fprintf(stderr, "outlive-inject: %s: %s\n", OMI_DEVICE, strerror(-err));
		return 69;
	}
	return 0;
}
