/* The reference of attention, which kernels are compared with byte for byte, against a plain one in double: every pair
 * of types of keys and values, odd dimensions, one position, ends of segments, calls without a segment, F16 copies of
 * the end. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/blocks.h"
#include "colibri/kernel.h"
#include "colibri/numerics.h"
#include "ops/kv_quant.h"
#include "ops/ops.h"

enum { MOST = 1100, DIM_MOST = 96, HEADS = 2, MOST_ROWS = 3, PAGE = 24, PAGES = MOST / PAGE + 2 };
#define SEGMENTS (MOST / COLIBRI_ATTN_SEGMENT + 1)

/* Rows in pages, and what they mean. */
struct rows {
    uint32_t dim, type;
    double x[MOST][DIM_MOST];
    colibri_f16 recent[PAGES * PAGE * DIM_MOST]; /* of positions from `first` on */
    const void *recent_pages[PAGES];
    float space[PAGES][PAGE * DIM_MOST]; /* room for any type */
    const void *pages[PAGES];
};

static struct rows k, v;

static void fill(struct rows *r, test_rand *rng, uint32_t dim, uint32_t type, uint32_t n, uint32_t first,
                 uint32_t begin)
{
    float x[DIM_MOST];
    r->dim = dim;
    r->type = type;
    for (uint32_t i = 0; i < n; i++) {
        char *const page = (char *)r->space[i / PAGE];
        const uint32_t at = i % PAGE;
        r->pages[i / PAGE] = page;
        for (uint32_t d = 0; d < dim; d++) {
            x[d] = test_rand_f32(rng, -1, 1);
            r->x[i][d] = (double)x[d];
        }
        if (type == COLIBRI_TYPE_F32) {
            memcpy(page + at * dim * sizeof(float), x, dim * sizeof(float));
        } else if (type == COLIBRI_TYPE_F16) {
            colibri_f16 *const to = (colibri_f16 *)(void *)page + (size_t)at * dim;
            for (uint32_t d = 0; d < dim; d++) {
                to[d] = colibri_f32_f16(x[d]);
                r->x[i][d] = (double)colibri_f16_f32(to[d]);
            }
        } else if (type == COLIBRI_TYPE_Q8_0) {
            struct colibri_q8_0 *const to = (struct colibri_q8_0 *)(void *)page + (size_t)at * dim / 32;
            clb_kv_quant_q8_0(x, to, dim);
            for (uint32_t d = 0; d < dim; d++)
                r->x[i][d] = (double)colibri_f16_f32(to[d / 32].d) * to[d / 32].qs[d % 32];
        } else {
            struct colibri_q4_0 *const to = (struct colibri_q4_0 *)(void *)page + (size_t)at * dim / 32;
            clb_kv_quant_q4_0(x, to, dim);
            for (uint32_t d = 0; d < dim; d++) { /* the low half of a byte is of the first 16 elements */
                const uint8_t byte = to[d / 32].qs[d % 16];
                r->x[i][d] = (double)colibri_f16_f32(to[d / 32].d) * ((d % 32 < 16 ? byte % 16 : byte / 16) - 8);
            }
        }
        if (i < begin)
            continue;
        for (uint32_t d = 0; d < dim; d++) { /* other numbers than those of the pages */
            const size_t e = (size_t)(i - first) * dim + d;
            r->recent[e] = colibri_f32_f16(test_rand_f32(rng, -1, 1));
            r->x[i][d] = (double)colibri_f16_f32(r->recent[e]);
        }
    }
    for (uint32_t p = 0; p < PAGES; p++)
        r->recent_pages[p] = r->recent + (size_t)p * PAGE * dim;
}

static void check(test_rand *rng, uint32_t k_type, uint32_t v_type, uint32_t k_dim, uint32_t v_dim, uint32_t n_kv,
                  uint32_t rows, bool recent)
{
    static float q[MOST_ROWS * HEADS * DIM_MOST], out[MOST_ROWS * HEADS * DIM_MOST],
        scores[MOST_ROWS * HEADS][MOST + 20];
    static float weights[MOST_ROWS * HEADS * COLIBRI_ATTN_SEGMENT] __attribute__((aligned(64)));
    static float parts[MOST_ROWS * HEADS * SEGMENTS * (DIM_MOST + 32)] __attribute__((aligned(64)));
    static double p[MOST];
    float max_sum[MOST_ROWS * HEADS][2];
    const uint32_t n = n_kv + rows - 1, begin = recent ? n - n / 3 : n, first = begin > 5 ? begin - 5 : 0;
    const uint32_t n_segments = (n + COLIBRI_ATTN_SEGMENT - 1) / COLIBRI_ATTN_SEGMENT;
    fill(&k, rng, k_dim, k_type, n, first, begin);
    fill(&v, rng, v_dim, v_type, n, first, begin);
    for (uint32_t i = 0; i < rows * HEADS * k_dim; i++)
        q[i] = test_rand_f32(rng, -1, 1);
    struct colibri_attention_args a = {
        .struct_size = sizeof a,
        .n_heads = HEADS,
        .k_dim = k_dim,
        .v_dim = v_dim,
        .n_kv = n_kv,
        .page_tokens = PAGE,
        .k_type = k_type,
        .v_type = v_type,
        .k_pages = k.pages,
        .v_pages = v.pages,
        .q = q,
        .q_stride = k_dim,
        .scale = 0.5f,
        .scores = scores[0],
        .score_stride = MOST + 20,
        .out = out,
        .out_stride = v_dim,
        .max_sum = max_sum[0],
        .n_rows = rows,
        .stages = COLIBRI_ATTN_SEGMENTS,
        .q_row_stride = (size_t)HEADS * k_dim,
        .out_row_stride = (size_t)HEADS * v_dim,
        .weights = weights,
        .parts = parts,
        .k_recent = recent ? k.recent_pages : NULL,
        .v_recent = recent ? v.recent_pages : NULL,
        .recent_first = first,
        .recent_begin = begin,
    };
    memset(parts, 0xff, sizeof parts);
    for (uint32_t g = 0; g < n_segments; g++) { /* one at a time, with calls for none in between */
        a.segment_begin = g;
        a.segment_end = g + 1;
        clb_ref_attention(&a);
        a.segment_end = g;
        clb_ref_attention(&a);
    }
    a.segment_begin = n_segments;
    a.segment_end = n_segments + 2;
    clb_ref_attention(&a);
    a.stages = COLIBRI_ATTN_COMBINE;
    clb_ref_attention(&a);

    for (uint32_t t = 0; t < rows * HEADS; t++) {
        const uint32_t seen = n_kv + t / HEADS;
        double most = -(double)INFINITY, total = 0;
        for (uint32_t i = 0; i < seen; i++) {
            p[i] = 0;
            for (uint32_t d = 0; d < k_dim; d++)
                p[i] += 0.5 * (double)q[t * k_dim + d] * k.x[i][d];
            if (fabs(p[i] - (double)scores[t][i]) > 2e-5)
                fail_msg("types %u %u, dims %u %u, %u positions: score %u of query %u is %g, should be %g", k_type,
                         v_type, k_dim, v_dim, n_kv, i, t, (double)scores[t][i], p[i]);
            most = fmax(most, p[i]);
        }
        for (uint32_t i = 0; i < seen; i++)
            total += p[i] = exp(p[i] - most);
        for (uint32_t d = 0; d < v_dim; d++) {
            double want = 0;
            for (uint32_t i = 0; i < seen; i++)
                want += p[i] / total * v.x[i][d];
            if (!(fabs(want - (double)out[t * v_dim + d]) <= 1e-5))
                fail_msg("types %u %u, dims %u %u, %u positions: value %u of query %u is %g, should be %g", k_type,
                         v_type, k_dim, v_dim, n_kv, d, t, (double)out[t * v_dim + d], want);
        }
    }
}

static uint32_t whole_blocks(uint32_t dim, uint32_t type)
{
    return type == COLIBRI_TYPE_Q8_0 || type == COLIBRI_TYPE_Q4_0 ? (dim + 31) / 32 * 32 : dim;
}

static void every_pair_of_types(void **state)
{
    (void)state;
    const uint32_t types[] = {COLIBRI_TYPE_F16, COLIBRI_TYPE_F32, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_Q4_0};
    const uint32_t shapes[][4] = {
        {64, 64, 1, 1}, {64, 1, 40, 1}, {1, 1, 1, 1},    {17, 31, 33, 2},  {33, 15, 16, 3},
        {96, 7, 17, 1}, {3, 95, 15, 3}, {32, 5, 512, 1}, {24, 32, 511, 3}, {5, 3, 1030, 2},
    };
    test_rand rng = {17};
    for (uint32_t pair = 0; pair < 16; pair++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int recent = 0; recent < 2; recent++) {
                const uint32_t kt = types[pair / 4], vt = types[pair % 4];
                check(&rng, kt, vt, whole_blocks(shapes[s][0], kt), whole_blocks(shapes[s][1], vt), shapes[s][2],
                      shapes[s][3], recent);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_of_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
