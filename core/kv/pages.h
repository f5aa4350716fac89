/* The page pool: equal pages in one reserved stretch of address space.
 *
 * Memory is touched page by page and goes back to the system when more of it lies idle than is used.
 * [engine-thread] */
#ifndef CLB_KV_PAGES_H
#define CLB_KV_PAGES_H

#include <stdint.h>

#include "base/error.h"

/* Idle memory below this much is kept for the next sequence. */
#define CLB_KV_IDLE_BYTES (8u << 20)

typedef struct clb_kv_pool {
    uint8_t *base;
    uint64_t page_bytes; /* a multiple of 64 */
    uint32_t n_pages;
    uint32_t n_used, peak;
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
    return pool->n_pages - pool->n_used;
}

/* The caller has checked clb_kv_pool_available. Content is undefined. */
void *clb_kv_pool_take(clb_kv_pool *pool);
void clb_kv_pool_give(clb_kv_pool *pool, const void *page);
/* Call after giving many: hands idle memory back if there is much of it. */
void clb_kv_pool_trim(clb_kv_pool *pool);

#endif
