/* The page pool: every page once, idle memory goes back to the system, pages in use keep their bytes. */
#include "support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv/pages.h"

static uint32_t resident_system_pages(const clb_kv_pool *pool)
{
    const size_t grain = (size_t)sysconf(_SC_PAGESIZE);
    const size_t n = (size_t)(pool->n_pages * pool->page_bytes + grain - 1) / grain;
    unsigned char *in = malloc(n);
    uint32_t count = 0;
    assert_non_null(in);
    assert_int_equal(mincore(pool->base, (size_t)(pool->n_pages * pool->page_bytes), in), 0);
    for (size_t i = 0; i < n; i++)
        count += in[i] & 1;
    free(in);
    return count;
}

static void each_page_once(void **state)
{
    (void)state;
    clb_kv_pool pool;
    clb_error err;
    test_rand rng = {1};
    enum { N = 500 };
    uint8_t *held[N];
    uint32_t n_held = 0;
    assert_ok(clb_kv_pool_open(&pool, 192, N * 192 + 191, &err), &err);
    assert_int_equal(pool.n_pages, N);
    for (int round = 0; round < 20000; round++) {
        const bool take = n_held == 0 || (n_held < N && test_rand_below(&rng, 2));
        if (take) {
            uint8_t *page = clb_kv_pool_take(&pool);
            assert_true((size_t)(page - pool.base) % 192 == 0 && page < pool.base + N * 192);
            memset(page, (int)(n_held & 255), 192);
            memcpy(page, &page, sizeof(uint8_t *)); /* stays as long as nobody else gets this page */
            held[n_held++] = page;
        } else {
            const uint32_t i = test_rand_below(&rng, n_held);
            uint8_t *page = held[i], *inside;
            memcpy(&inside, page, sizeof(uint8_t *));
            assert_ptr_equal(inside, page);
            clb_kv_pool_give(&pool, page);
            held[i] = held[--n_held];
        }
        assert_int_equal(pool.n_used, n_held);
        assert_int_equal(clb_kv_pool_available(&pool), N - n_held);
    }
    clb_kv_pool_close(&pool);
}

/* The whole pool in use, then all but some pages given back, in a random order. */
static void memory_goes_back(void **state)
{
    (void)state;
    enum { PAGE = 6 * 1024, N = 4096 }; /* 24 MiB; one and a half pages of a 4 KiB system */
    clb_kv_pool pool;
    clb_error err;
    test_rand rng = {2};
    uint8_t **page = calloc(N, sizeof *page);
    assert_non_null(page);
    assert_ok(clb_kv_pool_open(&pool, PAGE, (uint64_t)N * PAGE, &err), &err);
    assert_int_equal(resident_system_pages(&pool), 0); /* reserved, not touched */
    for (uint32_t i = 0; i < N; i++)
        memset(page[i] = clb_kv_pool_take(&pool), (int)(i % 251), PAGE);
    const uint32_t all = resident_system_pages(&pool);
    for (uint32_t i = N - 1; i > 0; i--) {
        const uint32_t j = test_rand_below(&rng, i + 1);
        uint8_t *t = page[i];
        page[i] = page[j];
        page[j] = t;
    }
    for (uint32_t i = 0; i < N / 3; i++)
        clb_kv_pool_give(&pool, page[i]);
    clb_kv_pool_trim(&pool);
    assert_int_equal(resident_system_pages(&pool), all); /* less idle than used: kept for reuse */
    for (uint32_t i = N / 3; i < N - 100; i++)
        clb_kv_pool_give(&pool, page[i]);
    clb_kv_pool_trim(&pool);
    assert_true(resident_system_pages(&pool) <= 100u * 3); /* 100 pages in use touch at most 3 system pages each */
    for (uint32_t i = N - 100; i < N; i++)
        for (uint32_t b = 0; b < PAGE; b++)
            assert_int_equal(page[i][b], page[i][0]);
    for (uint32_t i = 0; i < N - 100; i++) /* everything can be had again */
        memset(page[i] = clb_kv_pool_take(&pool), 7, PAGE);
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
    assert_fails(clb_kv_pool_open(&pool, 4096, 4095, &err), &err, COLIBRI_E_NOMEM, "less than one page");
    assert_fails(clb_kv_pool_open(&pool, UINT64_C(1) << 40, UINT64_MAX, &err), &err, COLIBRI_E_NOMEM, "address space");
    clb_kv_pool_close(&pool); /* harmless after a failure */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_page_once),
        cmocka_unit_test(memory_goes_back),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
