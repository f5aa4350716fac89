/* Speed of attention: decode with keys and values from memory, as layers follow each other, and from the cache;
 * prefill. The types take turns, so that a busy machine is unfair to none. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 32u
#define RUN  (COLIBRI_ATTN_SEGMENT / PAGE) /* pages whose keys, and values, are one stretch, as in Colibri's KV cache  \
                                            */
#define STREAM_BYTES ((size_t)64 << 20)    /* of keys and values, if they are to come from memory */
#define ROUNDS       7
#define TYPES        3

static const struct {
    uint32_t type, takes;
    const char *name;
} types[TYPES] = {{COLIBRI_TYPE_F16, 0, "f16"},
                  {COLIBRI_TYPE_Q8_0, COLIBRI_ATTN_TAKES_Q8_0, "q8_0"},
                  {COLIBRI_TYPE_Q4_0, COLIBRI_ATTN_TAKES_Q4_0, "q4_0"}};

struct shape {
    uint32_t dim, rows, heads, n_kv; /* positions that the first row sees */
    bool stream;
};

/* One KV head after the other: keys and values of `copies` of them. From memory the stretches come in any order and in
 * small pages of the system, as those of a cache that many sequences have used. */
struct bench_kv {
    char *memory;
    const void **pages; /* [copies][2][pages per copy] */
    uint32_t copies, n_pages;
};

static struct bench_kv make_kv(const struct shape *s, uint32_t type)
{
    const size_t row = type == COLIBRI_TYPE_F16    ? s->dim * sizeof(colibri_f16)
                       : type == COLIBRI_TYPE_Q8_0 ? s->dim / 32 * sizeof(struct colibri_q8_0)
                                                   : s->dim / 32 * sizeof(struct colibri_q4_0);
    struct bench_kv kv = {.n_pages = (s->n_kv + s->rows - 1 + PAGE - 1) / PAGE};
    const size_t page = PAGE * row, copy = 2 * page * kv.n_pages, run = RUN;
    kv.copies = s->stream ? (uint32_t)((STREAM_BYTES + copy - 1) / copy) : 1;
    const size_t n_pages = (size_t)kv.n_pages * kv.copies, n_runs = (n_pages + run - 1) / run,
                 bytes = 2 * n_runs * run * page;
    kv.memory = bench_memory(bytes);
    if (s->stream)
        (void)madvise(kv.memory, bytes, MADV_NOHUGEPAGE);
    kv.pages = bench_memory(2 * n_pages * sizeof(*kv.pages));
    /* 0x2c.. as F16 is small; as a scale it is, too, and any byte is a code */
    for (size_t i = 0; i < bytes; i += 2) {
        const uint16_t x = (uint16_t)(0x2c00 + i / 2 % 1024);
        memcpy(kv.memory + i, &x, 2);
    }
    size_t *const order = bench_memory(n_runs * sizeof(*order));
    uint64_t random = 1;
    for (size_t i = 0; i < n_runs; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t j = s->stream ? (random >> 32) % (i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (size_t i = 0; i < n_pages; i++) {
        const size_t at = i / kv.n_pages * 2 * kv.n_pages + i % kv.n_pages, first = order[i / run] * 2 * run + i % run;
        kv.pages[at] = kv.memory + first * page;
        kv.pages[at + kv.n_pages] = kv.memory + (first + run) * page;
    }
    free(order);
    return kv;
}

static double run_once(const struct colibri_vecops *v, struct colibri_attention_args *a, const struct bench_kv *kv,
                       uint32_t calls)
{
    const double t0 = bench_now();
    for (uint32_t i = 0; i < calls; i++) {
        a->k_pages = kv->pages + (size_t)(i % kv->copies) * 2 * kv->n_pages;
        a->v_pages = a->k_pages + kv->n_pages;
        v->attention(a);
    }
    return (bench_now() - t0) / calls;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a call per type, the median of all rounds; 0: not offered. */
static void measure(const struct colibri_vecops *v, const struct shape *s, double out[TYPES])
{
    const uint32_t queries = s->rows * s->heads, seen = s->n_kv + s->rows - 1;
    const uint32_t n_segments = (seen + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
    float *const q = bench_memory((size_t)queries * s->dim * 4), *const o = bench_memory((size_t)queries * s->dim * 4);
    float *const weights = bench_memory((size_t)queries * COLIBRI_ATTN_SEGMENT * 4);
    float *const parts = bench_memory((size_t)queries * n_segments * colibri_attn_part_floats(s->dim) * 4);
    for (uint32_t i = 0; i < queries * s->dim; i++)
        q[i] = 0.01f * (float)(i % 100);
    struct colibri_attention_args a = {
        .struct_size = sizeof(a),
        .n_heads = s->heads,
        .k_dim = s->dim,
        .v_dim = s->dim,
        .n_kv = s->n_kv,
        .page_tokens = PAGE,
        .q = q,
        .q_stride = s->dim,
        .scale = 0.001f,
        .out = o,
        .out_stride = s->dim,
        .n_rows = s->rows,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = n_segments,
        .q_row_stride = (size_t)s->heads * s->dim,
        .out_row_stride = (size_t)s->heads * s->dim,
        .weights = weights,
        .parts = parts,
    };
    double seconds[TYPES][ROUNDS];
    struct bench_kv kv[TYPES];
    uint32_t calls[TYPES];
    for (int t = 0; t < TYPES; t++) {
        out[t] = 0.0;
        if (types[t].takes & ~v->attention_takes)
            continue;
        kv[t] = make_kv(s, types[t].type);
        a.k_type = a.v_type = types[t].type;
        const double once = run_once(v, &a, &kv[t], 1); /* a round takes some milliseconds, and all copies at most */
        calls[t] = s->stream ? kv[t].copies : once < 0.004 ? (uint32_t)(0.004 / (once + 1e-7)) + 1 : 1;
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int t = 0; t < TYPES; t++) {
            a.k_type = a.v_type = types[t].type;
            if (!(types[t].takes & ~v->attention_takes))
                seconds[t][r] = run_once(v, &a, &kv[t], calls[t]);
        }
    for (int t = 0; t < TYPES; t++) {
        if (types[t].takes & ~v->attention_takes)
            continue;
        qsort(seconds[t], ROUNDS, sizeof(double), by_value);
        out[t] = seconds[t][ROUNDS / 2];
        free(kv[t].memory);
        free(kv[t].pages);
    }
    free(q);
    free(o);
    free(weights);
    free(parts);
}

/* Decode in time per position of a KV head, with its key and value, for all query heads; prefill in products, which
 * count if a row sees their position. */
static void bench_shape(const struct colibri_vecops *v, const struct shape *s)
{
    double seconds[TYPES];
    measure(v, s, seconds);
    const double products = 2.0 * s->heads * s->dim * (s->rows * (double)s->n_kv + s->rows * (s->rows - 1.0) / 2.0);
    for (int t = 0; t < TYPES; t++) {
        char what[100];
        if (seconds[t] <= 0.0)
            continue;
        snprintf(what, sizeof(what), "attention %s, %ux%u queries, dim %u, %u positions%s", types[t].name, s->rows,
                 s->heads, s->dim, s->n_kv,
                 s->rows > 1 ? ""
                 : s->stream ? ", memory"
                             : ", cache");
        if (s->rows > 1)
            bench_operation(v->name, what, products / seconds[t] / 1e9, "GFMA/s");
        else
            bench_operation(v->name, what, seconds[t] * 1e9 / s->n_kv, "ns/position");
    }
}

void bench_attention(const struct colibri_vecops *v)
{
    static const uint32_t decode_dims[] = {64, 128}, heads[] = {1, 4, 8}, positions[] = {512, 2048, 8192, 16384};
    static const uint32_t prefill_dims[] = {64, 96, 128};
    for (size_t d = 0; d < sizeof(decode_dims) / sizeof(decode_dims[0]); d++)
        for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            for (size_t n = 0; n < sizeof(positions) / sizeof(positions[0]); n++)
                bench_shape(v, &(struct shape){decode_dims[d], 1, heads[h], positions[n], true});
            bench_shape(v, &(struct shape){decode_dims[d], 1, heads[h], 512, false});
        }
    for (size_t d = 0; d < sizeof(prefill_dims) / sizeof(prefill_dims[0]); d++) /* without and with shared KV heads */
        for (uint32_t n = 512; n <= 4096; n *= 8) {
            bench_shape(v, &(struct shape){prefill_dims[d], 64, 1, n - 63, false});
            bench_shape(v, &(struct shape){prefill_dims[d], 8, 8, n - 7, false});
        }
}
