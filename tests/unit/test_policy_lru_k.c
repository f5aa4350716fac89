/* Expert policy lru-k: scripted victims, and the k-th last use read from the whole history. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *lru_k;
static uint32_t k_is, correlated;

/* Times of the last and of the k-th last period of correlated uses, by walking through the history; 0: none. */
static void look_back(const policy_host *h, uint32_t expert, uint64_t *last, uint64_t *kth)
{
    const uint32_t layer = expert / PH_EXPERTS;
    uint64_t begin[PH_MOST_ROWS], end[PH_MOST_ROWS];
    uint32_t n = 0;
    for (uint32_t r = 0; r < h->routed_rows[layer]; r++)
        for (uint32_t k = 0; k < PH_TOP_K; k++) {
            if (h->history[r][layer][k] != expert % PH_EXPERTS)
                continue;
            const uint64_t t = 1 + (uint64_t)r * PH_LAYERS + layer;
            if (n == 0 || t - end[n - 1] > (uint64_t)correlated * PH_LAYERS)
                begin[n++] = t;
            end[n - 1] = t;
        }
    *last = n ? end[n - 1] : 0;
    *kth = 0;
    if (n < k_is)
        return;
    /* The paper takes the lengths of the periods between out of the distance. */
    *kth = begin[n - k_is];
    for (uint32_t i = n - k_is; i < n - 1; i++)
        *kth += end[i] - begin[i];
}

static void check(const policy_host *h, uint32_t layer, uint32_t victim, const bool *candidate)
{
    uint64_t last, kth, its_last, its_kth;
    (void)layer;
    look_back(h, victim, &last, &kth);
    for (uint32_t i = 0; i < PH_ALL; i++) {
        if (!candidate[i] || i == victim)
            continue;
        look_back(h, i, &its_last, &its_kth);
        if (kth == 0 && its_kth == 0)
            assert_true(last < its_last || (last == its_last && victim < i));
        else
            assert_true(kth < its_kth || (kth == its_kth && victim < i));
    }
}

static void against_history(void **state)
{
    (void)state;
    static const double params[][2] = {{2, 0}, {3, 2}, {8, 0}};
    for (int i = 0; i < 3; i++) {
        k_is = (uint32_t)params[i][0];
        correlated = (uint32_t)params[i][1];
        ph_random_test(lru_k, i ? params[i] : NULL, check);
    }
}

static void repeatable(void **state)
{
    (void)state;
    static const double params[] = {3, 4};
    ph_repeatable(lru_k, NULL, 0);
    ph_repeatable(lru_k, params, 0);
    twin_reset(lru_k, NULL);
}

static void scripted(void **state)
{
    (void)state;
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1}, {0, 1}, {2, 3}, /* 0 and 1 twice, 2 and 3 once: full */
        {3, 4},                 /* 2, used once, leaves, though 0 was used longer ago. 3 is used twice now */
        {4, 5},                 /* 0: its second last use was the first token, as 1's */
        {6, 7},                 /* 5 once; then 1 */
        {2, 4},                 /* 2 was used before it left: twice. 6 of 6 and 7, once */
    };
    static const uint16_t expected[] = {2, 0, 5, 1, 6};
    policy_host *h = ph_open(lru_k, NULL, 4, false);
    twin_script(h, token, 7);
    twin_victims(h, expected, 5);
    char text[128] = "";
    lru_k->explain(h->self, 0, 4, text, sizeof text);
    assert_string_equal(text, "lru-k: use 2 from the end was 2 tokens ago");
    lru_k->explain(h->self, 0, 7, text, sizeof text);
    assert_string_equal(text, "lru-k: used fewer than 2 times");
    ph_close(h);

    /* With uses of one token apart counted as one, 0 and 1 were used once, longest ago. */
    static const double params[] = {2, 1};
    static const uint16_t then[] = {0, 1};
    h = ph_open(lru_k, params, 4, false);
    twin_script(h, token, 5);
    twin_victims(h, then, 2);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    lru_k = test_component("expert-policy-lru_k", "colibri_expert_policy_lru_k", COLIBRI_IFACE_EXPERT_POLICY);
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
