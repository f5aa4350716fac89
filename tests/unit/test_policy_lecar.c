/* Expert policy lecar: scripted weights, and the two memories as plain marks. */
#include "support/component.h"
#include "support/policy_twin.h"

#include <math.h>

static const struct colibri_expert_policy *lecar;

/* ---- the rule, naively ---- */

static struct {
    double rate, w, u; /* w: weight of LRU; u: drawn */
    uint32_t c, most;
    uint64_t row, rows, now, requests;
    test_rand rng; /* from 0, the seed of the test's host */
    bool here[PH_ALL];
    int memory[PH_ALL]; /* 1: LRU let it go, 2: LFU */
    uint64_t left[PH_ALL], time[PH_ALL], last[PH_ALL];
    uint32_t uses[PH_ALL], asked[PH_ALL];
} x;

static double draw(void)
{
    return (double)(test_rand_u64(&x.rng) >> 11) * 0x1p-53;
}

static void naive_reset(void *self)
{
    (void)self;
    const double rate = x.rate;
    const uint32_t c = x.c, most = x.most;
    memset(&x, 0, sizeof x);
    x.rate = rate;
    x.c = c;
    x.most = most;
    x.w = 0.5;
    x.u = draw();
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)why;
    (void)n;
    x.rate = config->params ? config->params[0] : lecar->params[0].value;
    x.c = config->n_slots;
    x.most = (uint32_t)(x.c * (config->params ? config->params[1] : lecar->params[1].value) / 100);
    naive_reset(NULL);
    return &x;
}

static void naive_destroy(void *self)
{
    (void)self;
}

static void naive_step(void *self, const struct colibri_step *step)
{
    (void)self;
    x.row += x.rows;
    x.rows = step->n_rows;
}

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    memset(x.asked, 0, sizeof x.asked);
    for (uint32_t r = 0; r < route->n_rows; r++) {
        x.now = 1 + (x.row + r) * PH_LAYERS + route->layer;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t i = route->layer * PH_EXPERTS + route->ids[r * route->top_k + k];
            x.requests++;
            x.last[i] = x.now;
            if (x.here[i]) {
                x.uses[i]++;
                x.time[i] = x.now;
                continue;
            }
            if (x.memory[i]) {
                const double regret = pow(pow(0.005, 1.0 / x.c), (double)(x.requests - x.left[i]));
                double lru = x.w, lfu = 1 - x.w;
                *(x.memory[i] == 1 ? &lfu : &lru) *= exp(x.rate * regret);
                x.w = lru / (lru + lfu);
                x.w = x.w > 0.99 ? 0.99 : x.w < 0.01 ? 0.01 : x.w;
                x.memory[i] = 0;
            }
            x.asked[i]++;
        }
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    x.memory[i] = 0;
    x.here[i] = true;
    x.uses[i] += cause == COLIBRI_CAUSE_PREFETCH ? 0 : x.asked[i];
    x.time[i] = cause == COLIBRI_CAUSE_PREFETCH ? x.now : x.last[i];
}

static void naive_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    (void)self;
    (void)uses;
    const uint32_t i = layer * PH_EXPERTS + expert;
    x.here[i] = false;
    if (unused) {
        x.uses[i] = 0;
    } else {
        x.memory[i] = x.u < x.w ? 1 : 2;
        x.left[i] = x.requests;
    }
    for (int side = 1; side <= 2; side++)
        for (;;) {
            uint32_t n = 0, oldest = PH_ALL;
            for (uint32_t j = 0; j < PH_ALL; j++)
                if (x.memory[j] == side) {
                    n++;
                    if (oldest == PH_ALL || x.left[j] < x.left[oldest])
                        oldest = j;
                }
            if (n <= x.most)
                break;
            x.memory[oldest] = 0;
            x.uses[oldest] = 0;
        }
    x.u = draw();
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    return x.u < x.w ? (double)x.time[i] : x.uses[i] + (double)x.time[i] / 1e9;
}

static const struct colibri_expert_policy naive = {.create = naive_create,
                                                   .destroy = naive_destroy,
                                                   .reset = naive_reset,
                                                   .on_step = naive_step,
                                                   .on_route = naive_route,
                                                   .on_insert = naive_insert,
                                                   .on_evict = naive_evict,
                                                   .score = naive_score};

static void against_naive(void **state)
{
    (void)state;
    static const double params[][2] = {{0}, {0, 100}, {10, 100}, {0.45, 20}};
    for (int i = 0; i < 4; i++)
        twin_test(lecar, &naive, i ? params[i] : NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(lecar, NULL);
}

/* The weight of LRU in percent, as explain says it. */
static double weight(const policy_host *h)
{
    char text[128] = "";
    double w = -1;
    lecar->explain(h->self, 0, 0, text, sizeof text);
    assert_int_equal(sscanf(strstr(text, "LRU has"), "LRU has %lf", &w), 1);
    return w;
}

/* Whoever let an expert go that is asked for at once loses; one that comes back after long says little. */
static void regret(void **state)
{
    (void)state;
    static const uint8_t early[][PH_TOP_K] = {{0, 1}, {2, 3}, {4, 5}, {0, 1}};
    policy_host *h = ph_open(lecar, NULL, 4, false);
    twin_script(h, early, 3);
    assert_true(fabs(weight(h) - 50) < 0.01);
    /* 0 and 1 have left, each drawn by LRU or by LFU, and come back... */
    twin_script(h, early + 3, 1);
    const double moved = fabs(weight(h) - 50);
    /* ... both from one side (then e^(2 * 0.45 * r) : 1), or one each (nearly even). r = 0.005^(5/12) and 0.005^(6/12):
     * they left after 14 requests, and are asked for as the 19th and the 20th, of 12 slots. */
    const double both = exp(0.45 * (pow(0.005, 5 / 12.) + pow(0.005, 6 / 12.)));
    const double one = exp(0.45 * (pow(0.005, 5 / 12.) - pow(0.005, 6 / 12.)));
    const double if_both = 100 * both / (1 + both) - 50, if_one = 100 * one / (1 + one) - 50;
    assert_true(fabs(moved - if_both) < 0.51 || fabs(moved - if_one) < 0.51);
    ph_close(h);
}

/* The draw does not depend on how often scores are asked for. */
static void draws(void **state)
{
    (void)state;
    uint8_t rows[200][PH_LAYERS][PH_TOP_K];
    test_rand rng = {3};
    ph_random_rows(&rng, rows, 200);
    policy_host *a = ph_open(lecar, NULL, 5, false), *b = ph_open(lecar, NULL, 5, false);
    for (uint32_t r = 0; r < 200; r++) {
        ph_pass(a, (const uint8_t(*)[PH_LAYERS][PH_TOP_K])(rows + r), 1, NULL);
        for (uint32_t i = 0; i < PH_ALL; i++)
            lecar->score(b->self, i / PH_EXPERTS, i % PH_EXPERTS);
        ph_pass(b, (const uint8_t(*)[PH_LAYERS][PH_TOP_K])(rows + r), 1, NULL);
    }
    assert_int_equal(a->n_victims, b->n_victims);
    assert_memory_equal(a->victim, b->victim, a->n_victims * sizeof a->victim[0]);
    ph_close(a);
    ph_close(b);
}

static int load(void **state)
{
    (void)state;
    lecar = test_component("expert-policy-lecar", "colibri_expert_policy_lecar", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regret),
        cmocka_unit_test(against_naive),
        cmocka_unit_test(as_new),
        cmocka_unit_test(draws),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
