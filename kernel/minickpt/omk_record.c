// SPDX-License-Identifier: GPL-2.0
/*
 * Records of an image: room for one, and its header once it is written.
 * Dying code: see omk.h.
 */
#include <linux/string.h>

#include "omk.h"

void __dying omk_records_begin(struct omk_writer *w, void *base, size_t cap)
{
	memset(w, 0, sizeof(*w));
	w->base = base;
	w->cap = cap;
}

/* Room for a record's payload, zeroed; NULL if the image is full. */
void __dying *omk_rec_begin(struct omk_writer *w, u32 type, u32 tgid, u32 id, size_t room)
{
	struct omk_rec *r = (struct omk_rec *)(w->base + w->len);

	/* Payloads begin at a multiple of 64 too: XSAVE areas stay aligned. */
	if (w->cap - w->len < OMK_ALIGN + room + OMK_ALIGN) {
		w->truncated = true;
		return NULL;
	}
	memset(r, 0, OMK_ALIGN + room);
	r->magic = OMK_REC_MAGIC;
	r->type = type;
	r->tgid = tgid;
	r->id = id;
	return (u8 *)r + OMK_ALIGN;
}

void __dying omk_rec_end(struct omk_writer *w, u32 count, size_t len, u32 flags)
{
	struct omk_rec *r = (struct omk_rec *)(w->base + w->len);

	r->count = count;
	r->len = len;
	r->flags = flags;
	w->len += OMK_ALIGN + ALIGN(len, OMK_ALIGN);
	w->records++;
}
