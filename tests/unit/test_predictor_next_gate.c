/* Predictor next-gate: the best of the logits, as far ahead as they go, with confidences that are right. */
#include "support/predictor_host.h"

static const struct colibri_predictor *next_gate;

static void scripted(void **state)
{
    (void)state;
    static const uint32_t ids[] = {0, 1};
    float one[PR_EXPERTS], two[PR_EXPERTS];
    const float *const ahead[] = {one, two};
    for (uint32_t e = 0; e < PR_EXPERTS; e++) {
        one[e] = -(float)e; /* 0, 1 */
        two[e] = (float)(e == 7) * 9 + (float)(e == 4) * 8;
    }
    predictor_host h = pr_open(next_gate, NULL, NULL, NULL);
    assert_int_equal(next_gate->ahead, 2);
    pr_step(&h, 1);
    pr_layer(&h, 0, ids, 1, NULL, ahead, 2, PR_MOST);
    assert_int_equal(h.n, 4);
    assert_true(pr_said(&h, 1, 0) > 0.5 && pr_said(&h, 1, 1) > 0.5 && pr_said(&h, 2, 7) > 0.5 &&
                pr_said(&h, 2, 4) > 0.5);
    pr_layer(&h, 1, ids, 1, NULL, ahead, 1, PR_MOST);
    assert_true(h.n == 2 && pr_said(&h, 2, 0) > 0.5); /* there is no layer 3 */
    pr_layer(&h, 2, ids, 1, NULL, ahead, 0, PR_MOST);
    assert_int_equal(h.n, 0);

    pr_step(&h, 1);
    pr_layer(&h, 0, ids, 1, NULL, NULL, 0, PR_MOST);
    assert_int_equal(h.n, 0); /* a host that cannot ask; what the last pass said is gone */
    for (uint32_t e = 1; e < PR_EXPERTS; e++)
        one[e] = -INFINITY;
    pr_layer(&h, 0, ids, 1, NULL, ahead, 1, PR_MOST);
    assert_int_equal(h.n, 0); /* too little is known */
    one[5] = -3;
    pr_layer(&h, 0, ids, 1, NULL, ahead, 1, PR_MOST);
    assert_true(h.n == 2 && pr_said(&h, 1, 0) > 0.5 && pr_said(&h, 1, 5) > 0.5); /* enough, as in a replay */
    for (uint32_t e = 0; e < PR_EXPERTS; e++)
        one[e] = -(float)e;
    one[3] = NAN;
    pr_layer(&h, 0, ids, 1, NULL, ahead, 1, PR_MOST);
    assert_int_equal(h.n, 0);
    one[3] = 0;
    pr_layer(&h, 0, ids, 1, NULL, ahead, 1, PR_MOST);
    assert_int_equal(h.n, 2);
    assert_true(pr_said(&h, 1, 0) > 0.5 && pr_said(&h, 1, 3) > 0.5); /* equal logits: both */
    h.predictor->reset(h.self);
    assert_int_equal(h.predictor->predict(h.self, 0, 0, 0, h.out, PR_MOST), 0);
    pr_close(&h);

    static const double four[] = {1, 4, 0};
    h = pr_open(next_gate, four, NULL, NULL);
    one[3] = -3;
    pr_step(&h, 1);
    pr_layer(&h, 0, ids, 1, NULL, ahead, 2, PR_MOST);
    assert_int_equal(h.n, 4); /* of one layer */
    assert_true(pr_said(&h, 1, 2) > 0 && pr_said(&h, 1, 2) < pr_said(&h, 1, 0));
    pr_layer(&h, 0, ids, 1, NULL, ahead, 2, 1);
    assert_true(h.n == 1 && h.out[0].expert == 0);
    pr_close(&h);

    static const double likely[] = {1, 4, 0.5};
    h = pr_open(next_gate, likely, NULL, NULL);
    pr_step(&h, 1);
    pr_layer(&h, 0, ids, 1, NULL, ahead, 2, PR_MOST);
    assert_int_equal(h.n, 2); /* the other two are below */
    pr_close(&h);
}

/* The later logits are the early ones plus noise. */
static void confidence(void **state)
{
    (void)state;
    static const double all[] = {2, PR_EXPERTS, 0};
    test_rand rng = {1};
    predictor_host h = pr_open(next_gate, all, NULL, NULL);
    pr_fit fit = {.n = {0}};
    uint32_t at_top = 0;
    for (uint32_t t = 0; t < 3000; t++) {
        float early[2][PR_EXPERTS];
        const float *const ahead[] = {early[0], early[1]};
        uint32_t ids[PR_TOP_K];
        pr_step(&h, 1);
        pr_random_ids(&rng, ids, 1);
        for (uint32_t l = 0; l < PR_LAYERS; l++) {
            pr_layer(&h, l, ids, 1, NULL, ahead, l ? 2 : 0, PR_MOST);
            if (l + 1 == PR_LAYERS)
                break;
            for (uint32_t e = 0; e < PR_EXPERTS; e++)
                early[0][e] = early[1][e] = test_rand_f32(&rng, -3, 3);
            pr_layer(&h, l, ids, 1, NULL, ahead, 1, PR_MOST);
            float later[PR_EXPERTS];
            for (uint32_t e = 0; e < PR_EXPERTS; e++)
                later[e] = early[0][e] + test_rand_f32(&rng, -1, 1);
            for (uint32_t k = 0; k < PR_TOP_K; k++) {
                ids[k] = 0;
                for (uint32_t e = 1; e < PR_EXPERTS; e++)
                    if (later[e] > later[ids[k]])
                        ids[k] = e;
                later[ids[k]] = -100;
            }
            at_top += h.out[0].expert == ids[0] || h.out[0].expert == ids[1];
            if (t > 300)
                pr_fit_add(&fit, &h, l + 1, ids);
        }
    }
    assert_true(at_top > 6000 * 0.8);
    assert_true(pr_fit_check(&fit) >= 6);
    pr_close(&h);
}

static void rows(void **state)
{
    (void)state;
    enum { N = 200 };
    static float logits[2][N * PR_EXPERTS];
    static uint32_t ids[N * PR_TOP_K];
    const float *const ahead[] = {logits[0], logits[1]};
    test_rand rng = {2};
    static const double every[] = {2, 0, 0};
    predictor_host h = pr_open(next_gate, every, NULL, NULL);
    for (uint32_t t = 0; t < 200; t++) {
        const uint32_t n = t % 3 ? 1 + test_rand_below(&rng, 4) : 1 + test_rand_below(&rng, N);
        pr_step(&h, n);
        for (uint32_t l = 0; l < PR_LAYERS; l++) {
            pr_random_ids(&rng, ids, n);
            for (uint32_t i = 0; i < n * PR_EXPERTS; i++)
                logits[0][i] = logits[1][i] = test_rand_f32(&rng, -9, 9);
            pr_layer(&h, l, ids, n, NULL, ahead, 2, PR_MOST);
            for (uint32_t r = 0; r < n && r < 8 && l + 1 < PR_LAYERS; r++) { /* every row's best is there */
                uint32_t best = 0;
                for (uint32_t e = 1; e < PR_EXPERTS; e++)
                    if (logits[0][r * PR_EXPERTS + e] > logits[0][r * PR_EXPERTS + best])
                        best = e;
                assert_true(pr_said(&h, l + 1, best) >= 0);
            }
        }
    }
    pr_close(&h);
}

static int load(void **state)
{
    (void)state;
    next_gate = test_component("predictor-next_gate", "colibri_predictor_next_gate", COLIBRI_IFACE_PREDICTOR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(confidence),
                                       cmocka_unit_test(rows)};
    return cmocka_run_group_tests(tests, load, NULL);
}
