/* Predictor markov: learns a rule between layers, forgets it when it changes, and knows how sure it may be. */
#include "support/predictor_host.h"

static const struct colibri_predictor *markov;
static const double every[] = {1, 4096, 0.05};

/* Layer l + 1 chooses what follows from layer l's choice, by that rule, in a share `exact` of the cases. */
static void follow(test_rand *rng, uint32_t rule, double exact, const uint32_t *from, uint32_t *to)
{
    pr_random_ids(rng, to, 1);
    if (test_rand_f64(rng) < exact) {
        to[0] = (from[0] * 5 + rule) % PR_EXPERTS;
        to[1] = (from[1] * 5 + rule) % PR_EXPERTS; /* distinct: 5 and 12 have no common factor */
    }
}

/* Share of right guesses among the first two for layers 1 and 2, over n tokens. */
static double tokens(predictor_host *h, test_rand *rng, uint32_t rule, double exact, uint32_t n, uint32_t d,
                     pr_fit *fit)
{
    uint32_t right = 0, all = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t ids[PR_LAYERS][PR_TOP_K];
        pr_random_ids(rng, ids[0], 1);
        follow(rng, rule, exact, ids[0], ids[1]);
        follow(rng, rule, exact, ids[1], ids[2]);
        pr_step(h, 1);
        for (uint32_t l = 0; l < PR_LAYERS; l++) {
            pr_layer(h, l, ids[l], 1, NULL, NULL, 0, PR_MOST);
            if (l + d >= PR_LAYERS)
                continue;
            uint32_t said = 0;
            for (uint32_t i = 0; i < h->n && said < 2; i++)
                if (h->out[i].layer == l + d) {
                    said++;
                    right += h->out[i].expert == ids[l + d][0] || h->out[i].expert == ids[l + d][1];
                }
            all += 2;
            if (fit)
                pr_fit_add(fit, h, l + d, ids[l + d]);
        }
    }
    return (double)right / all;
}

static void learns(void **state)
{
    (void)state;
    test_rand rng = {1};
    predictor_host h = pr_open(markov, every, NULL, NULL);
    tokens(&h, &rng, 3, 1.0, 400, 1, NULL);
    assert_true(tokens(&h, &rng, 3, 1.0, 300, 1, NULL) > 0.97);
    h.predictor->reset(h.self);
    assert_true(tokens(&h, &rng, 3, 1.0, 5, 1, NULL) < 0.6);
    pr_close(&h);
}

static void two_layers(void **state)
{
    (void)state;
    static const double params[] = {2, 4096, 0.05};
    test_rand rng = {2};
    predictor_host h = pr_open(markov, params, NULL, NULL);
    tokens(&h, &rng, 1, 1.0, 400, 1, NULL);
    assert_true(tokens(&h, &rng, 1, 1.0, 300, 2, NULL) > 0.97);
    assert_true(tokens(&h, &rng, 1, 1.0, 300, 1, NULL) > 0.97);
    pr_close(&h);
}

static void forgets(void **state)
{
    (void)state;
    static const double brief[] = {1, 64, 0.05}, everlasting[] = {1, 32768, 0.05};
    double after[2];
    for (int i = 0; i < 2; i++) {
        test_rand rng = {3};
        predictor_host h = pr_open(markov, i ? everlasting : brief, NULL, NULL);
        tokens(&h, &rng, 3, 1.0, 3000, 1, NULL);
        tokens(&h, &rng, 7, 1.0, 300, 1, NULL); /* another text */
        after[i] = tokens(&h, &rng, 7, 1.0, 60, 1, NULL);
        pr_close(&h);
    }
    assert_true(after[0] > 0.75);
    assert_true(after[1] < after[0] - 0.3);
}

static void confidence(void **state)
{
    (void)state;
    test_rand rng = {4};
    pr_fit fit = {.n = {0}};
    predictor_host h = pr_open(markov, every, NULL, NULL);
    tokens(&h, &rng, 3, 0.6, 1000, 1, NULL);
    const double right = tokens(&h, &rng, 3, 0.6, 3000, 1, &fit);
    assert_true(right > 0.6 && right < 0.75);
    assert_true(pr_fit_check(&fit) >= 2);
    pr_close(&h);

    h = pr_open(markov, NULL, NULL, NULL); /* says only what is likely */
    tokens(&h, &rng, 3, 0.9, 1000, 1, NULL);
    pr_layer(&h, 0, (const uint32_t[]){0, 1}, 1, NULL, NULL, 0, PR_MOST);
    assert_true(h.n == 2 && pr_said(&h, 1, 3) >= 0.6 && pr_said(&h, 1, 8) >= 0.6);
    pr_layer(&h, 2, (const uint32_t[]){0, 1}, 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0); /* the next token's first layer is anybody's guess */
    pr_close(&h);
}

/* A prompt teaches as much as its rows one by one. */
static void prompt(void **state)
{
    (void)state;
    enum { N = 120 };
    static uint32_t ids[PR_LAYERS][N][PR_TOP_K];
    test_rand rng = {5};
    predictor_host a = pr_open(markov, every, NULL, NULL), b = pr_open(markov, every, NULL, NULL);
    for (uint32_t r = 0; r < N; r++) {
        pr_random_ids(&rng, ids[0][r], 1);
        follow(&rng, 3, 1.0, ids[0][r], ids[1][r]);
        follow(&rng, 3, 1.0, ids[1][r], ids[2][r]);
    }
    pr_step(&a, N);
    for (uint32_t l = 0; l < PR_LAYERS; l++)
        pr_layer(&a, l, ids[l][0], N, NULL, NULL, 0, PR_MOST);
    test_rand one = {6}, two = {6};
    const double taught = tokens(&a, &one, 3, 1.0, 20, 1, NULL), untaught = tokens(&b, &two, 3, 1.0, 20, 1, NULL);
    assert_true(taught > 0.9 && untaught < 0.7);
    pr_close(&a);
    pr_close(&b);
}

/* Long and mixed passes, sequences beyond the table, and nonsense: no crash, the lists stay valid (pr_layer looks). */
static void rough(void **state)
{
    (void)state;
    static const double params[] = {2, 64, 0};
    static uint32_t ids[PR_MOST_ROWS * PR_TOP_K], sequence[PR_MOST_ROWS];
    test_rand rng = {7};
    predictor_host h = pr_open(markov, params, NULL, NULL);
    for (uint32_t t = 0; t < 400; t++) {
        const uint32_t n =
            test_rand_below(&rng, 4) ? 1 + test_rand_below(&rng, 12) : 1 + test_rand_below(&rng, PR_MOST_ROWS);
        for (uint32_t r = 0; r < n; r++)
            sequence[r] = test_rand_below(&rng, 3) ? r : UINT32_MAX - test_rand_below(&rng, 20);
        pr_step(&h, n);
        for (uint32_t l = 0; l < PR_LAYERS; l++) {
            pr_random_ids(&rng, ids, n);
            pr_layer(&h, l, ids, n, test_rand_below(&rng, 2) ? sequence : NULL, NULL, 0,
                     1 + test_rand_below(&rng, PR_MOST));
        }
    }
    ids[0] = PR_EXPERTS;
    pr_layer(&h, 0, ids, 1, NULL, NULL, 0, PR_MOST);
    pr_close(&h);
}

static int load(void **state)
{
    (void)state;
    markov = test_component("predictor-markov", "colibri_predictor_markov", COLIBRI_IFACE_PREDICTOR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(learns),  cmocka_unit_test(two_layers),
                                       cmocka_unit_test(forgets), cmocka_unit_test(confidence),
                                       cmocka_unit_test(prompt),  cmocka_unit_test(rough)};
    return cmocka_run_group_tests(tests, load, NULL);
}
