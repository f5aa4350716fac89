#include "kv/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define NONE UINT32_MAX

/* ---- opening ------------------------------------------------------------------------------------------------ */

static uint32_t pages_for(const clb_kv_page_shape *s, uint64_t max_bytes)
{
    const uint64_t n = max_bytes / (s->first_bytes + s->second_bytes);
    return n < NONE / 4 ? (uint32_t)n : NONE / 4;
}

/* Where addresses count as memory, all of them are planned for something. */
static bool addresses_are_free(void)
{
    struct rlimit space, data;
    if (getrlimit(RLIMIT_AS, &space) || getrlimit(RLIMIT_DATA, &data) || space.rlim_cur != RLIM_INFINITY ||
        data.rlim_cur != RLIM_INFINITY)
        return false;
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");
    const int strict = f ? fgetc(f) : EOF; /* '2': they do */
    if (f)
        fclose(f);
    return strict != '2';
}

/* A part that is no whole number of the system's pages shares one with its neighbour, and its memory cannot go back
 * alone: then there are no places beyond the pages. */
static uint64_t places_for(const clb_kv_page_shape *s, uint64_t n_pages)
{
    const uint64_t grain = (uint64_t)sysconf(_SC_PAGESIZE), n = (n_pages + s->run - 1) / s->run * s->run;
    const bool alone = s->first_bytes % grain == 0 && s->second_bytes % grain == 0;
    return s->run > 1 && alone && addresses_are_free() ? 2 * n : n;
}

void clb_kv_pool_lists(const clb_kv_page_shape *shape, uint64_t max_bytes, uint64_t bytes[CLB_KV_POOL_LISTS])
{
    const clb_kv_pool *const pool = NULL;
    const uint64_t places = places_for(shape, pages_for(shape, max_bytes)), groups = places / shape->run;
    const uint64_t all[CLB_KV_POOL_LISTS] = {places * sizeof pool->refs[0],  places * sizeof pool->warm[0],
                                             groups * sizeof pool->empty[0], groups * sizeof pool->in_use[0],
                                             groups * sizeof pool->next[0],  groups * sizeof pool->prev[0]};
    memcpy(bytes, all, sizeof all);
}

static void *reserve(const clb_kv_pool *pool, uint64_t n_places)
{
    uint64_t bytes;
    if (n_places >= NONE || __builtin_mul_overflow(n_places, pool->page_bytes, &bytes) || bytes > SIZE_MAX / 2) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static bool make_tables(clb_kv_pool *pool)
{
    const size_t places = pool->n_places, groups = places / pool->shape.run;
    pool->refs = calloc(places, sizeof pool->refs[0]);
    pool->warm = calloc(places, sizeof pool->warm[0]);
    pool->empty = malloc(groups * sizeof pool->empty[0]);
    pool->in_use = calloc(groups, sizeof pool->in_use[0]);
    pool->next = malloc(groups * sizeof pool->next[0]);
    pool->prev = malloc(groups * sizeof pool->prev[0]);
    return pool->refs && pool->warm && pool->empty && pool->in_use && pool->next && pool->prev;
}

int clb_kv_pool_open(clb_kv_pool *pool, const clb_kv_page_shape *shape, uint64_t max_bytes, clb_error *err)
{
    char page[24], all[24];
    assert(shape->first_bytes && shape->run && shape->run <= UINT16_MAX);
    *pool = (clb_kv_pool){
        .shape = *shape, .page_bytes = shape->first_bytes + shape->second_bytes, .partly = NONE, .partly_last = NONE};
    pool->n_pages = pages_for(shape, max_bytes);
    if (!pool->n_pages)
        return clb_fail(err, COLIBRI_E_NOMEM, "the KV cache's share of memory, %s, is less than one page of %s",
                        clb_human_bytes(max_bytes, all), clb_human_bytes(pool->page_bytes, page));
    uint64_t places = places_for(shape, pool->n_pages);
    void *base = reserve(pool, places);
    if (base == MAP_FAILED && places > pool->n_pages) {
        places = ((uint64_t)pool->n_pages + shape->run - 1) / shape->run * shape->run;
        base = reserve(pool, places);
    }
    if (base == MAP_FAILED)
        return clb_fail_errno(err, COLIBRI_E_NOMEM, errno, "cannot reserve %s of address space for the KV cache",
                              clb_human_bytes(pool->n_pages * pool->page_bytes, all));
    pool->n_places = (uint32_t)places;
    pool->base = base;
    POISON(pool->base, (size_t)(places * pool->page_bytes));
    if (make_tables(pool))
        return COLIBRI_OK;
    clb_kv_pool_close(pool);
    return CLB_NOMEM(err, "list of KV pages");
}

void clb_kv_pool_close(clb_kv_pool *pool)
{
    if (!pool->base)
        return;
    UNPOISON(pool->base, (size_t)(pool->n_places * pool->page_bytes));
    munmap(pool->base, (size_t)(pool->n_places * pool->page_bytes));
    free(pool->refs);
    free(pool->warm);
    free(pool->empty);
    free(pool->in_use);
    free(pool->next);
    free(pool->prev);
    *pool = (clb_kv_pool){0};
}

/* ---- memory going back -------------------------------------------------------------------------------------- */

/* Neighbouring stretches become one call; the system's pages at the ends of a stretch may be shared with pages in use:
 * they stay. */
struct stretch {
    uint8_t *base;
    uint64_t from, to;
};

static void hand_back(const struct stretch *s)
{
    const uint64_t grain = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t from = (s->from + grain - 1) / grain * grain, to = s->to / grain * grain;
    if (from < to) /* failing costs memory, nothing else */
        (void)madvise(s->base + from, (size_t)(to - from), MADV_DONTNEED);
}

static void append(struct stretch *s, uint64_t from, uint64_t n)
{
    if (s->to != from) {
        hand_back(s);
        s->from = from;
    }
    s->to = from + n;
}

/* Warm pages of a group. */
static void cool_group(clb_kv_pool *pool, uint32_t group, struct stretch *s)
{
    const uint32_t run = pool->shape.run, first = group * run;
    for (uint32_t i = first; i < first + run; i++)
        if (pool->warm[i])
            append(s, (uint64_t)((uint8_t *)clb_kv_pool_page(pool, i) - pool->base), pool->shape.first_bytes);
    for (uint32_t i = first; i < first + run; i++)
        if (pool->warm[i])
            append(s, (uint64_t)((uint8_t *)clb_kv_pool_second(pool, i) - pool->base), pool->shape.second_bytes);
    for (uint32_t i = first; i < first + run; i++)
        if (pool->warm[i]) {
            pool->warm[i] = 0;
            pool->n_warm--;
        }
}

void clb_kv_pool_trim(clb_kv_pool *pool)
{
    if (pool->n_warm <= pool->n_used || pool->n_warm * pool->page_bytes < CLB_KV_IDLE_BYTES)
        return;
    struct stretch s = {.base = pool->base};
    for (uint32_t group = 0; group < pool->fresh && pool->n_warm; group++)
        cool_group(pool, group, &s);
    hand_back(&s);
}

/* The memory of some group's idle pages. */
static void cool_some(clb_kv_pool *pool)
{
    struct stretch s = {.base = pool->base};
    const size_t end = (size_t)pool->fresh * pool->shape.run;
    const uint8_t *at = pool->warm_at < end ? memchr(pool->warm + pool->warm_at, 1, end - pool->warm_at) : NULL;
    if (!at)
        at = memchr(pool->warm, 1, end);
    assert(at);
    const uint32_t group = (uint32_t)(at - pool->warm) / pool->shape.run;
    cool_group(pool, group, &s);
    hand_back(&s);
    pool->warm_at = (group + 1) * pool->shape.run;
}

/* ---- pages -------------------------------------------------------------------------------------------------- */

static void unlink_group(clb_kv_pool *pool, uint32_t g)
{
    *(pool->prev[g] == NONE ? &pool->partly : &pool->next[pool->prev[g]]) = pool->next[g];
    *(pool->next[g] == NONE ? &pool->partly_last : &pool->prev[pool->next[g]]) = pool->prev[g];
}

static void link_group(clb_kv_pool *pool, uint32_t g)
{
    pool->next[g] = NONE;
    pool->prev[g] = pool->partly_last;
    *(pool->partly_last == NONE ? &pool->partly : &pool->next[pool->partly_last]) = g;
    pool->partly_last = g;
}

/* One more of the group's pages is in use, or (-1) one less. The list of empty groups is for the caller. */
static void count_in(clb_kv_pool *pool, uint32_t g, int by)
{
    const uint32_t run = pool->shape.run, before = pool->in_use[g], after = before + (uint32_t)by;
    const bool was = before && before < run, is = after && after < run;
    pool->in_use[g] = (uint16_t)after;
    if (was && !is)
        unlink_group(pool, g);
    if (is && !was)
        link_group(pool, g);
}

/* The place of a new page. */
static uint32_t choose(clb_kv_pool *pool, const void *after)
{
    const uint32_t run = pool->shape.run;
    const uint32_t next = after ? clb_kv_pool_number(pool, after) + 1 : 0;
    if (next % run && !pool->refs[next])
        return next;
    if (pool->n_empty)
        return pool->empty[--pool->n_empty] * run;
    if (pool->fresh < pool->n_places / run)
        return pool->fresh++ * run;
    /* Somebody else's group, which has been there for longest and so hardly grows, from its end, which it would want
     * last. */
    assert(pool->partly != NONE);
    uint32_t i = pool->partly * run + run - 1;
    while (pool->refs[i])
        i--;
    return i;
}

static void set_access(const clb_kv_pool *pool, uint32_t number, bool may)
{
    void *const first = clb_kv_pool_page(pool, number), *const second = clb_kv_pool_second(pool, number);
    if (may) {
        UNPOISON(first, (size_t)pool->shape.first_bytes);
        UNPOISON(second, (size_t)pool->shape.second_bytes);
    } else {
        POISON(first, (size_t)pool->shape.first_bytes);
        POISON(second, (size_t)pool->shape.second_bytes);
    }
    (void)first;
    (void)second;
}

void *clb_kv_pool_take(clb_kv_pool *pool, const void *after)
{
    assert(pool->n_used < pool->n_pages);
    const uint32_t i = choose(pool, after);
    if (pool->warm[i]) {
        pool->warm[i] = 0;
        pool->n_warm--;
    } else if (pool->n_used + pool->n_warm >= pool->n_pages) {
        cool_some(pool);
    }
    count_in(pool, i / pool->shape.run, 1);
    pool->n_used++;
    if (pool->peak < pool->n_used)
        pool->peak = pool->n_used;
    assert(pool->refs[i] == 0);
    pool->refs[i] = 1;
    set_access(pool, i, true);
    return clb_kv_pool_page(pool, i);
}

/* The number of a page that is in use. */
static uint32_t used_page(const clb_kv_pool *pool, const void *page)
{
    const uint32_t i = clb_kv_pool_number(pool, page);
    assert(pool->n_used && i < pool->fresh * pool->shape.run && clb_kv_pool_page(pool, i) == page);
    assert(pool->refs[i] > 0);
    return i;
}

void clb_kv_pool_share(clb_kv_pool *pool, const void *page)
{
    pool->refs[used_page(pool, page)]++;
}

void clb_kv_pool_give(clb_kv_pool *pool, const void *page)
{
    const uint32_t i = used_page(pool, page), group = i / pool->shape.run;
    if (--pool->refs[i])
        return;
    set_access(pool, i, false);
    pool->warm[i] = 1;
    pool->n_warm++;
    pool->n_used--;
    count_in(pool, group, -1);
    if (!pool->in_use[group])
        pool->empty[pool->n_empty++] = group;
}

void clb_kv_pool_copy(const clb_kv_pool *pool, void *to, const void *from)
{
    memcpy(to, from, (size_t)pool->shape.first_bytes);
    memcpy(clb_kv_pool_second_of(pool, to), clb_kv_pool_second_of(pool, from), (size_t)pool->shape.second_bytes);
}

void *clb_kv_pool_byte(const clb_kv_pool *pool, uint32_t number, uint64_t at, uint64_t *n)
{
    const bool first = at < pool->shape.first_bytes;
    *n = (first ? pool->shape.first_bytes : pool->page_bytes) - at;
    return first ? (uint8_t *)clb_kv_pool_page(pool, number) + at
                 : (uint8_t *)clb_kv_pool_second(pool, number) + (at - pool->shape.first_bytes);
}
