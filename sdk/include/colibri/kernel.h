/* Kernel interfaces: matrix products on one format, and vector operations.
 *
 * Kernels are reentrant, keep no state, allocate nothing and start no threads: the host splits rows over its
 * own pool. [any-thread] applies to every function here. An EXACT kernel returns the bits of the scalar
 * reference (the format's `matmul`, or core/ops for vector operations) for every shape and split. */
#ifndef COLIBRI_KERNEL_H
#define COLIBRI_KERNEL_H

#include "colibri/blocks.h"
#include "colibri/plugin.h"

#define COLIBRI_EXACT 0u /* value of max_ulp that promises equal bits */

/* y[t * y_stride + row] = dot(row of w, activation row t), for the rows of groups [group_begin, group_end).
 * A group is 16 rows: rows 16g .. 16g+15. */
struct colibri_matmul_args {
    uint32_t struct_size;
    uint32_t n_rows;            /* rows of the whole matrix; rows >= n_rows are neither read (row layout) nor written */
    uint32_t n_cols;            /* a multiple of the format's block_elems */
    uint32_t n_x;               /* activation rows, >= 1 */
    uint32_t group_begin, group_end;
    const void *w;              /* group 0 of the matrix, in the component's layout; 64-byte aligned for X16,
                                   aligned to its elements for ROWS */
    size_t group_stride;        /* bytes from group to group: 16 * bytes of one row, in both layouts */
    const void *x;              /* activation rows in the component's activation format, 8-byte aligned */
    size_t x_stride;            /* bytes from one activation row to the next, a multiple of 4 */
    const uint32_t *x_index;    /* NULL: product row t uses activation row t; else activation row x_index[t] */
    float *y;                   /* results, 4-byte aligned: where row 0 of product row 0 would be. Only the rows of the
                                   groups need be there, so y itself may point outside of the caller's memory */
    size_t y_stride;            /* floats from one product row to the next: at least the rows of the groups, which can
                                   be fewer than n_rows */
    void *scratch;              /* scratch_bytes of the component, 64-byte aligned, this thread's own; or NULL */
};

struct colibri_matmul {
    uint32_t struct_size;
    uint32_t gguf_type;              /* weight format */
    uint32_t layout;                 /* enum colibri_layout of w */
    uint32_t max_ulp;                /* COLIBRI_EXACT, or the largest error against the reference in ULP */
    int32_t rank;                    /* among components of all kernel plugins that pass the filter */
    uint32_t min_x;                  /* smallest n_x for which this component is meant (normally 1); any n_x works.
                                        The host chooses for 1, 2 to 7, 8 to 31, and 32 or more */
    uint64_t cpu[COLIBRI_CPU_WORDS]; /* CPU bits of this component, beyond those of the note */
    const char *name;                /* "avx512-vnni.q4_k" */
    const char *act;                 /* COLIBRI_ACT_* */
    size_t scratch_bytes;
    void (*run)(const struct colibri_matmul_args *args);
};

/* Attention of `n_rows` consecutive query rows of one sequence, with the query heads that share one KV head, over the
 * kept positions in order: row r sees the first n_kv + r of them. A query is a (row, head); queries count row by row.
 * Reference and exact definition: core/ops/attention.c. For every query, which sees n positions:
 *   s[i] = dot16(q, k[i]) * scale                            (16 virtual lanes over the head dimension)
 * Per segment g of COLIBRI_ATTN_SEGMENT positions: m_g = max s, p[i] = exp(s[i] - m_g),
 *   l_g = sum of p in 16 virtual lanes, o_g[d] = fma chain over i in order of p[i] * v[i][d].
 * Over segments in order: M = max m_g (and of the sink), L = sum l_g * exp(m_g - M), o = sum o_g * exp(m_g - M),
 *   out = o / L. Sums over segments are fma chains starting at 0 (L then adds exp(sink - M)).
 *
 * A call does one or both of two stages. COLIBRI_ATTN_SEGMENTS leaves m_g, l_g and o_g of the segments
 * [segment_begin, segment_end) in `parts`, for every query that sees some of the segment; calls for other segments of
 * the same queries may run at the same time, with the same `parts`. COLIBRI_ATTN_COMBINE makes `out` of them. */
#define COLIBRI_ATTN_SEGMENTS 1u
#define COLIBRI_ATTN_COMBINE  2u

struct colibri_attention_args {
    uint32_t struct_size;
    uint32_t n_heads;           /* query heads, >= 1 */
    uint32_t k_dim, v_dim;      /* head dimensions */
    uint32_t n_kv;              /* kept positions that row 0 sees, >= 1 */
    uint32_t page_tokens;       /* positions per page, >= 1 */
    /* COLIBRI_TYPE_F16, F32, and where attention_takes says so Q8_0 and Q4_0: rows of dim / 32 blocks as in GGUF. An
     * element is then its scale (F16, widened) times its code, which no float product rounds: what follows is the same
     * as for the other types. */
    uint32_t k_type, v_type;
    const void *const *k_pages; /* page p: [page_tokens][k_dim], kept positions p * page_tokens .. */
    const void *const *v_pages; /* page p: [page_tokens][v_dim] */
    const float *q;             /* [n_rows][n_heads][k_dim], rotated */
    size_t q_stride;            /* floats from head to head */
    float scale;
    const float *sinks;         /* NULL or [n_heads]: an extra logit without value (gpt-oss) */
    float *scores;              /* NULL, or [n_rows * n_heads][score_stride]: receives the scaled scores s[i] of the
                                   segments of this call; unspecified from a query's last position on */
    size_t score_stride;        /* floats, a multiple of 16, >= n_kv + n_rows - 1 */
    float *out;                 /* [n_rows][n_heads][v_dim] */
    size_t out_stride;          /* floats from head to head */
    float *max_sum;             /* NULL or [n_rows * n_heads][2]: M and L, so that p = exp(s - M) / L */

    uint32_t n_rows;            /* >= 1 */
    uint32_t stages;            /* COLIBRI_ATTN_SEGMENTS, COLIBRI_ATTN_COMBINE or both */
    uint32_t segment_begin, segment_end; /* of the first stage; those that no row sees are passed over */
    size_t q_row_stride, out_row_stride; /* floats from row to row */
    float *weights;             /* scratch of this call, [n_rows * n_heads][COLIBRI_ATTN_SEGMENT], 64-byte aligned */
    float *parts;               /* scratch of these queries, 64-byte aligned: results of segments, in a form that is the
                                   component's own; colibri_attn_part_floats(v_dim) per query and segment that the last
                                   row sees */

    /* The last positions as F16, whatever the types above (attention_takes: COLIBRI_ATTN_TAKES_RECENT). Positions
     * [0, recent_begin) are read from k_pages and v_pages, those from recent_begin on from these: page p holds
     * [page_tokens][dim] F16 of the positions recent_first + p * page_tokens .., recent_first <= recent_begin. NULL: all
     * positions come from k_pages and v_pages. recent_begin may lie beyond what some or all rows see. */
    const void *const *k_recent;
    const void *const *v_recent;
    uint32_t recent_first, recent_begin;
};

/* What the attention of a vecops table takes beyond K and V in F16 and F32. */
#define COLIBRI_ATTN_TAKES_Q8_0   1u
#define COLIBRI_ATTN_TAKES_Q4_0   2u
#define COLIBRI_ATTN_TAKES_RECENT 4u

/* Floats of `parts` per (query, segment). */
static inline size_t colibri_attn_part_floats(uint32_t v_dim)
{
    return (((size_t)v_dim + 15) & ~(size_t)15) + 16;
}

/* Vector operations. A NULL member means "not offered": the host then uses the next plugin's or the reference.
 * References with the exact order of operations: core/ops/. In-place use (y == x) is allowed where noted. */
struct colibri_vecops {
    uint32_t struct_size;
    uint32_t max_ulp;
    int32_t rank;
    uint32_t attention_takes; /* COLIBRI_ATTN_TAKES_* */
    uint64_t cpu[COLIBRI_CPU_WORDS];
    const char *name;

    /* y[i] = (x[i] * s) * w[i], s = 1 / sqrt(sum(x^2) / n + eps); the sum in 16 lanes by fma(x, x, lane). y may be x;
     * w == NULL means all ones (and no multiplication by it). */
    void (*rms_norm)(float *y, const float *x, const float *w, size_t n, float eps);
    /* Rotates n_rot elements of one head in place. cs[2*i] = cos, cs[2*i+1] = sin of pair i < n_rot/2.
     * a' = fma(a, cos, -(b * sin)), b' = fma(a, sin, b * cos) for the pair (a, b): elements (2i, 2i+1) if
     * neox == 0, (i, i + n_rot/2) otherwise. */
    void (*rope)(float *x, const float *cs, size_t n_rot, int neox);
    /* x[i] = exp(x[i] - max) / sum, sum in 16 lanes (zeros beyond n); in place. */
    void (*softmax)(float *x, size_t n);
    /* y[i] = silu(g[i]) * u[i], silu(x) = x / (1 + exp(-x)). y may be g or u. */
    void (*swiglu)(float *y, const float *g, const float *u, size_t n);
    /* y[i] += x[i] */
    void (*add)(float *y, const float *x, size_t n);
    /* y[i] = fma(s, x[i], y[i]) */
    void (*axpy)(float *y, const float *x, float s, size_t n);
    /* y[i] *= s */
    void (*scale)(float *y, float s, size_t n);
    /* Activation quantization: see colibri_act_*_row in numerics.h; n is a multiple of the block. */
    void (*act_q8x32)(const float *x, struct colibri_act_q8x32 *out, size_t n);
    void (*act_q8x256)(const float *x, struct colibri_act_q8x256 *out, size_t n);
    /* Round to nearest even. */
    void (*f32_to_f16)(const float *x, colibri_f16 *out, size_t n);
    void (*attention)(const struct colibri_attention_args *args);
    /* Appended later; look at struct_size. A thin matrix times a vector, added: for k = 0 .. n_s - 1 in order
     * y[i] = fma(s[k], x[(i / 16) * group_stride + 16 * k + i % 16], y[i]). x is padded to whole groups of 16. */
    void (*axpy_x16)(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n);
    /* Appended later. Exact; a NaN stays one. */
    void (*f16_to_f32)(const colibri_f16 *x, float *out, size_t n);
};

#endif
