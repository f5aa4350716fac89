/* Attention over the pages: rows and KV heads become tasks, long contexts also segments.
 *
 * A tile is some consecutive rows of one span; with a KV head it is a task, for which the kernel reads keys and values
 * once for all rows and query heads. Late rows see most and come first, so that workers finish together. If there are
 * few tasks (decode of one sequence) and the context is long, several workers share a task: each takes some segments,
 * and whoever is last combines all of them. Segments are the same however they are shared, and so are the bits.
 *
 * A KV strategy that wants probabilities gets them row by row, in order: then one task has all rows of the span.
 *
 * With compacted positions keys are stored before rotation. They are rotated by their place among the kept ones segment by
 * segment, into memory of the worker, which the kernel then reads instead of the pages. */
#include <stdatomic.h>
#include <stdlib.h>

#include "colibri/numerics.h"
#include "model/forward_internal.h"
#include "ops/hadamard.h"

#define SEGMENT          COLIBRI_ATTN_SEGMENT
#define TILE_QUERIES     64u          /* queries of a task: enough to pay for widening keys and values once */
#define PARTS_MOST       (512u << 10) /* floats of a task's segment results at most, unless one row needs more */
#define SCORES_MOST      (64u << 10)  /* the same of observed scores */
#define TASKS_PER_WORKER 4u           /* fewer than this are split */

struct tile {
    uint32_t row, n; /* rows [row, row + n) */
    bool observe;
};

/* What a worker needs. */
struct needs {
    uint32_t rows;         /* of a tile, at most */
    uint32_t observe_rows; /* of a call that returns scores */
    size_t score_stride;
    size_t row_parts;                       /* floats of the results of all segments, for the query heads of one row */
    size_t parts, weights, scores, max_sum; /* floats */
    size_t keys;                            /* floats of a segment's keys, rotated here */
};

struct clb_attention {
    struct tile *tiles; /* [max_rows] */
    atomic_uint *left;  /* [TASKS_PER_WORKER * n_workers]: parts of a shared task that are not done */
    float *memory;      /* results of segments of all workers, then the rest of each worker */
    uint64_t cap;       /* floats of it */

    /* this pass */
    struct needs needs;
    size_t worker_floats; /* beside parts */
    size_t keys_at;       /* of these: where rotated keys lie */
    uint32_t rows;        /* most rows of a tile */
    uint32_t n_tiles, n_parts;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t segments_of(uint32_t n)
{
    return n / SEGMENT + (n % SEGMENT != 0);
}

static struct needs needs_of(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv)
{
    const uint32_t group = hp->n_heads / hp->n_kv_heads, n_segments = segments_of(n_kv);
    struct needs n = {.rows = least(TILE_QUERIES / group, max_rows),
                      .score_stride = (size_t)n_segments * SEGMENT,
                      .row_parts = n_segments * colibri_attn_part_floats(hp->v_dim) * group};
    n.rows = n.row_parts * n.rows > PARTS_MOST ? (uint32_t)(PARTS_MOST / n.row_parts) : n.rows;
    n.rows = n.rows ? n.rows : 1;
    n.observe_rows = least((uint32_t)(SCORES_MOST / (n.score_stride * group)), n.rows);
    n.observe_rows = n.observe_rows ? n.observe_rows : 1;
    n.parts = n.row_parts * n.rows;
    n.weights = (size_t)n.rows * group * SEGMENT;
    n.scores = n.score_stride * group * n.observe_rows;
    n.keys = (size_t)SEGMENT * ((hp->k_dim + 15) & ~15u);
    n.max_sum = ((size_t)n.observe_rows * group * 2 + 15) & ~(size_t)15;
    return n;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Longer contexts have smaller tiles: what counts is the most on the way there. */
uint64_t clb_attention_floats(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv)
{
    const struct needs n = needs_of(hp, max_rows, n_kv), first = needs_of(hp, max_rows, 1);
    const size_t parts = n.rows < first.rows ? larger(n.parts, PARTS_MOST) : n.parts;
    const size_t scores = n.observe_rows < first.observe_rows ? larger(n.scores, SCORES_MOST) : n.scores;
    return (uint64_t)parts + first.weights + scores + first.max_sum + first.keys;
}

int clb_attention_create(clb_forward *f)
{
    struct clb_attention *const a = f->attention = calloc(1, sizeof *a);
    if (!a)
        return COLIBRI_E_NOMEM;
    a->tiles = calloc(f->max_rows, sizeof *a->tiles);
    a->left = calloc((size_t)TASKS_PER_WORKER * clb_pool_workers(f->options.pool), sizeof *a->left);
    return a->tiles && a->left ? COLIBRI_OK : COLIBRI_E_NOMEM;
}

void clb_attention_destroy(clb_forward *f)
{
    struct clb_attention *const a = f->attention;
    if (!a)
        return;
    free(a->tiles);
    free(a->left);
    free(a->memory);
    free(a);
    f->attention = NULL;
}

static bool observed(const clb_span *span)
{
    return clb_kv_seq_needs(span->kv) & (COLIBRI_KV_NEED_PROB_COLSUM | COLIBRI_KV_NEED_PROB_MAX);
}

/* Tiles of at most `rows` rows, late rows first. Returns whether any span is observed. */
static bool make_tiles(clb_forward *f, uint32_t rows)
{
    struct clb_attention *const a = f->attention;
    bool observe = false;
    a->n_tiles = 0;
    for (uint32_t s = f->n_spans, end = f->n_rows; s-- > 0; end -= f->spans[s].n) {
        if (observed(&f->spans[s])) {
            a->tiles[a->n_tiles++] = (struct tile){end - f->spans[s].n, f->spans[s].n, true};
            observe = true;
            continue;
        }
        for (uint32_t left = f->spans[s].n; left;) {
            uint32_t first, after; /* rows that read the same recent window; those before them are whole tiles */
            clb_kv_recent_rows(f->spans[s].kv, left - 1, &first, &after);
            const uint32_t n = (left - first) % rows ? (left - first) % rows : rows;
            left -= n;
            a->tiles[a->n_tiles++] = (struct tile){end - f->spans[s].n + left, n, false};
        }
    }
    return observe;
}

int clb_attention_reserve(clb_forward *f, uint32_t n_kv, clb_error *err)
{
    struct clb_attention *const a = f->attention;
    const clb_hparams *hp = f->hp;
    const uint32_t n_workers = clb_pool_workers(f->options.pool), wanted = TASKS_PER_WORKER * n_workers;
    const struct needs n = needs_of(hp, f->max_rows, n_kv);
    uint32_t rows = n.rows;
    if (n_workers > 1 && (uint64_t)f->n_rows * hp->n_kv_heads < (uint64_t)wanted * rows) {
        rows = (uint32_t)((uint64_t)f->n_rows * hp->n_kv_heads / wanted);
        rows = rows ? rows : 1;
    }
    const bool observe = make_tiles(f, rows);
    a->rows = rows;
    a->needs = n;
    bool compact = false;
    for (uint32_t s = 0; s < f->n_spans; s++)
        compact = compact || clb_kv_seq_compact(f->spans[s].kv);
    a->keys_at = n.weights + (observe ? n.scores + n.max_sum : 0);
    a->worker_floats = a->keys_at + (compact ? n.keys : 0);
    const uint32_t tasks = a->n_tiles * hp->n_kv_heads;
    a->n_parts = 1;
    if (n_workers > 1 && !observe && tasks < wanted && (uint64_t)tasks * rows <= (uint64_t)n_workers * n.rows)
        a->n_parts = least((wanted + tasks - 1) / tasks, segments_of(n_kv));

    const uint64_t need = n_workers * (uint64_t)(n.parts + a->worker_floats);
    if (need <= a->cap)
        return COLIBRI_OK;
    free(a->memory);
    a->cap = 0;
    a->memory = need > SIZE_MAX / 8 ? NULL : aligned_alloc(64, ((size_t)need * sizeof(float) + 63) & ~(size_t)63);
    if (!a->memory)
        return CLB_NOMEM(err, "attention");
    a->cap = need;
    return COLIBRI_OK;
}

struct run {
    clb_forward *f;
    uint32_t il;
};

static struct colibri_attention_args args_of(const struct run *r, const clb_kv_view *view, uint32_t row, uint32_t n,
                                             uint32_t kv_head, uint32_t worker)
{
    const clb_forward *f = r->f;
    const clb_hparams *hp = f->hp;
    const struct clb_attention *a = f->attention;
    const uint32_t group = hp->n_heads / hp->n_kv_heads, n_kv = view->n_before + f->rows[row].index + 1;
    const size_t head = (size_t)row * hp->n_heads + (size_t)kv_head * group;
    float *const own = a->memory + clb_pool_workers(f->options.pool) * a->needs.parts + worker * a->worker_floats;
    return (struct colibri_attention_args){
        .struct_size = sizeof(struct colibri_attention_args),
        .n_heads = group,
        .k_dim = hp->k_dim,
        .v_dim = hp->v_dim,
        .n_kv = n_kv,
        .page_tokens = f->options.kv_layout.page_tokens,
        .k_type = f->options.kv_layout.k_type,
        .v_type = f->options.kv_layout.v_type,
        .k_pages = view->k_pages,
        .v_pages = view->v_pages,
        .q = f->q + head * hp->k_dim,
        .q_stride = hp->k_dim,
        .scale = hp->attention_scale,
        .out = f->att + head * hp->v_dim,
        .out_stride = hp->v_dim,
        .n_rows = n,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = segments_of(n_kv + n - 1),
        .q_row_stride = (size_t)hp->n_heads * hp->k_dim,
        .out_row_stride = (size_t)hp->n_heads * hp->v_dim,
        .weights = own,
        .parts = a->memory + worker * a->needs.parts,
        .k_recent = view->k_recent,
        .v_recent = view->v_recent,
        .recent_first = view->recent_first,
        .recent_begin = clb_kv_recent_begin(f->spans[f->rows[row].span].kv, r->il, kv_head, f->rows[row].index),
    };
}

/* The layout's table has an attention that takes its types. */
static void call_kernel(const clb_forward *f, const struct colibri_attention_args *args)
{
    const struct colibri_vecops *const ops = f->options.kv_layout.ops;
    (ops && ops->attention ? ops : f->compute.ops)->attention(args);
}

/* One segment whose keys are read from `keys`. */
static void attend_rotated(const struct run *r, const struct colibri_attention_args *args, const clb_kv_seq *kv,
                           uint32_t kv_head, uint32_t g, float *keys)
{
    enum { PAGES = SEGMENT / 16 + 2 }; /* pages have 16 positions at least */
    const uint32_t page = args->page_tokens, begin = g * SEGMENT, seen = args->n_kv + args->n_rows - 1;
    const uint32_t end = least(begin + SEGMENT, seen), first = begin / page;
    const void *pages[PAGES];
    clb_kv_keys(kv, r->il, kv_head, begin, end, keys);
    /* The kernel counts pages and their rows from the first position of all: these lie before what it reads. */
    for (uint32_t p = first; p * page < end; p++)
        pages[p - first] = (const void *)((uintptr_t)keys + (uintptr_t)(((int64_t)p * page - (int64_t)begin) *
                                                                       (int64_t)(args->k_dim * sizeof(float))));
    struct colibri_attention_args a = *args;
    a.k_type = COLIBRI_TYPE_F32;
    a.k_pages = (const void *const *)((uintptr_t)pages - first * sizeof pages[0]);
    a.stages = COLIBRI_ATTN_SEGMENTS;
    a.segment_begin = g;
    a.segment_end = g + 1;
    call_kernel(r->f, &a);
}

static void attend(const struct run *r, const struct colibri_attention_args *args, uint32_t kv_head, uint32_t worker)
{
    const clb_forward *f = r->f;
    const struct clb_attention *const own = f->attention;
    const size_t row = (size_t)(args->q - f->q) / args->q_row_stride;
    const clb_kv_seq *kv = f->spans[f->rows[row].span].kv;
    if (!clb_kv_seq_compact(kv)) {
        call_kernel(f, args);
        return;
    }
    float *const keys = own->memory + clb_pool_workers(f->options.pool) * own->needs.parts +
                        worker * own->worker_floats + own->keys_at;
    for (uint32_t g = args->segment_begin; (args->stages & COLIBRI_ATTN_SEGMENTS) && g < args->segment_end; g++)
        attend_rotated(r, args, kv, kv_head, g, keys);
    if (args->stages & COLIBRI_ATTN_COMBINE) {
        struct colibri_attention_args a = *args;
        a.stages = COLIBRI_ATTN_COMBINE;
        call_kernel(f, &a);
    }
}

/* Results of turned values. */
static void turn_back(const clb_forward *f, const struct colibri_attention_args *args)
{
    if (f->options.kv_layout.turn_v)
        for (uint32_t row = 0; row < args->n_rows; row++)
            for (uint32_t h = 0; h < args->n_heads; h++)
                clb_hadamard(args->out + row * args->out_row_stride + h * args->out_stride, args->v_dim);
}

/* Rows that one call may have from `row` of the pass on, at most `most`: all read the same recent window. */
static uint32_t rows_alike(const clb_forward *f, uint32_t row, uint32_t most)
{
    uint32_t first, end;
    clb_kv_recent_rows(f->spans[f->rows[row].span].kv, f->rows[row].index, &first, &end);
    return least(most, end - f->rows[row].index);
}

/* All rows of a span, whose strategy sees each of them in order. */
static void attend_observed(const struct run *r, const struct tile *tile, uint32_t kv_head, uint32_t worker)
{
    clb_forward *const f = r->f;
    const uint32_t group = f->hp->n_heads / f->hp->n_kv_heads;
    clb_kv_seq *const kv = f->spans[f->rows[tile->row].span].kv;
    const clb_kv_view view = clb_kv_view_of(kv, r->il, kv_head);
    const struct needs *const needs = &f->attention->needs;
    for (uint32_t done = 0, n; done < tile->n; done += n) {
        n = rows_alike(f, tile->row + done, least(tile->n - done, needs->observe_rows));
        struct colibri_attention_args args = args_of(r, &view, tile->row + done, n, kv_head, worker);
        args.score_stride = needs->score_stride;
        args.scores = args.weights + needs->weights;
        args.max_sum = args.scores + needs->scores;
        attend(r, &args, kv_head, worker);
        turn_back(f, &args);
        for (uint32_t i = 0; i < n; i++)
            clb_kv_observe(kv, r->il, kv_head, args.scores + (size_t)i * group * args.score_stride, args.score_stride,
                           args.max_sum + (size_t)i * group * 2, group, args.n_kv + i);
    }
}

static void attend_task(void *ctx, uint32_t index, uint32_t worker)
{
    const struct run *r = ctx;
    clb_forward *const f = r->f;
    struct clb_attention *const a = f->attention;
    const uint32_t task = index / a->n_parts, part = index % a->n_parts, n_kv_heads = f->hp->n_kv_heads;
    const uint32_t kv_head = task % n_kv_heads;
    const struct tile *const tile = &a->tiles[task / n_kv_heads];
    if (tile->observe) {
        attend_observed(r, tile, kv_head, worker);
        return;
    }
    const clb_kv_view view = clb_kv_view_of(f->spans[f->rows[tile->row].span].kv, r->il, kv_head);
    struct colibri_attention_args args = args_of(r, &view, tile->row, tile->n, kv_head, worker);
    if (a->n_parts == 1) {
        attend(r, &args, kv_head, worker);
        turn_back(f, &args);
        return;
    }
    /* Shared results have a place per task instead: the rows of all tasks are no more than those of all workers. */
    args.parts = a->memory + task * a->rows * a->needs.row_parts;
    args.stages = COLIBRI_ATTN_SEGMENTS;
    clb_split(args.segment_end, part, a->n_parts, &args.segment_begin, &args.segment_end);
    if (args.segment_begin < args.segment_end)
        attend(r, &args, kv_head, worker);
    if (atomic_fetch_sub(&a->left[task], 1) != 1)
        return;
    args.stages = COLIBRI_ATTN_COMBINE;
    attend(r, &args, kv_head, worker);
    turn_back(f, &args);
}

void clb_attention_run(clb_forward *f, uint32_t il)
{
    struct clb_attention *const a = f->attention;
    const uint32_t tasks = a->n_tiles * f->hp->n_kv_heads;
    if (a->n_parts > 1)
        for (uint32_t i = 0; i < tasks; i++)
            atomic_store_explicit(&a->left[i], a->n_parts, memory_order_relaxed);
    struct run run = {f, il};
    clb_compute_rows(&f->compute, tasks * a->n_parts, 1, attend_task, &run);
}
