/* Merging in the host: what a strategy wants added is added, to values alone, in every type, with and without F16
 * copies of the last rows; and the views that it decides by are those of the head in question. */
#include "support/kv_host.h"

static struct kvh h;
static double expected[KVH_LAYERS][KVH_KV_HEADS][KVH_MOST]
                      [KVH_DIM]; /* value of each position of the text, merged or not */
static uint64_t merges_asked, rows_changed;
static bool nowhere; /* every third dropped row goes nowhere */

static uint32_t mix(uint32_t a, uint32_t b)
{
    uint32_t x = (a * 0x9e3779b1u) ^ (b * 0x85ebca6bu);
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    return x ^ (x >> 13);
}

/* Each dropped row to some kept one, several to the same, before and behind it; weights of either sign. */
static int merge_somewhere(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into,
                           float *weight)
{
    (void)self;
    merges_asked++;
    for (uint32_t i = 0; i < view->n; i++) {
        assert_true(into[i] == UINT32_MAX && weight[i] == 0);
        if (keep[i]) { /* what is said of kept ones is not asked for */
            into[i] = view->n + 7;
            weight[i] = NAN;
            continue;
        }
        if (nowhere && i % 3 == 0) {
            weight[i] = NAN; /* nor this */
            continue;
        }
        uint32_t to = mix(view->positions[i], 1) % view->n;
        while (!keep[to])
            to = (to + 1) % view->n;
        into[i] = to;
        weight[i] = (float)(mix(view->positions[i], 2) % 64) / 128.0f - 0.125f;
        double *const x = expected[view->layer][view->kv_head][view->positions[to]];
        for (uint32_t d = 0; d < KVH_DIM; d++)
            x[d] += (double)weight[i] * expected[view->layer][view->kv_head][view->positions[i]][d];
        rows_changed++;
    }
    return COLIBRI_OK;
}

static void fresh_expectation(void)
{
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++)
            for (uint32_t p = 0; p < KVH_MOST; p++)
                for (uint32_t d = 0; d < KVH_DIM; d++)
                    expected[l][head][p][d] = (double)kvh_value(KVH_V, l, head, p, d);
    merges_asked = rows_changed = 0;
}

/* Largest deviation of the values that (layer, head) holds; keys must be what they were. */
static double worst_value(const clb_kv_seq *seq, double k_tolerance)
{
    double worst = 0;
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            const clb_kv_head *x = &seq->heads[l * KVH_KV_HEADS + head];
            for (uint32_t i = 0; i < x->n; i++) {
                float k[KVH_DIM], v[KVH_DIM];
                double want[KVH_DIM];
                clb_kv_read_v(seq->cache, x, i, v);
                clb_kv_read_rotated(seq, x, i, k);
                kvh_rotated(&h.layout, KVH_K, l, head, x->positions[i], clb_kv_seq_compact(seq) ? i : x->positions[i],
                            want);
                for (uint32_t d = 0; d < KVH_DIM; d++) {
                    kvh_near(k[d], want[d], k_tolerance);
                    worst = fmax(worst, fabs((double)v[d] - expected[l][head][x->positions[i]][d]));
                }
            }
        }
    return worst;
}

static void start(uint32_t k_type, uint32_t v_type)
{
    h.layout = kvh_layout(k_type, v_type);
    h.strategy = kvh_strategy();
    h.strategy.merge = merge_somewhere;
    nowhere = false;
    fresh_expectation();
}

static void values_get_what_was_asked(void **state)
{
    (void)state;
    const uint32_t types[] = {COLIBRI_TYPE_F32, COLIBRI_TYPE_F16};
    for (uint32_t round = 0; round < 8; round++) {
        start(types[round % 2], types[round / 2 % 2]);
        h.strategy.positions = round / 4 ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        nowhere = round % 2;
        kvh_open(&h, 30, 2);
        for (uint32_t k = 0; clb_kv_seq_position(h.seq) < 200; k++) {
            if (k % 4 == 2)
                kvh_aborted_pass(&h, 3);
            kvh_pass(&h, k % 3 ? 1 + k % 7 : 37, k % 3 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL, false);
            kvh_check_positions(&h);
            /* merged values grow to a few units: F16 is off by a thousandth of that per selection */
            const double worst = worst_value(h.seq, types[round % 2] == COLIBRI_TYPE_F32 ? 3e-6 : 1e-3);
            assert_true(worst < (h.layout.v_type == COLIBRI_TYPE_F32 ? 2e-5 : 2e-2));
        }
        assert_int_equal(h.n_faults, 0);
        assert_true(merges_asked >= 16 && rows_changed > 200);
        kvh_close(&h);
    }
}

/* A forked sequence's pages are shared: the other one must not see what is merged. */
static void others_see_nothing(void **state)
{
    (void)state;
    start(COLIBRI_TYPE_F16, COLIBRI_TYPE_F16);
    h.strategy.on_evict = NULL; /* whose selection it is cannot be told */
    kvh_open(&h, 40, 20);       /* the first page does not move, so only merging writes to it */
    clb_kv_seq *other;
    clb_error err;
    kvh_pass(&h, 40, COLIBRI_PHASE_PREFILL, false);
    assert_ok(clb_kv_seq_fork(h.seq, &other, &err), &err);
    kvh_pass(&h, 30, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(merges_asked, KVH_LAYERS * KVH_KV_HEADS);
    assert_true(worst_value(h.seq, 1e-3) < 1e-2);
    fresh_expectation();
    assert_true(worst_value(other, 1e-3) < 1e-3);
    clb_kv_seq_destroy(other);
    kvh_close(&h);
}

/* ---- the recent window ---------------------------------------------------------------------------------- */

static double copy_error(uint32_t layer, uint32_t head, uint32_t i)
{
    const clb_kv_head *x = &h.seq->heads[layer * KVH_KV_HEADS + head];
    float v[KVH_DIM];
    double worst = 0;
    clb_kv_read_recent_v(h.cache, x, i, v);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        worst = fmax(worst, fabs((double)v[d] - expected[layer][head][x->positions[i]][d]));
    return worst;
}

static double page_error(uint32_t layer, uint32_t head, uint32_t i)
{
    const clb_kv_head *x = &h.seq->heads[layer * KVH_KV_HEADS + head];
    float v[KVH_DIM];
    double worst = 0;
    clb_kv_read_v(h.cache, x, i, v);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        worst = fmax(worst, fabs((double)v[d] - expected[layer][head][x->positions[i]][d]));
    return worst;
}

/* Recent rows into recent ones, old rows into old ones: what a query reads unquantized must stay as exact. */
static uint32_t recent_from; /* position from which on rows are read from copies */

static int merge_among_equals(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into,
                              float *weight)
{
    (void)self;
    merges_asked++;
    for (uint32_t i = 0; i < view->n; i++) {
        uint32_t to = i;
        if (keep[i])
            continue;
        while (to < view->n && !keep[to])
            to++;
        assert_true(to < view->n);
        if ((view->positions[i] >= recent_from) != (view->positions[to] >= recent_from))
            continue;
        into[i] = to;
        weight[i] = 0.25f;
        double *const x = expected[view->layer][view->kv_head][view->positions[to]];
        for (uint32_t d = 0; d < KVH_DIM; d++)
            x[d] += 0.25 * expected[view->layer][view->kv_head][view->positions[i]][d];
        rows_changed += view->positions[i] >= recent_from;
    }
    return COLIBRI_OK;
}

static int every_other(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    (void)self;
    uint32_t n = 0;
    for (uint32_t i = view->n; i-- > 0 && n < view->n_keep;)
        if (i + 1 == view->n || view->positions[i] % 2) {
            keep[i] = 1;
            n++;
        }
    return COLIBRI_OK;
}

static void copies_of_recent_rows_stay_exact(void **state)
{
    (void)state;
    const uint32_t v_types[] = {COLIBRI_TYPE_Q4_0, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_F32, COLIBRI_TYPE_F16};
    for (uint32_t round = 0; round < 8; round++) {
        enum { RECENT = 32, N = 120 };
        start(COLIBRI_TYPE_Q8_0, v_types[round / 2]);
        h.layout.recent = RECENT;
        h.layout.turn_v = round % 2 && clb_kv_type_quantized(h.layout.v_type);
        h.strategy.select = every_other;
        h.strategy.merge = merge_among_equals;
        kvh_open(&h, 64, 0);
        recent_from = (N + 1 - RECENT) / 16 * 16; /* the next query is at N */
        kvh_pass(&h, N, COLIBRI_PHASE_PREFILL, false);
        assert_int_equal(merges_asked, KVH_LAYERS * KVH_KV_HEADS);
        assert_true(rows_changed >= merges_asked * (RECENT / 2 - 1));
        double in_copies = 0, in_pages = 0;
        for (uint32_t l = 0; l < KVH_LAYERS; l++)
            for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
                const clb_kv_head *x = &h.seq->heads[l * KVH_KV_HEADS + head];
                for (uint32_t i = 0; i < x->n; i++)
                    if (x->positions[i] >= recent_from)
                        in_copies = fmax(in_copies, copy_error(l, head, i));
                    else
                        in_pages = fmax(in_pages, page_error(l, head, i));
            }
        assert_true(in_copies < 1.5e-3); /* values below 2: one rounding to F16, or three with the turn */
        if (h.layout.v_type == COLIBRI_TYPE_Q4_0)
            assert_true(in_pages > 0.05); /* what copies would be if they came from the pages */
        if (h.layout.v_type == COLIBRI_TYPE_F32)
            assert_true(in_pages < 1e-6);
        /* a page of an F32 row has lost nothing to its copy */
        for (uint32_t i = 0; h.layout.v_type == COLIBRI_TYPE_F32 && i < h.seq->heads[0].n; i++)
            assert_true(page_error(0, 0, i) < 1e-6);
        assert_int_equal(h.n_faults, 0);
        kvh_pass(&h, 9, COLIBRI_PHASE_DECODE, false);
        kvh_close(&h);
    }
}

/* ---- views ----------------------------------------------------------------------------------------------- */

/* What `score` saw of each head, to compare with what `merge` sees of it. */
static struct {
    float prob_last[KVH_MOST], q_last[4 * KVH_GROUP * KVH_DIM], q_mean[KVH_GROUP * KVH_DIM];
    float q_cov[KVH_GROUP * KVH_DIM * KVH_DIM], sum[KVH_MOST];
    uint32_t n;
} scored[KVH_LAYERS][KVH_KV_HEADS];
static uint32_t n_keep_given[KVH_LAYERS][KVH_KV_HEADS];

static void note_view(void *self, const struct colibri_kv_view *view, float *out)
{
    const uint32_t l = view->layer, head = view->kv_head;
    assert_int_equal(view->n_last, 4);
    scored[l][head].n = view->n;
    memcpy(scored[l][head].prob_last, view->prob_last, view->n * sizeof(float));
    memcpy(scored[l][head].sum, view->prob_sum, view->n * sizeof(float));
    memcpy(scored[l][head].q_last, view->q_last, sizeof scored[l][head].q_last);
    memcpy(scored[l][head].q_mean, view->q_mean, sizeof scored[l][head].q_mean);
    memcpy(scored[l][head].q_cov, view->q_cov, sizeof scored[l][head].q_cov);
    kvh_score(self, view, out);
}

static int merge_by_the_same_view(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into,
                                  float *weight)
{
    const uint32_t l = view->layer, head = view->kv_head;
    uint32_t kept = 0;
    (void)self;
    (void)into;
    (void)weight;
    merges_asked++;
    assert_int_equal(view->n, scored[l][head].n);
    assert_memory_equal(view->prob_last, scored[l][head].prob_last, view->n * sizeof(float));
    assert_memory_equal(view->prob_sum, scored[l][head].sum, view->n * sizeof(float));
    assert_memory_equal(view->q_last, scored[l][head].q_last, sizeof scored[l][head].q_last);
    assert_memory_equal(view->q_mean, scored[l][head].q_mean, sizeof scored[l][head].q_mean);
    assert_memory_equal(view->q_cov, scored[l][head].q_cov, sizeof scored[l][head].q_cov);
    for (uint32_t i = 0; i < view->n; i++)
        kept += keep[i];
    assert_int_equal(kept, view->n_keep); /* how many this head may keep, not what the heads keep on average */
    assert_int_equal(kept, n_keep_given[l][head]);
    assert_true(view->n_protected == 3);
    float k[KVH_DIM], want[KVH_DIM], cs[KVH_ROT]; /* rows, too, are this head's */
    view->read_k(view, 5, k);
    clb_kv_angles(&h.layout, view->positions[5], cs);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        want[d] = kvh_value(KVH_K, l, head, view->positions[5], d);
    clb_kv_rotate(&h.layout, want, cs);
    assert_memory_equal(k, want, sizeof k);
    return COLIBRI_OK;
}

static int allot_unevenly(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                          const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    (void)self;
    (void)scores;
    assert_int_equal(n_heads, KVH_KV_HEADS);
    n_keep[0] = views[0].n_protected + 2 + layer;
    n_keep[1] = total - n_keep[0];
    memcpy(n_keep_given[layer], n_keep, sizeof n_keep_given[layer]);
    return COLIBRI_OK;
}

static void merging_sees_the_head_that_it_merges(void **state)
{
    (void)state;
    start(COLIBRI_TYPE_F32, COLIBRI_TYPE_F32);
    h.strategy.select = NULL;
    h.strategy.score = note_view;
    h.strategy.allot = allot_unevenly;
    h.strategy.merge = merge_by_the_same_view;
    h.strategy.window_w = 4;
    h.strategy.needs = COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_LAST_W | COLIBRI_KV_NEED_Q_LAST_W |
                       COLIBRI_KV_NEED_Q_STATS | COLIBRI_KV_NEED_K_POST_ROPE;
    kvh_open(&h, 20, 3);
    for (uint32_t k = 0; k < 5; k++)
        kvh_pass(&h, 45, COLIBRI_PHASE_PREFILL, true);
    assert_true(merges_asked >= 4 * KVH_LAYERS * KVH_KV_HEADS);
    assert_int_equal(h.n_faults, 0);
    kvh_check_positions(&h);
    kvh_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_get_what_was_asked),
        cmocka_unit_test(others_see_nothing),
        cmocka_unit_test(copies_of_recent_rows_stay_exact),
        cmocka_unit_test(merging_sees_the_head_that_it_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
