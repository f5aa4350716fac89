/* Expert policy least-stale: scripted victims, and the four groups over plain arrays. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *stale;

/* ---- the rule, naively ---- */

static struct {
    uint64_t row, rows;
    uint64_t used_row[PH_ALL]; /* 1 + row of the last use */
    bool chosen[PH_ALL];       /* by the last visit of its layer, or fetched ahead since */
    bool visited[PH_LAYERS];   /* in this pass */
} x;

static void naive_reset(void *self)
{
    (void)self;
    memset(&x, 0, sizeof x);
    for (uint32_t i = 0; i < PH_ALL; i++)
        x.chosen[i] = true; /* no visit yet, so none that did not choose it */
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)config;
    (void)why;
    (void)n;
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
    memset(x.visited, 0, sizeof x.visited);
}

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    x.visited[route->layer] = true;
    for (uint32_t e = 0; e < PH_EXPERTS; e++)
        x.chosen[route->layer * PH_EXPERTS + e] = false;
    for (uint32_t i = 0; i < route->n_rows * route->top_k; i++) {
        const uint32_t e = route->layer * PH_EXPERTS + route->ids[i];
        x.chosen[e] = true;
        x.used_row[e] = 1 + x.row + i / route->top_k;
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    if (cause == COLIBRI_CAUSE_PREFETCH) {
        x.chosen[layer * PH_EXPERTS + expert] = true;
        x.used_row[layer * PH_EXPERTS + expert] = x.row + x.rows;
    }
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t e = layer * PH_EXPERTS + expert;
    const int group = x.chosen[e] ? x.visited[layer] ? 2 : 3 : x.visited[layer] ? 0 : 1;
    return group * 1e9 + (double)x.used_row[e] * PH_LAYERS - layer;
}

static const struct colibri_expert_policy naive = {.create = naive_create,
                                                   .destroy = naive_destroy,
                                                   .reset = naive_reset,
                                                   .on_step = naive_step,
                                                   .on_route = naive_route,
                                                   .on_insert = naive_insert,
                                                   .score = naive_score};

static void against_naive(void **state)
{
    (void)state;
    twin_test(stale, &naive, NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(stale, NULL);
    ph_prefetch_survives(stale, NULL);
}

/* Six slots for the six experts of a pass: LRU would evict what the next layer is about to use. */
static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_LAYERS][PH_TOP_K] = {
        {{0, 1}, {0, 1}, {0, 1}}, /* fills the pool */
        {{0, 2}, {0, 1}, {0, 2}}, /* layer 0 went past its 1, which leaves; layer 2 past its own 1 (25) */
        {{3, 4},
         {1, 2},
         {0, 2}}, /* layer 0's 0 and 2 are stale now. In layer 1 its 0 (12) is; layer 2 has what it wants */
        {{3, 4}, {5, 6}, {7, 8}}, /* layer 1's own 1 and 2 (13, 14), layer 2's own 0 and 2 (24, 26) */
    };
    static const uint16_t expected[] = {1, 25, 0, 2, 12, 13, 14, 24, 26};
    policy_host *h = ph_open(stale, NULL, 6, true);
    for (uint32_t i = 0; i < 4; i++)
        ph_pass(h, token + i, 1, NULL);
    twin_victims(h, expected, 9);
    char text[128] = "";
    stale->explain(h->self, 2, 7, text, sizeof text);
    assert_string_equal(text, "least-stale: chosen in this pass");
    stale->explain(h->self, 2, 0, text, sizeof text);
    assert_string_equal(text, "least-stale: stale, and this pass went past it");
    static const uint8_t next[][PH_LAYERS][PH_TOP_K] = {{{9, 3}, {5, 6}, {0, 7}}};
    ph_begin(h, next, 1);
    ph_layer(h, 0, 1, NULL); /* 9 takes the slot of 4 */
    assert_int_equal(h->victim[9], 4);
    stale->explain(h->self, 2, 7, text, sizeof text);
    assert_string_equal(text, "least-stale: fresh, and still to come in this pass");
    stale->explain(h->self, 2, 0, text, sizeof text);
    assert_string_equal(text, "least-stale: stale, but still to come in this pass");
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    stale =
        test_component("expert-policy-least_stale", "colibri_expert_policy_least_stale", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(against_naive),
        cmocka_unit_test(as_new),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
