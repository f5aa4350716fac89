/* Attention against core/ops: random heads, dimensions, pages, types, sinks. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

#include "ops/ops.h"

#define CANARY 0x7fc5a5a5u

void check_attention(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                     uint32_t number);

/* Pages of keys or values, each at a guard page of its own. */
struct pages {
    struct guarded *mem;
    const void **p;
    uint32_t n;
};

static struct pages make_pages(struct rng *r, uint32_t n_kv, uint32_t page_tokens, uint32_t dim, uint32_t type,
                               bool specials)
{
    struct pages pages = {.n = (n_kv + page_tokens - 1) / page_tokens};
    pages.mem = malloc(pages.n * sizeof(*pages.mem));
    pages.p = malloc(pages.n * sizeof(*pages.p));
    if (!pages.mem || !pages.p)
        abort();
    for (uint32_t i = 0; i < pages.n; i++) {
        /* the last page ends with the last kept position: nothing behind it may be read */
        const uint32_t tokens = i + 1 < pages.n ? page_tokens : n_kv - i * page_tokens;
        const size_t count = (size_t)tokens * dim;
        const struct fmt *const f = fmt_find(type);
        pages.mem[i] = guarded_alloc(count * f->block_bytes, f->block_bytes, rng_below(r, 4) == 0);
        pages.p[i] = pages.mem[i].p;
        for (size_t k = 0; k < count; k += 64) {
            float x[64];
            if (specials) {
                rng_floats(r, x, 64, rng_below(r, 16) == 0);
            } else {
                for (uint32_t e = 0; e < 64; e++)
                    x[e] = rng_unit(r);
            }
            for (size_t e = 0; e < 64 && k + e < count; e++)
                if (type == COLIBRI_TYPE_F32)
                    ((float *)pages.mem[i].p)[k + e] = x[e];
                else
                    ((colibri_f16 *)pages.mem[i].p)[k + e] = colibri_f32_f16(x[e]);
        }
    }
    return pages;
}

static void free_pages(struct pages *pages)
{
    for (uint32_t i = 0; i < pages->n; i++)
        guarded_free(&pages->mem[i]);
    free(pages->mem);
    free(pages->p);
}

static float *canaries(size_t n)
{
    const uint32_t c = CANARY;
    float *const p = malloc(n * sizeof(float));
    if (!p)
        abort();
    for (size_t i = 0; i < n; i++)
        memcpy(&p[i], &c, 4);
    return p;
}

static uint32_t random_dim(struct rng *r)
{
    static const uint32_t usual[] = {16, 24, 64, 80, 128, 192};
    return rng_below(r, 3) ? usual[rng_below(r, 6)] : rng_range(r, 1, 200);
}

/* got and want are [heads][stride]: the first n of a head are compared, `scratch` more may hold anything, the rest
 * must be untouched. */
static void compare_heads(struct report *rep, const char *what, const float *got, const float *want, uint32_t heads,
                          size_t stride, size_t n, size_t scratch)
{
    for (uint32_t h = 0; h < heads; h++) {
        char text[40];
        snprintf(text, sizeof(text), "%s of head %u", what, h);
        if (!compare_f32(rep, text, got + h * stride, want + h * stride, n))
            return;
        for (size_t i = n + scratch; i < stride && (h + 1 < heads || i < n); i++)
            if (colibri_f32_bits(got[h * stride + i]) != CANARY) {
                case_fail(rep, "%s of head %u: element %zu lies outside and was written", what, h, i);
                return;
            }
    }
}

void check_attention(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                     uint32_t number)
{
    const uint32_t heads = rng_below(r, 8) ? rng_range(r, 1, 9) : rng_range(r, 1, 70);
    const uint32_t k_dim = random_dim(r), v_dim = rng_below(r, 2) ? k_dim : random_dim(r);
    const uint32_t longest = (uint32_t)(rep->o->work / heads / (k_dim + v_dim));
    const uint32_t limit = longest > 1600 ? 1600 : longest < 40 ? 40 : longest;
    const uint32_t n_kv = rng_below(r, 2) ? rng_range(r, 1, limit) : rng_range(r, 1, 40);
    const uint32_t page_tokens = rng_range(r, 1 + n_kv / 40, 1 + n_kv / 40 + rng_below(r, 128));
    const uint32_t k_type = rng_below(r, 3) ? COLIBRI_TYPE_F16 : COLIBRI_TYPE_F32;
    const uint32_t v_type = rng_below(r, 3) ? COLIBRI_TYPE_F16 : COLIBRI_TYPE_F32;
    const bool specials = rng_below(r, 4) == 0, with_sinks = rng_below(r, 3) == 0, with_sums = rng_below(r, 2);
    const size_t q_stride = k_dim + rng_below(r, 2) * rng_below(r, 30);
    const size_t score_stride = (n_kv + 15u) / 16 * 16 + 16 * rng_below(r, 3);
    const size_t out_stride = v_dim + rng_below(r, 2) * rng_below(r, 30);
    case_begin(rep, name, number, "%u heads, dims %u %u, %u positions in pages of %u, types %u %u%s%s", heads, k_dim,
               v_dim, n_kv, page_tokens, k_type, v_type, with_sinks ? ", sinks" : "", specials ? ", specials" : "");

    struct pages k = make_pages(r, n_kv, page_tokens, k_dim, k_type, specials);
    struct pages vals = make_pages(r, n_kv, page_tokens, v_dim, v_type, specials);
    const size_t q_len = (heads - 1) * q_stride + k_dim, out_len = (heads - 1) * out_stride + v_dim;
    const size_t scores_len = heads * score_stride;
    struct guarded q = guarded_alloc(q_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded out = guarded_alloc(out_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded scores = guarded_alloc(scores_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded sums = guarded_alloc(heads * 8, 4, false), sinks = guarded_alloc(heads * 4, 4, false);
    float *const want_out = canaries(out_len), *const want_scores = canaries(scores_len);
    float *const want_sums = canaries(2 * heads);
    memcpy(out.p, want_out, out_len * 4);
    memcpy(scores.p, want_scores, scores_len * 4);
    memcpy(sums.p, want_sums, heads * 8);
    rng_floats(r, q.p, q_len, specials && rng_below(r, 4) == 0);
    const bool zeros = rng_below(r, 12) == 0; /* with a negative scale all scores are -0, and M must be +0 */
    if (zeros)
        memset(q.p, 0, q_len * 4);
    for (uint32_t h = 0; h < heads; h++)
        ((float *)sinks.p)[h] = rng_unit(r) * 4.0f;

    struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = heads,
        .k_dim = k_dim,
        .v_dim = v_dim,
        .n_kv = n_kv,
        .page_tokens = page_tokens,
        .k_type = k_type,
        .v_type = v_type,
        .k_pages = k.p,
        .v_pages = vals.p,
        .q = q.p,
        .q_stride = q_stride,
        .scale = zeros             ? -1.0f
                 : rng_below(r, 4) ? 0.125f
                                   : 1.0f,
        .sinks = with_sinks ? sinks.p : NULL,
        .scores = want_scores,
        .score_stride = score_stride,
        .out = want_out,
        .out_stride = out_stride,
        .max_sum = with_sums ? want_sums : NULL,
    };
    clb_ref_attention(&a);
    a.scores = scores.p;
    a.out = out.p;
    a.max_sum = with_sums ? sums.p : NULL;
    v->attention(&a);

    compare_heads(rep, "scores", scores.p, want_scores, heads, score_stride, n_kv, (16 - n_kv % 16) % 16);
    compare_heads(rep, "out", out.p, want_out, heads, out_stride, v_dim, 0);
    compare_f32(rep, "max_sum", sums.p, want_sums, 2 * heads);

    free(want_out);
    free(want_scores);
    free(want_sums);
    guarded_free(&q);
    guarded_free(&out);
    guarded_free(&scores);
    guarded_free(&sums);
    guarded_free(&sinks);
    free_pages(&k);
    free_pages(&vals);
}
