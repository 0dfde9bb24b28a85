// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Makes the newest image one of another kernel build, whole in all its checks.
 * The module must not be loaded.
 *
 *   foreign ADDR SIZE     of the area
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <uapi/outlive_minickpt.h>

static uint32_t crc(const uint8_t *data, size_t len)
{
	uint32_t sum = ~0U;

	while (len--) {
		sum ^= *data++;
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
	}
	return ~sum;
}

int main(int argc, char **argv)
{
	off_t at = argc == 3 ? (off_t)strtoull(argv[1], NULL, 0) : 0;
	size_t size = argc == 3 ? strtoull(argv[2], NULL, 0) : 0;
	int fd = open("/dev/mem", O_RDWR);
	uint8_t *area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
	struct omk_super *super = (void *)area;
	struct omk_image *image;

	if (fd < 0 || area == MAP_FAILED || super->magic != OMK_SUPER_MAGIC)
		return printf("foreign: no area\n"), 1;
	image = (void *)(area + super->image_off[(super->generation + 1) & 1]);
	if (image->header_crc != crc((void *)image, offsetof(struct omk_image, header_crc)))
		return printf("foreign: no image\n"), 1;
	image->build[0]++;
	image->header_crc = crc((void *)image, offsetof(struct omk_image, header_crc));
	return 0;
}
