/* Every way to answer badly that the interface of KV strategies names: it is told once, the ends stay instead, after
 * eight of them or a decision of more than two seconds nobody is asked again, and the sequence goes on. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "support/kv_host.h"

enum { BUDGET = 32, PROTECTED = 6 };

static struct kvh h;

/* The clock that the host looks at runs ahead by as much as the strategy says it took. */
static uint64_t late_ns;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const long rc = syscall(SYS_clock_gettime, clock, t);
    const uint64_t ns = (uint64_t)t->tv_nsec + late_ns;
    t->tv_sec += (time_t)(ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
    return (int)rc;
}

enum where { SELECT, SCORE, ALLOT, MERGE, BUDGET_CALL, APPEND, EVICT };
enum what {
    GOOD,
    ERROR,
    NONE,
    TOO_MANY,
    FEWER, /* is allowed */
    FLAG,
    BEYOND,
    WEIGHT_BEYOND,
    NEWEST_DROPPED,
    PROTECTED_DROPPED,
    IS_NAN,
    NOT_WRITTEN,
    INFINITE, /* as a score: allowed, as a weight: not */
    INTO_DROPPED,
    INTO_ITSELF,
    INTO_NOTHING,
    OVERFLOWS,
    HUGE_VALUE,
    CHANGING,
    ALMOST_SLOW,
    SLOW
};

static enum where lie_where;
static enum what lie_what;
static int asked[7];

static bool lies(enum where where, enum what what)
{
    return lie_where == where && lie_what == what;
}

static void called(enum where where)
{
    asked[where]++;
    if (lies(where, SLOW))
        late_ns += CLB_KV_CALL_MOST_NS + 1000000;
    if (lies(where, ALMOST_SLOW))
        late_ns += CLB_KV_CALL_MOST_NS - 500000000;
}

static int lying_select(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    called(SELECT);
    assert_int_equal(view->n_protected, PROTECTED);
    kvh_select(self, view, keep);
    if (lie_where != SELECT)
        return COLIBRI_OK;
    switch (lie_what) {
    case ERROR:
        return COLIBRI_E_INTERNAL;
    case NONE:
        memset(keep, 0, view->n);
        break;
    case TOO_MANY:
        for (uint32_t i = 0; i < view->n; i++)
            if (!keep[i]) {
                keep[i] = 1;
                break;
            }
        break;
    case FEWER:
        memset(keep + PROTECTED, 0, view->n - 1 - PROTECTED);
        break;
    case FLAG:
        keep[view->n - 1] = 0xff;
        break;
    case BEYOND:
        keep[view->n] = 0;
        break;
    case NEWEST_DROPPED:
        keep[view->n - 1] = 0;
        break;
    case PROTECTED_DROPPED:
        keep[PROTECTED - 1] = 0;
        break;
    default:
        break;
    }
    return COLIBRI_OK;
}

static void lying_score(void *self, const struct colibri_kv_view *view, float *out)
{
    called(SCORE);
    if (!lies(SCORE, NOT_WRITTEN))
        kvh_score(self, view, out);
    if (lies(SCORE, IS_NAN))
        out[view->n - 1] = NAN;
    if (lies(SCORE, BEYOND))
        out[view->n] = 1.0f;
    if (lies(SCORE, INFINITE))
        for (uint32_t i = 0; i < view->n; i++)
            out[i] = i % 2 ? INFINITY : -INFINITY;
}

static int lying_allot(void *self, uint32_t layer, uint32_t n_heads, const struct colibri_kv_view *views,
                       const float *const *scores, uint32_t total, uint32_t *n_keep)
{
    (void)self;
    (void)layer;
    (void)scores;
    (void)views;
    called(ALLOT);
    for (uint32_t i = 0; i < n_heads; i++)
        n_keep[i] = total / n_heads;
    if (lies(ALLOT, TOO_MANY))
        n_keep[0]++;
    if (lies(ALLOT, NONE))
        n_keep[1] = 0;
    if (lies(ALLOT, PROTECTED_DROPPED))
        n_keep[1] = PROTECTED;
    if (lies(ALLOT, FEWER))
        n_keep[0] = PROTECTED + 1;
    if (lies(ALLOT, BEYOND))
        n_keep[n_heads] = 0;
    return lies(ALLOT, ERROR) ? COLIBRI_E_INTERNAL : COLIBRI_OK;
}

static int lying_merge(void *self, const struct colibri_kv_view *view, const uint8_t *keep, uint32_t *into,
                       float *weight)
{
    (void)self;
    called(MERGE);
    for (uint32_t i = 0; i < view->n; i++)
        if (!keep[i]) {
            into[i] = view->n - 1;
            weight[i] = 0.125f;
        }
    uint32_t dropped = 0;
    while (keep[dropped])
        dropped++;
    uint32_t next = dropped + 1;
    while (keep[next])
        next++;
    if (lie_where != MERGE)
        return COLIBRI_OK;
    switch (lie_what) {
    case ERROR:
        return COLIBRI_E_INTERNAL;
    case IS_NAN:
        weight[dropped] = NAN;
        break;
    case INFINITE:
        weight[dropped] = -INFINITY;
        break;
    case INTO_DROPPED:
        into[dropped] = next;
        break;
    case INTO_ITSELF:
        into[dropped] = dropped;
        break;
    case INTO_NOTHING:
        into[dropped] = view->n;
        break;
    case BEYOND:
        into[view->n] = UINT32_MAX;
        break;
    case WEIGHT_BEYOND:
        weight[view->n] = 0;
        break;
    case OVERFLOWS:
        weight[dropped] = 3.4e38f;
        break;
    case HUGE_VALUE: /* fits a float, not an F16 */
        weight[dropped] = 1e6f;
        break;
    default:
        break;
    }
    return COLIBRI_OK;
}

static uint32_t lying_budget(void *self, uint32_t layer, uint32_t kv_head, uint64_t n_seen)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    (void)n_seen;
    called(BUDGET_CALL);
    if (lies(BUDGET_CALL, CHANGING))
        return asked[BUDGET_CALL] % 3 ? 1 : 300;
    return lies(BUDGET_CALL, TOO_MANY) ? UINT32_MAX : lies(BUDGET_CALL, NONE) ? 0 : BUDGET;
}

static void slow_append(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)self;
    (void)layer;
    (void)kv_head;
    (void)n;
    called(APPEND);
}

static void slow_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept, uint32_t n_kept)
{
    called(EVICT);
    kvh_on_evict(self, layer, kv_head, kept, n_kept);
}

static void start(enum where where, enum what what)
{
    lie_where = where;
    lie_what = what;
    memset(asked, 0, sizeof asked);
    h.layout = kvh_layout(COLIBRI_TYPE_F16, COLIBRI_TYPE_F16);
    h.strategy = kvh_strategy();
    if (where == SCORE || where == ALLOT) {
        h.strategy.select = NULL;
        h.strategy.score = lying_score;
    } else {
        h.strategy.select = lying_select;
    }
    h.strategy.allot = where == ALLOT ? lying_allot : NULL;
    h.strategy.merge = where == MERGE ? lying_merge : NULL;
    h.strategy.budget = lying_budget;
    h.strategy.on_append = where == APPEND ? slow_append : NULL;
    h.strategy.on_evict = where == EVICT ? slow_evict : kvh_on_evict;
    kvh_open(&h, BUDGET, PROTECTED);
}

static uint64_t bad_answers(void)
{
    clb_kv_stats st;
    clb_kv_seq_stats(h.seq, &st);
    return st.bad_answers;
}

/* The protected ones and the newest, in every head. */
static bool ends_stayed(void)
{
    const uint32_t next = clb_kv_seq_position(h.seq);
    bool all = true;
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            const struct kvh_head *x = &h.head[l][head];
            all = all && x->n == BUDGET;
            for (uint32_t i = 0; all && i < BUDGET; i++)
                all = x->position[i] == (i < PROTECTED ? i : next - BUDGET + i);
        }
    return all;
}

/* Whatever was answered: the protected ones and the newest are there, no more than the budget is, and rows are whole.
 */
static void check_what_is_left(void)
{
    uint64_t kept = 0;
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            const struct kvh_head *x = &h.head[l][head];
            const clb_kv_head *rows = &h.seq->heads[l * KVH_KV_HEADS + head];
            assert_true(x->n > PROTECTED);
            for (uint32_t i = 0; i < PROTECTED; i++)
                assert_int_equal(x->position[i], i);
            assert_int_equal(x->position[x->n - 1], clb_kv_seq_position(h.seq) - 1);
            for (uint32_t i = 0; i < x->n; i++) {
                float k[KVH_DIM], v[KVH_DIM];
                double want[KVH_DIM];
                clb_kv_read_k(h.cache, rows, i, k);
                clb_kv_read_v(h.cache, rows, i, v);
                kvh_rotated(&h.layout, KVH_K, l, head, x->position[i], x->position[i], want);
                for (uint32_t d = 0; d < KVH_DIM; d++) {
                    kvh_near(k[d], want[d], 1e-3);
                    assert_true(isfinite(v[d]));
                    if (lie_where != MERGE)
                        kvh_near(v[d], kvh_value(KVH_V, l, head, x->position[i], d), 1e-3);
                }
            }
            kept += x->n;
        }
    assert_true(kept <= (uint64_t)BUDGET * KVH_LAYERS * KVH_KV_HEADS);
    kvh_check_positions(&h);
}

static const struct lie {
    enum where where;
    enum what what;
    const char *told; /* NULL: no lie */
} all_lies[] = {
    {SELECT, GOOD, NULL},
    {SELECT, FEWER, NULL},
    {SELECT, ERROR, "error"},
    {SELECT, NONE, "no position"},
    {SELECT, TOO_MANY, "more positions than allowed"},
    {SELECT, FLAG, "neither 0 nor 1"},
    {SELECT, BEYOND, "beyond the last position"},
    {SELECT, NEWEST_DROPPED, "newest"},
    {SELECT, PROTECTED_DROPPED, "protected"},
    {SCORE, GOOD, NULL},
    {SCORE, INFINITE, NULL},
    {SCORE, IS_NAN, "not a number"},
    {SCORE, NOT_WRITTEN, "not a number"},
    {SCORE, BEYOND, "beyond the last position"},
    {ALLOT, GOOD, NULL},
    {ALLOT, FEWER, NULL},
    {ALLOT, ERROR, "allot"},
    {ALLOT, TOO_MANY, "allot"},
    {ALLOT, NONE, "allot"},
    {ALLOT, PROTECTED_DROPPED, "allot"},
    {ALLOT, BEYOND, "beyond the last head"},
    {MERGE, GOOD, NULL},
    {MERGE, ERROR, "merge"},
    {MERGE, IS_NAN, "merge"},
    {MERGE, INFINITE, "merge"},
    {MERGE, INTO_DROPPED, "merge"},
    {MERGE, INTO_ITSELF, "merge"},
    {MERGE, INTO_NOTHING, "merge"},
    {MERGE, OVERFLOWS, "merge"},
    {MERGE, HUGE_VALUE, "merge"},
    {MERGE, BEYOND, "beyond the last position"},
    {MERGE, WEIGHT_BEYOND, "beyond the last position"},
    {BUDGET_CALL, NONE, NULL},
    {BUDGET_CALL, TOO_MANY, NULL},
};

static void every_lie_is_told_once_and_replaced(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_lies / sizeof all_lies[0]; i++) {
        const struct lie *lie = &all_lies[i];
        start(lie->where, lie->what);
        for (uint32_t pass = 0; pass < 2; pass++) {
            kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
            check_what_is_left();
            if (!lie->told) {
                assert_int_equal(h.n_faults, 0);
                assert_int_equal(bad_answers(), 0);
                continue;
            }
            if (h.n_faults != 1 || !strstr(h.fault, lie->told))
                fail_msg("lie %zu: %d told, \"%s\" instead of \"%s\"", i, h.n_faults, h.fault, lie->told);
            assert_true(bad_answers() > 0);
            /* a bad merge leaves the selection as it is; all else is replaced */
            assert_int_equal(ends_stayed(), lie->where != MERGE);
        }
        kvh_close(&h);
    }
}

/* A merge that is refused changes no value. */
static void refused_merges_change_nothing(void **state)
{
    (void)state;
    for (int what = ERROR; what <= HUGE_VALUE; what++) {
        start(MERGE, (enum what)what);
        kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
        double worst = 0;
        for (uint32_t l = 0; l < KVH_LAYERS; l++)
            for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
                const struct kvh_head *x = &h.head[l][head];
                float v[KVH_DIM];
                clb_kv_read_v(h.cache, &h.seq->heads[l * KVH_KV_HEADS + head], x->n - 1, v);
                for (uint32_t d = 0; d < KVH_DIM; d++)
                    worst = fmax(worst, fabs((double)v[d] - (double)kvh_value(KVH_V, l, head, 69, d)));
            }
        if ((worst > 0.1) != (bad_answers() == 0)) /* whoever does not lie here merges into the newest */
            fail_msg("lie %d: values differ by %g, %d told", what, worst, h.n_faults);
        kvh_close(&h);
    }
}

/* Eight bad answers, and the ninth is not asked for; budgets of its own end, too. */
static void after_eight_nobody_asks(void **state)
{
    (void)state;
    start(SELECT, ERROR);
    kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(asked[SELECT], 4);
    assert_int_equal(bad_answers(), 4);
    lie_what = GOOD; /* good answers in between count for nothing */
    kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(asked[SELECT], 8);
    assert_int_equal(bad_answers(), 4);
    assert_false(ends_stayed());
    lie_what = NONE;
    kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(asked[SELECT], 12);
    assert_int_equal(bad_answers(), CLB_KV_BAD_ANSWERS_MOST);
    assert_int_equal(h.n_faults, 2); /* two kinds */
    lie_what = GOOD;
    const int budgets = asked[BUDGET_CALL];
    for (uint32_t k = 0; k < 100; k++) {
        kvh_pass(&h, 2, k % 2 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, false);
        if (k % 2) { /* in between there may be a page more */
            check_what_is_left();
            assert_true(ends_stayed());
        }
    }
    assert_int_equal(asked[SELECT], 12);
    assert_int_equal(asked[BUDGET_CALL], budgets);
    assert_int_equal(bad_answers(), CLB_KV_BAD_ANSWERS_MOST);
    clb_kv_stats st;
    clb_kv_seq_stats(h.seq, &st);
    assert_int_equal(st.selections, 12);
    kvh_close(&h);
    /* the same in the middle of a layer: the heads behind the eighth one are not asked */
    start(SELECT, FLAG);
    for (uint32_t k = 0; k < 3; k++)
        kvh_pass(&h, 50, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(asked[SELECT], CLB_KV_BAD_ANSWERS_MOST);
    assert_true(ends_stayed());
    kvh_close(&h);
}

static void too_slow(void **state)
{
    (void)state;
    const enum where places[] = {SELECT, SCORE, ALLOT, MERGE};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const enum where at = places[i];
        start(at, ALMOST_SLOW); /* a second and a half */
        kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
        assert_true(asked[at] >= KVH_LAYERS);
        assert_int_equal(h.n_faults, 0);
        kvh_close(&h);
        start(at, SLOW);
        kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
        assert_int_equal(h.n_faults, 1);
        if (!strstr(h.fault, "two seconds"))
            fail_msg("place %d reported as: %s", (int)at, h.fault);
        assert_int_equal(bad_answers(), 1);
        assert_int_equal(asked[at], 1);
        check_what_is_left();
        for (uint32_t k = 0; k < 3; k++) {
            kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
            assert_true(ends_stayed());
        }
        assert_int_equal(asked[at], 1);
        assert_int_equal(bad_answers(), 1);
        kvh_close(&h);
    }
}

/* A pass after which the ends must be what stayed, whether or not the test's model, which follows on_evict, is told. */
static void pass_untold(uint32_t n, bool ends)
{
    uint32_t position[BUDGET];
    clb_error err;
    assert_ok(clb_kv_begin(h.seq, n, &err), &err);
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t i = 0; i < n; i++) {
            kvh_write_row(&h, l, i, 0);
            for (uint32_t head = 0; head < KVH_KV_HEADS; head++)
                h.head[l][head].position[h.head[l][head].n++] = clb_kv_seq_position(h.seq) + i;
        }
    clb_kv_end(h.seq, n, COLIBRI_PHASE_PREFILL, false);
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            assert_int_equal(clb_kv_seq_positions(h.seq, l, head, position, BUDGET), BUDGET);
            for (uint32_t i = 0; ends && i < BUDGET; i++)
                assert_int_equal(position[i], i < PROTECTED ? i : clb_kv_seq_position(h.seq) - BUDGET + i);
        }
}

/* Whoever takes too long to say budgets, or to follow what is added and dropped, is not called for that again either.
 */
static void too_slow_beside_decisions(void **state)
{
    (void)state;
    const enum where places[] = {BUDGET_CALL, APPEND, EVICT};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const enum where at = places[i];
        start(at, GOOD);
        lie_what = SLOW;
        const int before = asked[at];
        pass_untold(70, at != EVICT); /* the first selection was still its own */
        assert_int_equal(h.n_faults, 1);
        if (!strstr(h.fault, "two seconds"))
            fail_msg("place %d reported as: %s", (int)at, h.fault);
        if (asked[at] - before != (at == BUDGET_CALL ? KVH_KV_HEADS : 1)) /* of a layer's budgets the sum counts */
            fail_msg("place %d was called %d times", (int)at, asked[at] - before);
        lie_what = GOOD;
        const int then = asked[at];
        for (uint32_t k = 0; k < 3; k++)
            pass_untold(70, true);
        assert_int_equal(asked[at], then);
        assert_int_equal(bad_answers(), 1);
        kvh_close(&h);
    }
}

/* Who takes so long already when memory is planned does not begin. */
static void too_slow_to_begin(void **state)
{
    (void)state;
    start(BUDGET_CALL, GOOD);
    kvh_close(&h);
    lie_what = SLOW;
    const clb_kv_seq_options o = {.strategy = &h.strategy, .ctx = KVH_MOST, .budget = BUDGET};
    clb_error err;
    assert_ok(clb_kv_cache_create(&h.layout, 8 << 20, NULL, &h.cache, &err), &err);
    assert_fails(clb_kv_seq_create(h.cache, &o, &h.seq, &err), &err, COLIBRI_E_PLUGIN,
                 "two seconds to say its budgets");
    clb_kv_cache_destroy(h.cache);
}

/* Heads that get one answer have one budget, and any other that is said a second time is not heard; heads with answers
 * of their own may have a new one in every pass. */
static void budgets_that_change(void **state)
{
    (void)state;
    const uint32_t budget = 120;
    for (int per_head = 0; per_head < 2; per_head++) {
        start(BUDGET_CALL, CHANGING);
        kvh_close(&h);
        h.strategy.flags = per_head ? COLIBRI_KV_FLAG_PER_HEAD : 0;
        h.strategy.select = kvh_select;
        kvh_open(&h, budget, PROTECTED);
        for (uint32_t k = 0; k < 200; k++) {
            const bool prompt = k % 3;
            kvh_pass(&h, prompt ? 40 : 1, prompt ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, false);
            uint64_t kept = 0;
            for (uint32_t l = 0; l < KVH_LAYERS; l++)
                for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
                    kept += h.head[l][head].n;
                    assert_true(per_head ||
                                h.seq->budgets[l * KVH_KV_HEADS + head] == h.seq->budgets[l * KVH_KV_HEADS]);
                    assert_true(per_head || h.head[l][head].n == h.head[l][0].n);
                }
            if (prompt)
                assert_true(kept <= (uint64_t)budget * KVH_LAYERS * KVH_KV_HEADS);
            kvh_check_positions(&h);
        }
        assert_int_equal(h.n_faults, 0);
        kvh_close(&h);
    }
}

/* Scores of heads that share a budget are one decision: each of them in time, all of them not. */
static void slow_together(void **state)
{
    (void)state;
    start(ALLOT, GOOD);
    lie_where = SCORE;
    lie_what = ALMOST_SLOW;
    kvh_pass(&h, 70, COLIBRI_PHASE_PREFILL, false);
    assert_int_equal(asked[SCORE], KVH_KV_HEADS); /* of the first layer */
    assert_int_equal(h.n_faults, 1);
    assert_non_null(strstr(h.fault, "two seconds"));
    check_what_is_left();
    kvh_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_is_told_once_and_replaced),
        cmocka_unit_test(refused_merges_change_nothing),
        cmocka_unit_test(after_eight_nobody_asks),
        cmocka_unit_test(too_slow),
        cmocka_unit_test(too_slow_beside_decisions),
        cmocka_unit_test(too_slow_to_begin),
        cmocka_unit_test(budgets_that_change),
        cmocka_unit_test(slow_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
