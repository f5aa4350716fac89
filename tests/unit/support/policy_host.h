/* A small host for expert policies: feeds events in the store's order, asks for victims, remembers everything, so that
 * a test can compare with what a naive look at the whole history says. Decode rows of one sequence. */
#ifndef TEST_POLICY_HOST_H
#define TEST_POLICY_HOST_H

#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/expert_policy.h"

enum { PH_LAYERS = 3, PH_EXPERTS = 12, PH_TOP_K = 2, PH_ALL = PH_LAYERS * PH_EXPERTS, PH_MOST_ROWS = 20000 };

typedef struct policy_host {
    const struct colibri_expert_policy *policy;
    void *self;
    uint32_t slots; /* per layer, or of the pool */
    bool global;
    uint64_t step;
    uint32_t n_rows; /* of the history */
    uint8_t (*history)[PH_LAYERS][PH_TOP_K];
    bool resident[PH_ALL];
    uint32_t n_victims;
    uint16_t victim[3 * PH_MOST_ROWS * PH_TOP_K];
    uint32_t routed_rows[PH_LAYERS]; /* rows of the history that this layer has already seen */
} policy_host;

/* Checks a victim before it leaves: index of the expert, and the host for the history. */
typedef void (*ph_check_fn)(const policy_host *host, uint32_t layer, uint32_t victim, const bool *candidate);

static inline policy_host *ph_open(const struct colibri_expert_policy *policy, const double *params, uint32_t slots,
                                   bool global)
{
    policy_host *h = calloc(1, sizeof *h);
    uint32_t layer_slots[PH_LAYERS];
    uint64_t bytes[PH_LAYERS];
    char why[128] = "";
    assert_non_null(h);
    h->history = calloc(PH_MOST_ROWS, sizeof *h->history);
    assert_non_null(h->history);
    for (uint32_t i = 0; i < PH_LAYERS; i++) {
        layer_slots[i] = slots;
        bytes[i] = 1000;
    }
    const struct colibri_policy_config config = {
        .struct_size = sizeof config,
        .n_layers = PH_LAYERS,
        .n_experts = PH_EXPERTS,
        .top_k = PH_TOP_K,
        .n_slots = global ? slots : slots * PH_LAYERS,
        .layer_slots = global ? NULL : layer_slots,
        .expert_bytes = bytes,
        .params = params,
    };
    h->policy = policy;
    h->slots = slots;
    h->global = global;
    h->self = policy->create(&config, why, sizeof why);
    if (!h->self)
        fail_msg("create: %s", why);
    return h;
}

static inline void ph_close(policy_host *h)
{
    h->policy->destroy(h->self);
    free(h->history);
    free(h);
}

/* The host forgets too. */
static inline void ph_reset(policy_host *h)
{
    h->policy->reset(h->self);
    memset(h->resident, 0, sizeof h->resident);
    memset(h->routed_rows, 0, sizeof h->routed_rows);
    h->n_rows = h->n_victims = 0;
    h->step = 0;
}

static inline void ph_begin(policy_host *h, const uint8_t (*rows)[PH_LAYERS][PH_TOP_K], uint32_t n)
{
    const struct colibri_step step = {sizeof step, n > 1 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, h->step++, n,
                                      1};
    assert_true(h->n_rows + n <= PH_MOST_ROWS);
    memcpy(h->history + h->n_rows, rows, n * sizeof *rows);
    h->n_rows += n;
    if (h->policy->on_step)
        h->policy->on_step(h->self, &step);
}

static inline uint32_t ph_lowest(const policy_host *h, const bool *candidate)
{
    uint32_t best = PH_ALL;
    double best_score = 0;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (candidate[i]) {
            const double s = h->policy->score(h->self, i / PH_EXPERTS, i % PH_EXPERTS);
            assert_true(s == s);
            if (best == PH_ALL || s < best_score) {
                best = i;
                best_score = s;
            }
        }
    return best;
}

/* The gate weight of the k-th choice of a row of the history: in router order, so the first is the largest. */
static inline float ph_gate(uint32_t row, uint32_t layer, uint32_t k)
{
    const float first = 0.5F + (float)((row * 7 + layer * 3) % 16) / 32;
    return k == 0 ? first : (1 - first) / (float)k;
}

/* Layer `layer` of the pass of the last n rows. */
static inline void ph_layer(policy_host *h, uint32_t layer, uint32_t n, ph_check_fn check)
{
    const uint32_t first = h->n_rows - n;
    uint32_t *ids = malloc(n * PH_TOP_K * sizeof *ids), *rows = calloc(PH_EXPERTS, sizeof *rows);
    float *gates = calloc(n * PH_TOP_K, sizeof *gates);
    uint32_t union_ids[PH_EXPERTS], union_rows[PH_EXPERTS], n_union = 0;
    struct colibri_access access[PH_EXPERTS];
    bool needed[PH_ALL] = {false};
    assert_true(ids && rows && gates);
    for (uint32_t i = 0; i < n * PH_TOP_K; i++) {
        rows[ids[i] = h->history[first + i / PH_TOP_K][layer][i % PH_TOP_K]]++;
        gates[i] = ph_gate(first + i / PH_TOP_K, layer, i % PH_TOP_K);
    }
    for (uint32_t e = 0; e < PH_EXPERTS; e++)
        if (rows[e]) {
            union_ids[n_union] = e;
            union_rows[n_union++] = rows[e];
            needed[layer * PH_EXPERTS + e] = true;
        }
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = layer,
                                        .n_rows = n,
                                        .top_k = PH_TOP_K,
                                        .ids = ids,
                                        .gates = gates,
                                        .n_union = n_union,
                                        .union_ids = union_ids,
                                        .union_rows = union_rows};
    if (h->policy->on_route)
        h->policy->on_route(h->self, &route);
    h->routed_rows[layer] = h->n_rows;
    for (uint32_t u = 0; u < n_union; u++) {
        const uint32_t e = layer * PH_EXPERTS + union_ids[u];
        access[u] = (struct colibri_access){.layer = layer,
                                            .expert = union_ids[u],
                                            .rows = union_rows[u],
                                            .result = h->resident[e] ? COLIBRI_ACCESS_HIT : COLIBRI_ACCESS_MISS};
        if (h->resident[e])
            continue;
        bool candidate[PH_ALL] = {false};
        uint32_t n_resident = 0;
        for (uint32_t i = 0; i < PH_ALL; i++)
            if (h->resident[i] && (h->global || i / PH_EXPERTS == layer)) {
                n_resident++;
                candidate[i] = !needed[i];
            }
        if (n_resident >= h->slots) {
            const uint32_t out = ph_lowest(h, candidate);
            if (out == PH_ALL)
                continue; /* everything is needed now: the host computes this one from a spare buffer */
            if (check)
                check(h, layer, out, candidate);
            h->resident[out] = false;
            h->victim[h->n_victims++] = (uint16_t)out;
            if (h->policy->on_evict)
                h->policy->on_evict(h->self, out / PH_EXPERTS, out % PH_EXPERTS, 1, 0);
        }
        h->resident[e] = true;
        if (h->policy->on_insert)
            h->policy->on_insert(h->self, layer, union_ids[u], COLIBRI_CAUSE_DEMAND);
    }
    if (h->policy->on_access)
        h->policy->on_access(h->self, access, n_union);
    free(ids);
    free(rows);
    free(gates);
}

static inline void ph_pass(policy_host *h, const uint8_t (*rows)[PH_LAYERS][PH_TOP_K], uint32_t n, ph_check_fn check)
{
    ph_begin(h, rows, n);
    for (uint32_t layer = 0; layer < PH_LAYERS; layer++)
        ph_layer(h, layer, n, check);
}

/* 2^(-age / half_life), from a table: naive rules ask for it a few million times. */
static inline double ph_decay(uint32_t age, double half_life)
{
    static double table[PH_MOST_ROWS + 1], life;
    if (life < half_life || life > half_life) {
        life = half_life;
        for (uint32_t i = 0; i <= PH_MOST_ROWS; i++)
            table[i] = exp2(-(double)i / life);
    }
    return table[age];
}

/* Rows with favourites that drift: something to remember and something to forget. */
static inline void ph_random_rows(test_rand *rng, uint8_t (*rows)[PH_LAYERS][PH_TOP_K], uint32_t n)
{
    uint32_t favourite = 0;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t l = 0; l < PH_LAYERS; l++) {
            if (test_rand_below(rng, 40) == 0)
                favourite = test_rand_below(rng, PH_EXPERTS);
            uint32_t e =
                test_rand_below(rng, 3) ? favourite + test_rand_below(rng, 4) : test_rand_below(rng, PH_EXPERTS);
            rows[r][l][0] = (uint8_t)(e % PH_EXPERTS);
            rows[r][l][1] = (uint8_t)((e + 1 + test_rand_below(rng, PH_EXPERTS - 1)) % PH_EXPERTS);
        }
}

/* Random traces in passes of random length under several pools; every victim goes through `check`. */
static inline void ph_random_test(const struct colibri_expert_policy *policy, const double *params, ph_check_fn check)
{
    enum { N = 1500 };
    uint8_t(*rows)[PH_LAYERS][PH_TOP_K] = malloc(N * sizeof *rows);
    assert_non_null(rows);
    for (uint64_t seed = 0; seed < 8; seed++) {
        test_rand rng = {seed};
        policy_host *h = ph_open(policy, params, seed % 2 ? 14 : 4 + (uint32_t)seed / 2, seed % 2);
        ph_random_rows(&rng, rows, N);
        for (uint32_t at = 0; at < N;) {
            uint32_t n = test_rand_below(&rng, 10) ? 1 : 1 + test_rand_below(&rng, 12);
            n = n < N - at ? n : N - at;
            ph_pass(h, (const uint8_t(*)[PH_LAYERS][PH_TOP_K])(rows + at), n, check);
            at += n;
        }
        assert_true(h->n_victims > 500);
        ph_close(h);
    }
    free(rows);
}

/* Same events, same victims; reset is as good as new; an order of rows cut into other passes ranks experts the same. */
static inline void ph_repeatable(const struct colibri_expert_policy *policy, const double *params, double tolerance)
{
    enum { N = 600 };
    uint8_t(*rows)[PH_LAYERS][PH_TOP_K] = malloc(N * sizeof *rows);
    const uint8_t(*in)[PH_LAYERS][PH_TOP_K] = (const uint8_t(*)[PH_LAYERS][PH_TOP_K])rows;
    test_rand rng = {77};
    assert_non_null(rows);
    ph_random_rows(&rng, rows, N);
    policy_host *a = ph_open(policy, params, 5, false), *b = ph_open(policy, params, 5, false);
    ph_pass(b, in + 100, 50, NULL);
    for (uint32_t r = 0; r < 200; r++)
        ph_pass(b, in + r, 1, NULL);
    ph_reset(b);
    for (uint32_t r = 0; r < N; r++) {
        ph_pass(a, in + r, 1, NULL);
        ph_pass(b, in + r, 1, NULL);
    }
    assert_int_equal(a->n_victims, b->n_victims);
    assert_true(a->n_victims > 100);
    assert_memory_equal(a->victim, b->victim, a->n_victims * sizeof a->victim[0]);

    ph_reset(b);
    for (uint32_t at = 0; at < N; at += 100)
        ph_pass(b, in + at, 100, NULL);
    for (uint32_t i = 0; i < PH_ALL; i++)
        for (uint32_t j = 0; j < PH_ALL; j++) {
            const double a1 = a->policy->score(a->self, i / PH_EXPERTS, i % PH_EXPERTS);
            const double a2 = a->policy->score(a->self, j / PH_EXPERTS, j % PH_EXPERTS);
            const double b1 = b->policy->score(b->self, i / PH_EXPERTS, i % PH_EXPERTS);
            const double b2 = b->policy->score(b->self, j / PH_EXPERTS, j % PH_EXPERTS);
            if (a1 < a2 * (1 - tolerance))
                assert_true(b1 < b2);
        }
    ph_close(a);
    ph_close(b);
    free(rows);
}

/* What was fetched ahead for layer 2 outlives the misses of layers 0 and 1 in a shared pool. */
static inline void ph_prefetch_survives(const struct colibri_expert_policy *policy, const double *params)
{
    static const uint8_t warm[][PH_LAYERS][PH_TOP_K] = {{{0, 1}, {0, 1}, {0, 1}}, {{0, 1}, {0, 1}, {0, 1}}};
    static const uint8_t next[][PH_LAYERS][PH_TOP_K] = {{{4, 5}, {4, 5}, {8, 9}}};
    policy_host *h = ph_open(policy, params, 7, true);
    ph_pass(h, warm, 1, NULL);
    ph_pass(h, warm + 1, 1, NULL);
    ph_begin(h, next, 1);
    h->resident[2 * PH_EXPERTS + 8] = true; /* the seventh slot */
    policy->on_insert(h->self, 2, 8, COLIBRI_CAUSE_PREFETCH);
    ph_layer(h, 0, 1, NULL);
    ph_layer(h, 1, 1, NULL);
    assert_true(h->n_victims == 4);
    assert_true(h->resident[2 * PH_EXPERTS + 8]);
    ph_close(h);
}

#endif
