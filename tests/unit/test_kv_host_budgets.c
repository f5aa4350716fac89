/* Budgets in the host of KV strategies: `budget` per (layer, head) and its sum, `allot` across the heads of a layer,
 * and what becomes of budgets that are too small, too large, or not what was agreed. */
#include "support/kv_host.h"

enum { B = 24, PROTECTED = 3 };

static struct kvh h;
static uint32_t asked;

static void start(uint32_t budget, uint32_t n_protected)
{
    h.layout = kvh_layout(COLIBRI_TYPE_F16, COLIBRI_TYPE_F16);
    asked = 0;
    kvh_open(&h, budget, n_protected);
}

/* The n_keep best of a head, by a plain search: the newest and the protected ones, then by liking, of equals the later.
 */
static void best_of(const struct kvh_head *x, uint32_t layer, uint32_t head, uint32_t n_protected, uint32_t n_keep,
                    uint8_t *keep)
{
    struct colibri_kv_view view = {.layer = layer,
                                   .kv_head = head,
                                   .n = x->n,
                                   .positions = x->position,
                                   .n_keep = n_keep < x->n ? n_keep : x->n,
                                   .n_protected = n_protected};
    memset(keep, 0, x->n);
    kvh_select(NULL, &view, keep);
}

/* ---- allot ------------------------------------------------------------------------------------------------ */

static uint32_t wanted[KVH_LAYERS][KVH_KV_HEADS]; /* what allot gives */
static uint32_t total_seen[KVH_LAYERS];
static uint32_t chosen[KVH_LAYERS][KVH_KV_HEADS][KVH_MOST], n_chosen[KVH_LAYERS][KVH_KV_HEADS];
static enum allot_how { ALLOT, ALLOT_ERROR, ALLOT_TOO_MUCH, ALLOT_TOO_LITTLE, ALLOT_NOTHING, ALLOT_HUGE } allot_how;

static int allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                 const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    static uint8_t keep[KVH_MOST];
    (void)self;
    asked++;
    assert_int_equal(n_heads, KVH_KV_HEADS);
    total_seen[layer] = total;
    uint32_t n = 0;
    for (uint32_t head = 0; head < n_heads; head++) {
        const struct kvh_head *x = &h.head[layer][head];
        assert_int_equal(views[head].layer, layer);
        assert_int_equal(views[head].kv_head, head);
        assert_int_equal(views[head].n, x->n);
        assert_int_equal(views[head].n_protected, PROTECTED);
        assert_int_equal(n_keep[head], 0);
        assert_memory_equal(views[head].positions, x->position, x->n * sizeof(uint32_t));
        for (uint32_t i = 0; i < x->n; i++)
            assert_true(scores[head][i] == kvh_liking(&views[head], i));
        n_keep[head] = wanted[layer][head];
        n += n_keep[head];
    }
    switch (allot_how) {
    case ALLOT_ERROR:
        return COLIBRI_E_INTERNAL;
    case ALLOT_TOO_MUCH:
        n_keep[0] += total - n + 1;
        break;
    case ALLOT_TOO_LITTLE:
        n_keep[1] = PROTECTED;
        break;
    case ALLOT_NOTHING:
        n_keep[0] = 0;
        break;
    case ALLOT_HUGE: /* sums that wrap around are not small */
        n_keep[0] = UINT32_MAX;
        n_keep[1] = PROTECTED + 1;
        break;
    default:
        break;
    }
    for (uint32_t head = 0; head < n_heads; head++) {
        const struct kvh_head *x = &h.head[layer][head];
        best_of(x, layer, head, PROTECTED, wanted[layer][head], keep);
        n_chosen[layer][head] = 0;
        for (uint32_t i = 0; i < x->n; i++)
            if (keep[i])
                chosen[layer][head][n_chosen[layer][head]++] = x->position[i];
    }
    return COLIBRI_OK;
}

static void allotting_strategy(void)
{
    h.strategy = kvh_strategy();
    h.strategy.select = NULL;
    h.strategy.score = kvh_score;
    h.strategy.allot = allot;
    allot_how = ALLOT;
}

static void check_chosen(uint32_t layer, uint32_t head)
{
    const struct kvh_head *x = &h.head[layer][head];
    assert_int_equal(x->n, n_chosen[layer][head]);
    assert_memory_equal(x->position, chosen[layer][head], x->n * sizeof x->position[0]);
}

static void heads_share_what_a_layer_has(void **state)
{
    (void)state;
    const uint32_t cases[][2] = {
        {B, B},                                 /* evenly */
        {PROTECTED + 1, 2 * B - PROTECTED - 1}, /* the least for one, all the rest for the other */
        {2 * B - PROTECTED - 1, PROTECTED + 1},
        {10, 20}, /* less than there is */
        {2 * B - 7, 7},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        allotting_strategy();
        start(B, PROTECTED);
        memcpy(wanted[0], cases[c], sizeof wanted[0]);
        memcpy(wanted[1], cases[c], sizeof wanted[1]);
        kvh_pass(&h, 60, COLIBRI_PHASE_PREFILL, false);
        assert_int_equal(asked, KVH_LAYERS);
        for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
            assert_int_equal(total_seen[layer], 2 * B);
            for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
                assert_int_equal(h.head[layer][head].n, wanted[layer][head]);
                check_chosen(layer, head);
            }
        }
        /* the heads overflow together: one alone may grow past its share */
        for (uint32_t k = 0; k < 80; k++) {
            const uint32_t before = asked;
            const uint32_t n = h.head[0][0].n + h.head[0][1].n, rows = 1 + k % 3;
            kvh_pass(&h, rows, COLIBRI_PHASE_DECODE, false);
            assert_int_equal(asked != before, n > 2 * B && n + rows * KVH_KV_HEADS > 2 * (B + KVH_PAGE));
        }
        kvh_check_positions(&h);
        assert_int_equal(h.n_faults, 0);
        kvh_close(&h);
    }
}

/* More than a head has is no more than what it has: the rest may go to others. */
static void more_than_a_head_has(void **state)
{
    (void)state;
    allotting_strategy();
    start(B, PROTECTED);
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
        wanted[layer][0] = PROTECTED + 1;
        wanted[layer][1] = 2 * B - PROTECTED - 1;
    }
    kvh_pass(&h, 60, COLIBRI_PHASE_PREFILL, false); /* 4 and 44 */
    kvh_pass(&h, 6, COLIBRI_PHASE_DECODE, false);   /* 10 and 50 */
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
        wanted[layer][0] = 1000; /* of 11 */
        wanted[layer][1] = 2 * B - 11;
    }
    kvh_pass(&h, 1, COLIBRI_PHASE_PREFILL, false);
    for (uint32_t layer = 0; layer < KVH_LAYERS; layer++) {
        assert_int_equal(h.head[layer][0].n, 11);
        assert_int_equal(h.head[layer][1].n, 2 * B - 11);
        check_chosen(layer, 0);
        check_chosen(layer, 1);
    }
    assert_int_equal(h.n_faults, 0);
    kvh_close(&h);
}

static void ends_stay(uint32_t layer, uint32_t head, uint32_t budget, uint32_t n_protected)
{
    const struct kvh_head *x = &h.head[layer][head];
    const uint32_t first = n_protected > 4 ? n_protected : 4;
    assert_int_equal(x->n, budget);
    for (uint32_t i = 0; i < budget; i++)
        assert_int_equal(x->position[i], i < first ? i : clb_kv_seq_position(h.seq) - budget + i);
}

static void bad_allotments(void **state)
{
    (void)state;
    for (int how = ALLOT_ERROR; how <= ALLOT_HUGE; how++) {
        allotting_strategy();
        start(B, PROTECTED);
        for (uint32_t layer = 0; layer < KVH_LAYERS; layer++)
            wanted[layer][0] = wanted[layer][1] = B;
        allot_how = (enum allot_how)how;
        kvh_pass(&h, 60, COLIBRI_PHASE_PREFILL, false);
        assert_int_equal(h.n_faults, 1);
        if (!strstr(h.fault, "allot"))
            fail_msg("way %d reported as: %s", how, h.fault);
        clb_kv_stats st;
        clb_kv_seq_stats(h.seq, &st);
        assert_int_equal(st.bad_answers, KVH_LAYERS); /* one answer per layer */
        for (uint32_t layer = 0; layer < KVH_LAYERS; layer++)
            for (uint32_t head = 0; head < KVH_KV_HEADS; head++)
                ends_stay(layer, head, B, PROTECTED);
        kvh_check_positions(&h);
        kvh_close(&h);
    }
}

/* ---- budget ----------------------------------------------------------------------------------------------- */

static uint32_t (*budget_fn)(uint32_t layer, uint32_t head);

static uint32_t budget_of(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    if (h.seq) { /* else asked how much memory there must be */
        assert_true(n_seen == clb_kv_seq_position(h.seq));
        asked++;
    }
    return budget_fn(layer, kv_head);
}

static uint32_t sum_fits(uint32_t layer, uint32_t head)
{
    return layer == 0 ? (head ? 40u : 8u) : (head ? 20u : 28u); /* 96 = 4 * 24 */
}

static uint32_t one_too_many(uint32_t layer, uint32_t head)
{
    return sum_fits(layer, head) + (layer == 1 && head == 0);
}

static uint32_t nothing(uint32_t layer, uint32_t head)
{
    (void)layer;
    (void)head;
    return 0;
}

static uint32_t endless(uint32_t layer, uint32_t head)
{
    return UINT32_MAX - 3 * layer - head;
}

static uint32_t all_to_one(uint32_t layer, uint32_t head)
{
    return layer == 1 && head == 1 ? 1000000 : 0;
}

/* What is kept of a layer and head, at most: naive, in double. */
static void budgets_and_their_sum(void **state)
{
    (void)state;
    const struct {
        uint32_t (*fn)(uint32_t, uint32_t);
        const char *name;
    } cases[] = {{sum_fits, "fits"},
                 {one_too_many, "one too many"},
                 {nothing, "nothing"},
                 {endless, "endless"},
                 {all_to_one, "all to one"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (uint32_t per_head = 0; per_head < 2; per_head++) {
            const uint32_t least = PROTECTED + 1, all = KVH_LAYERS * KVH_KV_HEADS;
            uint32_t want[KVH_LAYERS][KVH_KV_HEADS], most = 0;
            double sum = 0;
            h.strategy = kvh_strategy();
            h.strategy.flags = per_head ? COLIBRI_KV_FLAG_PER_HEAD : 0;
            h.strategy.budget = budget_of;
            budget_fn = cases[c].fn;
            start(B, PROTECTED);
            kvh_pass(&h, 100, COLIBRI_PHASE_PREFILL, false);
            for (uint32_t l = 0; l < KVH_LAYERS; l++)
                for (uint32_t k = 0; k < KVH_KV_HEADS; k++) { /* one answer: that of head 0 */
                    const uint32_t b = cases[c].fn(l, per_head ? k : 0);
                    want[l][k] = b > least ? b : least;
                    sum += want[l][k];
                }
            uint64_t kept = 0;
            for (uint32_t l = 0; l < KVH_LAYERS; l++)
                for (uint32_t k = 0; k < KVH_KV_HEADS; k++) {
                    /* too much in all: everybody's part beyond the least shrinks alike, rounded down */
                    const double fair = sum <= all * B ? want[l][k]
                                                       : least + (want[l][k] - (double)least) *
                                                                     ((double)all * (B - least)) / (sum - all * least);
                    const uint32_t n = h.head[l][k].n;
                    if (!(n <= fair + 1e-6 && n + 1 > fair - 1e-6))
                        fail_msg("%s: layer %u head %u keeps %u of %g", cases[c].name, l, k, n, fair);
                    assert_true(n >= least);
                    kept += n;
                    most = n > most ? n : most;
                }
            assert_true(kept <= all * B);
            assert_true(c == 2 ||
                        kept + all >= (uint64_t)(sum < all * B ? sum : all * B)); /* little is lost to rounding */
            assert_int_equal(h.n_faults, 0);
            kvh_check_positions(&h);
            kvh_close(&h);
        }
}

/* Before there are as many tokens as are protected, there is less to keep. */
static void few_tokens(void **state)
{
    (void)state;
    h.strategy = kvh_strategy();
    h.strategy.budget = budget_of;
    budget_fn = nothing;
    start(B, 10);
    for (uint32_t n = 1; n <= 30; n++) {
        kvh_pass(&h, 1, COLIBRI_PHASE_PREFILL, false);
        for (uint32_t l = 0; l < KVH_LAYERS; l++)
            for (uint32_t k = 0; k < KVH_KV_HEADS; k++) {
                const struct kvh_head *x = &h.head[l][k];
                assert_int_equal(x->n, n < 11 ? n : 11);
                for (uint32_t i = 0; i + 1 < x->n; i++)
                    assert_int_equal(x->position[i], i);
                assert_int_equal(x->position[x->n - 1], n - 1);
            }
    }
    assert_int_equal(h.n_faults, 0);
    kvh_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_share_what_a_layer_has),
        cmocka_unit_test(more_than_a_head_has),
        cmocka_unit_test(bad_allotments),
        cmocka_unit_test(budgets_and_their_sum),
        cmocka_unit_test(few_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
