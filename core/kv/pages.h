/* The page pool: equal pages in one reserved stretch of address space, with counted references.
 *
 * A page has two parts (keys and values). Pages lie in groups of `run`: first the first parts of all, then the second
 * ones, so that the keys of pages which follow each other in a group are one stretch of memory, and so are the values.
 * Who takes a page names the one that it follows, and gets the next place of that one's group if nobody has it.
 * Attention reads such stretches 1.5 to 1.8 times as fast as pages that lie anywhere (docs/kv.md), since hardware
 * prefetchers go on from page to page. So that groups need not be shared, there are more places than pages where that
 * costs only addresses (no limit of address space or data, no strict accounting of memory): whatever is idle beyond the
 * number of pages has no memory.
 *
 * A page that more than one holder refers to must not be written (clb_kv_pool_shared). Memory is touched page by page
 * and goes back to the system when more of it lies idle than is used. [engine-thread] */
#ifndef CLB_KV_PAGES_H
#define CLB_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Idle memory below this much is kept for the next sequence. */
#define CLB_KV_IDLE_BYTES (8u << 20)

typedef struct clb_kv_page_shape {
    uint64_t first_bytes, second_bytes; /* multiples of 64; the second may be 0 */
    uint32_t run; /* pages of a group, at most 65535; 1: the parts of each page follow each other */
} clb_kv_page_shape;

typedef struct clb_kv_pool {
    uint8_t *base;
    clb_kv_page_shape shape;
    uint64_t page_bytes; /* of both parts */
    uint32_t n_pages;    /* that may be in use */
    uint32_t n_places;   /* n_pages or more, a multiple of the run */
    uint32_t n_used, peak;
    uint32_t n_reserved; /* of the unused ones: promised to somebody */
    uint32_t *refs;      /* [n_places] holders of each page */
    uint8_t *warm;       /* [n_places] 1: idle, and its memory is still there */
    uint32_t n_warm;
    uint32_t warm_at; /* where to look for a warm one */
    /* Groups: those from `fresh` on were never handed out; the empty ones among the others, the last one emptied on
     * top. */
    uint32_t fresh, n_empty;
    uint32_t *empty;
    uint16_t *in_use; /* pages of each group */
    /* Groups with pages in use and idle ones, those first that became so first: a list through both arrays. */
    uint32_t *next, *prev, partly, partly_last; /* UINT32_MAX: none */
} clb_kv_pool;

#define CLB_KV_POOL_LISTS 6
/* What the lists of such a pool take, each. */
void clb_kv_pool_lists(const clb_kv_page_shape *shape, uint64_t max_bytes, uint64_t bytes[CLB_KV_POOL_LISTS]);

/* Rounds max_bytes down to whole pages; NOMEM if that is none or the address space is refused. */
int clb_kv_pool_open(clb_kv_pool *pool, const clb_kv_page_shape *shape, uint64_t max_bytes, clb_error *err);
void clb_kv_pool_close(clb_kv_pool *pool);

static inline uint32_t clb_kv_pool_available(const clb_kv_pool *pool)
{
    return pool->n_pages - pool->n_used - pool->n_reserved;
}

/* A page is known by the address of its first part, and by its number. */
static inline uint32_t clb_kv_pool_number(const clb_kv_pool *pool, const void *page)
{
    const uint64_t at = (uint64_t)((const uint8_t *)page - pool->base), group = pool->shape.run * pool->page_bytes;
    return (uint32_t)(at / group * pool->shape.run + at % group / pool->shape.first_bytes);
}

static inline void *clb_kv_pool_page(const clb_kv_pool *pool, uint32_t number)
{
    const uint32_t run = pool->shape.run;
    return pool->base + number / run * run * pool->page_bytes + number % run * pool->shape.first_bytes;
}

static inline void *clb_kv_pool_second(const clb_kv_pool *pool, uint32_t number)
{
    const uint32_t run = pool->shape.run;
    return pool->base + number / run * run * pool->page_bytes + run * pool->shape.first_bytes +
           number % run * pool->shape.second_bytes;
}

/* The second part of the page that begins there. */
static inline void *clb_kv_pool_second_of(const clb_kv_pool *pool, const void *page)
{
    return clb_kv_pool_second(pool, clb_kv_pool_number(pool, page));
}

/* Byte `at` of both parts one after the other, and how many follow it in the same part. */
void *clb_kv_pool_byte(const clb_kv_pool *pool, uint32_t number, uint64_t at, uint64_t *n);

static inline bool clb_kv_pool_shared(const clb_kv_pool *pool, const void *page)
{
    return pool->refs[clb_kv_pool_number(pool, page)] > 1;
}

/* With one holder, behind `after` if that is possible (NULL: anywhere). The caller has checked clb_kv_pool_available,
 * or has reserved it. Content is undefined. */
void *clb_kv_pool_take(clb_kv_pool *pool, const void *after);
/* One more holder. */
void clb_kv_pool_share(clb_kv_pool *pool, const void *page);
/* One holder less; the page of none is idle. */
void clb_kv_pool_give(clb_kv_pool *pool, const void *page);
/* Both parts of one page into another one. */
void clb_kv_pool_copy(const clb_kv_pool *pool, void *to, const void *from);
/* Call after giving many: hands idle memory back if there is much of it. */
void clb_kv_pool_trim(clb_kv_pool *pool);

#endif
