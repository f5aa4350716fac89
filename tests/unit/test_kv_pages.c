/* The page pool: every page once, idle memory goes back to the system, pages in use keep their bytes. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv/pages.h"

static uint32_t resident_system_pages(const clb_kv_pool *pool)
{
    const size_t grain = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)(pool->n_places * pool->page_bytes);
    const size_t n = (bytes + grain - 1) / grain;
    unsigned char *in = malloc(n);
    uint32_t count = 0;
    assert_non_null(in);
    assert_int_equal(mincore(pool->base, bytes, in), 0);
    for (size_t i = 0; i < n; i++)
        count += in[i] & 1;
    free(in);
    return count;
}

enum { N = 500 };

/* Both parts of a page say which it is, for as long as nobody else gets it. */
static void mark(const clb_kv_pool *pool, uint8_t *page, uint32_t mark)
{
    uint64_t n = 0;
    for (uint64_t at = 0; at < pool->page_bytes; at += n) {
        uint8_t *const p = clb_kv_pool_byte(pool, clb_kv_pool_number(pool, page), at, &n);
        memset(p, (int)(mark & 255), (size_t)n);
        memcpy(p, &mark, sizeof mark);
    }
}

static void check_mark(const clb_kv_pool *pool, const uint8_t *page, uint32_t mark)
{
    uint32_t inside;
    memcpy(&inside, page, sizeof inside);
    assert_int_equal(inside, mark);
    assert_int_equal(page[pool->shape.first_bytes - 1], mark & 255);
    if (!pool->shape.second_bytes)
        return;
    const uint8_t *const second = clb_kv_pool_second_of(pool, page);
    memcpy(&inside, second, sizeof inside);
    assert_int_equal(inside, mark);
    assert_int_equal(second[pool->shape.second_bytes - 1], mark & 255);
}

static void take_and_give(const clb_kv_page_shape *shape, int rounds)
{
    clb_kv_pool pool;
    clb_error err;
    test_rand rng = {1};
    const uint64_t page_bytes = shape->first_bytes + shape->second_bytes;
    const uint32_t grain = (uint32_t)sysconf(_SC_PAGESIZE);
    struct {
        uint8_t *page;
        uint32_t mark;
    } held[N];
    uint32_t n_held = 0, full = 0;
    assert_ok(clb_kv_pool_open(&pool, shape, (N + 1) * page_bytes - 1, &err), &err);
    assert_int_equal(pool.n_pages, N);
    for (int round = 0; round < rounds; round++) {
        const bool more = round / 1500 % 2 == 0; /* it fills up, and empties */
        const bool take = n_held == 0 || (n_held < N && test_rand_below(&rng, 8) < (more ? 6 : 2));
        if (take) {
            const void *const after =
                n_held && test_rand_below(&rng, 4) ? held[test_rand_below(&rng, n_held)].page : NULL;
            uint8_t *page = clb_kv_pool_take(&pool, after);
            assert_ptr_equal(clb_kv_pool_page(&pool, clb_kv_pool_number(&pool, page)), page);
            mark(&pool, page, (uint32_t)round);
            held[n_held].mark = (uint32_t)round;
            held[n_held++].page = page;
        } else {
            const uint32_t i = test_rand_below(&rng, n_held);
            check_mark(&pool, held[i].page, held[i].mark);
            clb_kv_pool_give(&pool, held[i].page);
            held[i] = held[--n_held];
        }
        full += n_held == N;
        assert_int_equal(pool.n_used, n_held);
        assert_int_equal(clb_kv_pool_available(&pool), N - n_held);
        if (page_bytes % grain == 0 && round % 100 == 0) /* whatever lies idle */
            assert_true(resident_system_pages(&pool) <= N * (page_bytes / grain));
        if (round % 1000 == 999)
            clb_kv_pool_trim(&pool);
    }
    assert_true(full > 100);
    for (uint32_t i = 0; i < n_held; i++)
        check_mark(&pool, held[i].page, held[i].mark);
    clb_kv_pool_close(&pool);
}

static void each_page_once(void **state)
{
    (void)state;
    take_and_give(&(clb_kv_page_shape){128, 64, 1}, 20000);
    take_and_give(&(clb_kv_page_shape){192, 0, 5}, 20000);
    take_and_give(&(clb_kv_page_shape){2048, 64, 16}, 20000);
    take_and_give(&(clb_kv_page_shape){4096, 4096, 16}, 20000);
    take_and_give(&(clb_kv_page_shape){8192, 4096, 3}, 20000);
}

/* Many heads that grow in turn: the pages of each follow each other, its first parts without gaps, and its second ones.
 */
static void growing_heads_have_stretches(void **state)
{
    (void)state;
    enum { HEADS = 24, PAGES = 32, RUN = 16 };
    const clb_kv_page_shape shape = {4096, 8192, RUN};
    clb_kv_pool pool;
    clb_error err;
    const uint8_t *head[HEADS][PAGES];
    assert_ok(clb_kv_pool_open(&pool, &shape, HEADS * PAGES * UINT64_C(12288), &err), &err);
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < PAGES; i++)
            for (uint32_t h = 0; h < HEADS; h++) {
                const uint8_t *const last = i ? head[h][i - 1] : NULL, *const page = clb_kv_pool_take(&pool, last);
                head[h][i] = page;
                if (i % RUN == 0)
                    continue;
                assert_ptr_equal(page, last + 4096);
                assert_ptr_equal(clb_kv_pool_second_of(&pool, page),
                                 (uint8_t *)clb_kv_pool_second_of(&pool, last) + 8192);
            }
        assert_int_equal(clb_kv_pool_available(&pool), 0);
        for (uint32_t h = 0; h < HEADS; h++) /* as sequences end */
            for (uint32_t i = PAGES; i-- > 0;)
                clb_kv_pool_give(&pool, head[h][i]);
    }
    clb_kv_pool_close(&pool);
}

/* Without empty groups the one is used that has been partly used for longest, from its end. */
static void old_groups_are_shared_first(void **state)
{
    (void)state;
    enum { PAGES = 16, RUN = 4 };
    clb_kv_pool pool;
    clb_error err;
    const void *page = NULL;
    assert_ok(clb_kv_pool_open(&pool, &(clb_kv_page_shape){4096, 4096, RUN}, PAGES * 8192, &err), &err);
    const uint32_t n_groups = pool.n_places / RUN; /* half as many where addresses are limited */
    for (uint32_t g = 0; g < n_groups; g++)
        page = clb_kv_pool_take(&pool, NULL);
    for (uint32_t i = 1; i < RUN; i++) {
        page = clb_kv_pool_take(&pool, page);
        assert_int_equal(clb_kv_pool_number(&pool, page), (n_groups - 1) * RUN + i);
    }
    static const uint32_t next[] = {3, 2, 1, 7, 6};
    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++) {
        page = clb_kv_pool_take(&pool, page);
        assert_int_equal(clb_kv_pool_number(&pool, page), next[i]);
    }
    clb_kv_pool_close(&pool);
}

static void a_page_copies_into_another(void **state)
{
    (void)state;
    clb_kv_pool pool;
    clb_error err;
    assert_ok(clb_kv_pool_open(&pool, &(clb_kv_page_shape){192, 64, 4}, 8 * 256, &err), &err);
    uint8_t *const a = clb_kv_pool_take(&pool, NULL), *const b = clb_kv_pool_take(&pool, a),
                   *const c = clb_kv_pool_take(&pool, NULL);
    mark(&pool, a, 7);
    mark(&pool, b, 8);
    clb_kv_pool_copy(&pool, c, b);
    check_mark(&pool, a, 7);
    check_mark(&pool, c, 8);
    clb_kv_pool_close(&pool);
}

/* The whole pool in use, then all but some pages given back, in a random order. */
static void memory_goes_back(void **state)
{
    (void)state;
    enum { PAGE = 6 * 1024, MANY = 4096 }; /* 24 MiB; one and a half pages of a 4 KiB system */
    clb_kv_pool pool;
    clb_error err;
    test_rand rng = {2};
    uint8_t **page = calloc(MANY, sizeof *page);
    assert_non_null(page);
    assert_ok(clb_kv_pool_open(&pool, &(clb_kv_page_shape){PAGE, 0, 1}, (uint64_t)MANY * PAGE, &err), &err);
    assert_int_equal(resident_system_pages(&pool), 0); /* reserved, not touched */
    for (uint32_t i = 0; i < MANY; i++)
        memset(page[i] = clb_kv_pool_take(&pool, NULL), (int)(i % 251), PAGE);
    const uint32_t all = resident_system_pages(&pool);
    for (uint32_t i = MANY - 1; i > 0; i--) {
        const uint32_t j = test_rand_below(&rng, i + 1);
        uint8_t *t = page[i];
        page[i] = page[j];
        page[j] = t;
    }
    for (uint32_t i = 0; i < MANY / 3; i++)
        clb_kv_pool_give(&pool, page[i]);
    clb_kv_pool_trim(&pool);
    assert_int_equal(resident_system_pages(&pool), all); /* less idle than used: kept for reuse */
    for (uint32_t i = MANY / 3; i < MANY - 100; i++)
        clb_kv_pool_give(&pool, page[i]);
    clb_kv_pool_trim(&pool);
    assert_true(resident_system_pages(&pool) <= 100u * 3); /* 100 pages in use touch at most 3 system pages each */
    for (uint32_t i = MANY - 100; i < MANY; i++)
        for (uint32_t b = 0; b < PAGE; b++)
            assert_int_equal(page[i][b], page[i][0]);
    for (uint32_t i = 0; i < MANY - 100; i++) /* everything can be had again */
        memset(page[i] = clb_kv_pool_take(&pool, NULL), 7, PAGE);
    assert_int_equal(clb_kv_pool_available(&pool), 0);
    assert_int_equal(resident_system_pages(&pool), all);
    clb_kv_pool_close(&pool);
    free(page);
}

static void refuses(void **state)
{
    (void)state;
    clb_kv_pool pool;
    clb_error err;
    assert_fails(clb_kv_pool_open(&pool, &(clb_kv_page_shape){4096, 0, 1}, 4095, &err), &err, COLIBRI_E_NOMEM,
                 "less than one page");
    assert_fails(clb_kv_pool_open(&pool, &(clb_kv_page_shape){UINT64_C(1) << 40, 0, 1}, UINT64_MAX, &err), &err,
                 COLIBRI_E_NOMEM, "address space");
    clb_kv_pool_close(&pool); /* harmless after a failure */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_page_once),
        cmocka_unit_test(growing_heads_have_stretches),
        cmocka_unit_test(old_groups_are_shared_first),
        cmocka_unit_test(a_page_copies_into_another),
        cmocka_unit_test(memory_goes_back),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
