/* The KV cache with a strategy that keeps all: sizes, rows, limits, abort, truncation, several sequences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"
#include "support/kv_rows.h"

enum { LAYERS = 3, KV_HEADS = 2, HEADS = 4, K_DIM = 24, V_DIM = 40, PAGE = 16 };

static const clb_kv_layout f16_layout = {LAYERS, HEADS, KV_HEADS, K_DIM, V_DIM, COLIBRI_TYPE_F16, COLIBRI_TYPE_F16, PAGE, .ops = NULL};

static clb_kv_cache *open_cache(const clb_kv_layout *layout, uint64_t n_pages)
{
    clb_kv_cache *cache;
    clb_error err;
    assert_int_equal(clb_kv_cache_create(layout, n_pages * clb_kv_page_bytes(layout) + 63, NULL, &cache, &err),
                     COLIBRI_OK);
    return cache;
}

static clb_kv_seq *open_seq(clb_kv_cache *cache, uint32_t ctx)
{
    const clb_kv_seq_options o = {.strategy = &kv_rows_full, .ctx = ctx};
    clb_kv_seq *seq;
    clb_error err;
    assert_int_equal(clb_kv_seq_create(cache, &o, &seq, &err), COLIBRI_OK);
    return seq;
}

static void pass(clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag, uint32_t n)
{
    clb_error err;
    assert_int_equal(clb_kv_begin(seq, n, &err), COLIBRI_OK);
    kv_rows_write(seq, l, tag, n);
    clb_kv_end(seq, n, COLIBRI_PHASE_PREFILL, true);
}

static void sizes(void **state)
{
    (void)state;
    clb_kv_layout l = f16_layout;
    assert_int_equal(clb_kv_page_bytes(&l), PAGE * (K_DIM + V_DIM) * 2);
    assert_int_equal(clb_kv_bytes(&l, 0), 0);
    assert_int_equal(clb_kv_bytes(&l, 1), LAYERS * KV_HEADS * clb_kv_page_bytes(&l));
    assert_int_equal(clb_kv_bytes(&l, PAGE), LAYERS * KV_HEADS * clb_kv_page_bytes(&l));
    assert_int_equal(clb_kv_bytes(&l, PAGE + 1), 2 * LAYERS * KV_HEADS * clb_kv_page_bytes(&l));
    assert_true(clb_kv_bytes(&l, UINT64_MAX) == UINT64_MAX);
    l.k_type = l.v_type = COLIBRI_TYPE_F32;
    assert_int_equal(clb_kv_page_bytes(&l), PAGE * (K_DIM + V_DIM) * 4);
    l.k_dim = 1; /* both halves of a page start on a line of 64 bytes */
    assert_int_equal(clb_kv_page_bytes(&l), 64 + PAGE * V_DIM * 4);
}

static void refuses_bad_layouts(void **state)
{
    (void)state;
    clb_kv_cache *cache;
    clb_error err;
    const clb_kv_layout good = f16_layout;
    clb_kv_layout l = good;
#define REFUSED(field, bad, code)                                                     \
    l = good;                                                                         \
    l.field = bad;                                                                    \
    assert_int_equal(clb_kv_cache_create(&l, UINT64_C(1) << 30, NULL, &cache, &err), code); \
    assert_null(cache)
    REFUSED(k_type, COLIBRI_TYPE_Q5_0, COLIBRI_E_UNSUPPORTED);
    REFUSED(page_tokens, 0, COLIBRI_E_USAGE);
    REFUSED(page_tokens, 24, COLIBRI_E_USAGE);
    REFUSED(page_tokens, 1u << 20, COLIBRI_E_USAGE);
    REFUSED(n_layers, 0, COLIBRI_E_UNSUPPORTED);
    REFUSED(n_kv_heads, 0, COLIBRI_E_UNSUPPORTED);
    REFUSED(n_heads, 3, COLIBRI_E_UNSUPPORTED);
    REFUSED(n_layers, UINT32_MAX, COLIBRI_E_UNSUPPORTED);
    REFUSED(k_dim, 0, COLIBRI_E_UNSUPPORTED);
    REFUSED(v_dim, UINT32_MAX, COLIBRI_E_UNSUPPORTED);
#undef REFUSED
    assert_int_equal(clb_kv_cache_create(&good, clb_kv_page_bytes(&good) - 1, NULL, &cache, &err), COLIBRI_E_NOMEM);
}

/* Every row reads back, in both types, through the optional converter too, in whatever passes it was written. */
static size_t converted;
static void convert(const float *x, colibri_f16 *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = colibri_f32_f16(x[i]);
    converted += n;
}
static const struct colibri_vecops convert_ops = {.struct_size = sizeof convert_ops, .f32_to_f16 = convert};

static void rows_read_back(void **state)
{
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        clb_kv_layout l = f16_layout;
        l.k_type = l.v_type = variant == 1 ? COLIBRI_TYPE_F32 : COLIBRI_TYPE_F16;
        l.ops = variant == 2 ? &convert_ops : NULL;
        clb_kv_cache *cache = open_cache(&l, 100);
        clb_kv_seq *seq = open_seq(cache, 1000);
        const uint32_t chunks[] = {1, 15, 16, 1, 40, 7};
        uint32_t n = 0;
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            clb_error err;
            assert_int_equal(clb_kv_begin(seq, chunks[c], &err), COLIBRI_OK);
            kv_rows_write(seq, &l, 7, chunks[c]);
            for (uint32_t layer = 0; layer < LAYERS; layer++) /* the pass itself sees its rows */
                for (uint32_t h = 0; h < KV_HEADS; h++) {
                    const clb_kv_view v = clb_kv_view_of(seq, layer, h);
                    assert_int_equal(v.n_before, n);
                    for (uint32_t i = 0; i < n + chunks[c]; i++)
                        kv_rows_check(&v, &l, 7, layer, h, i, i);
                }
            clb_kv_end(seq, chunks[c], COLIBRI_PHASE_DECODE, false);
            n += chunks[c];
            assert_int_equal(clb_kv_seq_position(seq), n);
            assert_int_equal(clb_kv_cache_used_bytes(cache), clb_kv_bytes(&l, n));
        }
        if (variant == 2)
            assert_int_equal(converted, (size_t)n * LAYERS * KV_HEADS * (K_DIM + V_DIM));
        clb_kv_stats st;
        clb_kv_seq_stats(seq, &st);
        assert_int_equal(st.seen, n);
        assert_int_equal(st.kept_min, n);
        assert_int_equal(st.kept_max, n);
        assert_int_equal(st.kept_sum, (uint64_t)n * LAYERS * KV_HEADS);
        assert_int_equal(st.bytes, clb_kv_bytes(&l, n));
        assert_int_equal(st.evicted_sum + st.selections + st.bad_answers, 0);
        uint32_t some[4];
        assert_int_equal(clb_kv_seq_positions(seq, 1, 1, some, 4), n);
        assert_int_equal(some[3], 3);
        clb_kv_seq_destroy(seq);
        assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
        assert_int_equal(clb_kv_cache_peak_bytes(cache), clb_kv_bytes(&l, n));
        clb_kv_cache_destroy(cache);
    }
}

static void context_limit(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&f16_layout, 100);
    clb_kv_seq *seq = open_seq(cache, 50);
    clb_error err;
    pass(seq, &f16_layout, 1, 50);
    assert_int_equal(clb_kv_begin(seq, 1, &err), COLIBRI_E_LIMIT);
    assert_non_null(strstr(err.msg, "50"));
    assert_int_equal(clb_kv_begin(seq, UINT32_MAX, &err), COLIBRI_E_LIMIT);
    assert_int_equal(clb_kv_begin(seq, 0, &err), COLIBRI_E_INTERNAL);
    assert_int_equal(clb_kv_seq_position(seq), 50);
    clb_kv_seq_reset(seq);
    pass(seq, &f16_layout, 1, 50);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

/* Two sequences share a pool that holds three "page rows": a pass that does not fit takes nothing. */
static void pool_exhaustion(void **state)
{
    (void)state;
    const uint64_t row = LAYERS * KV_HEADS;
    clb_kv_cache *cache = open_cache(&f16_layout, 3 * row + 1);
    clb_kv_seq *a = open_seq(cache, 1000), *b = open_seq(cache, 1000);
    clb_error err;
    pass(a, &f16_layout, 1, PAGE + 1);
    assert_int_equal(clb_kv_begin(b, PAGE + 1, &err), COLIBRI_E_NOMEM);
    assert_non_null(strstr(err.msg, "need 12 pages"));
    assert_non_null(strstr(err.msg, "7 of its 19 pages"));
    assert_int_equal(clb_kv_cache_used_bytes(cache), clb_kv_bytes(&f16_layout, PAGE + 1));
    pass(b, &f16_layout, 2, PAGE);
    assert_int_equal(clb_kv_begin(b, 1, &err), COLIBRI_E_NOMEM);
    assert_int_equal(clb_kv_seq_position(b), PAGE);
    clb_kv_seq_destroy(a);
    pass(b, &f16_layout, 2, PAGE + 1); /* what a held is free again */
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        const clb_kv_view v = clb_kv_view_of(b, 1, h);
        for (uint32_t i = 0; i < 2 * PAGE + 1; i++)
            kv_rows_check(&v, &f16_layout, 2, 1, h, i, i);
    }
    clb_kv_seq_destroy(b);
    clb_kv_cache_destroy(cache);
}

static void abort_leaves_no_trace(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&f16_layout, 100);
    clb_kv_seq *seq = open_seq(cache, 1000);
    clb_error err;
    pass(seq, &f16_layout, 1, 10);
    const uint64_t used = clb_kv_cache_used_bytes(cache);
    assert_int_equal(clb_kv_begin(seq, 100, &err), COLIBRI_OK);
    kv_rows_write(seq, &f16_layout, 99, 100);
    assert_int_equal(clb_kv_begin(seq, 1, &err), COLIBRI_E_INTERNAL); /* one pass at a time */
    assert_int_equal(clb_kv_seq_truncate(seq, 5, &err), COLIBRI_E_INTERNAL);
    clb_kv_abort(seq);
    assert_int_equal(clb_kv_seq_position(seq), 10);
    assert_int_equal(clb_kv_cache_used_bytes(cache), used);
    pass(seq, &f16_layout, 1, 30);
    const clb_kv_view v = clb_kv_view_of(seq, 2, 1);
    for (uint32_t i = 0; i < 40; i++)
        kv_rows_check(&v, &f16_layout, 1, 2, 1, i, i);
    /* a verified draft of which only the first rows stay */
    assert_int_equal(clb_kv_begin(seq, 30, &err), COLIBRI_OK);
    kv_rows_write(seq, &f16_layout, 1, 30);
    clb_kv_end(seq, 3, COLIBRI_PHASE_VERIFY, false);
    assert_int_equal(clb_kv_seq_position(seq), 43);
    assert_int_equal(clb_kv_cache_used_bytes(cache), clb_kv_bytes(&f16_layout, 43));
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

static void truncation(void **state)
{
    (void)state;
    clb_kv_cache *cache = open_cache(&f16_layout, 100);
    clb_kv_seq *seq = open_seq(cache, 1000);
    clb_error err;
    pass(seq, &f16_layout, 1, 60);
    assert_int_equal(clb_kv_seq_truncate(seq, 61, &err), COLIBRI_E_USAGE);
    assert_int_equal(clb_kv_seq_truncate(seq, 33, &err), COLIBRI_OK);
    assert_int_equal(clb_kv_seq_position(seq), 33);
    assert_int_equal(clb_kv_cache_used_bytes(cache), clb_kv_bytes(&f16_layout, 33));
    assert_int_equal(clb_kv_begin(seq, 20, &err), COLIBRI_OK);
    kv_rows_write(seq, &f16_layout, 5, 20); /* another continuation */
    clb_kv_end(seq, 20, COLIBRI_PHASE_PREFILL, true);
    const clb_kv_view v = clb_kv_view_of(seq, 0, 1);
    for (uint32_t i = 0; i < 53; i++)
        kv_rows_check(&v, &f16_layout, i < 33 ? 1 : 5, 0, 1, i, i);
    assert_int_equal(clb_kv_seq_truncate(seq, 0, &err), COLIBRI_OK);
    assert_int_equal(clb_kv_cache_used_bytes(cache), 0);
    clb_kv_seq_destroy(seq);
    clb_kv_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(refuses_bad_layouts),
        cmocka_unit_test(rows_read_back),
        cmocka_unit_test(context_limit),
        cmocka_unit_test(pool_exhaustion),
        cmocka_unit_test(abort_leaves_no_trace),
        cmocka_unit_test(truncation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
