/* KV strategies that wrap another one: pyramid, ada, chunk, block, cam. */
#include "support/kv_views.h"

#include "colibri/kv_select.h"

enum { HEADS = 4 };

static uint8_t keep[KV_MOST], plain[KV_MOST];
static const struct colibri_kv_strategy *h2o, *keydiff, *streaming, *pyramid, *ada, *chunk, *block, *cam;

/* A child that ranks by prob_sum alone, and remembers how often it was told about new rows. */
struct counting {
    uint32_t appended, evicted, budget;
    int forked;
};

static struct counting *last_made;

static void *counting_create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    struct counting *s = calloc(1, sizeof *s);
    (void)why;
    (void)why_size;
    s->budget = config->budget;
    last_made = s;
    return s;
}

static void counting_reset(void *self)
{
    *(struct counting *)self = (struct counting){0};
}

static void counting_score(void *self, const struct colibri_kv_view *view, float *out)
{
    (void)self;
    memcpy(out, view->prob_sum, view->n * sizeof out[0]);
}

static void counting_append(void *self, uint32_t layer, uint32_t kv_head, uint32_t n)
{
    (void)layer;
    (void)kv_head;
    ((struct counting *)self)->appended += n;
}

static void counting_evict(void *self, uint32_t layer, uint32_t kv_head, const uint32_t *kept, uint32_t n_kept)
{
    (void)layer;
    (void)kv_head;
    (void)kept;
    ((struct counting *)self)->evicted += n_kept;
}

static void *counting_fork(void *self)
{
    struct counting *s = malloc(sizeof *s);
    *s = *(const struct counting *)self;
    s->forked = 1;
    last_made = s;
    return s;
}

static struct colibri_kv_strategy counting(void)
{
    return (struct colibri_kv_strategy){
        .struct_size = sizeof(struct colibri_kv_strategy),
        .flags = COLIBRI_KV_FLAG_PER_HEAD,
        .triggers = COLIBRI_KV_AT_OVER_BUDGET,
        .name = "counting",
        .create = counting_create,
        .destroy = free,
        .reset = counting_reset,
        .score = counting_score,
        .on_append = counting_append,
        .on_evict = counting_evict,
        .fork = counting_fork,
    };
}

static struct colibri_kv_child child_of(const struct colibri_kv_strategy *s)
{
    return (struct colibri_kv_child){.struct_size = sizeof(struct colibri_kv_child), .strategy = s};
}

static void budgets_of_layers(void **state)
{
    (void)state;
    struct colibri_kv_config config = kv_config(200);
    const struct colibri_kv_child child = child_of(h2o);
    const double steep[] = {20, 64}, flat[] = {1, 64};
    const uint8_t evictable[] = {1, 0, 1, 1, 1, 0, 1, 1};
    config.child = &child;
    config.params = steep;
    void *self = kv_open(pyramid, &config);
    /* 136 to share: the last layer gets 6.8 of it, the first 265.2, and each the window */
    const uint32_t expected[] = {64 + 265, 64 + 179, 64 + 92, 64 + 6};
    for (uint32_t layer = 0; layer < 4; layer++)
        assert_int_equal(pyramid->budget(self, layer, 0, 100000), expected[layer]);
    /* 300 tokens so far: the first cannot use more than 236 of them, the last gets 272 - 236 */
    assert_int_equal(pyramid->budget(self, 0, 0, 300), 300);
    assert_int_equal(pyramid->budget(self, 3, 0, 300), 64 + 36);
    assert_int_equal(pyramid->budget(self, 1, 0, 150), 200); /* all fits */
    pyramid->destroy(self);
    config.params = flat;
    self = kv_open(pyramid, &config);
    for (uint32_t layer = 0; layer < 4; layer++)
        assert_int_equal(pyramid->budget(self, layer, 0, 100000), 200);
    pyramid->destroy(self);
    config.params = steep;
    config.n_layers = 8;
    config.evictable = evictable; /* the layers between do not count */
    for (uint32_t b = 1; b < 400; b += 7)
        for (uint64_t seen = 1; seen < 3000; seen = seen * 3 / 2 + 1) {
            uint32_t sum = 0, before = UINT32_MAX;
            config.budget = b;
            self = kv_open(pyramid, &config);
            for (uint32_t layer = 0; layer < 8; layer++)
                if (evictable[layer]) {
                    const uint32_t mine = pyramid->budget(self, layer, 1, seen);
                    assert_true(mine <= before);
                    before = mine;
                    sum += mine;
                }
            assert_in_range(sum, 6 * b - 6, 6 * b);
            pyramid->destroy(self);
        }
    const uint8_t only[] = {0, 0, 1, 0, 0, 0, 0, 0};
    config.budget = 200;
    config.evictable = only;
    self = kv_open(pyramid, &config);
    assert_int_equal(pyramid->budget(self, 2, 0, 100000), 200);
    pyramid->destroy(self);
    config.evictable = evictable;
    /* a window that is derived from the budget covers the largest layer */
    const struct colibri_kv_child window = child_of(streaming);
    config.budget = 200;
    config.child = &window;
    self = kv_open(pyramid, &config);
    struct colibri_kv_view view = kv_view(1000, 329);
    kv_ask(pyramid, self, &view, keep);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 1000; i++)
        kept += keep[i];
    assert_int_equal(kept, 329);
    pyramid->destroy(self);
}

/* What ada must give: a search by taking one best entry after another. */
static void search_allot(double floor, uint32_t n_heads, const struct colibri_kv_view *views, float *const *scores,
                         uint32_t total, uint32_t *n_keep)
{
    uint32_t used = 0, least[HEADS], above[HEADS] = {0};
    static uint8_t taken[HEADS][KV_MOST];
    memset(taken, 0, sizeof taken);
    for (uint32_t h = 0; h < n_heads; h++) {
        least[h] = (uint32_t)(floor * total / n_heads);
        least[h] = least[h] > views[h].n_protected ? least[h] : views[h].n_protected + 1;
        least[h] = least[h] < views[h].n ? least[h] : views[h].n;
        n_keep[h] = least[h];
        used += least[h];
    }
    while (used < total) {
        uint32_t best_h = UINT32_MAX, best_back = 0, best_i = 0;
        for (uint32_t back = 0; back < KV_MOST; back++)
            for (uint32_t h = 0; h < n_heads; h++) {
                const uint32_t i = views[h].n - 1 - back;
                if (back < views[h].n && !taken[h][i] &&
                    (best_h == UINT32_MAX || scores[h][i] > scores[best_h][best_i])) {
                    best_h = h;
                    best_i = i;
                    best_back = back;
                }
            }
        (void)best_back;
        if (best_h == UINT32_MAX)
            break;
        taken[best_h][best_i] = 1;
        if (++above[best_h] > n_keep[best_h]) {
            n_keep[best_h]++;
            used++;
        }
    }
}

static void ada_allots(void **state)
{
    (void)state;
    const struct colibri_kv_strategy base = counting();
    const struct colibri_kv_child child = child_of(&base);
    struct colibri_kv_config config = kv_config(10);
    static float space[HEADS][KV_MOST];
    float *scores[HEADS];
    struct colibri_kv_view views[HEADS];
    uint32_t n_keep[HEADS], expected[HEADS];
    test_rand r = {11};
    config.child = &child;
    config.n_kv_heads = HEADS;
    for (int round = 0; round < 400; round++) {
        const double floor[] = {round % 5 * 0.25};
        const uint32_t kinds = round % 3 ? 1000000 : 4; /* many ties in a third of the rounds */
        uint32_t total = 0, n = 0, fixed = 0;
        config.params = round % 7 ? floor : NULL;
        void *self = kv_open(ada, &config);
        for (uint32_t h = 0; h < HEADS; h++) {
            views[h] = kv_view(5 + test_rand_below(&r, 60), 10);
            views[h].n_protected = round % 4 ? 0 : test_rand_below(&r, 4);
            fixed += views[h].n_protected + 1;
            n += views[h].n;
            scores[h] = space[h];
            for (uint32_t i = 0; i < views[h].n; i++)
                scores[h][i] = (float)test_rand_below(&r, kinds) * (h == 2 ? 3.0f : 1.0f) - 100.0f;
            for (uint32_t i = 0; i < 2; i++) /* what stays in any case, and what ranks last */
                scores[h][views[h].n - 1 - i] = INFINITY;
            scores[h][0] = -INFINITY;
        }
        total = fixed + test_rand_below(&r, n - fixed + 5);
        const double f = round % 7 ? floor[0] : 0.2;
        assert_int_equal(ada->allot(self, 0, HEADS, views, (const float *const *)scores, total, n_keep), COLIBRI_OK);
        uint32_t sum = 0, floors = 0;
        for (uint32_t h = 0; h < HEADS; h++) {
            uint32_t least = (uint32_t)(f * total / HEADS);
            least = least > views[h].n_protected ? least : views[h].n_protected + 1;
            floors += least < views[h].n ? least : views[h].n;
            sum += n_keep[h];
        }
        assert_true(sum <= total);
        if (floors <= total) {
            search_allot(f, HEADS, views, scores, total, expected);
            assert_int_equal(sum, total < n ? total : n); /* nothing is left over */
            for (uint32_t h = 0; h < HEADS; h++) {
                assert_true(n_keep[h] > views[h].n_protected && n_keep[h] <= views[h].n);
                assert_int_equal(n_keep[h], expected[h]);
            }
        }
        ada->destroy(self);
    }
}

/* The figure of the paper: attention of one head on few positions, of another on many. */
static void ada_gives_to_the_spread_out(void **state)
{
    (void)state;
    const struct colibri_kv_child child = child_of(h2o);
    struct colibri_kv_config config = kv_config(5);
    const double none[] = {0};
    const float narrow[10] = {0.9f, 0.02f, 0.02f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0.01f, 0},
                wide[10] = {0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f};
    const float *const scores[] = {narrow, wide};
    const struct colibri_kv_view views[] = {kv_view(10, 5), kv_view(10, 5)};
    uint32_t n_keep[2];
    config.child = &child;
    void *self = kv_open(ada, &config); /* floor 0.2 of 5: one */
    assert_int_equal(ada->allot(self, 0, 2, views, scores, 10, n_keep), COLIBRI_OK);
    assert_int_equal(n_keep[0], 1);
    assert_int_equal(n_keep[1], 9);
    ada->destroy(self);
    config.params = none;
    self = kv_open(ada, &config);
    assert_int_equal(ada->allot(self, 0, 2, views, scores, 6, n_keep), COLIBRI_OK);
    assert_int_equal(n_keep[0], 1);
    assert_int_equal(n_keep[1], 5);
    assert_int_not_equal(ada->allot(self, 0, 3, views, scores, 6, n_keep), COLIBRI_OK);
    ada->destroy(self);
}

static void chunks(void **state)
{
    (void)state;
    const struct colibri_kv_strategy base = counting();
    const struct colibri_kv_child child = child_of(&base);
    struct colibri_kv_config config = kv_config(6);
    const double params[] = {3};
    /* chunks by position: {0 1 2} {3 4} {6 8} {9 10 11} {12} */
    const uint32_t positions[] = {0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12};
    const float sum[] = {9, 0, 0, 4, 4, 1, 2, 0, INFINITY, 3, 0};
    const float expected[] = {3, 3, 3, 4, 4, 1.5f, 1.5f, 1.5f, INFINITY, 1.5f, 0};
    float out[11];
    struct colibri_kv_view view = kv_view(11, 5);
    view.positions = positions;
    view.prob_sum = sum;
    config.child = &child;
    config.params = params;
    void *self = kv_open(chunk, &config);
    chunk->score(self, &view, out);
    assert_memory_equal(out, expected, sizeof out);
    kv_ask(chunk, self, &view, keep); /* 10 in any case, the newest, {3 4}, and of {0 1 2} the end */
    KV_KEPT(keep, 11, 2, 3, 4, 8, 10);
    chunk->destroy(self);
}

static void blocks(void **state)
{
    (void)state;
    enum { N = 90, DIM = 8 };
    static float keys[N * DIM], sum[N];
    const struct kv_fake fake = {DIM, DIM, keys, keys};
    struct colibri_kv_config config = kv_config(30);
    const struct colibri_kv_child child = child_of(keydiff);
    test_rand r = {3};
    for (size_t i = 0; i < N * DIM; i++)
        keys[i] = (float)test_rand_below(&r, 1000) - 400.0f;
    for (size_t i = 0; i < N; i++)
        sum[i] = (float)test_rand_below(&r, 1000);
    struct colibri_kv_view view = kv_view(N, 30);
    view.read_k = kv_fake_k;
    view.read_v = kv_fake_v;
    view.opaque = &fake;
    view.prob_sum = sum;
    config.child = &child;
    const uint32_t sizes[] = {1, 7, 20, 59, 60, 1000};
    int differs = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
        for (uint32_t fixed = 0; fixed < 20; fixed += 19) {
            /* the same by hand: choose among what is kept and the next block, over and over */
            uint32_t index[N], n = 30;
            const double params[] = {sizes[k]};
            view.n_protected = fixed;
            config.params = params;
            void *self = kv_open(block, &config), *alone = kv_open(keydiff, &config);
            for (uint32_t i = 0; i < 30; i++)
                index[i] = i;
            for (uint32_t next = 30; next < N;) {
                static float part[N * DIM];
                uint8_t stay[N];
                uint32_t kept = 0;
                for (uint32_t i = 0; i < sizes[k] && next < N; i++)
                    index[n++] = next++;
                for (uint32_t i = 0; i < n; i++)
                    memcpy(part + i * DIM, keys + index[i] * DIM, DIM * sizeof part[0]);
                const struct kv_fake some = {DIM, DIM, part, part};
                struct colibri_kv_view now = view;
                now.n = n;
                now.opaque = &some;
                kv_ask(keydiff, alone, &now, stay);
                for (uint32_t i = 0; i < n; i++)
                    if (stay[i])
                        index[kept++] = index[i];
                n = kept;
            }
            kv_ask(block, self, &view, keep);
            kv_assert_kept(keep, N, index, n);
            kv_ask(keydiff, alone, &view, plain);
            if (sizes[k] >= N - 30)
                assert_memory_equal(keep, plain, N);
            else
                differs += memcmp(keep, plain, N) != 0;
            block->destroy(self);
            keydiff->destroy(alone);
        }
    assert_true(differs > 0);
    /* ranks that do not depend on the company: blocks change nothing */
    const struct colibri_kv_strategy base = counting();
    const struct colibri_kv_child by_sum = child_of(&base);
    const double params[] = {5};
    config.child = &by_sum;
    config.params = params;
    view.n_protected = 0;
    void *self = kv_open(block, &config);
    kv_ask(block, self, &view, keep);
    sum[N - 1] = 1e9f;
    kv_keep_best(&view, sum, 30, plain);
    uint32_t same = 0;
    for (uint32_t i = 0; i < N; i++)
        same += keep[i] == plain[i];
    assert_true(same >= N - 2 * (60 / 5)); /* the newest of each block stays one round */
    view.n = KV_MOST + 1;
    assert_int_not_equal(block->select(self, &view, keep), COLIBRI_OK);
    block->destroy(self);
}

static void merging(void **state)
{
    (void)state;
    const struct colibri_kv_child child = child_of(h2o);
    struct colibri_kv_config config = kv_config(4);
    const uint8_t stay[] = {1, 0, 0, 1, 0, 0, 0, 1};
    const float sum[] = {5, 1.4f, 48, 4, NAN, 0.5f, 0, 0}; /* of 8, 7, ... queries: 0.625 0.2 8 0.8 */
    uint32_t into[8];
    float weight[8];
    struct colibri_kv_view view = kv_view(8, 4);
    view.prob_sum = sum;
    config.child = &child;
    assert_true(cam->needs & COLIBRI_KV_NEED_PROB_COLSUM);
    for (int round = 0; round < 2; round++) {
        const float most[] = {0.5f, 0.75f}; /* the default, and another */
        const double params[] = {0.75};
        config.params = round ? params : NULL;
        void *self = kv_open(cam, &config);
        memset(into, 0xff, sizeof into);
        memset(weight, 0, sizeof weight);
        assert_int_equal(cam->merge(self, &view, stay, into, weight), COLIBRI_OK);
        const uint32_t none = UINT32_MAX, expected[] = {none, 3, 3, none, none, 7, none, none};
        assert_memory_equal(into, expected, sizeof into);
        /* shares of 0.25 and, clipped, 1: together not more than `most` */
        assert_true(fabsf(weight[1] - most[round] * 0.2f) < 1e-6f);
        assert_true(fabsf(weight[2] - most[round] * 0.8f) < 1e-6f);
        assert_true(weight[5] == most[round]);               /* nobody has looked at the newest yet */
        const float low[] = {5, 1.4f, 0.48f, 4, 0, 0, 0, 0}; /* shares of 0.25 and 0.1: added as they are */
        view.prob_sum = low;
        assert_int_equal(cam->merge(self, &view, stay, into, weight), COLIBRI_OK);
        assert_true(fabsf(weight[1] - 0.25f) < 1e-6f && fabsf(weight[2] - 0.1f) < 1e-6f);
        view.prob_sum = sum;
        kv_ask(cam, self, &view, keep);
        cam->destroy(self);
    }
}

/* Calls reach the child; a fork takes its state along. */
static void passes_on(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *const wrappers[] = {pyramid, ada, chunk, block, cam};
    const struct colibri_kv_strategy base = counting();
    const struct colibri_kv_child child = child_of(&base);
    const uint8_t evictable[] = {1, 1, 1, 1};
    const double params[] = {1, 64};
    for (size_t k = 0; k < 5; k++) {
        const struct colibri_kv_strategy *w = wrappers[k];
        uint8_t *const mine = malloc(4);
        double *const values = malloc(sizeof params);
        struct colibri_kv_config config = kv_config(40);
        const uint32_t kept[] = {0, 2};
        memcpy(mine, evictable, 4);
        memcpy(values, params, sizeof params);
        config.child = &child;
        config.evictable = mine;
        config.params = values;
        void *self = kv_open(w, &config);
        struct counting *const inner = last_made;
        free(mine); /* they live during create only */
        free(values);
        assert_int_equal(inner->budget, 40);
        assert_true(w->flags & COLIBRI_KV_FLAG_WRAPPER);
        w->on_append(self, 0, 1, 5);
        w->on_evict(self, 0, 1, kept, 2);
        assert_int_equal(inner->appended, 5);
        assert_int_equal(inner->evicted, 2);
        void *copy = w->fork(self);
        assert_non_null(copy);
        struct counting *const forked = last_made;
        assert_true(forked != inner && forked->forked && forked->appended == 5);
        w->on_append(copy, 0, 1, 1);
        assert_int_equal(inner->appended, 5);
        assert_int_equal(forked->appended, 6);
        assert_int_equal(w->budget(copy, 0, 0, 1000), w->budget(self, 0, 0, 1000));
        w->reset(self);
        assert_int_equal(inner->appended, 0);
        assert_int_equal(forked->appended, 6);
        w->destroy(self);
        w->destroy(copy);
    }
}

static void nested(void **state)
{
    (void)state;
    struct colibri_kv_child inner = child_of(h2o), middle = child_of(pyramid);
    struct colibri_kv_config config = kv_config(200);
    static float sum[1000];
    for (int i = 0; i < 1000; i++)
        sum[i] = (float)(i * 7919 % 1000);
    middle.child = &inner;
    config.child = &middle;
    void *self = kv_open(ada, &config);
    assert_true(ada->budget(self, 0, 0, 100000) > ada->budget(self, 3, 0, 100000)); /* those of pyramid */
    struct colibri_kv_view view = kv_view(1000, 200);
    view.prob_sum = sum;
    kv_ask(ada, self, &view, keep);
    void *alone = kv_open(h2o, &config);
    kv_ask(h2o, alone, &view, plain);
    assert_memory_equal(keep, plain, 1000);
    void *copy = ada->fork(self);
    kv_ask(ada, copy, &view, keep);
    assert_memory_equal(keep, plain, 1000);
    ada->destroy(copy);
    ada->destroy(self);
    h2o->destroy(alone);
}

static void refusals(void **state)
{
    (void)state;
    const struct colibri_kv_strategy *const wrappers[] = {pyramid, ada, chunk, block, cam};
    const struct colibri_kv_strategy *const full = kv_strategy("full"), *const quest = kv_strategy("quest");
    for (size_t k = 0; k < 5; k++) {
        struct colibri_kv_config config = kv_config(40);
        struct colibri_kv_child child = child_of(full), inner = child_of(h2o);
        kv_refused(wrappers[k], &config, "behind it");
        config.child = &child;
        kv_refused(wrappers[k], &config, "cannot wrap full");
        child = child_of(quest);
        kv_refused(wrappers[k], &config, "cannot wrap quest");
        child = child_of(ada);
        child.child = &inner;
        kv_refused(wrappers[k], &config, "outermost");
        child = child_of(cam);
        child.child = &inner;
        kv_refused(wrappers[k], &config, "outermost");
        child = child_of(streaming); /* the child's own reason comes through */
        config.budget = 3;
        if (wrappers[k] != ada && wrappers[k] != chunk && wrappers[k] != pyramid)
            kv_refused(wrappers[k], &config, "kv-budget");
        config.budget = 40;
        if (wrappers[k] == ada || wrappers[k] == chunk) {
            kv_refused(wrappers[k], &config, "without ranking");
            child = child_of(block); /* nor can it through one that does not */
            child.child = &inner;
            kv_refused(wrappers[k], &config, "without ranking");
        }
    }
}

static int load(void **state)
{
    (void)state;
    h2o = kv_strategy("h2o");
    keydiff = kv_strategy("keydiff");
    streaming = kv_strategy("streaming");
    pyramid = kv_strategy("pyramid");
    ada = kv_strategy("ada");
    chunk = kv_strategy("chunk");
    block = kv_strategy("block");
    cam = kv_strategy("cam");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_of_layers),
        cmocka_unit_test(ada_allots),
        cmocka_unit_test(ada_gives_to_the_spread_out),
        cmocka_unit_test(chunks),
        cmocka_unit_test(blocks),
        cmocka_unit_test(merging),
        cmocka_unit_test(passes_on),
        cmocka_unit_test(nested),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
