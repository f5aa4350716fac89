/* Predictor repeat-last: scripted guesses, sequences, confidences. */
#include "support/predictor_host.h"

static const struct colibri_predictor *repeat_last;
static const double all[] = {1, 0}; /* whatever the chance */

static void scripted(void **state)
{
    (void)state;
    static const double two_layers[] = {2, 0};
    static const uint32_t token[2][PR_LAYERS][PR_TOP_K] = {{{0, 1}, {2, 3}, {4, 5}}, {{6, 7}, {8, 9}, {10, 11}}};
    predictor_host h = pr_open(repeat_last, two_layers, NULL, NULL);
    pr_step(&h, 1);
    pr_layer(&h, 0, token[0][0], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0); /* nothing is known of layers 1 and 2 */
    pr_layer(&h, 1, token[0][1], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 2); /* layer 0 of the next token */
    assert_true(pr_said(&h, 0, 0) > 0 && pr_said(&h, 0, 1) > 0);
    pr_layer(&h, 2, token[0][2], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 4); /* layers 0 and 1 */
    assert_true(pr_said(&h, 1, 2) > 0 && pr_said(&h, 1, 3) > 0 && pr_said(&h, 0, 0) > 0);
    pr_step(&h, 1);
    pr_layer(&h, 0, token[1][0], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 4);
    assert_true(pr_said(&h, 1, 2) > 0 && pr_said(&h, 2, 5) > 0);
    pr_layer(&h, 1, token[1][1], 1, NULL, NULL, 0, 3);
    assert_int_equal(h.n, 3); /* as many as asked for */
    h.predictor->reset(h.self);
    pr_layer(&h, 1, token[1][1], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0);
    pr_close(&h);

    h = pr_open(repeat_last, all, NULL, NULL); /* one layer */
    for (uint32_t l = 0; l < PR_LAYERS; l++)
        pr_layer(&h, l, token[0][l], 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 2);
    pr_close(&h);
}

static void sequences(void **state)
{
    (void)state;
    static const uint32_t sequence[] = {5, 9}, ids[][2 * PR_TOP_K] = {{0, 1, 2, 3}, {4, 5, 4, 6}, {7, 8, 9, 10}};
    predictor_host h = pr_open(repeat_last, all, NULL, NULL);
    for (uint32_t l = 0; l < PR_LAYERS; l++)
        pr_layer(&h, l, ids[l], 2, sequence, NULL, 0, PR_MOST);
    pr_layer(&h, 0, ids[2], 2, sequence, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 3); /* 4 of both, 5, 6 */
    assert_true(pr_said(&h, 1, 4) > 0 && pr_said(&h, 1, 5) > 0 && pr_said(&h, 1, 6) > 0);
    pr_layer(&h, 0, ids[2], 1, sequence + 1, NULL, 0, PR_MOST); /* sequence 9 alone */
    assert_int_equal(h.n, 2);
    assert_true(pr_said(&h, 1, 6) > 0);
    static const uint32_t other[] = {13}; /* has the place of 5 */
    pr_layer(&h, 0, ids[2], 1, other, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0); /* but not its rows */
    pr_close(&h);
}

/* The first choice stays with 0.8, the second with 0.3. */
static void confidence(void **state)
{
    (void)state;
    test_rand rng = {11};
    predictor_host h = pr_open(repeat_last, all, NULL, NULL);
    uint32_t ids[PR_LAYERS][PR_TOP_K] = {{0, 1}, {0, 1}, {0, 1}};
    pr_fit fit = {.n = {0}};
    for (uint32_t t = 0; t < 4000; t++)
        for (uint32_t l = 0; l < PR_LAYERS; l++) {
            for (uint32_t k = 0; k < PR_TOP_K; k++)
                if (test_rand_f64(&rng) > (k ? 0.3 : 0.8))
                    do
                        ids[l][k] = test_rand_below(&rng, PR_EXPERTS);
                    while (ids[l][k] == ids[l][!k]);
            if (t > 500)
                pr_fit_add(&fit, &h, l, ids[l]);
            pr_layer(&h, l, ids[l], 1, NULL, NULL, 0, PR_MOST);
        }
    assert_true(pr_fit_check(&fit) >= 2);
    assert_true(h.out[0].confidence > 0.7f && h.out[1].confidence < 0.5f);
    pr_close(&h);

    h = pr_open(repeat_last, NULL, NULL, NULL); /* says only what is likely */
    for (uint32_t t = 0; t < 500; t++) {
        ids[0][0] = 0;         /* stays */
        ids[0][1] = 1 + t % 5; /* never does */
        pr_layer(&h, 0, ids[0], 1, NULL, NULL, 0, PR_MOST);
        pr_layer(&h, 2, ids[2], 1, NULL, NULL, 0, PR_MOST); /* the question about layer 0 */
    }
    assert_true(h.n == 1 && h.out[0].expert == 0);
    pr_close(&h);
}

static void nonsense(void **state)
{
    (void)state;
    predictor_host h = pr_open(repeat_last, all, NULL, NULL);
    static const uint32_t bad[] = {0, PR_EXPERTS}, good[] = {0, 1};
    pr_layer(&h, 0, bad, 1, NULL, NULL, 0, PR_MOST);
    pr_layer(&h, 2, good, 0, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0);
    pr_close(&h);
}

static int load(void **state)
{
    (void)state;
    repeat_last = test_component("predictor-repeat_last", "colibri_predictor_repeat_last", COLIBRI_IFACE_PREDICTOR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(sequences),
                                       cmocka_unit_test(confidence), cmocka_unit_test(nonsense)};
    return cmocka_run_group_tests(tests, load, NULL);
}
