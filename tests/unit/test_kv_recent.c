/* The recent window of a quantized cache against a plain record of what was written: which positions a row reads from
 * F16 copies, that these are the right ones, through passes of any size, aborts, cuts, evictions and resets; and its
 * memory. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "kv/internal.h"
#include "support/kv_rows.h"

enum { LAYERS = 2, KV_HEADS = 2, HEADS = 4, DIM = 32, CTX = 700, MOST_ROWS = 70 };

static clb_kv_layout layout_of(uint32_t page, uint32_t recent)
{
    return (clb_kv_layout){
        .n_layers = LAYERS,
        .n_heads = HEADS,
        .n_kv_heads = KV_HEADS,
        .k_dim = DIM,
        .v_dim = 2 * DIM,
        .k_type = COLIBRI_TYPE_Q8_0,
        .v_type = COLIBRI_TYPE_Q4_0,
        .page_tokens = page,
        .recent = recent,
    };
}

static uint32_t first_position(uint32_t position, uint32_t recent)
{
    return position + 1 < recent ? 0 : (position + 1 - recent) / 16 * 16;
}

static float copy_of(const void *const *pages, uint32_t page, uint32_t dim, uint32_t i, uint32_t d)
{
    return colibri_f16_f32(((const colibri_f16 *)pages[i / page])[i % page * dim + d]);
}

/* Row `row` of the open pass reads what it must. */
static void check_row(const clb_kv_seq *seq, const clb_kv_layout *l, uint32_t tag, uint32_t row)
{
    const uint32_t p = clb_kv_seq_position(seq) + row;
    static uint32_t positions[CTX + MOST_ROWS];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            const clb_kv_view v = clb_kv_view_of(seq, layer, head);
            const uint32_t n = clb_kv_seq_positions(seq, layer, head, positions, CTX);
            assert_int_equal(v.n_before, n);
            for (uint32_t i = 0; i <= row; i++)
                positions[n + i] = clb_kv_seq_position(seq) + i;
            const uint32_t begin = clb_kv_recent_begin(seq, layer, head, row);
            assert_true(v.k_recent && v.v_recent && v.recent_first <= begin);
            for (uint32_t i = 0; i < n + row + 1; i++) {
                if ((i >= begin) != (positions[i] >= first_position(p, l->recent)))
                    fail_msg("position %u: kept %u (position %u), copies from kept %u on", p, i, positions[i], begin);
                for (uint32_t d = 0; i >= begin && d < l->k_dim; d++)
                    assert_true(copy_of(v.k_recent, l->page_tokens, l->k_dim, i - v.recent_first, d) ==
                                kv_rows_value(tag, layer, head, positions[i], d, 0));
                for (uint32_t d = 0; i >= begin && d < l->v_dim; d++)
                    assert_true(copy_of(v.v_recent, l->page_tokens, l->v_dim, i - v.recent_first, d) ==
                                kv_rows_value(tag, layer, head, positions[i], d, 1));
            }
        }
    uint32_t first, end; /* the rows that may share a call */
    clb_kv_recent_rows(seq, row, &first, &end);
    assert_true(first <= row && row < end && end <= seq->pass_rows);
    const uint32_t at = clb_kv_seq_position(seq), b = first_position(p, l->recent);
    assert_int_equal(first_position(at + first, l->recent), b);
    assert_int_equal(first_position(at + end - 1, l->recent), b);
    assert_true(first == 0 || first_position(at + first - 1, l->recent) != b);
    assert_true(end == seq->pass_rows || first_position(at + end, l->recent) != b);
}

/* What is kept of more than the budget: some of the old ones by a hash, and the newest. */
static int choose(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    uint32_t left = view->n_keep;
    memset(keep, 0, view->n);
    for (uint32_t i = view->n; left && i-- > 0;)
        if (i + 1 == view->n || (view->positions[i] * 2654435761u >> 20) % 4 || i < left) {
            keep[i] = 1;
            left--;
        }
    return COLIBRI_OK;
}

static const struct colibri_kv_strategy evicting = {
    .struct_size = sizeof(struct colibri_kv_strategy),
    .name = "test-hash",
    .triggers = COLIBRI_KV_AT_OVER_BUDGET | COLIBRI_KV_AT_PREFILL_END,
    .flags = COLIBRI_KV_FLAG_PER_HEAD,
    .create = kv_rows_create,
    .destroy = free,
    .reset = kv_rows_reset,
    .select = choose,
};

struct setup {
    clb_kv_layout layout;
    clb_kv_cache *cache;
    clb_kv_seq *seq;
};

static struct setup start(uint32_t page, uint32_t recent, uint32_t budget)
{
    struct setup s = {.layout = layout_of(page, recent)};
    clb_error err;
    const struct colibri_kv_strategy *strategy = budget ? &evicting : &kv_rows_full;
    const clb_kv_traits traits = clb_kv_traits_of(strategy, NULL, CLB_KV_AS_DECLARED);
    const uint64_t most = clb_kv_most_positions(&s.layout, &traits, CTX, budget, MOST_ROWS);
    s.layout.recent_bytes = clb_kv_recent_bytes(&s.layout, most, MOST_ROWS);
    assert_int_equal(clb_kv_sequence_bytes(&s.layout, most, MOST_ROWS),
                     clb_kv_bytes(&s.layout, most) + s.layout.recent_bytes);
    assert_ok(clb_kv_cache_create(&s.layout, clb_kv_bytes(&s.layout, most), NULL, &s.cache, &err), &err);
    const clb_kv_seq_options o = {.strategy = strategy, .ctx = CTX, .budget = budget, .max_rows = MOST_ROWS};
    assert_ok(clb_kv_seq_create(s.cache, &o, &s.seq, &err), &err);
    return s;
}

static void stop(struct setup *s)
{
    clb_kv_seq_destroy(s->seq);
    assert_int_equal(clb_kv_cache_used_bytes(s->cache), 0);
    clb_kv_cache_destroy(s->cache);
}

static void pass(struct setup *s, uint32_t tag, uint32_t n, uint32_t keep, bool abort)
{
    clb_error err;
    assert_ok(clb_kv_begin(s->seq, n, &err), &err);
    kv_rows_write(s->seq, &s->layout, abort ? tag + 1 : tag, n);
    for (uint32_t row = 0; !abort && row < n; row += 1 + row % 5)
        check_row(s->seq, &s->layout, tag, row);
    if (abort)
        clb_kv_abort(s->seq);
    else
        clb_kv_end(s->seq, keep, n == 1 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL, n % 3 == 0);
    clb_kv_stats st;
    clb_kv_seq_stats(s->seq, &st);
    assert_int_equal(st.bytes, clb_kv_cache_used_bytes(s->cache));
}

/* The pool holds exactly what a plan reserves, so a window that leaks or grows fails in clb_kv_begin. */
static void random_passes(void **state)
{
    (void)state;
    static const struct {
        uint32_t page, recent, budget;
    } cases[] = {{16, 16, 0},   {16, 64, 0},  {32, 64, 0},    {64, 48, 0},
                 {32, 64, 100}, {16, 32, 40}, {64, 128, 150}, {32, 512, 90}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct setup s = start(cases[c].page, cases[c].recent, cases[c].budget);
            test_rand rng = {seed * 77 + c};
            while (clb_kv_seq_position(s.seq) + MOST_ROWS < (cases[c].budget ? 2 * CTX : CTX)) {
                const uint32_t kind = test_rand_below(&rng, 10), all = 1 + test_rand_below(&rng, MOST_ROWS);
                const uint32_t n = kind < 4 ? 1 : all;
                pass(&s, 3, n, kind == 5 ? n - test_rand_below(&rng, n) : n, kind == 6);
                const uint32_t cut = clb_kv_seq_position(s.seq) - 1;
                if (kind == 7 && !cases[c].budget && cut) {
                    clb_error err;
                    assert_ok(clb_kv_seq_truncate(s.seq, cut - test_rand_below(&rng, cut < 10 ? cut : 10), &err), &err);
                }
                if (kind == 8 && test_rand_below(&rng, 20) == 0)
                    clb_kv_seq_reset(s.seq);
            }
            clb_kv_stats st;
            clb_kv_seq_stats(s.seq, &st);
            assert_true(cases[c].budget ? st.evicted_sum > 0 : st.evicted_sum == 0);
            assert_int_equal(st.bad_answers, 0);
            stop(&s);
        }
}

static void cuts_that_lose_the_window(void **state)
{
    (void)state;
    struct setup s = start(32, 64, 0);
    clb_error err;
    for (int i = 0; i < 6; i++)
        pass(&s, 1, 60, 60, false);
    assert_fails(clb_kv_seq_truncate(s.seq, 100, &err), &err, COLIBRI_E_UNSUPPORTED, "--kv-recent 0");
    assert_int_equal(clb_kv_seq_position(s.seq), 360); /* nothing happened */
    pass(&s, 1, 1, 1, false);
    assert_ok(clb_kv_seq_truncate(s.seq, 345, &err), &err); /* 16 positions are always spare */
    pass(&s, 1, 60, 60, false);
    assert_ok(clb_kv_seq_truncate(s.seq, 0, &err), &err);
    assert_int_equal(clb_kv_cache_used_bytes(s.cache), 0);
    pass(&s, 1, 60, 60, false);
    stop(&s);
    s = start(32, 0, 0); /* without a window any cut will do */
    assert_int_equal(clb_kv_sequence_bytes(&s.layout, CTX, 8), clb_kv_bytes(&s.layout, CTX));
    assert_ok(clb_kv_begin(s.seq, 60, &err), &err);
    kv_rows_write(s.seq, &s.layout, 1, 60);
    assert_null(clb_kv_view_of(s.seq, 0, 0).k_recent);
    clb_kv_end(s.seq, 60, COLIBRI_PHASE_PREFILL, true);
    assert_ok(clb_kv_seq_truncate(s.seq, 3, &err), &err);
    stop(&s);
}

/* Rows read back: the quantized ones through the turn, near what was written. */
static void rows_read_back(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        clb_kv_layout l = layout_of(16, 32);
        clb_kv_cache *cache;
        clb_kv_seq *seq;
        clb_error err;
        l.turn_k = l.turn_v = turn;
        assert_ok(clb_kv_cache_create(&l, 1 << 22, NULL, &cache, &err), &err);
        const clb_kv_seq_options o = {.strategy = &kv_rows_full, .ctx = CTX};
        assert_ok(clb_kv_seq_create(cache, &o, &seq, &err), &err);
        assert_ok(clb_kv_begin(seq, 50, &err), &err);
        kv_rows_write(seq, &l, 4, 50);
        clb_kv_end(seq, 50, COLIBRI_PHASE_PREFILL, true);
        double k_error = 0, v_error = 0, k_power = 0, v_power = 0;
        for (uint32_t i = 0; i < 50; i++) {
            float k[DIM], v[2 * DIM];
            clb_kv_read_k(cache, &seq->heads[1], i, k);
            clb_kv_read_v(cache, &seq->heads[1], i, v);
            for (uint32_t d = 0; d < 2 * DIM; d++) {
                const double x = (double)kv_rows_value(4, 0, 1, i, d, 1), y = (double)v[d];
                v_error += (x - y) * (x - y);
                v_power += x * x;
            }
            for (uint32_t d = 0; d < DIM; d++) {
                const double x = (double)kv_rows_value(4, 0, 1, i, d, 0), y = (double)k[d];
                k_error += (x - y) * (x - y);
                k_power += x * x;
            }
        }
        assert_true(k_error / k_power < 5e-5 && v_error / v_power < 1e-2);
        assert_true(k_error > 0 && v_error > 0);
        clb_kv_seq_destroy(seq);
        clb_kv_cache_destroy(cache);
    }
}

static void layouts_that_do_not_go(void **state)
{
    (void)state;
    clb_kv_cache *cache;
    clb_error err;
    clb_kv_layout l = layout_of(32, 64);
    l.k_dim = 48;
    assert_fails(clb_kv_cache_create(&l, 1 << 20, NULL, &cache, &err), &err, COLIBRI_E_UNSUPPORTED, "--kv-type-k q8_0");
    l = layout_of(32, 24);
    assert_fails(clb_kv_cache_create(&l, 1 << 20, NULL, &cache, &err), &err, COLIBRI_E_USAGE, "multiple of 16");
    l = layout_of(32, 64);
    assert_int_equal(clb_kv_row_bytes(COLIBRI_TYPE_Q8_0, 64), 68);
    assert_int_equal(clb_kv_row_bytes(COLIBRI_TYPE_Q4_0, 64), 36);
    assert_int_equal(clb_kv_position_bytes(&l), 34 + 36);
    l.k_type = l.v_type = COLIBRI_TYPE_F16; /* nothing to spare */
    assert_false(clb_kv_has_recent(&l));
    assert_int_equal(clb_kv_recent_bytes(&l, 1000, 10), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_passes),
        cmocka_unit_test(cuts_that_lose_the_window),
        cmocka_unit_test(rows_read_back),
        cmocka_unit_test(layouts_that_do_not_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
