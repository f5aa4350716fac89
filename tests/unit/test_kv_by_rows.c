/* KV strategies that look at keys, values and queries, against the formulas of their papers in double precision. */
#include "support/kv_views.h"

enum { DIM = 8, V_DIM = 6, N = 120 };

static uint8_t keep[KV_MOST];
static float keys[N * DIM], values[N * V_DIM], scores[N];

static float noise(test_rand *r)
{
    return (float)test_rand_below(r, 2001) / 1000.0f - 1.0f;
}

static struct colibri_kv_view rows_view(const struct kv_fake *fake, uint32_t n, uint32_t n_keep)
{
    struct colibri_kv_view view = kv_view(n, n_keep);
    view.read_k = kv_fake_k;
    view.read_v = kv_fake_v;
    view.opaque = fake;
    return view;
}

static const struct kv_fake fake = {DIM, V_DIM, keys, values};

static void fill(uint64_t seed)
{
    test_rand r = {seed};
    for (size_t i = 0; i < N * DIM; i++)
        keys[i] = noise(&r) + (i % DIM == 2 ? 1.0f : 0.0f);
    for (size_t i = 0; i < N * V_DIM; i++)
        values[i] = noise(&r);
}

static struct colibri_kv_config rows_config(uint32_t budget)
{
    struct colibri_kv_config config = kv_config(budget);
    config.head_dim = DIM;
    config.v_dim = V_DIM;
    return config;
}

static double norm(const float *x, int dim)
{
    double sum = 0;
    for (int d = 0; d < dim; d++)
        sum += (double)x[d] * (double)x[d];
    return sqrt(sum);
}

static void l2_norm(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("l2_norm");
    const struct colibri_kv_config config = rows_config(30);
    struct colibri_kv_view view = rows_view(&fake, N, 30);
    void *self = kv_open(s, &config);
    fill(1);
    s->score(self, &view, scores);
    for (uint32_t i = 0; i + 1 < N; i++)
        assert_true(fabs((double)scores[i] - (-norm(keys + i * DIM, DIM))) < 1e-5);
    view.n_protected = 7;
    kv_ask(s, self, &view, keep);
    keys[40 * DIM] = NAN; /* ranks last */
    keys[41 * DIM] = INFINITY;
    s->score(self, &view, scores);
    assert_true(scores[40] == -INFINITY && scores[41] == -INFINITY);
    s->destroy(self);
}

static void keydiff(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("keydiff");
    const struct colibri_kv_config config = rows_config(30);
    struct colibri_kv_view view = rows_view(&fake, N, 30);
    void *self = kv_open(s, &config);
    double anchor[DIM] = {0}, length = 0;
    fill(2);
    for (int i = 0; i < N; i++)
        for (int d = 0; d < DIM; d++)
            anchor[d] += (double)keys[i * DIM + d] / norm(keys + i * DIM, DIM) / N;
    for (int d = 0; d < DIM; d++)
        length += anchor[d] * anchor[d];
    s->score(self, &view, scores);
    for (uint32_t i = 0; i + 1 < N; i++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++)
            dot += (double)keys[i * DIM + (uint32_t)d] * anchor[d];
        assert_true(fabs((double)scores[i] - (-dot / sqrt(length) / norm(keys + i * DIM, DIM))) < 1e-5);
    }
    /* all alike but two, of any length */
    for (int i = 0; i < N; i++)
        for (int d = 0; d < DIM; d++)
            keys[i * DIM + d] = d == 1 ? 1.0f + (float)(i % 5) : 0.0f;
    keys[33 * DIM + 1] = 0;
    keys[33 * DIM + 4] = 0.01f;
    keys[77 * DIM + 1] = -3;
    view.n_keep = 3;
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, N, 33, 77, 119);
    memset(keys, 0, sizeof keys); /* no direction at all */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, N, 117, 118, 119);
    keys[50 * DIM + 3] = NAN;
    kv_ask(s, self, &view, keep);
    s->destroy(self);
}

/* The paper's score of one row, from a partition and the next. */
static double lag_spread(const float *rows, int dim, int i, int next, int lag)
{
    double x[DIM], mean = 0, var = 0;
    for (int d = 0; d < dim; d++) {
        double low = (double)INFINITY, high = -(double)INFINITY;
        for (int j = next; j < next + lag; j++) {
            low = fmin(low, (double)rows[j * dim + d]);
            high = fmax(high, (double)rows[j * dim + d]);
        }
        x[d] = ((double)rows[i * dim + d] - low) / (high - low);
        mean += x[d] / dim;
    }
    for (int d = 0; d < dim; d++)
        var += (x[d] - mean) * (x[d] - mean) / (dim - 1);
    return sqrt(var);
}

static void lagkv(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("lagkv");
    struct colibri_kv_config config = rows_config(60);
    enum { LAG = 10, SINKS = 3 };
    double params[] = {LAG, SINKS, 0};
    config.params = params;
    void *self = kv_open(s, &config);
    struct colibri_kv_view view = rows_view(&fake, N, 60);
    fill(3);
    s->score(self, &view, scores);
    for (uint32_t i = 0; i < SINKS; i++)
        assert_true(scores[i] == INFINITY);
    /* 117 = 11 * 10 + 7: ten partitions are ranked, the last one and 7 more stay */
    for (int part = 0; part < 10; part++) {
        const int at = SINKS + part * LAG;
        double total[LAG], sum_k = 0, sum_v = 0;
        for (int i = 0; i < LAG; i++) {
            sum_k += exp(lag_spread(keys, DIM, at + i, at + LAG, LAG));
            sum_v += exp(lag_spread(values, V_DIM, at + i, at + LAG, LAG));
        }
        for (int i = 0; i < LAG; i++)
            total[i] = exp(lag_spread(keys, DIM, at + i, at + LAG, LAG)) / sum_k +
                       exp(lag_spread(values, V_DIM, at + i, at + LAG, LAG)) / sum_v;
        for (int i = 0; i < LAG; i++) {
            int worse = 0;
            for (int j = 0; j < LAG; j++)
                worse += total[j] < total[i];
            assert_true(fabs((double)scores[at + i] - (worse / (double)LAG)) < 1e-6);
        }
    }
    for (uint32_t i = SINKS + 100; i < N; i++)
        assert_true(scores[i] == INFINITY);
    view.n_keep = 50; /* 3 sinks and the 17 at the end leave 30 of 100: the best three of each partition */
    kv_ask(s, self, &view, keep);
    for (int part = 0; part < 10; part++) {
        int n = 0;
        for (int i = 0; i < LAG; i++)
            n += keep[SINKS + part * LAG + i];
        assert_int_equal(n, 3);
    }
    keys[30 * DIM] = NAN;
    values[44 * V_DIM + 1] = INFINITY;
    for (uint32_t n_keep = 1; n_keep < N; n_keep++) { /* shorter partitions, then none */
        view.n_keep = n_keep;
        view.n_protected = n_keep / 3;
        kv_ask(s, self, &view, keep);
    }
    view.n_keep = 5;
    view.n_protected = 0;
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, N, 0, 1, 117, 118, 119);
    s->destroy(self);
    memset(keys, 0, sizeof keys); /* all alike: the later ones of each partition */
    memset(values, 0, sizeof values);
    self = kv_open(s, &config);
    view.n_keep = 50;
    kv_ask(s, self, &view, keep);
    for (int i = 0; i < 10 * LAG; i++)
        assert_int_equal(keep[SINKS + i], i % LAG >= LAG - 3);
    s->destroy(self);
    params[2] = 1; /* scores of a partition, not ranks: keys and values sum to 1 each */
    fill(3);
    self = kv_open(s, &config);
    view.n_keep = 60;
    s->score(self, &view, scores);
    for (int part = 0; part < 10; part++) {
        double sum = 0;
        for (int i = 0; i < LAG; i++)
            sum += (double)scores[SINKS + part * LAG + i];
        assert_true(fabs(sum - 2) < 1e-5);
    }
    s->destroy(self);
}

enum { HEADS = 2, ROT = 6, FUTURE = 20 };
static const float inv_freq[ROT / 2] = {1.0f, 0.3f, 0.01f};

/* x rotated to position p, as attention does it. */
static void rotated(const double *x, double p, int neox, double *out)
{
    memcpy(out, x, DIM * sizeof out[0]);
    for (int i = 0; i < ROT / 2; i++) {
        const int a = neox ? i : 2 * i, b = neox ? i + ROT / 2 : 2 * i + 1;
        const double c = cos(p * (double)inv_freq[i]), d = sin(p * (double)inv_freq[i]);
        out[a] = x[a] * c - x[b] * d;
        out[b] = x[b] * c + x[a] * d;
    }
}

/* Column c of the mean rotation matrix. */
static void mean_column(int c, double first, int n, int neox, double *out)
{
    double unit[DIM] = {0}, one[DIM];
    unit[c] = 1;
    memset(out, 0, DIM * sizeof out[0]);
    for (int k = 0; k < n; k++) {
        rotated(unit, first + k, neox, one);
        for (int d = 0; d < DIM; d++)
            out[d] += one[d] / n;
    }
}

static void check_queries(int neox, int covariance, int max, int v_norm, double epsilon, int compact)
{
    const struct colibri_kv_strategy *s = kv_strategy("expected_attention");
    struct colibri_kv_config config = rows_config(40);
    const double params[] = {FUTURE, 4, covariance, v_norm, epsilon, max};
    static float mean[HEADS * DIM], cov[HEADS * DIM * DIM];
    static double logits[N], expected[N];
    test_rand r = {5};
    fill(4);
    for (size_t i = 0; i < HEADS * DIM; i++)
        mean[i] = 3 * noise(&r);
    for (int h = 0; h < HEADS; h++) { /* of 30 made-up queries */
        float q[30][DIM];
        for (int k = 0; k < 30; k++)
            for (int d = 0; d < DIM; d++)
                q[k][d] = 3 * noise(&r);
        for (int i = 0; i < DIM; i++)
            for (int j = 0; j < DIM; j++) {
                cov[(h * DIM + i) * DIM + j] = 0;
                for (int k = 0; k < 30; k++)
                    cov[(h * DIM + i) * DIM + j] += q[k][i] * q[k][j] / 30;
            }
    }
    config.params = params;
    config.n_rot = ROT;
    config.neox = neox;
    config.inv_freq = inv_freq;
    config.attention_scale = 0.35f;
    config.positions = compact ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
    void *self = kv_open(s, &config);
    struct colibri_kv_view view = rows_view(&fake, N, 40);
    view.n_heads = HEADS;
    view.n_last = 30;
    view.next_position = 500;
    view.q_mean = mean;
    view.q_cov = cov;
    memset(expected, 0, sizeof expected);
    for (int h = 0; h < HEADS; h++) {
        double turn[DIM][DIM], sum = 0; /* turn[c]: column c */
        for (int c = 0; c < DIM; c++)
            mean_column(c, compact ? 40 : 500, FUTURE, neox, turn[c]);
        for (int i = 4; i < N; i++) {
            double back[DIM] = {0}, linear = 0, square = 0; /* back = R' k */
            for (int c = 0; c < DIM; c++)
                for (int d = 0; d < DIM; d++)
                    back[c] += turn[c][d] * (double)keys[i * DIM + d];
            for (int c = 0; c < DIM; c++) {
                linear += back[c] * (double)mean[h * DIM + c];
                for (int d = 0; d < DIM; d++)
                    square += back[c] * (double)cov[(h * DIM + c) * DIM + d] * back[d];
            }
            logits[i] = exp(0.35 * linear + (covariance ? 0.35 * 0.35 / 2 * square : 0));
            sum += logits[i];
        }
        for (int i = 4; i < N; i++)
            expected[i] = max ? fmax(expected[i], logits[i] / sum) : expected[i] + logits[i] / sum / HEADS;
    }
    for (uint32_t i = 0; i < N; i++)
        scores[i] = NAN;
    s->score(self, &view, scores);
    for (int i = 0; i < N; i++) {
        const double want = v_norm ? (expected[i] + epsilon) * norm(values + i * V_DIM, V_DIM) : expected[i];
        if (i < 4 || i == N - 1)
            assert_true(scores[i] == INFINITY);
        else if (fabs((double)scores[i] - want) > 2e-4 * want + 1e-9)
            fail_msg("position %d: %g, should be %g", i, (double)scores[i], want);
    }
    view.n_last = 0; /* nothing known yet: no fault */
    kv_ask(s, self, &view, keep);
    view.n_last = 30;
    keys[60 * DIM] = NAN;
    keys[61 * DIM] = 1e30f;
    values[62 * V_DIM] = NAN;
    kv_ask(s, self, &view, keep);
    s->destroy(self);
}

static void expected_attention(void **state)
{
    (void)state;
    for (int neox = 0; neox < 2; neox++)
        for (int covariance = 0; covariance < 2; covariance++)
            for (int max = 0; max < 2; max++) {
                check_queries(neox, covariance, max, 1, 0, 0);
                check_queries(neox, covariance, max, 0, 0, 1);
                check_queries(neox, covariance, max, 1, 0.02, 0);
            }
}

static void page_bounds(const float *rows, uint32_t n_pages, uint32_t page, float *low, float *high)
{
    for (uint32_t p = 0; p < n_pages; p++)
        for (uint32_t d = 0; d < DIM; d++) {
            low[p * DIM + d] = INFINITY;
            high[p * DIM + d] = -INFINITY;
            for (uint32_t i = p * page; i < (p + 1) * page; i++) {
                low[p * DIM + d] = fminf(low[p * DIM + d], rows[i * DIM + d]);
                high[p * DIM + d] = fmaxf(high[p * DIM + d], rows[i * DIM + d]);
            }
        }
}

static void quest(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("quest");
    struct colibri_kv_config config = rows_config(30);
    enum { PAGE = 10, PAGES = N / PAGE };
    float low[PAGES * DIM], high[PAGES * DIM], q[HEADS * DIM];
    uint8_t use[PAGES];
    test_rand r = {6};
    fill(7);
    page_bounds(keys, PAGES, PAGE, low, high);
    assert_true(s->flags & COLIBRI_KV_FLAG_KEEPS_ALL);
    for (int max = 0; max < 2; max++)
        for (uint32_t n_use = 1; n_use <= PAGES; n_use++) {
            const double params[] = {max};
            double rank[PAGES];
            config.params = params;
            void *self = kv_open(s, &config);
            for (size_t i = 0; i < HEADS * DIM; i++)
                q[i] = noise(&r);
            for (uint32_t p = 0; p < PAGES; p++) {
                double best = -(double)INFINITY, total = 0;
                for (uint32_t h = 0; h < HEADS; h++) {
                    double sum = 0;
                    for (uint32_t d = 0; d < DIM; d++)
                        sum += fmax((double)q[h * DIM + d] * (double)low[p * DIM + d],
                                    (double)q[h * DIM + d] * (double)high[p * DIM + d]);
                    for (uint32_t i = p * PAGE; i < (p + 1) * PAGE; i++) { /* a bound it is */
                        double dot = 0;
                        for (uint32_t d = 0; d < DIM; d++)
                            dot += (double)q[h * DIM + d] * (double)keys[i * DIM + d];
                        assert_true(dot <= sum + 1e-6);
                    }
                    best = fmax(best, sum);
                    total += sum;
                }
                rank[p] = max ? best : total;
            }
            const struct colibri_kv_pages pages = {.struct_size = sizeof pages,
                                                   .n_pages = PAGES,
                                                   .page_tokens = PAGE,
                                                   .n_use = n_use,
                                                   .n_heads = HEADS,
                                                   .head_dim = DIM,
                                                   .q = q,
                                                   .k_min = low,
                                                   .k_max = high};
            memset(use, 0, sizeof use);
            assert_int_equal(s->pick_pages(self, &pages, use), COLIBRI_OK);
            for (uint32_t p = 0; p < PAGES; p++) {
                uint32_t better = 0;
                for (uint32_t o = 0; o < PAGES; o++)
                    better += rank[o] > rank[p];
                assert_int_equal(use[p], better < n_use);
            }
            s->destroy(self);
        }
}

/* More pages than it remembers ranks of, equal ones, and one that is not a number. */
static void quest_many(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("quest");
    const struct colibri_kv_config config = rows_config(30);
    enum { PAGES = 5000 };
    float *const low = calloc((size_t)PAGES * DIM, sizeof(float)), q[DIM] = {1};
    static uint8_t use[PAGES];
    void *self = kv_open(s, &config);
    assert_non_null(low);
    for (uint32_t p = 0; p < PAGES; p++)
        low[p * DIM] = p % 7 == 3 ? 2 : 1;
    low[10 * DIM] = low[4994 * DIM] = NAN;
    uint32_t n_top = 0;
    for (uint32_t p = 0; p < PAGES; p++)
        n_top += p % 7 == 3 && p != 10 && p != 4994;
    const struct colibri_kv_pages pages = {.struct_size = sizeof pages,
                                           .n_pages = PAGES,
                                           .page_tokens = 16,
                                           .n_use = n_top + 5,
                                           .n_heads = 1,
                                           .head_dim = DIM,
                                           .q = q,
                                           .k_min = low,
                                           .k_max = low};
    assert_int_equal(s->pick_pages(self, &pages, use), COLIBRI_OK);
    for (uint32_t p = 0, left = 5; p < PAGES; p++) {
        const uint32_t at = PAGES - 1 - p; /* the later ones of equals */
        const int top = at % 7 == 3 && at != 10 && at != 4994, more = !top && at % 7 != 3 && left > 0;
        left -= (uint32_t)more;
        assert_int_equal(use[at], top || more);
    }
    s->destroy(self);
    free(low);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(l2_norm), cmocka_unit_test(keydiff),
        cmocka_unit_test(lagkv),   cmocka_unit_test(expected_attention),
        cmocka_unit_test(quest),   cmocka_unit_test(quest_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
