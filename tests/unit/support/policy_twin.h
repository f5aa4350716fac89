/* A policy beside a naive one of the same rule: the same events, victim by victim. The naive one is written for being
 * obviously right: it looks at everything, each time. For policies whose rule needs more than the history of rows. */
#ifndef TEST_POLICY_TWIN_H
#define TEST_POLICY_TWIN_H

#include "policy_host.h"

typedef struct twin {
    policy_host *a, *b;
    bool unused[PH_ALL]; /* fetched ahead, not used since */
} twin;

static inline void twin_same(const twin *t)
{
    assert_int_equal(t->a->n_victims, t->b->n_victims);
    if (t->a->n_victims && t->a->victim[t->a->n_victims - 1] != t->b->victim[t->b->n_victims - 1])
        fail_msg("victim %u is %u, not %u", t->a->n_victims - 1, t->a->victim[t->a->n_victims - 1],
                 t->b->victim[t->b->n_victims - 1]);
    assert_memory_equal(t->a->victim, t->b->victim, t->a->n_victims * sizeof t->a->victim[0]);
    assert_memory_equal(t->a->resident, t->b->resident, sizeof t->a->resident);
}

/* As the cache does it: whatever is not waiting for its own turn may leave. */
static inline void twin_fetch_ahead(twin *t, policy_host *h, uint32_t layer, uint32_t expert)
{
    const uint32_t e = layer * PH_EXPERTS + expert;
    bool candidate[PH_ALL] = {false};
    uint32_t n_resident = 0;
    for (uint32_t i = 0; i < PH_ALL; i++)
        if (h->resident[i] && (h->global || i / PH_EXPERTS == layer)) {
            n_resident++;
            candidate[i] = !t->unused[i];
        }
    if (n_resident >= h->slots) {
        const uint32_t out = ph_lowest(h, candidate);
        if (out == PH_ALL)
            return;
        h->resident[out] = false;
        h->victim[h->n_victims++] = (uint16_t)out;
        if (h->policy->on_evict)
            h->policy->on_evict(h->self, out / PH_EXPERTS, out % PH_EXPERTS, 1, 0);
    }
    h->resident[e] = true;
    if (h->policy->on_insert)
        h->policy->on_insert(h->self, layer, expert, COLIBRI_CAUSE_PREFETCH);
}

static inline void twin_pass(twin *t, const uint8_t (*rows)[PH_LAYERS][PH_TOP_K], uint32_t n, test_rand *ahead)
{
    ph_begin(t->a, rows, n);
    ph_begin(t->b, rows, n);
    for (uint32_t layer = 0; layer < PH_LAYERS; layer++) {
        if (ahead && test_rand_below(ahead, 4) == 0) {
            const uint32_t expert = test_rand_below(ahead, PH_EXPERTS);
            if (!t->a->resident[layer * PH_EXPERTS + expert]) {
                twin_fetch_ahead(t, t->a, layer, expert);
                twin_fetch_ahead(t, t->b, layer, expert);
                t->unused[layer * PH_EXPERTS + expert] = true;
                twin_same(t);
            }
        }
        ph_layer(t->a, layer, n, NULL);
        ph_layer(t->b, layer, n, NULL);
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t k = 0; k < PH_TOP_K; k++)
                t->unused[layer * PH_EXPERTS + rows[r][layer][k]] = false;
        for (uint32_t i = 0; i < PH_ALL; i++)
            t->unused[i] = t->unused[i] && t->a->resident[i];
        twin_same(t);
    }
}

/* Random traces in passes of random length, own and shared pools of several sizes, with and without fetches ahead. */
static inline void twin_test(const struct colibri_expert_policy *policy, const struct colibri_expert_policy *naive,
                             const double *params)
{
    enum { N = 1200 };
    uint8_t(*rows)[PH_LAYERS][PH_TOP_K] = malloc(N * sizeof *rows);
    const uint8_t(*in)[PH_LAYERS][PH_TOP_K] = (const uint8_t(*)[PH_LAYERS][PH_TOP_K])rows;
    assert_non_null(rows);
    for (uint64_t seed = 0; seed < 12; seed++) {
        test_rand rng = {seed}, ahead = {seed};
        const bool global = seed % 2;
        const uint32_t slots = (global ? 7 : 3) + (uint32_t)seed * (global ? 2 : 1) / 2;
        twin t = {ph_open(policy, params, slots, global), ph_open(naive, params, slots, global), {false}};
        ph_random_rows(&rng, rows, N);
        for (uint32_t at = 0; at < N;) {
            uint32_t n = test_rand_below(&rng, 10) ? 1 : 1 + test_rand_below(&rng, 12);
            n = n < N - at ? n : N - at;
            twin_pass(&t, in + at, n, seed % 3 == 2 ? &ahead : NULL);
            at += n;
        }
        assert_true(t.a->n_victims > 300);
        ph_close(t.a);
        ph_close(t.b);
    }
    free(rows);
}

/* Same events, same victims; reset is as good as new; explain fits wherever it is put. */
static inline void twin_reset(const struct colibri_expert_policy *policy, const double *params)
{
    enum { N = 500 };
    uint8_t(*rows)[PH_LAYERS][PH_TOP_K] = malloc(N * sizeof *rows);
    const uint8_t(*in)[PH_LAYERS][PH_TOP_K] = (const uint8_t(*)[PH_LAYERS][PH_TOP_K])rows;
    test_rand rng = {91};
    assert_non_null(rows);
    ph_random_rows(&rng, rows, N);
    for (int global = 0; global < 2; global++) {
        policy_host *a = ph_open(policy, params, global ? 13 : 5, global),
                    *b = ph_open(policy, params, global ? 13 : 5, global);
        ph_pass(b, in + 100, 50, NULL);
        for (uint32_t r = 0; r < 200; r++)
            ph_pass(b, in + r, 1, NULL);
        ph_reset(b);
        for (uint32_t at = 0; at < N; at += 1 + at % 3) {
            const uint32_t n = 1 + at % 3 < N - at ? 1 + at % 3 : N - at;
            ph_pass(a, in + at, n, NULL);
            ph_pass(b, in + at, n, NULL);
        }
        assert_true(a->n_victims > 100);
        assert_int_equal(a->n_victims, b->n_victims);
        assert_memory_equal(a->victim, b->victim, a->n_victims * sizeof a->victim[0]);
        for (uint32_t i = 0; i < PH_ALL; i++) {
            char text[200], cut[8];
            policy->explain(a->self, i / PH_EXPERTS, i % PH_EXPERTS, text, sizeof text);
            assert_true(strlen(text) > strlen(policy->name) + 2 && strlen(text) < 150);
            assert_memory_equal(text, policy->name, strlen(policy->name));
            policy->explain(a->self, i / PH_EXPERTS, i % PH_EXPERTS, cut, sizeof cut);
            assert_int_equal(strlen(cut), sizeof cut - 1);
        }
        ph_close(a);
        ph_close(b);
    }
    free(rows);
}

/* Tokens whose layers 1 and 2 never miss: the script is about layer 0. */
static inline void twin_script(policy_host *h, const uint8_t (*layer0)[PH_TOP_K], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t row[1][PH_LAYERS][PH_TOP_K] = {{{layer0[i][0], layer0[i][1]}, {0, 1}, {0, 1}}};
        ph_pass(h, row, 1, NULL);
    }
}

static inline void twin_victims(const policy_host *h, const uint16_t *expected, uint32_t n)
{
    for (uint32_t i = 0; i < h->n_victims && i < n; i++)
        if (h->victim[i] != expected[i])
            fail_msg("victim %u is %u, not %u", i, h->victim[i], expected[i]);
    assert_int_equal(h->n_victims, n);
}

#endif
