/* Expert policy gdsf: scripted victims, costs, and the rule over plain arrays. */
#include "support/component.h"
#include "support/policy_twin.h"

#include <math.h>

static const struct colibri_expert_policy *gdsf;

/* ---- the rule, naively; all experts of the test's host cost the same ---- */

static struct {
    double age, h[PH_ALL];
    bool here[PH_ALL], ahead[PH_ALL];
    uint32_t uses[PH_ALL], asked[PH_ALL];
} x;

static void naive_reset(void *self)
{
    (void)self;
    memset(&x, 0, sizeof x);
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

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    memset(x.asked, 0, sizeof x.asked);
    for (uint32_t i = 0; i < route->n_rows * route->top_k; i++) {
        const uint32_t e = route->layer * PH_EXPERTS + route->ids[i];
        x.asked[e]++;
        if (x.here[e]) {
            x.uses[e] += !x.ahead[e];
            x.ahead[e] = false;
            x.h[e] = x.age + x.uses[e];
        }
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    const uint32_t e = layer * PH_EXPERTS + expert;
    x.here[e] = true;
    x.ahead[e] = cause == COLIBRI_CAUSE_PREFETCH;
    x.uses[e] = x.ahead[e] ? 1 : x.asked[e];
    x.h[e] = x.age + x.uses[e];
}

static void naive_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    (void)self;
    (void)uses;
    (void)unused;
    const uint32_t e = layer * PH_EXPERTS + expert;
    x.here[e] = false;
    x.age = x.h[e] > x.age ? x.h[e] : x.age;
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    return x.h[layer * PH_EXPERTS + expert];
}

static const struct colibri_expert_policy naive = {.create = naive_create,
                                                   .destroy = naive_destroy,
                                                   .reset = naive_reset,
                                                   .on_route = naive_route,
                                                   .on_insert = naive_insert,
                                                   .on_evict = naive_evict,
                                                   .score = naive_score};

static void against_naive(void **state)
{
    (void)state;
    twin_test(gdsf, &naive, NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(gdsf, NULL);
}

static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1}, {0, 2}, {0, 3}, /* uses: 0 three, the others one; full */
        {4, 5},                 /* H: 1, 2, 3 have 1. 1 leaves, L = 1; 4 comes with 2. 2 leaves; 5 comes with 2 */
        {4, 6},                 /* 4 is at 1 + 2 = 3. 3 (H = 1) leaves; 6 comes with 2 */
        {6, 7},                 /* 6: 3. 5 (H = 2) leaves: L = 2; 7 comes with 3 */
        {8, 9},                 /* 0, 4, 6, 7 have 3: by number, 0, used three times but long ago, then 4; L = 3 */
    };
    static const uint16_t expected[] = {1, 2, 3, 5, 0, 4};
    policy_host *h = ph_open(gdsf, NULL, 4, false);
    twin_script(h, token, 7);
    twin_victims(h, expected, 6);
    char text[128] = "";
    gdsf->explain(h->self, 0, 8, text, sizeof text);
    assert_string_equal(text, "gdsf: 1 above the last that left, 1 uses at a cost of 1");
    gdsf->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "gdsf: not here");
    ph_close(h);
}

/* The bytes of a fetch weigh, and so does the request: (1 MiB + r) to (4 MiB + r). */
static void costs(void **state)
{
    (void)state;
    static const uint64_t bytes[] = {UINT64_C(4) << 20, UINT64_C(1) << 20};
    const double requests[] = {0, 2048};
    for (int i = 0; i < 2; i++) {
        const struct colibri_policy_config config = {.struct_size = sizeof config,
                                                     .n_layers = 2,
                                                     .n_experts = 4,
                                                     .top_k = 2,
                                                     .n_slots = 4,
                                                     .expert_bytes = bytes,
                                                     .params = &requests[i]};
        char why[128];
        void *self = gdsf->create(&config, why, sizeof why);
        assert_non_null(self);
        gdsf->on_insert(self, 0, 1, COLIBRI_CAUSE_DEMAND);
        gdsf->on_insert(self, 1, 1, COLIBRI_CAUSE_PRELOAD);
        assert_true(fabs(gdsf->score(self, 0, 1) - 1) < 1e-12);
        assert_true(fabs(gdsf->score(self, 1, 1) - (i ? 0.5 : 0.25)) < 1e-12);
        gdsf->destroy(self);
    }
}

static int load(void **state)
{
    (void)state;
    gdsf = test_component("expert-policy-gdsf", "colibri_expert_policy_gdsf", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(costs),
        cmocka_unit_test(against_naive),
        cmocka_unit_test(as_new),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
