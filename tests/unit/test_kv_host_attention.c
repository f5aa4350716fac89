/* What the host of KV strategies tells about attention and queries: sums and maxima so far, what the last queries give
 * to what is kept now, the queries themselves, their mean and covariance; against naive sums in double precision. */
#include "support/kv_host.h"

enum { WINDOW = 5 };

static struct kvh h;
static uint64_t views_seen, n_last_seen[WINDOW + 1];
static uint32_t first_known; /* position of the oldest query that the host can know */

#define ALL_OF_IT                                                                                                      \
    (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX | COLIBRI_KV_NEED_PROB_LAST_W | COLIBRI_KV_NEED_Q_LAST_W | \
     COLIBRI_KV_NEED_Q_STATS)

static bool per_head(void)
{
    return h.strategy.flags & COLIBRI_KV_FLAG_PER_HEAD;
}

/* Query heads that a view speaks of. */
static uint32_t heads_of(const struct colibri_kv_view *view, uint32_t *first)
{
    *first = per_head() ? view->kv_head * KVH_GROUP : 0;
    return per_head() ? KVH_GROUP : KVH_HEADS;
}

static void check_sums(const struct colibri_kv_view *view)
{
    for (uint32_t i = 0; i < view->n; i++) {
        double sum = 0, max = 0;
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++)
            if (head == view->kv_head || !per_head()) {
                sum += h.head[view->layer][head].sum[i];
                max = fmax(max, h.head[view->layer][head].max[i]);
            }
        kvh_near(view->prob_sum[i], sum, 2e-6 * (1 + sum));
        kvh_near(view->prob_max[i], max, 2e-6);
    }
}

static void check_last(const struct colibri_kv_view *view)
{
    static double sum[KVH_MOST], p[KVH_MOST];
    uint32_t first;
    const uint32_t n_heads = heads_of(view, &first), next = (uint32_t)view->next_position;
    assert_int_equal(view->n_heads, n_heads);
    memset(sum, 0, sizeof sum);
    for (uint32_t q = next - view->n_last; q < next; q++) {
        uint32_t seen = 0; /* of what is kept now */
        while (seen < view->n && view->positions[seen] <= q)
            seen++;
        for (uint32_t g = 0; seen && g < n_heads; g++) {
            kvh_probs(&h, view->layer, first + g, q, kvh_compact(&h) ? seen - 1 : q, seen, p);
            for (uint32_t i = 0; i < seen; i++)
                sum[i] += p[i];
        }
    }
    for (uint32_t i = 0; i < view->n; i++)
        kvh_near(view->prob_last[i], sum[i], 2e-6 * (1 + sum[i]));
}

static void check_queries(const struct colibri_kv_view *view)
{
    uint32_t first;
    const uint32_t n_heads = heads_of(view, &first), n = view->n_last, from = (uint32_t)view->next_position - n;
    for (uint32_t g = 0; g < n_heads; g++) {
        double mean[KVH_DIM] = {0};
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t d = 0; d < KVH_DIM; d++) {
                const float x = kvh_value(KVH_Q, view->layer, first + g, from + r, d);
                assert_true(view->q_last[(r * n_heads + g) * KVH_DIM + d] == x);
                mean[d] += (double)x / n;
            }
        for (uint32_t a = 0; a < KVH_DIM; a++) {
            kvh_near(view->q_mean[g * KVH_DIM + a], mean[a], 1e-6);
            for (uint32_t b = 0; b < KVH_DIM; b++) {
                double cov = 0;
                for (uint32_t r = 0; r < n; r++)
                    cov += ((double)kvh_value(KVH_Q, view->layer, first + g, from + r, a) - mean[a]) *
                           ((double)kvh_value(KVH_Q, view->layer, first + g, from + r, b) - mean[b]) / n;
                kvh_near(view->q_cov[(g * KVH_DIM + a) * KVH_DIM + b], cov, 2e-6);
            }
        }
    }
}

static int look(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    const uint32_t next = (uint32_t)view->next_position;
    const uint32_t oldest = next > WINDOW && next - WINDOW > first_known ? next - WINDOW : first_known;
    assert_int_equal(view->n_last, next - oldest);
    assert_true(view->prob_sum && view->prob_max && view->prob_last && view->q_last && view->q_mean && view->q_cov);
    check_sums(view);
    check_last(view);
    check_queries(view);
    views_seen++;
    n_last_seen[view->n_last]++;
    return kvh_select(self, view, keep);
}

static void start(uint32_t round, uint32_t budget)
{
    h.layout = kvh_layout(COLIBRI_TYPE_F32, COLIBRI_TYPE_F32);
    h.layout.rope_neox = round / 4 % 2;
    h.strategy = kvh_strategy();
    h.strategy.flags = round % 2 ? COLIBRI_KV_FLAG_PER_HEAD : 0;
    h.strategy.positions = round / 2 % 2 ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
    h.strategy.select = look;
    h.strategy.needs = ALL_OF_IT;
    h.strategy.window_w = WINDOW;
    views_seen = 0;
    first_known = 0;
    memset(n_last_seen, 0, sizeof n_last_seen);
    kvh_open(&h, budget, 2);
}

static void stop(void)
{
    kvh_check_positions(&h);
    assert_int_equal(h.n_faults, 0);
    kvh_close(&h);
}

static void attention_so_far_and_of_the_last(void **state)
{
    (void)state;
    const uint32_t rows[] = {13, 1, 22, 3, 7, 1, 2};
    for (uint32_t round = 0; round < 8; round++) {
        start(round, 18);
        for (uint32_t k = 0; clb_kv_seq_position(h.seq) < 150; k++)
            kvh_pass(&h, rows[k % 7], k % 3 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL, true);
        assert_true(views_seen >= 8 && n_last_seen[WINDOW] == views_seen);
        stop();
    }
}

/* Rows that are taken back, passes that are aborted, a text shorter than the window: whatever the ring may have lost of
 * the window counts as unknown, and comes again. */
static void queries_that_are_lost(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 4; round++) {
        start(round, 3); /* small enough for a selection after the fourth token */
        kvh_pass(&h, 4, COLIBRI_PHASE_PREFILL, true);
        assert_int_equal(n_last_seen[4], views_seen);
        kvh_pass(&h, 20, COLIBRI_PHASE_PREFILL, true);
        const uint64_t full = n_last_seen[WINDOW];
        assert_true(full > 0);
        kvh_aborted_pass(&h, 3); /* as if at 24 .. 26: of 19 .. 23 the ring has 22 and 23 left */
        first_known = 22;
        kvh_pass(&h, 1, COLIBRI_PHASE_PREFILL, true);
        assert_true(n_last_seen[3] > 0);
        kvh_pass(&h, 2, COLIBRI_PHASE_PREFILL, true);
        assert_true(n_last_seen[WINDOW] > full);
        first_known = 31; /* rows 27 .. 35, of which 27 .. 30 stay: the ring has 31 .. 35 */
        kvh_pass_of(&h, 9, 4, COLIBRI_PHASE_PREFILL, true);
        assert_true(n_last_seen[0] > 0);
        kvh_pass(&h, 2, COLIBRI_PHASE_PREFILL, true);
        assert_true(n_last_seen[2] > 0);
        kvh_pass(&h, 30, COLIBRI_PHASE_PREFILL, true);
        stop();
    }
}

/* As long as nothing was dropped and the window reaches back to the beginning, both are the same thing. */
static int compare_both(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    assert_int_equal(view->n_last, view->n);
    for (uint32_t i = 0; i < view->n; i++)
        kvh_near(view->prob_last[i], view->prob_sum[i], 4e-6 * (double)view->prob_sum[i]);
    views_seen++;
    return kvh_select(self, view, keep);
}

static void last_of_everything_is_the_sum(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 4; round++) {
        h.layout = kvh_layout(COLIBRI_TYPE_F16, COLIBRI_TYPE_F16);
        h.strategy = kvh_strategy();
        h.strategy.flags = round % 2 ? COLIBRI_KV_FLAG_PER_HEAD : 0;
        h.strategy.positions = round / 2 ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        h.strategy.triggers = COLIBRI_KV_AT_OVER_BUDGET;
        h.strategy.needs = COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_LAST_W;
        h.strategy.window_w = 100;
        h.strategy.select = compare_both;
        views_seen = 0;
        kvh_open(&h, 50, 0);
        kvh_pass(&h, 30, COLIBRI_PHASE_PREFILL, true);
        kvh_pass(&h, 36, COLIBRI_PHASE_PREFILL, true);
        kvh_pass(&h, 1, COLIBRI_PHASE_DECODE, true);
        assert_true(views_seen == (round % 2 ? KVH_LAYERS * KVH_KV_HEADS : KVH_LAYERS));
        stop();
    }
}

/* A strategy is shown what it asked for, and nothing else. */
static uint32_t needs_now;

static int only_what_was_asked(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    assert_int_equal(!!view->prob_sum, !!(needs_now & COLIBRI_KV_NEED_PROB_COLSUM));
    assert_int_equal(!!view->prob_max, !!(needs_now & COLIBRI_KV_NEED_PROB_MAX));
    assert_int_equal(!!view->prob_last, !!(needs_now & COLIBRI_KV_NEED_PROB_LAST_W));
    assert_int_equal(!!view->q_last, !!(needs_now & COLIBRI_KV_NEED_Q_LAST_W));
    assert_int_equal(!!view->q_mean, !!(needs_now & COLIBRI_KV_NEED_Q_STATS));
    assert_int_equal(!!view->q_cov, !!(needs_now & COLIBRI_KV_NEED_Q_STATS));
    assert_int_equal(!!view->read_k, !!(needs_now & COLIBRI_KV_NEED_K_POST_ROPE));
    assert_int_equal(!!view->read_k_pre, !!(needs_now & COLIBRI_KV_NEED_K_PRE_ROPE));
    assert_int_equal(!!view->read_v, !!(needs_now & COLIBRI_KV_NEED_V));
    assert_null(view->prob_future);
    views_seen++;
    return kvh_select(self, view, keep);
}

static void nothing_but_what_was_asked(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 512; round++) {
        needs_now = round % 256; /* the first eight bits */
        h.layout = kvh_layout(COLIBRI_TYPE_F16, COLIBRI_TYPE_F16);
        h.strategy = kvh_strategy();
        h.strategy.needs = needs_now;
        h.strategy.window_w = WINDOW;
        h.strategy.positions = round / 256 ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        h.strategy.select = only_what_was_asked;
        views_seen = 0;
        kvh_open(&h, 10, 0);
        kvh_pass(&h, 20, COLIBRI_PHASE_PREFILL, false);
        assert_int_equal(views_seen, KVH_LAYERS * KVH_KV_HEADS);
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_so_far_and_of_the_last),
        cmocka_unit_test(queries_that_are_lost),
        cmocka_unit_test(last_of_everything_is_the_sum),
        cmocka_unit_test(nothing_but_what_was_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
