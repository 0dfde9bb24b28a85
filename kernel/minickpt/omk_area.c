// SPDX-License-Identifier: GPL-2.0
/*
 * The area: memory that no kernel owns, its superblock, marks and two images.
 * What is read from it was written by a kernel that died, so nothing in it is
 * believed before its checksum was.
 */
#include <linux/crc32.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/mm.h>
#include <linux/utsname.h>

#include "omk.h"

u32 __dying omk_crc(const void *data, size_t len)
{
	return crc32_le(~0U, data, len) ^ ~0U;
}

/* By the size of the area alone: a dying kernel may have written over the superblock. */
size_t __dying omk_image_size(void)
{
	return ALIGN_DOWN((omk.size - OMK_IMAGES_OFF) / 2, PAGE_SIZE);
}

struct omk_image *omk_image_of(u64 generation)
{
	size_t second = generation & 1 ? 0 : omk_image_size();

	return (struct omk_image *)(omk.area + OMK_IMAGES_OFF + second);
}

void __dying omk_super_write(void)
{
	omk.super->crc = omk_crc(omk.super, offsetof(struct omk_super, crc));
}

void omk_area_format(void)
{
	size_t image = omk_image_size();

	memset(omk.area, 0, OMK_IMAGES_OFF);
	omk.super->magic = OMK_SUPER_MAGIC;
	omk.super->version = OMK_ABI_VERSION;
	omk.super->size = sizeof(struct omk_super);
	omk.super->area_addr = omk.addr;
	omk.super->area_size = omk.size;
	omk.super->image_off[0] = OMK_IMAGES_OFF;
	omk.super->image_off[1] = OMK_IMAGES_OFF + image;
	omk.super->image_size = image;
	/* An image of before the format must not be taken for a new one. */
	memset(omk.area + omk.super->image_off[0], 0, OMK_IMAGE_HEADER);
	memset(omk.area + omk.super->image_off[1], 0, OMK_IMAGE_HEADER);
	omk.marks->magic = OMK_MARKS_MAGIC;
	omk_super_write();
	omk.state = OMK_STATE_EMPTY;
	omk.damage = 0;
}

static bool super_good(void)
{
	const struct omk_super *s = omk.super;

	return s->magic == OMK_SUPER_MAGIC && s->version == OMK_ABI_VERSION &&
	       s->size == sizeof(*s) && s->area_addr == omk.addr && s->area_size == omk.size &&
	       s->crc == omk_crc(s, offsetof(struct omk_super, crc)) &&
	       s->image_size == omk_image_size() &&
	       s->image_off[0] == OMK_IMAGES_OFF &&
	       s->image_off[1] == OMK_IMAGES_OFF + s->image_size;
}

static u32 image_damage(const struct omk_image *image, u64 generation)
{
	if (image->magic != OMK_IMAGE_MAGIC || image->version != OMK_ABI_VERSION ||
	    image->size != sizeof(*image) || image->generation != generation ||
	    image->body_len > omk_image_size() - OMK_IMAGE_HEADER ||
	    image->header_crc != omk_crc(image, offsetof(struct omk_image, header_crc)))
		return OMK_DAMAGE_HEADER;
	if (image->body_crc != omk_crc((const u8 *)image + OMK_IMAGE_HEADER, image->body_len))
		return OMK_DAMAGE_BODY;
	return 0;
}

static u32 judge(void)
{
	const struct omk_super *s = omk.super;
	const struct omk_image *image;

	if (!s->generation)
		return OMK_STATE_EMPTY;
	if (s->acked >= s->generation)
		return OMK_STATE_ACKED;
	image = omk_image_of(s->generation);
	omk.damage = image_damage(image, s->generation);
	if (omk.damage)
		return OMK_STATE_DAMAGED;
	if (strncmp(image->release, init_utsname()->release, sizeof(image->release)) ||
	    strncmp(image->build, init_utsname()->version, sizeof(image->build)))
		return OMK_STATE_FOREIGN;
	if (omk.marks->retries > OMK_RETRIES_MAX)
		return OMK_STATE_GIVEN_UP;
	return OMK_STATE_READY;
}

int omk_area_open(phys_addr_t addr, size_t size)
{
	/* The words differ so that a memory test of the firmware, which leaves
	 * one pattern, cannot be taken for an area.
	 */
	static const char * const names[] = { "empty", "ready", "acknowledged", "damaged",
					      "of another kernel", "given up" };

	if (!addr || !PAGE_ALIGNED(addr) || !PAGE_ALIGNED(size) || size < OMK_AREA_MIN) {
		pr_err("outlive-minickpt: no area: give area_addr= and area_size= (pages, at least %d KiB) of memory reserved by memmap=SIZE$ADDR\n",
		       OMK_AREA_MIN / 1024);
		return -EINVAL;
	}
	if (region_intersects(addr, size, IORESOURCE_SYSTEM_RAM, IORES_DESC_NONE) !=
	    REGION_DISJOINT) {
		pr_err("outlive-minickpt: %pa is used by the kernel as RAM: reserve it by memmap=SIZE$ADDR on the boot line\n",
		       &addr);
		return -EBUSY;
	}
	omk.addr = addr;
	omk.size = size;
	omk.area = memremap(addr, size, MEMREMAP_WB);
	if (!omk.area)
		return -ENOMEM;
	omk.super = (struct omk_super *)omk.area;
	omk.marks = (struct omk_marks *)(omk.area + OMK_MARKS_OFF);
	if (super_good()) {
		omk.state = judge();
	} else {
		bool was = omk.super->magic == OMK_SUPER_MAGIC;

		omk_area_format();
		if (was) {
			omk.state = OMK_STATE_DAMAGED;
			omk.damage = OMK_DAMAGE_SUPER;
		}
	}
	omk.super->boots++;
	omk_super_write();
	pr_info("outlive-minickpt: area %pa, %zu KiB, generation %llu: %s\n", &addr, size / 1024,
		omk.super->generation, names[omk.state]);
	return 0;
}

void omk_area_close(void)
{
	memunmap(omk.area);
}

int omk_area_ack(u64 generation)
{
	if (!omk.super->generation)
		return -ENODATA;
	if (generation != omk.super->generation)
		return -ESTALE;
	omk.super->acked = generation;
	omk.marks->retries = 0;
	omk.marks->attempts = 0;
	omk_super_write();
	omk.state = OMK_STATE_ACKED;
	return 0;
}
