/* KV strategies that rank by attention, and those that know positions only: choices computed by hand. */
#include "support/kv_views.h"

static uint8_t keep[KV_MOST];

static void windows(void **state)
{
    (void)state;
    const char *const names[] = {"streaming", "sliding_window"};
    for (int k = 0; k < 2; k++) {
        const struct colibri_kv_strategy *s = kv_strategy(names[k]);
        const double params[] = {2, 3}, rest[] = {2, 0};
        struct colibri_kv_config config = kv_config(5);
        assert_int_equal(s->positions, k ? COLIBRI_KV_POS_ORIGINAL : COLIBRI_KV_POS_COMPACT);
        config.params = params;
        void *self = kv_open(s, &config);
        struct colibri_kv_view view = kv_view(12, 5);
        assert_int_equal(s->budget(self, 0, 0, 1000), 5);
        kv_ask(s, self, &view, keep);
        KV_KEPT(keep, 12, 0, 1, 9, 10, 11);
        view.n_keep = 8; /* more room than it wants */
        kv_ask(s, self, &view, keep);
        KV_KEPT(keep, 12, 0, 1, 9, 10, 11);
        view.n_keep = 5;
        view.n_protected = 4; /* more than the sinks: the window gives way */
        kv_ask(s, self, &view, keep);
        KV_KEPT(keep, 12, 0, 1, 2, 3, 11);
        view.n_protected = 0;
        view.n_keep = 1;
        kv_ask(s, self, &view, keep);
        KV_KEPT(keep, 12, 11);
        s->destroy(self);
        config.params = rest;
        self = kv_open(s, &config);
        view.n_keep = 5;
        kv_ask(s, self, &view, keep);
        KV_KEPT(keep, 12, 0, 1, 9, 10, 11);
        s->destroy(self);
        config.budget = 2;
        kv_refused(s, &config, "kv-budget");
    }
}

static void h2o(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("h2o");
    struct colibri_kv_config config = kv_config(6);
    const float sum[] = {9, 1, 5, 5, 2, 5, 0, 100, 3, 0, 1, 0};
    struct colibri_kv_view view = kv_view(12, 6);
    view.prob_sum = sum;
    void *self = kv_open(s, &config);
    kv_ask(s, self, &view, keep); /* three recent; of 0..8 the heaviest three, of equals the later one */
    KV_KEPT(keep, 12, 0, 5, 7, 9, 10, 11);
    view.n_keep = 7; /* the odd one is a hitter */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 12, 0, 3, 5, 7, 9, 10, 11);
    view.n_protected = 2; /* share of what is left: (7 - 2) / 2 */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 12, 0, 1, 3, 5, 7, 10, 11);
    s->destroy(self);
    const double none[] = {0};
    config.params = none;
    self = kv_open(s, &config);
    view.n_protected = 0;
    view.n_keep = 3; /* the newest in any case */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 12, 0, 7, 11);
    s->destroy(self);
}

static void important_tokens(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("important_tokens");
    struct colibri_kv_config config = kv_config(10);
    const double params[] = {1, 0.5, 1, 0.5}; /* one sink, half recent, attention per query, half for the system */
    float sum[20] = {0};
    struct colibri_kv_view view = kv_view(20, 10);
    config.params = params;
    view.prob_sum = sum;
    void *self = kv_open(s, &config);
    sum[3] = 1.6f;  /* of 17 queries */
    sum[12] = 1.5f; /* of 8 */
    sum[5] = 1.4f;  /* of 15 */
    sum[7] = 0.3f;
    sum[9] = 0.2f;
    kv_ask(s, self, &view, keep); /* 1 sink, (10 - 1) / 2 = 4 recent, 5 by attention per query */
    KV_KEPT(keep, 20, 0, 3, 5, 7, 9, 12, 16, 17, 18, 19);
    view.n_keep = 5; /* 1 sink, 2 recent, 2: 12 has 0.19 per query, 3 and 5 have 0.094 and 0.093 */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 20, 0, 3, 12, 18, 19);
    view.n_keep = 10;
    view.n_system = 4; /* 4 <= 10 / 2: as a whole; then 3 recent, 3 by attention */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 20, 0, 1, 2, 3, 5, 7, 12, 17, 18, 19);
    view.n_system = 9; /* more than half of the budget: 5 of them; then 2 recent, 3 by attention */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 20, 0, 1, 2, 3, 4, 5, 7, 12, 18, 19);
    s->destroy(self);
    const double by_sum[] = {0, 0.2, 0, 0};
    config.params = by_sum;
    self = kv_open(s, &config);
    view.n_keep = 5; /* 1 recent; system = 0 keeps none of it */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 20, 3, 5, 7, 12, 19);
    s->destroy(self);
    const double sinks[] = {10, 0.2, 0, 0};
    config.params = sinks;
    kv_refused(s, &config, "kv-budget");
}

static void tova(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("tova");
    const struct colibri_kv_config config = kv_config(4);
    const float last[] = {0.5f, 0.1f, 0.1f, 0, 0.2f, 0.1f, 0, 0};
    struct colibri_kv_view view = kv_view(8, 4);
    assert_int_equal(s->window_w, 1);
    assert_false(s->flags & COLIBRI_KV_FLAG_PER_HEAD); /* the heads of a layer decide together */
    view.prob_last = last;
    void *self = kv_open(s, &config);
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 8, 0, 4, 5, 7);
    s->destroy(self);
}

static void snapkv(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("snapkv");
    struct colibri_kv_config config = kv_config(8);
    const double mean3[] = {2, 3, 0}, max3[] = {2, 3, 1}, even[] = {2, 4, 0};
    /* one high value alone, three middle ones together */
    const float last[] = {0, 0, 0, 5, 0, 0, 0, 3, 3, 3, 0, 0, 9, 9};
    struct colibri_kv_view view = kv_view(14, 5);
    view.prob_last = last;
    config.params = mean3;
    void *self = kv_open(s, &config); /* means over three: 3 at position 8, then 2 at 7 and 9, 5/3 at 2 .. 4 */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 14, 7, 8, 9, 12, 13);
    view.n_keep = 4; /* the window's own 9s do not reach position 11 */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 14, 8, 9, 12, 13);
    view.n_keep = 3; /* the window takes half of a small budget at most */
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 14, 11, 12, 13); /* so 12 is ranked too, and 11 is next to it */
    view.n_keep = 1;
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 14, 13);
    s->destroy(self);
    config.params = max3;
    view.n_keep = 5;
    self = kv_open(s, &config);
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 14, 2, 3, 4, 12, 13);
    s->destroy(self);
    config.params = even;
    kv_refused(s, &config, "odd");
    config.params = NULL;
    self = kv_open(s, &config); /* the defaults: the window of 64 is cut to half of the budget, kernel 5, mean */
    view.n_keep = 8;
    kv_ask(s, self, &view, keep); /* sums of 5 around 0 .. 9: 0 5 5 5 5 8 6 9 9 9 */
    KV_KEPT(keep, 14, 5, 7, 8, 9, 10, 11, 12, 13);
    s->destroy(self);
}

static void oracle(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("oracle");
    const struct colibri_kv_config config = kv_config(3);
    const float future[] = {0, 7, 1, 2, 0, 0};
    struct colibri_kv_view view = kv_view(6, 3);
    assert_int_equal(s->needs, COLIBRI_KV_NEED_FUTURE);
    void *self = kv_open(s, &config);
    view.prob_future = future;
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 6, 1, 3, 5);
    view.prob_future = NULL;
    kv_ask(s, self, &view, keep);
    KV_KEPT(keep, 6, 3, 4, 5);
    s->destroy(self);
}

/* A position's number depends on nothing but seed, layer, head and position; kept shares are even. */
static void random_sample(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *s = kv_strategy("random");
    struct colibri_kv_config config = kv_config(100);
    enum { N = 4000, PART = 500 };
    static float a[N], b[N];
    struct colibri_kv_view view = kv_view(N, 400), part = kv_view(PART, 100);
    void *self = kv_open(s, &config);
    s->score(self, &view, a);
    s->score(self, &part, b);
    assert_memory_equal(a, b, (PART - 1) * sizeof a[0]);
    kv_ask(s, self, &view, keep);
    for (uint32_t tenth = 0; tenth < 10; tenth++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < N / 10; i++)
            n += keep[tenth * N / 10 + i];
        assert_in_range(n, 16, 64); /* 40 +- 4 sigma */
    }
    const struct {
        uint32_t layer, head;
        uint64_t seed;
    } other[] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    for (int k = 0; k < 3; k++) {
        uint32_t same = 0;
        config.seed = other[k].seed;
        void *second = kv_open(s, &config);
        view.layer = other[k].layer;
        view.kv_head = other[k].head;
        s->score(second, &view, b);
        for (uint32_t i = 0; i + 1 < N; i++)
            same += a[i] == b[i];
        assert_true(same < 5);
        s->destroy(second);
    }
    s->destroy(self);
    const double ends[] = {3, 0.5};
    config.params = ends;
    self = kv_open(s, &config);
    part.n_keep = 13;
    kv_ask(s, self, &part, keep);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(keep[i], 1);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(keep[PART - 1 - i], 1);
    s->destroy(self);
}

/* Attention that is not a number earns nothing, and nobody answers badly because of it. */
static void broken_attention(void **state)
{
    (void)state;
    const char *const names[] = {"h2o", "important_tokens", "tova", "snapkv", "oracle"};
    float p[40];
    for (int i = 0; i < 40; i++)
        p[i] = i % 3 ? NAN : i % 2 ? INFINITY : 1.0f;
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const struct colibri_kv_strategy *s = kv_strategy(names[k]);
        const struct colibri_kv_config config = kv_config(20);
        void *self = kv_open(s, &config);
        for (uint32_t n_keep = 1; n_keep < 40; n_keep++)
            for (uint32_t fixed = 0; fixed < n_keep; fixed += 5) {
                struct colibri_kv_view view = kv_view(40, n_keep);
                view.n_protected = fixed;
                view.prob_sum = view.prob_last = view.prob_future = p;
                kv_ask(s, self, &view, keep);
            }
        s->destroy(self);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows),          cmocka_unit_test(h2o),
        cmocka_unit_test(important_tokens), cmocka_unit_test(tova),
        cmocka_unit_test(snapkv),           cmocka_unit_test(oracle),
        cmocka_unit_test(random_sample),    cmocka_unit_test(broken_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
