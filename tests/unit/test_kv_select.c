/* colibri_kv_keep_top against sorting: ties, signs, infinities, NaN. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/kv_select.h"

static const float *scores;

static double order(float x)
{
    return x != x ? -(double)INFINITY : x < -3.4e38f ? -1e39 : (double)x; /* NaN is below -infinity */
}

static int better_first(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const double x = order(scores[i]), y = order(scores[j]);
    if (x != y)
        return x > y ? -1 : 1;
    return i > j ? -1 : 1; /* the later */
}

static void equals_sorting(void **state)
{
    (void)state;
    enum { MOST = 700 };
    static float score[MOST];
    static uint32_t index[MOST];
    static uint8_t keep[MOST + 1], expected[MOST];
    test_rand rng = {9};
    for (int round = 0; round < 3000; round++) {
        const uint32_t n = 1 + test_rand_below(&rng, MOST), n_keep = test_rand_below(&rng, n + 3);
        const uint32_t kind = test_rand_below(&rng, 4);
        for (uint32_t i = 0; i < n; i++) {
            const float special[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-45f, -1e-45f, 3e38f};
            score[i] = kind == 0   ? test_rand_f32(&rng, -1, 1)
                       : kind == 1 ? (float)test_rand_below(&rng, 3)
                       : kind == 2 ? special[test_rand_below(&rng, 8)]
                                   : test_rand_f32(&rng, -1e-38f, 1e-38f);
            index[i] = i;
        }
        scores = score;
        qsort(index, n, sizeof index[0], better_first);
        memset(expected, 0, n);
        for (uint32_t i = 0; i < n && i < n_keep; i++)
            expected[index[i]] = 1;
        memset(keep, 7, sizeof keep);
        colibri_kv_keep_top(score, n, n_keep, keep);
        assert_memory_equal(keep, expected, n);
        assert_int_equal(keep[n], 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_sorting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
