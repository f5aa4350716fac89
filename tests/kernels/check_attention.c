/* Attention against core/ops: random rows, heads, dimensions, pages, types, sinks, and splits over segments. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

#include "ops/ops.h"

#define CANARY 0x7fc5a5a5u

void check_attention(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                     uint32_t number);
void check_attention_edges(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                           uint32_t number);

/* What a call is about. */
struct shape {
    uint32_t rows, heads, k_dim, v_dim, n_kv, page_tokens, k_type, v_type;
};

/* Pages of keys or values, each at a guard page of its own. */
struct pages {
    struct guarded *mem;
    const void **p;
    uint32_t n;
};

static size_t row_bytes(uint32_t type, uint32_t dim)
{
    return type == COLIBRI_TYPE_F32    ? dim * sizeof(float)
           : type == COLIBRI_TYPE_Q8_0 ? dim / 32 * sizeof(struct colibri_q8_0)
           : type == COLIBRI_TYPE_Q4_0 ? dim / 32 * sizeof(struct colibri_q4_0)
                                       : dim * sizeof(colibri_f16);
}

/* Elements within -1 and 1, so that no score outweighs all others; special ones now and then. */
static void fill_floats(struct rng *r, void *p, size_t n, uint32_t type, bool specials)
{
    for (size_t k = 0; k < n; k += 64) {
        float x[64];
        if (specials) {
            rng_floats(r, x, 64, rng_below(r, 16) == 0);
        } else {
            for (uint32_t e = 0; e < 64; e++)
                x[e] = rng_unit(r);
        }
        for (size_t e = 0; e < 64 && k + e < n; e++)
            if (type == COLIBRI_TYPE_F32)
                ((float *)p)[k + e] = x[e];
            else
                ((colibri_f16 *)p)[k + e] = colibri_f32_f16(x[e]);
    }
}

static colibri_f16 random_scale(struct rng *r, float most, bool specials)
{
    /* infinities, NaN, zeros, the largest and the smallest numbers */
    static const uint16_t special[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x0000, 0x8000, 0x7bff, 0xfbff, 0x0001, 0x83ff};
    if (specials && rng_below(r, 200) == 0)
        return special[rng_below(r, 10)];
    return colibri_f32_f16(rng_unit(r) * most);
}

static void fill_rows(struct rng *r, char *p, uint32_t n, uint32_t dim, uint32_t type, bool specials)
{
    const size_t blocks = (size_t)n * dim / 32;
    if (type == COLIBRI_TYPE_Q8_0) {
        struct colibri_q8_0 *const b = (struct colibri_q8_0 *)p;
        for (size_t i = 0; i < blocks; i++) {
            rng_bytes(r, b[i].qs, sizeof(b[i].qs)); /* -128 too */
            b[i].d = random_scale(r, 0x1p-7f, specials);
        }
    } else if (type == COLIBRI_TYPE_Q4_0) {
        struct colibri_q4_0 *const b = (struct colibri_q4_0 *)p;
        for (size_t i = 0; i < blocks; i++) {
            rng_bytes(r, b[i].qs, sizeof(b[i].qs));
            b[i].d = random_scale(r, 0.125f, specials);
        }
    } else {
        fill_floats(r, p, (size_t)n * dim, type, specials);
    }
}

/* Pages of the positions [first, end). Those before `begin` are there, but must not count: NaN. The last page ends with
 * the last position: nothing behind it may be read. */
static struct pages make_pages(struct rng *r, uint32_t first, uint32_t begin, uint32_t end, uint32_t page_tokens,
                               uint32_t dim, uint32_t type, bool specials)
{
    const uint32_t n = end > first ? end - first : 0, skip = begin - first;
    struct pages pages = {.n = (n + page_tokens - 1) / page_tokens};
    pages.mem = malloc((pages.n + 1) * sizeof(*pages.mem));
    pages.p = malloc((pages.n + 1) * sizeof(*pages.p)); /* not NULL, even if nothing is in it */
    if (!pages.mem || !pages.p)
        abort();
    const size_t align = type == COLIBRI_TYPE_F32 ? 4 : 2, bytes = row_bytes(type, dim);
    for (uint32_t i = 0; i < pages.n; i++) {
        const uint32_t at = i * page_tokens, tokens = n - at < page_tokens ? n - at : page_tokens;
        const uint32_t hidden = skip <= at ? 0 : skip - at < tokens ? skip - at : tokens;
        pages.mem[i] = guarded_alloc(tokens * bytes, align, rng_below(r, 4) == 0);
        pages.p[i] = pages.mem[i].p;
        memset(pages.mem[i].p, 0xff, hidden * bytes);
        fill_rows(r, (char *)pages.mem[i].p + hidden * bytes, tokens - hidden, dim, type, specials);
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

static uint32_t random_type(struct rng *r, uint32_t takes)
{
    for (;;)
        switch (rng_below(r, 6)) {
        case 0:
            return COLIBRI_TYPE_F32;
        case 1:
        case 2:
            if (takes & COLIBRI_ATTN_TAKES_Q8_0)
                return COLIBRI_TYPE_Q8_0;
            break;
        case 3:
        case 4:
            if (takes & COLIBRI_ATTN_TAKES_Q4_0)
                return COLIBRI_TYPE_Q4_0;
            break;
        default:
            return COLIBRI_TYPE_F16;
        }
}

/* Blocks have 32 elements. */
static uint32_t whole_blocks(uint32_t dim, uint32_t type)
{
    return type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0 ? (dim + 31) / 32 * 32 : dim;
}

/* What a call reads: pages of keys and of values, and of the last of either. */
struct cache {
    struct pages k, v, k_recent, v_recent;
    bool recent_k, recent_v;
    uint32_t recent_first, recent_begin;
};

static struct cache make_cache(struct rng *r, const struct colibri_attention_args *a, uint32_t takes, bool specials)
{
    const uint32_t n_seen = a->n_kv + a->n_rows - 1;
    struct cache c = {0};
    if (takes & COLIBRI_ATTN_TAKES_RECENT && rng_below(r, 2)) {
        c.recent_k = rng_below(r, 4) != 0;
        c.recent_v = !c.recent_k || rng_below(r, 4);
        const uint32_t kind = rng_below(r, 8); /* all; near the end; not yet; anywhere */
        c.recent_begin = kind == 0   ? 0
                         : kind == 1 ? n_seen - rng_below(r, a->n_rows)
                         : kind == 2 ? n_seen + rng_below(r, 100)
                                     : rng_below(r, n_seen);
        c.recent_first = c.recent_begin - (rng_below(r, 2) ? rng_range(r, 0, c.recent_begin)
                                                           : rng_below(r, a->page_tokens + 1) % (c.recent_begin + 1));
    }
    const uint32_t old = c.recent_begin < n_seen ? c.recent_begin : n_seen;
    c.k = make_pages(r, 0, 0, c.recent_k ? old : n_seen, a->page_tokens, a->k_dim, a->k_type, specials);
    c.v = make_pages(r, 0, 0, c.recent_v ? old : n_seen, a->page_tokens, a->v_dim, a->v_type, specials);
    if (c.recent_k)
        c.k_recent =
            make_pages(r, c.recent_first, c.recent_begin, n_seen, a->page_tokens, a->k_dim, COLIBRI_TYPE_F16, specials);
    if (c.recent_v)
        c.v_recent =
            make_pages(r, c.recent_first, c.recent_begin, n_seen, a->page_tokens, a->v_dim, COLIBRI_TYPE_F16, specials);
    return c;
}

static void free_cache(struct cache *c)
{
    free_pages(&c->k);
    free_pages(&c->v);
    free_pages(&c->k_recent);
    free_pages(&c->v_recent);
}

/* Scores: of every query the positions that it sees are compared; a query's line may hold anything from there up to
 * the next multiple of 16 behind the last position of all. */
static void compare_scores(struct report *rep, const struct colibri_attention_args *a, const float *got,
                           const float *want)
{
    const size_t last = (a->n_kv + a->n_rows - 1 + (size_t)15) / 16 * 16;
    for (uint32_t t = 0; t < a->n_rows * a->n_heads; t++) {
        char text[40];
        snprintf(text, sizeof(text), "scores of query %u", t);
        if (!compare_f32(rep, text, got + t * a->score_stride, want + t * a->score_stride, a->n_kv + t / a->n_heads))
            return;
        for (size_t i = last; i < a->score_stride; i++)
            if (colibri_f32_bits(got[t * a->score_stride + i]) != CANARY) {
                case_fail(rep, "%s: element %zu lies outside and was written", text, i);
                return;
            }
    }
}

/* out as it was laid out, strides between heads and rows included, which must be untouched. */
static void compare_out(struct report *rep, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_f32(got[i], want[i])) {
            case_fail(rep, "out[%zu] is %a (%08x), reference %a (%08x)", i, (double)got[i], colibri_f32_bits(got[i]),
                      (double)want[i], colibri_f32_bits(want[i]));
            return;
        }
}

/* Ranges without a segment, and such as no row sees: nothing may come of them. */
static void run_empty(struct rng *r, const struct colibri_vecops *v, const struct colibri_attention_args *whole,
                      uint32_t n_segments)
{
    struct colibri_attention_args a = *whole;
    a.stages = COLIBRI_ATTN_SEGMENTS;
    a.segment_begin = a.segment_end = rng_below(r, n_segments + 1);
    v->attention(&a);
    a.segment_begin = n_segments;
    a.segment_end = n_segments + rng_below(r, 3);
    v->attention(&a);
}

/* The stages in calls of their own, for ranges of segments in random order. */
static void run_split(struct rng *r, const struct colibri_vecops *v, const struct colibri_attention_args *whole,
                      uint32_t n_segments)
{
    struct colibri_attention_args a = *whole;
    uint32_t cut[8] = {0}, n = 1;
    while (n < 7 && cut[n - 1] < n_segments) {
        cut[n] = cut[n - 1] + rng_range(r, 1, n_segments - cut[n - 1] + rng_below(r, 2));
        n++;
    }
    cut[n] = UINT32_MAX; /* segments that nobody sees */
    const uint32_t first = rng_below(r, n), step = rng_below(r, 2) ? 1 : n - 1;
    run_empty(r, v, whole, n_segments);
    a.stages = COLIBRI_ATTN_SEGMENTS;
    for (uint32_t i = 0, k = first; i < n; i++, k = (k + step) % n) {
        a.segment_begin = cut[k];
        a.segment_end = cut[k + 1];
        v->attention(&a);
    }
    run_empty(r, v, whole, n_segments);
    a.stages = COLIBRI_ATTN_COMBINE;
    v->attention(&a);
}

static void check_shape(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                        uint32_t number, const struct shape *s)
{
    const uint32_t rows = s->rows, heads = s->heads, queries = rows * heads, n_kv = s->n_kv;
    const uint32_t k_dim = s->k_dim, v_dim = s->v_dim, k_type = s->k_type, v_type = s->v_type;
    const uint32_t page_tokens = s->page_tokens;
    const uint32_t n_seen = n_kv + rows - 1, n_segments = (n_seen + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
    const bool specials = rng_below(r, 4) == 0, with_sinks = rng_below(r, 3) == 0, with_sums = rng_below(r, 2);
    const bool split = rng_below(r, 3) == 0;
    const size_t q_stride = k_dim + rng_below(r, 2) * rng_below(r, 30);
    const size_t q_row_stride = heads * q_stride + rng_below(r, 2) * rng_below(r, 30);
    const size_t score_stride = (n_seen + 15u) / 16 * 16 + 16 * rng_below(r, 3);
    const size_t out_stride = v_dim + rng_below(r, 2) * rng_below(r, 30);
    const size_t out_row_stride = heads * out_stride + rng_below(r, 2) * rng_below(r, 30);
    struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = heads,
        .k_dim = k_dim,
        .v_dim = v_dim,
        .n_kv = n_kv,
        .page_tokens = page_tokens,
        .k_type = k_type,
        .v_type = v_type,
        .q_stride = q_stride,
        .score_stride = score_stride,
        .out_stride = out_stride,
        .n_rows = rows,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = n_segments,
        .q_row_stride = q_row_stride,
        .out_row_stride = out_row_stride,
    };
    struct cache cache = make_cache(r, &a, v->attention_takes, specials);
    char recent[80] = "";
    if (cache.recent_k || cache.recent_v)
        snprintf(recent, sizeof(recent), ", recent%s%s from %u in pages from %u", cache.recent_k ? " keys" : "",
                 cache.recent_v ? " values" : "", cache.recent_begin, cache.recent_first);
    case_begin(rep, name, number, "%u rows, %u heads, dims %u %u, %u positions in pages of %u, types %u %u%s%s%s%s",
               rows, heads, k_dim, v_dim, n_kv, page_tokens, k_type, v_type, recent, with_sinks ? ", sinks" : "",
               specials ? ", specials" : "", split ? ", split" : "");

    const size_t q_len = (rows - 1) * q_row_stride + (heads - 1) * q_stride + k_dim;
    const size_t out_len = (rows - 1) * out_row_stride + (heads - 1) * out_stride + v_dim;
    const size_t scores_len = queries * score_stride, weights_len = (size_t)queries * COLIBRI_ATTN_SEGMENT;
    const size_t parts_len = (size_t)queries * n_segments * colibri_attn_part_floats(v_dim);
    struct guarded q = guarded_alloc(q_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded out = guarded_alloc(out_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded scores = guarded_alloc(scores_len * 4, 4, rng_below(r, 4) == 0);
    struct guarded sums = guarded_alloc(queries * 8, 4, false), sinks = guarded_alloc(heads * 4, 4, false);
    struct guarded weights = guarded_alloc(weights_len * 4, 64, rng_below(r, 4) == 0);
    struct guarded parts = guarded_alloc(parts_len * 4, 64, rng_below(r, 4) == 0);
    float *const want_out = canaries(out_len), *const want_scores = canaries(scores_len);
    float *const want_sums = canaries(2 * queries);
    memcpy(out.p, want_out, out_len * 4);
    memcpy(scores.p, want_scores, scores_len * 4);
    memcpy(sums.p, want_sums, queries * 8);
    rng_floats(r, q.p, q_len, specials && rng_below(r, 4) == 0);
    const bool zeros = rng_below(r, 12) == 0; /* with a negative scale all scores are -0, and M must be +0 */
    if (zeros)
        memset(q.p, 0, q_len * 4);
    for (uint32_t h = 0; h < heads; h++)
        ((float *)sinks.p)[h] = rng_unit(r) * 4.0f;

    a.k_pages = cache.k.p;
    a.v_pages = cache.v.p;
    a.k_recent = cache.recent_k ? cache.k_recent.p : NULL;
    a.v_recent = cache.recent_v ? cache.v_recent.p : NULL;
    a.recent_first = cache.recent_first;
    a.recent_begin = cache.recent_begin;
    a.q = q.p;
    a.scale = zeros ? -1.0f : rng_below(r, 4) ? 0.125f : 1.0f;
    a.sinks = with_sinks ? sinks.p : NULL;
    a.scores = with_sums ? want_scores : NULL;
    a.out = want_out;
    a.max_sum = with_sums ? want_sums : NULL;
    a.weights = weights.p;
    a.parts = parts.p;
    clb_ref_attention(&a);
    memset(weights.p, 0xff, weights_len * 4); /* NaN: what a kernel does not write itself must not count */
    memset(parts.p, 0xff, parts_len * 4);
    a.scores = with_sums ? scores.p : NULL;
    a.out = out.p;
    a.max_sum = with_sums ? sums.p : NULL;
    if (split)
        run_split(r, v, &a, n_segments);
    else
        v->attention(&a);

    if (with_sums)
        compare_scores(rep, &a, scores.p, want_scores);
    compare_out(rep, out.p, want_out, out_len);
    compare_f32(rep, "max_sum", sums.p, want_sums, 2 * queries);

    free(want_out);
    free(want_scores);
    free(want_sums);
    guarded_free(&q);
    guarded_free(&out);
    guarded_free(&scores);
    guarded_free(&sums);
    guarded_free(&sinks);
    guarded_free(&weights);
    guarded_free(&parts);
    free_cache(&cache);
}

void check_attention(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                     uint32_t number)
{
    const uint32_t heads = rng_below(r, 8) ? rng_range(r, 1, 9) : rng_range(r, 1, 70);
    const uint32_t k_type = random_type(r, v->attention_takes);
    const uint32_t v_type = rng_below(r, 2) ? k_type : random_type(r, v->attention_takes);
    const uint32_t k_dim = whole_blocks(random_dim(r), k_type);
    const uint32_t v_dim = whole_blocks(rng_below(r, 2) ? k_dim : random_dim(r), v_type);
    const uint32_t most_rows = heads < 9 ? 70 / heads : 3;
    const uint32_t rows = rng_below(r, 3) ? rng_range(r, 1, most_rows) : 1, queries = rows * heads;
    const uint32_t longest = (uint32_t)(rep->o->work / queries / (k_dim + v_dim));
    const uint32_t limit = longest > 1600 ? 1600 : longest < 40 ? 40 : longest;
    /* n_kv also so that the rows reach over the end of a segment */
    const uint32_t edge = COLIBRI_ATTN_SEGMENT * rng_range(r, 1, 2) - rng_below(r, rows);
    const uint32_t n_kv = rng_below(r, 2)                       ? rng_range(r, 1, limit)
                          : rng_below(r, 2) || edge > 2 * limit ? rng_range(r, 1, 40)
                                                                : edge;
    const uint32_t n_seen = n_kv + rows - 1;
    const uint32_t page_tokens = rng_range(r, 1 + n_seen / 40, 1 + n_seen / 40 + rng_below(r, 128));
    const struct shape s = {rows, heads, k_dim, v_dim, n_kv, page_tokens, k_type, v_type};
    check_shape(rep, v, r, name, number, &s);
}

/* Each of these with every pair of types; dimensions are rounded up to whole blocks where they must be. */
static const struct shape edges[] = {
    {.rows = 1, .heads = 1, .k_dim = 64, .v_dim = 64, .n_kv = 1, .page_tokens = 32},  /* one position */
    {.rows = 1, .heads = 3, .k_dim = 64, .v_dim = 1, .n_kv = 100, .page_tokens = 16}, /* as for probabilities alone */
    {.rows = 1, .heads = 1, .k_dim = 1, .v_dim = 1, .n_kv = 1, .page_tokens = 1},     /* as little as there can be */
    {.rows = 2, .heads = 3, .k_dim = 17, .v_dim = 31, .n_kv = 33, .page_tokens = 16}, /* odd dimensions */
    {.rows = 9, .heads = 2, .k_dim = 1, .v_dim = 97, .n_kv = 15, .page_tokens = 7},
    {.rows = 1, .heads = 5, .k_dim = 33, .v_dim = 15, .n_kv = 16, .page_tokens = 16}, /* a whole line of positions */
    {.rows = 3, .heads = 1, .k_dim = 95, .v_dim = 7, .n_kv = 17, .page_tokens = 5},
    {.rows = 1, .heads = 1, .k_dim = 32, .v_dim = 96, .n_kv = COLIBRI_ATTN_SEGMENT, .page_tokens = 64},
    {.rows = 3, .heads = 1, .k_dim = 96, .v_dim = 32, .n_kv = COLIBRI_ATTN_SEGMENT - 1, .page_tokens = 32},
    {.rows = 1, .heads = 2, .k_dim = 5, .v_dim = 3, .n_kv = COLIBRI_ATTN_SEGMENT + 1, .page_tokens = 1000},
    {.rows = 17, .heads = 4, .k_dim = 64, .v_dim = 47, .n_kv = 1, .page_tokens = 1}, /* itself and its kin */
    {.rows = 6, .heads = 1, .k_dim = 13, .v_dim = 64, .n_kv = 3, .page_tokens = 16},
};

void check_attention_edges(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                           uint32_t number)
{
    static const struct {
        uint32_t type, takes;
    } types[] = {{COLIBRI_TYPE_F16, 0},
                 {COLIBRI_TYPE_F32, 0},
                 {COLIBRI_TYPE_Q8_0, COLIBRI_ATTN_TAKES_Q8_0},
                 {COLIBRI_TYPE_Q4_0, COLIBRI_ATTN_TAKES_Q4_0}};
    for (uint32_t k = 0; k < 16; k++) {
        struct shape s = edges[number % (sizeof(edges) / sizeof(edges[0]))];
        if ((types[k / 4].takes | types[k % 4].takes) & ~v->attention_takes)
            continue;
        s.k_type = types[k / 4].type;
        s.v_type = types[k % 4].type;
        s.k_dim = whole_blocks(s.k_dim, s.k_type);
        s.v_dim = whole_blocks(s.v_dim, s.v_type);
        check_shape(rep, v, r, name, number, &s);
    }
}
