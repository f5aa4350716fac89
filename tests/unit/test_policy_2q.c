/* Expert policy 2q: scripted victims, and the three queues as plain marks. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *two_q;

/* ---- the rule, naively ---- */

enum { NOWHERE, IN, MAIN, OUT };

static struct {
    uint32_t most_in, most_out;
    uint64_t row, rows, now;
    int where[PH_ALL];
    uint64_t key[PH_ALL], first[PH_ALL], last[PH_ALL];
    bool asked[PH_ALL], back[PH_ALL]; /* in the present visit */
} x;

static void naive_reset(void *self)
{
    (void)self;
    const uint32_t most_in = x.most_in, most_out = x.most_out;
    memset(&x, 0, sizeof x);
    x.most_in = most_in;
    x.most_out = most_out;
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)why;
    (void)n;
    const double in = config->params ? config->params[0] : two_q->params[0].value;
    const double out = config->params ? config->params[1] : two_q->params[1].value;
    x.most_in = (uint32_t)(config->n_slots * in / 100);
    x.most_out = (uint32_t)(config->n_slots * out / 100);
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

static uint32_t count(int where, uint32_t *oldest)
{
    uint32_t n = 0;
    *oldest = PH_ALL;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (x.where[i] == where) {
            n++;
            if (*oldest == PH_ALL || x.key[i] < x.key[*oldest])
                *oldest = i;
        }
    return n;
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
            if (x.where[i] == IN)
                continue;
            if (x.where[i] == MAIN) {
                x.key[i] = x.now;
                continue;
            }
            if (x.where[i] == OUT) {
                x.where[i] = NOWHERE;
                x.back[i] = true;
            }
            if (!x.asked[i])
                x.first[i] = x.now;
            x.asked[i] = true;
            x.last[i] = x.now;
        }
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    if (cause == COLIBRI_CAUSE_PREFETCH) {
        x.where[i] = IN;
        x.key[i] = x.now;
    } else {
        x.where[i] = x.back[i] ? MAIN : IN;
        x.key[i] = x.back[i] ? x.last[i] : x.first[i];
    }
}

static void naive_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    (void)self;
    (void)uses;
    (void)unused;
    const uint32_t i = layer * PH_EXPERTS + expert;
    uint32_t oldest;
    x.where[i] = x.where[i] == IN ? OUT : NOWHERE;
    while (count(OUT, &oldest) > x.most_out)
        x.where[oldest] = NOWHERE;
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    uint32_t oldest;
    const int gives = count(IN, &oldest) > x.most_in ? IN : MAIN;
    return (x.where[i] == gives ? 0 : 1e9) + (double)x.key[i];
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
    static const double sizes[][2] = {{10, 50}, {25, 50}, {0, 100}, {100, 0}, {50, 1000}};
    for (int i = 0; i < 5; i++)
        twin_test(two_q, &naive, i ? sizes[i] : NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(two_q, NULL);
}

static void scripted(void **state)
{
    (void)state;
    /* A shared pool of 8 whose layers 1 and 2 hold 4: room for 2 new ones (25 %), 4 remembered (50 %). */
    static const double sizes[] = {25, 50};
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1},
        {2, 3}, /* full: 8 new ones, more than 2 */
        {0, 4}, /* using 0 in A1in changes nothing; it is needed now, so the oldest that may leave goes: 1 of layer 0 */
    };
    policy_host *h = ph_open(two_q, sizes, 8, true);
    twin_script(h, token, 3);
    static const uint16_t expected[] = {1};
    twin_victims(h, expected, 1);
    char text[128] = "";
    two_q->explain(h->self, 0, 1, text, sizeof text);
    assert_string_equal(text, "2q: not here, but remembered; 8 new of at most 2");
    two_q->explain(h->self, 0, 4, text, sizeof text);
    assert_string_equal(text, "2q: new; 8 new of at most 2");
    ph_close(h);

    /* Four slots for each layer, 12 in all: room for 3 new ones, 6 remembered. */
    h = ph_open(two_q, sizes, 4, false);
    static const uint8_t own[][PH_TOP_K] = {{0, 1}, {2, 3}, {4, 5}, {0, 1}, {6, 7}, {8, 9}};
    twin_script(h, own,
                3); /* new: layer 0's 4, and 4 of layers 1 and 2, more than 3: 0 and 1 leave, and are remembered */
    twin_script(h, own + 3, 1); /* 2 and 3 leave; 0 and 1 come to Am */
    two_q->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "2q: in the main queue; 6 new of at most 3");
    twin_script(h, own + 4, 2); /* 4 and 5, then 6 and 7: new ones leave before the older ones in Am */
    static const uint16_t then[] = {0, 1, 2, 3, 4, 5, 6, 7};
    twin_victims(h, then, 8);
    two_q->rebudget(h->self, 1, NULL);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    two_q = test_component("expert-policy-two_q", "colibri_expert_policy_2q", COLIBRI_IFACE_EXPERT_POLICY);
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
