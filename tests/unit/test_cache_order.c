/* Expert cache: whatever scores do as long as they rise (ties, jumps, infinities, both zeros), and whatever is done
 * with slots, a pool that keeps an order gives up the slot that asking all scores would give. A fake policy counts and
 * raises; in front of each step of the cache all slots are looked at here, with nothing of the cache's own search. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/cache_internal.h"

enum { LAYERS = 4, EXPERTS = 12, TOP_K = 2, ALL = LAYERS * EXPERTS, MOST_SLOTS = 24 };

enum shape { TIME, COUNT, TIES, JUMPS, INFINITE, MIXED, SHAPES };
enum fault { HONEST, FALLS, NAN_NOW_AND_THEN, GROWS_WHEN_ASKED };

struct pool {
    double score[ALL]; /* by the pool's own numbers */
    bool there[ALL];
};

static struct {
    enum shape shape;
    enum fault fault;
    bool admits;
    test_rand rng;
    double now;
    uint32_t n_pools;
    struct pool pools[2];
    /* of the last call */
    uint32_t n_evicted, evicted_layer, evicted_expert;
    struct pool *evicted_pool;
    uint64_t asked;
} fake;

static uint32_t below(uint32_t n)
{
    return (uint32_t)test_rand_below(&fake.rng, n);
}

/* A score that is at least as high. */
static double raised(double from)
{
    static const double ladder[] = {-1e308, -7.0, -1e-300, -0.0, 0.0, 5e-324, 1e-300, 1.0, 2.0, 1e308};
    const enum shape shape = fake.shape == MIXED ? (enum shape)below(MIXED) : fake.shape;
    double to = from;
    switch (shape) {
    case TIME:
        to = fake.now;
        break;
    case COUNT:
        to = from + 1.0;
        break;
    case TIES:
        to = from + (double)(below(4) == 0);
        break;
    case JUMPS:
        to = ladder[below(sizeof ladder / sizeof *ladder)];
        break;
    default:
        to = below(6) == 0 ? INFINITY : below(6) == 0 ? 0.0 : ladder[below(10)];
    }
    if (from <= 0 && to <= 0 && from >= 0 && to >= 0) /* between zeros nothing rises or falls */
        return below(2) ? 0.0 : -0.0;
    return to > from ? to : from;
}

static double first_score(void)
{
    switch (fake.shape) {
    case TIME:
        return fake.now;
    case COUNT:
    case TIES:
        return (double)below(3) - 1.0;
    default:
        return below(3) == 0 ? -INFINITY : below(3) == 0 ? -0.0 : (double)below(5) - 3.0;
    }
}

static void *create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    (void)config;
    (void)why;
    (void)why_size;
    struct pool *p = &fake.pools[fake.n_pools++];
    memset(p, 0, sizeof *p);
    return p;
}

static void nothing(void *self)
{
    (void)self;
}

static void reset(void *self)
{
    struct pool *p = self;
    for (uint32_t i = 0; i < ALL; i++)
        p->score[i] = -1e300;
}

static void on_step(void *self, const struct colibri_step *step)
{
    struct pool *p = self;
    (void)step;
    for (uint32_t i = 0; i < ALL; i++) /* what nobody has used may rise, too */
        if (below(9) == 0)
            p->score[i] = raised(p->score[i]);
        else if (fake.fault == FALLS && below(9) == 0)
            p->score[i] -= 2.0;
}

static void on_access(void *self, const struct colibri_access *access, uint32_t n)
{
    struct pool *p = self;
    for (uint32_t i = 0; i < n; i++) {
        double *s = &p->score[access[i].layer * EXPERTS + access[i].expert];
        *s = raised(*s);
    }
}

static void on_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    struct pool *p = self;
    (void)cause;
    const uint32_t i = layer * EXPERTS + expert;
    assert_false(p->there[i]);
    p->there[i] = true;
    p->score[i] = first_score();
}

static void on_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    struct pool *p = self;
    (void)uses;
    (void)unused;
    const uint32_t i = layer * EXPERTS + expert;
    p->there[i] = false;
    p->score[i] = -INFINITY;
    fake.n_evicted++;
    fake.evicted_pool = p;
    fake.evicted_layer = layer;
    fake.evicted_expert = expert;
}

static int admit(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    (void)layer;
    (void)expert;
    (void)cause;
    return fake.admits && below(4) == 0 ? 1 + (int)below(2) : COLIBRI_ADMIT;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    struct pool *p = self;
    double *s = &p->score[layer * EXPERTS + expert];
    fake.asked++;
    if (fake.fault == NAN_NOW_AND_THEN && fake.asked % 97 == 0)
        return NAN;
    if (fake.fault == GROWS_WHEN_ASKED)
        *s += 1.0;
    return *s;
}

static const struct colibri_expert_policy policy = {.struct_size = sizeof policy,
                                                    .flags = COLIBRI_POLICY_SCORE_RISES,
                                                    .name = "fake",
                                                    .create = create,
                                                    .destroy = nothing,
                                                    .reset = reset,
                                                    .on_step = on_step,
                                                    .on_access = on_access,
                                                    .on_insert = on_insert,
                                                    .on_evict = on_evict,
                                                    .score = score};

/* ---- the brute force ---- */

static bool may_leave(const clb_cache *c, const clb_cache_slot *s, bool guesses)
{
    const bool needed = s->layer == c->routed && c->needed[s->expert] == c->visit;
    return s->state == CLB_SLOT_RESIDENT && s->pins == 0 && !s->transit && !needed && (guesses || !s->waiting);
}

/* The slot that has to leave for (layer, ...): low ones by age, others by (score, number); first without guesses. */
static uint32_t expected(const clb_cache *c, uint32_t layer, bool prefetch)
{
    uint32_t first, n, best = CLB_NO_SLOT;
    clb_cache_pool_range(c, c->pool_of[layer], &first, &n);
    const struct pool *p = &fake.pools[c->pool_of[layer]];
    for (int guesses = 0; guesses < (prefetch ? 1 : 2) && best == CLB_NO_SLOT; guesses++) {
        for (uint32_t i = first; i < first + n; i++)
            if (may_leave(c, &c->slots[i], guesses) && c->slots[i].low &&
                (best == CLB_NO_SLOT || c->slots[i].last_use < c->slots[best].last_use))
                best = i;
        if (best != CLB_NO_SLOT)
            break;
        uint32_t best_number = 0;
        for (uint32_t i = first; i < first + n; i++) {
            if (!may_leave(c, &c->slots[i], guesses))
                continue;
            const uint32_t number = c->local_of[c->slots[i].layer] * EXPERTS + c->slots[i].expert;
            if (best == CLB_NO_SLOT || p->score[number] < p->score[best_number] ||
                (!(p->score[number] > p->score[best_number]) && number < best_number)) {
                best = i;
                best_number = number;
            }
        }
    }
    return best;
}

/* ---- a run ---- */

struct run {
    clb_cache *cache;
    uint64_t victims, compared, guesses, refused;
};

static uint32_t n_free(const clb_cache *c, uint32_t layer, bool transit)
{
    uint32_t first, n, count = 0;
    clb_cache_pool_range(c, c->pool_of[layer], &first, &n);
    for (uint32_t i = first; i < first + n; i++)
        count += c->slots[i].state == CLB_SLOT_FREE && c->slots[i].transit == transit;
    return count;
}

static uint32_t place(struct run *r, uint32_t layer, uint32_t expert, enum colibri_cause cause)
{
    clb_cache *c = r->cache;
    const bool prefetch = cause == COLIBRI_CAUSE_PREFETCH;
    const bool full = n_free(c, layer, false) == 0;
    const uint32_t want = expected(c, layer, prefetch);
    const clb_cache_slot before = want == CLB_NO_SLOT ? (clb_cache_slot){0} : c->slots[want];
    fake.n_evicted = 0;
    const uint32_t slot = clb_cache_place(c, layer, expert, cause);
    assert_true(fake.n_evicted <= 1);
    if (!full)
        assert_int_equal(fake.n_evicted, 0);
    const bool pure = fake.fault == HONEST || (fake.fault == FALLS && !c->pools[c->pool_of[layer]].order.used);
    if (fake.n_evicted && pure) {
        assert_int_not_equal(want, CLB_NO_SLOT);
        assert_int_equal(slot, want);
        assert_ptr_equal(fake.evicted_pool, &fake.pools[c->pool_of[layer]]);
        assert_int_equal(fake.evicted_layer, c->local_of[before.layer]);
        assert_int_equal(fake.evicted_expert, before.expert);
    }
    r->compared += fake.n_evicted && pure;
    if (slot == CLB_NO_SLOT && full && !prefetch) {
        r->refused++;
        if (!fake.admits) /* nobody sets slots aside: then it is only for want of a victim */
            assert_int_equal(want, CLB_NO_SLOT);
    }
    r->victims += fake.n_evicted;
    r->guesses += fake.n_evicted && before.waiting;
    return slot;
}

/* Something happens to slots that no wave has. */
static void disturb(struct run *r, uint32_t routed)
{
    clb_cache *c = r->cache;
    for (uint32_t i = 0; i < c->n_slots; i++) {
        const clb_cache_slot *s = &c->slots[i];
        if (s->state == CLB_SLOT_LOADING && s->pins == 0 && below(3) == 0) {
            if (below(4) == 0)
                clb_cache_failed(c, i);
            else
                clb_cache_arrived(c, i);
        } else if (s->state == CLB_SLOT_RESIDENT && s->pins == 0 && !s->transit && below(60) == 0) {
            clb_cache_discard(c, i);
        }
    }
    for (uint32_t k = below(4); k-- > 0;) {
        const uint32_t layer = (routed + below(3)) % LAYERS, e = below(EXPERTS);
        if (clb_cache_find(c, layer, e) == CLB_NO_SLOT)
            (void)place(r, layer, e, COLIBRI_CAUSE_PREFETCH);
    }
}

static void visit(struct run *r, uint32_t layer)
{
    clb_cache *c = r->cache;
    uint32_t ids[EXPERTS], rows[EXPERTS], n = 0;
    float gates[EXPERTS];
    const uint32_t want = below(5) ? TOP_K : 1 + below(EXPERTS);
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (below(EXPERTS - e) < want - n && n < want) {
            gates[n] = 0.5F;
            rows[n] = 1;
            ids[n++] = e;
        }
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = (n + TOP_K - 1) / TOP_K,
                                        .top_k = TOP_K,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = n,
                                        .union_ids = ids,
                                        .union_rows = rows};
    clb_cache_route(c, &route);
    bool done[EXPERTS] = {false};
    for (uint32_t left = n; left;) {
        struct colibri_access access[EXPERTS];
        uint32_t slots[EXPERTS], m = 0;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t u = 0; u < n; u++) {
                uint32_t s = done[u] ? CLB_NO_SLOT : clb_cache_find(c, layer, ids[u]), result = COLIBRI_ACCESS_MISS;
                if (done[u] || (pass == 0) != (s != CLB_NO_SLOT))
                    continue;
                if (pass == 0)
                    result = clb_cache_take(c, s);
                else
                    s = place(r, layer, ids[u], COLIBRI_CAUSE_DEMAND);
                if (s == CLB_NO_SLOT)
                    continue;
                done[u] = true;
                access[m] = (struct colibri_access){.layer = layer, .expert = ids[u], .rows = 1, .result = result};
                slots[m++] = s;
            }
        if (!m) { /* reads ahead are in the way */
            for (uint32_t i = 0; i < c->n_slots; i++)
                if (c->slots[i].state == CLB_SLOT_LOADING)
                    clb_cache_arrived(c, i);
            continue;
        }
        left -= m;
        disturb(r, layer); /* while the wave is pinned */
        const bool abandoned = below(40) == 0;
        if (!abandoned)
            clb_cache_access(c, access, m);
        if (below(100) == 0) { /* nobody does, but the interface allows it */
            fake.n_evicted = 0;
            clb_cache_reset(c);
            for (uint32_t p = 0; p < fake.n_pools; p++)
                memset(fake.pools[p].there, 0, sizeof fake.pools[p].there);
            for (uint32_t i = 0; i < c->n_slots; i++)
                if (c->slots[i].state != CLB_SLOT_FREE && !c->slots[i].transit)
                    fake.pools[c->pool_of[c->slots[i].layer]]
                        .there[c->local_of[c->slots[i].layer] * EXPERTS + c->slots[i].expert] = true;
        }
        for (uint32_t i = 0; i < m; i++) {
            const clb_cache_slot *s = &c->slots[slots[i]];
            if (s->state == CLB_SLOT_LOADING && (abandoned || below(50) == 0)) {
                clb_cache_failed(c, slots[i]);
                continue;
            }
            if (s->state == CLB_SLOT_LOADING)
                clb_cache_arrived(c, slots[i]);
            if (abandoned && below(2))
                clb_cache_drop(c, slots[i]);
            else
                clb_cache_unpin(c, slots[i]);
        }
        if (abandoned)
            return;
    }
}

static struct run drive(uint64_t seed, enum shape shape, enum fault fault, bool admits, uint32_t n_visits)
{
    fake.rng = (test_rand){seed};
    fake.shape = shape;
    fake.fault = fault;
    fake.admits = admits;
    fake.n_pools = 0;
    fake.asked = 0;
    fake.now = 0;
    struct colibri_expert_policy mine = policy;
    mine.admit = admits ? admit : NULL;
    const bool two = seed % 2;
    const uint32_t pool_of[LAYERS] = {0, two, 0, two};
    const uint32_t pool_slots[2] = {3 + below(MOST_SLOTS - 3), 3 + below(MOST_SLOTS / 2)};
    const uint64_t bytes[LAYERS] = {4096, 4096, 4096, 4096};
    const clb_cache_options options = {.n_layers = LAYERS,
                                       .n_experts = EXPERTS,
                                       .top_k = TOP_K,
                                       .pool_of = pool_of,
                                       .n_pools = 1 + two,
                                       .pool_slots = pool_slots,
                                       .expert_bytes = bytes,
                                       .policy = &mine};
    struct run r = {0};
    clb_error err = {0};
    assert_ok(clb_cache_open(&options, &r.cache, &err), &err);
    if (below(2)) /* some are there from the start */
        for (uint32_t e = 0; e < 2; e++)
            (void)clb_cache_preload(r.cache, 0, e);
    for (uint32_t i = 0; i < n_visits; i++) {
        fake.now += (double)below(3);
        const struct colibri_step step = {.struct_size = sizeof step, .n_rows = 1, .n_sequences = 1};
        if (i % LAYERS == 0)
            clb_cache_step(r.cache, &step);
        visit(&r, i % LAYERS);
        disturb(&r, i % LAYERS);
    }
    for (uint32_t i = 0; i < r.cache->n_pools; i++)
        assert_int_equal(r.cache->pools[i].order.used, fault == HONEST);
    if (fault == HONEST)
        assert_int_equal(r.cache->stats.bad_answers, 0);
    else
        assert_true(r.cache->stats.bad_answers > 0);
    clb_cache_close(r.cache);
    return r;
}

static void rising(bool admits)
{
    for (enum shape shape = TIME; shape < SHAPES; shape++) {
        struct run sum = {0};
        for (uint64_t seed = 0; seed < 24; seed++) {
            const struct run r = drive(seed, shape, HONEST, admits, 400);
            sum.victims += r.compared;
            sum.guesses += r.guesses;
            sum.refused += r.refused;
        }
        assert_true(sum.victims > 3000); /* or nothing was tested */
        assert_true(sum.guesses > 10);
        assert_true(sum.refused > 10);
    }
}

static void victims(void **state)
{
    (void)state;
    rising(false);
}

static void victims_with_slots_set_aside(void **state)
{
    (void)state;
    rising(true);
}

/* A pass long enough for the cache to judge whether moving slots at each use pays, and to change its mind. */
static void long_runs(void **state)
{
    (void)state;
    assert_true(drive(1, TIME, HONEST, false, 30000).victims > 10000);
    assert_true(drive(2, COUNT, HONEST, false, 30000).victims > 10000);
}

/* A policy that breaks its promise costs the order, never the answer: all scores are asked from then on. */
static void broken_promises(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        assert_true(drive(seed, COUNT, FALLS, seed & 1, 300).compared > 50);
        assert_true(drive(seed, COUNT, NAN_NOW_AND_THEN, seed & 1, 300).victims > 50);
        assert_true(drive(seed, COUNT, GROWS_WHEN_ASKED, seed & 1, 300).victims > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(victims),
        cmocka_unit_test(victims_with_slots_set_aside),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(broken_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
