/* Expert policy lfru: scripted victims, and heat classes from the whole history. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *lfru;
static double half_life, step, margin;

/* Heat at the last row of this pass, and the time of the last use. */
static double heat(const policy_host *h, uint32_t expert, long *last)
{
    const uint32_t layer = expert / PH_EXPERTS;
    double sum = 0;
    *last = -1;
    for (uint32_t r = 0; r < h->routed_rows[layer]; r++)
        for (uint32_t k = 0; k < PH_TOP_K; k++)
            if (h->history[r][layer][k] == expert % PH_EXPERTS) {
                sum += ph_decay(h->n_rows - 1 - r, half_life);
                *last = (long)r * PH_LAYERS + (long)layer;
            }
    return sum;
}

/* Class by climbing, one begin after the other. */
static int class_of(double hot)
{
    int class = 0;
    for (double begin = step; hot >= begin; begin = begin * (1 + margin / 100) + step)
        class ++;
    return class;
}

static void check(const policy_host *h, uint32_t layer, uint32_t victim, const bool *candidate)
{
    long last, its_last;
    const double v = heat(h, victim, &last);
    (void)layer;
    for (uint32_t i = 0; i < PH_ALL; i++) {
        if (!candidate[i])
            continue;
        const double hot = heat(h, i, &its_last);
        /* At the begin of a class rounding may put it on either side. */
        assert_true(class_of(v * (1 - 1e-9)) <= class_of(hot * (1 + 1e-9)));
        if (class_of(v * (1 - 1e-9)) == class_of(hot * (1 + 1e-9)) &&
            class_of(v * (1 + 1e-9)) == class_of(hot * (1 - 1e-9)))
            assert_true(last < its_last || (last == its_last && victim <= i));
    }
}

static void against_history(void **state)
{
    (void)state;
    half_life = lfru->params[0].value;
    step = lfru->params[1].value;
    margin = lfru->params[2].value;
    ph_random_test(lfru, NULL, check);
    static const double params[][3] = {{1, 1, 25}, {300, 3, 100}};
    for (int i = 0; i < 2; i++) {
        half_life = params[i][0];
        step = params[i][1];
        margin = params[i][2];
        ph_random_test(lfru, params[i], check);
    }
}

static void repeatable(void **state)
{
    (void)state;
    ph_repeatable(lfru, NULL, 0);
    twin_reset(lfru, NULL);
}

static void scripted(void **state)
{
    (void)state;
    /* Hardly any forgetting; classes begin at 0, 1, 2.25, 3.8125 uses, and a use is worth just under 1 later on. */
    static const double params[] = {1000000, 1, 25};
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1}, {0, 1}, {0, 2}, {2, 3}, /* full. 0: three uses, class 2; 1 and 2: two, class 1; 3: one, class 0 */
        {4, 5},                         /* 3; then 1, which is no colder than 2, but older */
        {6, 7},                         /* 4 and 5, class 0; 0 stays, though it was used longest ago */
    };
    static const uint16_t expected[] = {3, 1, 4, 5};
    policy_host *h = ph_open(lfru, params, 4, false);
    twin_script(h, token, 6);
    twin_victims(h, expected, 4);
    char text[128] = "";
    lfru->explain(h->self, 0, 0, text, sizeof text);
    assert_string_equal(text, "lfru: class 2 (heat 3), last used 3 tokens ago");
    lfru->explain(h->self, 0, 11, text, sizeof text);
    assert_string_equal(text, "lfru: class 0 (heat 0), never used");
    ph_close(h);
    /* Quick forgetting: 0's three uses are worth 0.44 by then. All is class 0, so the oldest leaves. */
    static const double quick[] = {1, 1, 25};
    h = ph_open(lfru, quick, 4, false);
    twin_script(h, token, 6);
    static const uint16_t then[] = {1, 0, 2, 3};
    twin_victims(h, then, 4);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    lfru = test_component("expert-policy-lfru", "colibri_expert_policy_lfru", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),
        cmocka_unit_test(against_history),
        cmocka_unit_test(repeatable),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
