/* Predictor oracle: right as often as it was told to be. */
#include "support/predictor_host.h"

static const struct colibri_predictor *oracle;

enum { N = 2000 };
static uint32_t rows[N][PR_LAYERS][PR_TOP_K];
static uint32_t row, layer; /* now */

static uint64_t next_use(void *ctx, uint32_t l, uint32_t e)
{
    (void)ctx;
    for (uint32_t r = row + (l <= layer); r < N; r++)
        if (rows[r][l][0] == e || rows[r][l][1] == e)
            return (uint64_t)(r - row) * PR_LAYERS + l - layer;
    return UINT64_MAX;
}

/* Share of right guesses; every layer gets as many as it needs. */
static double precision(const double *params, uint32_t ahead, uint64_t *digest)
{
    uint32_t right = 0, all = 0;
    predictor_host h = pr_open(oracle, params, next_use, NULL);
    for (int again = 0; again < 2; again++) {
        uint64_t sum = 0;
        right = all = 0;
        for (row = 0; row + 4 < N; row++)
            for (layer = 0; layer < PR_LAYERS; layer++) {
                pr_layer(&h, layer, rows[row][layer], 1, NULL, NULL, 0, PR_MOST);
                assert_int_equal(h.n, ahead * PR_TOP_K);
                for (uint32_t i = 0; i < h.n; i++) {
                    const uint32_t l = h.out[i].layer, r = row + (l <= layer);
                    assert_int_equal(l, (layer + 1 + i / PR_TOP_K) % PR_LAYERS);
                    right += rows[r][l][0] == h.out[i].expert || rows[r][l][1] == h.out[i].expert;
                    all++;
                    sum = sum * 31 + h.out[i].expert;
                }
            }
        if (again)
            assert_true(sum == *digest); /* as good as new after reset */
        *digest = sum;
        h.predictor->reset(h.self);
    }
    pr_close(&h);
    return (double)right / all;
}

static void shares(void **state)
{
    (void)state;
    test_rand rng = {1};
    uint64_t digest;
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t l = 0; l < PR_LAYERS; l++)
            pr_random_ids(&rng, rows[r][l], 1);
    assert_true(precision((const double[]){1, 1}, 1, &digest) == 1.0);
    assert_true(precision((const double[]){0, 1}, 1, &digest) == 0.0);
    const double p = precision((const double[]){0.7, 3}, 3, &digest); /* 36000 guesses: deviation 0.0024 */
    assert_true(p > 0.69 && p < 0.71);
}

static void no_future(void **state)
{
    (void)state;
    char why[128] = "";
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = 1, .n_experts = 4, .top_k = 1};
    assert_null(oracle->create(&config, why, sizeof why));
    assert_non_null(strstr(why, "replay"));
    assert_true(oracle->flags & COLIBRI_POLICY_ORACLE);
}

static int load(void **state)
{
    (void)state;
    oracle = test_component("predictor-oracle", "colibri_predictor_oracle", COLIBRI_IFACE_PREDICTOR);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shares), cmocka_unit_test(no_future)};
    return cmocka_run_group_tests(tests, load, NULL);
}
