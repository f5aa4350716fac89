/* Views that a test makes up, for calling a KV strategy without a cache. */
#ifndef TEST_KV_VIEWS_H
#define TEST_KV_VIEWS_H

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/kv_strategy.h"
#include "support/component.h"

/* The strategy of plugins/cache-policies/kv/STEM.c. */
static inline const struct colibri_kv_strategy *kv_strategy(const char *stem)
{
    char file[64], ident[64];
    snprintf(file, sizeof file, "kv-strategy-%s", stem);
    snprintf(ident, sizeof ident, "colibri_kv_strategy_%s", stem);
    return test_component(file, ident, COLIBRI_IFACE_KV_STRATEGY);
}

enum { KV_MOST = 4096 };

/* Rows behind a view. */
struct kv_fake {
    uint32_t k_dim, v_dim;
    const float *k, *v; /* [n][dim] */
};

static inline void kv_fake_k(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct kv_fake *f = view->opaque;
    assert_true(i < view->n);
    memcpy(out, f->k + (size_t)i * f->k_dim, f->k_dim * sizeof out[0]);
}

static inline void kv_fake_v(const struct colibri_kv_view *view, uint32_t i, float *out)
{
    const struct kv_fake *f = view->opaque;
    assert_true(i < view->n);
    memcpy(out, f->v + (size_t)i * f->v_dim, f->v_dim * sizeof out[0]);
}

/* n positions from 0 on, of which n_keep stay. */
static inline struct colibri_kv_view kv_view(uint32_t n, uint32_t n_keep)
{
    static uint32_t positions[KV_MOST];
    for (uint32_t i = 0; i < KV_MOST; i++)
        positions[i] = i;
    return (struct colibri_kv_view){
        .struct_size = sizeof(struct colibri_kv_view),
        .n = n,
        .n_keep = n_keep,
        .n_prompt = n,
        .next_position = n,
        .positions = positions,
        .trigger = COLIBRI_KV_AT_OVER_BUDGET,
        .n_heads = 1,
    };
}

static inline struct colibri_kv_config kv_config(uint32_t budget)
{
    return (struct colibri_kv_config){
        .struct_size = sizeof(struct colibri_kv_config),
        .n_layers = 4,
        .n_kv_heads = 2,
        .n_heads = 4,
        .head_dim = 8,
        .v_dim = 8,
        .budget = budget,
        .page_tokens = 16,
        .max_positions = KV_MOST,
        .attention_scale = 0.25f,
    };
}

static inline void *kv_open(const struct colibri_kv_strategy *s, const struct colibri_kv_config *config)
{
    char why[256] = "";
    void *self = s->create(config, why, sizeof why);
    if (!self)
        fail_msg("%s: %s", s->name, why);
    return self;
}

/* A refusal whose reason contains `part`. */
static inline void kv_refused(const struct colibri_kv_strategy *s, const struct colibri_kv_config *config,
                              const char *part)
{
    char why[256] = "";
    assert_null(s->create(config, why, sizeof why));
    if (!strstr(why, part))
        fail_msg("%s: \"%s\" does not say \"%s\"", s->name, why, part);
}

/* What the host makes of scores: the newest and the protected, then the highest, the later one of equals. A plain
 * search, to compare with. */
static inline void kv_keep_best(const struct colibri_kv_view *view, const float *score, uint32_t n_keep, uint8_t *keep)
{
    memset(keep, 0, view->n);
    for (uint32_t i = 0; i < view->n_protected; i++)
        keep[i] = 1;
    keep[view->n - 1] = 1;
    for (uint32_t k = view->n_protected + 1; k < n_keep; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < view->n; i++)
            if (!keep[i] && (best == UINT32_MAX || score[i] >= score[best]))
                best = i;
        if (best != UINT32_MAX)
            keep[best] = 1;
    }
}

/* The answer of a strategy that ranks or selects; checks what the host would. */
static inline void kv_ask(const struct colibri_kv_strategy *s, void *self, const struct colibri_kv_view *view,
                          uint8_t *keep)
{
    static float score[KV_MOST];
    uint32_t kept = 0;
    if (s->select) {
        memset(keep, 0, view->n);
        assert_int_equal(s->select(self, view, keep), COLIBRI_OK);
    } else {
        for (uint32_t i = 0; i < view->n; i++)
            score[i] = NAN;
        s->score(self, view, score);
        for (uint32_t i = 0; i < view->n; i++)
            if (score[i] != score[i])
                fail_msg("%s: score %u of %u is not a number", s->name, i, view->n);
        kv_keep_best(view, score, view->n_keep, keep);
    }
    for (uint32_t i = 0; i < view->n; i++) {
        assert_true(keep[i] <= 1);
        assert_true(keep[i] || i >= view->n_protected);
        kept += keep[i];
    }
    assert_in_range(kept, 1, view->n_keep);
    assert_int_equal(keep[view->n - 1], 1);
}

/* keep is exactly the listed indexes. */
static inline void kv_assert_kept(const uint8_t *keep, uint32_t n, const uint32_t *expected, uint32_t n_expected)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int wanted = at < n_expected && expected[at] == i;
        if (keep[i] != wanted)
            fail_msg("position %u: kept %d, expected %d", i, keep[i], wanted);
        at += (uint32_t)wanted;
    }
    assert_int_equal(at, n_expected);
}

#define KV_KEPT(keep, n, ...)                                                                                          \
    kv_assert_kept(keep, n, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

#endif
