/* The page pool: equal pages in one reserved stretch of address space, with counted references.
 *
 * A page that more than one holder refers to must not be written (clb_kv_pool_shared). Memory is touched page by page and goes back to the system when more of it lies idle than is used.
 * [engine-thread] */
#ifndef CLB_KV_PAGES_H
#define CLB_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Idle memory below this much is kept for the next sequence. */
#define CLB_KV_IDLE_BYTES (8u << 20)

typedef struct clb_kv_pool {
    uint8_t *base;
    uint64_t page_bytes; /* a multiple of 64 */
    uint32_t n_pages;
    uint32_t n_used, peak;
    uint32_t n_reserved; /* of the unused ones: promised to somebody */
    uint32_t *refs;      /* [n_pages] holders of each page */
    uint32_t fresh; /* pages from here on were never handed out */
    /* [n_pages] numbers of idle pages: from the front those whose memory is still there (last in, first out), from the
     * back those given back to the system. */
    uint32_t *idle;
    uint32_t n_warm, n_cold;
} clb_kv_pool;

/* Rounds max_bytes down to whole pages; NOMEM if that is none or the address space is refused. */
int clb_kv_pool_open(clb_kv_pool *pool, uint64_t page_bytes, uint64_t max_bytes, clb_error *err);
void clb_kv_pool_close(clb_kv_pool *pool);

static inline uint32_t clb_kv_pool_available(const clb_kv_pool *pool)
{
    return pool->n_pages - pool->n_used - pool->n_reserved;
}

static inline uint32_t clb_kv_pool_number(const clb_kv_pool *pool, const void *page)
{
    return (uint32_t)((uint64_t)((const uint8_t *)page - pool->base) / pool->page_bytes);
}

static inline void *clb_kv_pool_page(const clb_kv_pool *pool, uint32_t number)
{
    return pool->base + number * pool->page_bytes;
}

static inline bool clb_kv_pool_shared(const clb_kv_pool *pool, const void *page)
{
    return pool->refs[clb_kv_pool_number(pool, page)] > 1;
}

/* With one holder. The caller has checked clb_kv_pool_available, or has reserved it. Content is undefined. */
void *clb_kv_pool_take(clb_kv_pool *pool);
/* One more holder. */
void clb_kv_pool_share(clb_kv_pool *pool, const void *page);
/* One holder less; the page of none is idle. */
void clb_kv_pool_give(clb_kv_pool *pool, const void *page);
/* Call after giving many: hands idle memory back if there is much of it. */
void clb_kv_pool_trim(clb_kv_pool *pool);

#endif
