/* Expert policy arc: scripted victims, and the four lists as plain marks. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *arc;

/* ---- the rule, naively ---- */

enum { NOWHERE, T1, T2, B1, B2 };

static struct {
    uint32_t c;
    double p;
    uint64_t row, rows, now;
    int where[PH_ALL];
    uint64_t key[PH_ALL];
    uint32_t asked[PH_ALL];           /* in the present visit */
    bool back[PH_ALL], ahead[PH_ALL]; /* back: in the present visit */
} x;

static void naive_reset(void *self)
{
    (void)self;
    const uint32_t c = x.c;
    memset(&x, 0, sizeof x);
    x.c = c;
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)why;
    (void)n;
    x.c = config->n_slots;
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

static uint32_t count(int where)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < PH_ALL; i++)
        n += x.where[i] == where;
    return n;
}

static void drop_oldest(int where)
{
    uint32_t oldest = PH_ALL;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (x.where[i] == where && (oldest == PH_ALL || x.key[i] < x.key[oldest]))
            oldest = i;
    x.where[oldest] = NOWHERE;
}

static void forget(void)
{
    while (count(B1) && count(T1) + count(B1) > x.c)
        drop_oldest(B1);
    while (count(B2) && count(T1) + count(T2) + count(B1) + count(B2) > 2 * x.c)
        drop_oldest(B2);
}

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    memset(x.asked, 0, sizeof x.asked);
    memset(x.back, 0, sizeof x.back);
    for (uint32_t r = 0; r < route->n_rows; r++) {
        x.now = 1 + (x.row + r) * PH_LAYERS + route->layer;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t i = route->layer * PH_EXPERTS + route->ids[r * route->top_k + k];
            const double b1 = count(B1), b2 = count(B2);
            if (x.where[i] == T1 && !x.ahead[i])
                x.where[i] = T2;
            x.ahead[i] = false;
            if (x.where[i] == B1) {
                x.p += b2 > b1 ? b2 / b1 : 1;
                x.p = x.p > x.c ? x.c : x.p;
            }
            if (x.where[i] == B2) {
                x.p -= b1 > b2 ? b1 / b2 : 1;
                x.p = x.p < 0 ? 0 : x.p;
            }
            if (x.where[i] == B1 || x.where[i] == B2) {
                x.where[i] = NOWHERE;
                x.back[i] = true;
            }
            x.key[i] = x.now;
            x.asked[i]++;
        }
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    x.ahead[i] = cause == COLIBRI_CAUSE_PREFETCH;
    x.where[i] = !x.ahead[i] && (x.back[i] || x.asked[i] > 1) ? T2 : T1;
    if (x.ahead[i])
        x.key[i] = x.now;
    forget();
}

static void naive_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    (void)self;
    (void)uses;
    const uint32_t i = layer * PH_EXPERTS + expert;
    x.where[i] = unused ? NOWHERE : x.where[i] == T1 ? B1 : B2;
    forget();
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    return (x.where[i] == (count(T1) > x.p ? T1 : T2) ? 0 : 1e9) + (double)x.key[i];
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
    twin_test(arc, &naive, NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(arc, NULL);
}

static void scripted(void **state)
{
    (void)state;
    /* A shared pool of 8 whose layers 1 and 2 use {0, 1} all the time: from the second token on these four are in T2.
     */
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1}, {2, 3}, /* full. p = 0 */
        {0, 4},         /* 0 to T2; T1 gives its oldest, 1, to B1 */
        {1, 4},         /* 1 was in B1: p = 1, and it comes to T2; 4 to T2; T1 = {2, 3} is above p: 2 */
        {5, 6}, /* T1 = {3}, not above p = 1: T2 gives up its oldest, layer 0's 0. Then T1 = {3, 5} is above: 3 */
        {2, 5}, /* 2 was in B1 (with 3), B2 has 0: p = 2. 2 to T2, 5 to T2. T1 = {6} is not above p: T2 gives up its
                 * oldest, 1 of layer 0 (4 was used after it in that token, but at the same time, so the lower number)
                 */
    };
    static const uint16_t expected[] = {1, 2, 0, 3, 1};
    policy_host *h = ph_open(arc, NULL, 8, true);
    twin_script(h, token, 4);
    char text[128] = "";
    arc->explain(h->self, 0, 2, text, sizeof text);
    assert_string_equal(text, "arc: remembered (B1); 1 used once, of which 1.0 are wanted");
    twin_script(h, token + 4, 2);
    twin_victims(h, expected, 5);
    arc->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "arc: remembered (B2); 1 used once, of which 2.0 are wanted");
    arc->rebudget(h->self, 1, NULL); /* forgets */
    arc->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "arc: not here; 1 used once, of which 1.0 are wanted");
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    arc = test_component("expert-policy-arc", "colibri_expert_policy_arc", COLIBRI_IFACE_EXPERT_POLICY);
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
