/* Expert policy slru: scripted victims, and two segments kept as plain marks. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *slru;

/* ---- the rule, naively ---- */

static struct {
    double percent;
    uint32_t most;
    uint64_t row, rows, now;
    int segment[PH_ALL]; /* 0: not here, 1: probationary, 2: protected */
    uint64_t key[PH_ALL];
    bool ahead[PH_ALL];
    uint32_t asked[PH_ALL]; /* rows of the present visit, while not here */
} x;

static void naive_reset(void *self)
{
    (void)self;
    const double percent = x.percent;
    const uint32_t most = x.most;
    memset(&x, 0, sizeof x);
    x.percent = percent;
    x.most = most;
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)why;
    (void)n;
    x.percent = config->params ? config->params[0] : slru->params[0].value;
    x.most = (uint32_t)(config->n_slots * x.percent / 100);
    if (x.most > config->n_slots - PH_LAYERS * PH_TOP_K) /* what one token needs is left to the others */
        x.most = config->n_slots - PH_LAYERS * PH_TOP_K;
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

static void cut(void)
{
    for (;;) {
        uint32_t n = 0, oldest = PH_ALL;
        for (uint32_t i = 0; i < PH_ALL; i++)
            if (x.segment[i] == 2) {
                n++;
                if (oldest == PH_ALL || x.key[i] < x.key[oldest])
                    oldest = i;
            }
        if (n <= x.most)
            return;
        x.segment[oldest] = 1;
        x.key[oldest] = x.now;
    }
}

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    memset(x.asked, 0, sizeof x.asked);
    for (uint32_t r = 0; r < route->n_rows; r++) {
        x.now = 1 + (x.row + r) * PH_LAYERS + route->layer;
        for (uint32_t k = 0; k < route->top_k; k++) {
            const uint32_t i = route->layer * PH_EXPERTS + route->ids[r * route->top_k + k];
            x.key[i] = x.now;
            if (!x.segment[i])
                x.asked[i]++;
            else if (x.ahead[i])
                x.ahead[i] = false;
            else
                x.segment[i] = 2;
        }
        cut();
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    x.ahead[i] = cause == COLIBRI_CAUSE_PREFETCH;
    x.segment[i] = !x.ahead[i] && x.asked[i] > 1 && x.most ? 2 : 1;
    if (x.ahead[i])
        x.key[i] = x.now;
    cut();
}

static void naive_evict(void *self, uint32_t layer, uint32_t expert, uint32_t uses, int unused)
{
    (void)self;
    (void)uses;
    (void)unused;
    x.segment[layer * PH_EXPERTS + expert] = 0;
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t i = layer * PH_EXPERTS + expert;
    return x.segment[i] * 1e9 + (double)x.key[i];
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
    const double shares[] = {80, 0, 20, 50, 100};
    for (int i = 0; i < 5; i++)
        twin_test(slru, &naive, i ? &shares[i] : NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(slru, NULL);
}

static void scripted(void **state)
{
    (void)state;
    /* A shared pool of 10, of which 6 are what one token needs: 4 may be protected, not the 8 that were asked for. */
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1},  {2, 3}, {4, 5}, /* 10 experts: full. Protected: {0, 1} of layers 1 and 2 */
        {2, 6},  /* 2 is used again and protected, so one goes back, and as layers 1 and 2 use theirs and promote them
                  * again,  the oldest is 2 in the end. 6 needs a slot: of the probationary, 0 was used longest ago */
        {2, 7},  /* 1 */
        {3, 8},  /* 3 is protected: 4 */
        {9, 10}, /* 5, 6 */
    };
    static const uint16_t expected[] = {0, 1, 4, 5, 6};
    policy_host *h = ph_open(slru, NULL, 10, true);
    twin_script(h, token, 7);
    twin_victims(h, expected, 5);
    char text[128] = "";
    slru->explain(h->self, 0, 7, text, sizeof text);
    assert_string_equal(text, "slru: used once since it came or was sent back; 4 of at most 4 are protected");
    slru->explain(h->self, 0, 4, text, sizeof text);
    assert_string_equal(text, "slru: not here; 4 of at most 4 are protected");

    /* Two rows of one pass count like two tokens: 3 is protected at once, and is sent back only when layer 2 needs the
     * place. */
    static const uint8_t prompt[][PH_LAYERS][PH_TOP_K] = {
        {{3, 2}, {0, 1}, {0, 1}}, {{3, 1}, {0, 1}, {0, 1}}, {{1, 0}, {0, 1}, {0, 1}}};
    static const uint8_t after[][PH_TOP_K] = {{8, 9}, {10, 11}};
    static const uint16_t then[] = {2, 0}; /* 3 was used before 0 */
    ph_reset(h);
    ph_pass(h, prompt, 3, NULL);
    twin_script(h, after, 2);
    twin_victims(h, then, 2);
    slru->rebudget(h->self, 2, NULL);
    slru->explain(h->self, 0, 3, text, sizeof text);
    assert_non_null(strstr(text, "of at most 0 are protected"));
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    slru = test_component("expert-policy-slru", "colibri_expert_policy_slru", COLIBRI_IFACE_EXPERT_POLICY);
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
