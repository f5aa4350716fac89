#include "kv/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"

/* A page that nobody owns must not be touched: let AddressSanitizer say so. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CLB_KV_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(CLB_KV_ASAN)
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

int clb_kv_pool_open(clb_kv_pool *pool, uint64_t page_bytes, uint64_t max_bytes, clb_error *err)
{
    char page[24], all[24];
    *pool = (clb_kv_pool){.page_bytes = page_bytes};
    const uint64_t n = max_bytes / page_bytes;
    if (n == 0)
        return clb_fail(err, COLIBRI_E_NOMEM, "the KV cache's share of memory, %s, is less than one page of %s",
                        clb_human_bytes(max_bytes, all), clb_human_bytes(page_bytes, page));
    pool->n_pages = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    const uint64_t bytes = pool->n_pages * page_bytes;
    void *base = bytes > SIZE_MAX ? MAP_FAILED
                                  : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return clb_fail_errno(err, COLIBRI_E_NOMEM, bytes > SIZE_MAX ? ENOMEM : errno,
                              "cannot reserve %s of address space for the KV cache", clb_human_bytes(bytes, all));
    pool->idle = malloc((size_t)pool->n_pages * sizeof pool->idle[0]);
    pool->refs = calloc(pool->n_pages, sizeof pool->refs[0]);
    if (!pool->idle || !pool->refs) {
        free(pool->idle);
        free(pool->refs);
        *pool = (clb_kv_pool){0};
        munmap(base, (size_t)bytes);
        return CLB_NOMEM(err, "list of KV pages");
    }
    pool->base = base;
    POISON(pool->base, (size_t)bytes);
    return COLIBRI_OK;
}

void clb_kv_pool_close(clb_kv_pool *pool)
{
    if (!pool->base)
        return;
    UNPOISON(pool->base, (size_t)(pool->n_pages * pool->page_bytes));
    munmap(pool->base, (size_t)(pool->n_pages * pool->page_bytes));
    free(pool->idle);
    free(pool->refs);
    *pool = (clb_kv_pool){0};
}

void *clb_kv_pool_take(clb_kv_pool *pool)
{
    uint32_t i;
    assert(pool->n_used < pool->n_pages);
    if (pool->n_warm)
        i = pool->idle[--pool->n_warm];
    else if (pool->n_cold)
        i = pool->idle[pool->n_pages - pool->n_cold--];
    else
        i = pool->fresh++;
    pool->n_used++;
    if (pool->peak < pool->n_used)
        pool->peak = pool->n_used;
    assert(pool->refs[i] == 0);
    pool->refs[i] = 1;
    uint8_t *page = pool->base + i * pool->page_bytes;
    UNPOISON(page, (size_t)pool->page_bytes);
    return page;
}

/* The number of a page that is in use. */
static uint32_t used_page(const clb_kv_pool *pool, const void *page)
{
    const uint64_t at = (uint64_t)((const uint8_t *)page - pool->base);
    assert(pool->n_used && at % pool->page_bytes == 0 && at / pool->page_bytes < pool->fresh);
    assert(pool->refs[at / pool->page_bytes] > 0);
    return (uint32_t)(at / pool->page_bytes);
}

void clb_kv_pool_share(clb_kv_pool *pool, const void *page)
{
    pool->refs[used_page(pool, page)]++;
}

void clb_kv_pool_give(clb_kv_pool *pool, const void *page)
{
    const uint32_t i = used_page(pool, page);
    if (--pool->refs[i])
        return;
    POISON(page, (size_t)pool->page_bytes);
    pool->idle[pool->n_warm++] = i;
    pool->n_used--;
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void clb_kv_pool_trim(clb_kv_pool *pool)
{
    const uint32_t n = pool->n_warm;
    if (n <= pool->n_used || n * pool->page_bytes < CLB_KV_IDLE_BYTES)
        return;
    /* One call per run of neighbours; the system's pages at a run's ends may be shared with pages in use: they stay. */
    const uint64_t grain = (uint64_t)sysconf(_SC_PAGESIZE);
    qsort(pool->idle, n, sizeof pool->idle[0], ascending);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && pool->idle[end] == pool->idle[end - 1] + 1;)
            end++;
        const uint64_t from = (pool->idle[i] * pool->page_bytes + grain - 1) / grain * grain;
        const uint64_t to = (pool->idle[end - 1] + UINT64_C(1)) * pool->page_bytes / grain * grain;
        if (from < to) /* failing costs memory, nothing else */
            (void)madvise(pool->base + from, (size_t)(to - from), MADV_DONTNEED);
    }
    memmove(pool->idle + (pool->n_pages - pool->n_cold - n), pool->idle, n * sizeof pool->idle[0]);
    pool->n_cold += n;
    pool->n_warm = 0;
}
