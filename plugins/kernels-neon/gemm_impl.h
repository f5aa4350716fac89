/* The loops of gemm.h, compiled for sdot (gemm.c) and for smmla (gemm_i8mm.c). */
#include "gemm.h"
#include "kernels.h"

#define ROWS_PER_UNIT (MMLA ? 2u : 1u)
#define MAX_UNITS     (MMLA ? 4 : 8) /* of a tile: 8 activation rows, whose sums of a quarter are 8 registers */
#define MAX_ROWS      64u            /* of activations, packed at a time: they stay in the L2 cache */

/* Activations of one unit. The sums of sub-blocks, at most 4064 in magnitude, are 64 * high + low, which are bytes. */
struct acts32 {
    int8_t q[MMLA ? 4 : 2][16]; /* smmla: 8 columns of row 0, 8 of row 1 */
    float d[MMLA ? 4 : 2];      /* smmla: row 0 twice, row 1 twice; sdot: d, and padding */
    float sum[MMLA ? 4 : 2];    /* sums of the codes, in the same form */
};

struct acts256 {
    int8_t q[MMLA ? 32 : 16][16];
    int8_t high[N_ACC][16], low[N_ACC][16];
    float d[4]; /* sdot: d, and padding */
};

_Static_assert(sizeof(struct acts32) % 16 == 0 && sizeof(struct acts256) % 16 == 0, "loads should not cross lines");

#define MAX_N(a, b) ((a) > (b) ? (a) : (b))
#define WEIGHTS_BYTES                                                                                                  \
    MAX_N(GEMM_COLS / 32 * 4 * sizeof(struct weights32), GEMM_COLS / 256 * 4 * sizeof(struct weights256))
#define ACTS_BYTES                                                                                                     \
    (MAX_ROWS / ROWS_PER_UNIT * MAX_N(GEMM_COLS / 32 * sizeof(struct acts32), GEMM_COLS / 256 * sizeof(struct acts256)))
_Static_assert(WEIGHTS_BYTES + ACTS_BYTES <= GEMM_SCRATCH, "scratch");

INLINE int has_min(const enum gemm_kind kind)
{
    return kind == GEMM_32_MIN || kind == GEMM_256_S8_MIN || kind == GEMM_256_S0_MIN;
}

/* ---- activations ------------------------------------------------------------------------------------------ */

/* n registers of 16 codes of each row of a unit. */
INLINE void pack_codes(int8_t (*out)[16], const int8_t *const q[ROWS_PER_UNIT], const int n)
{
    for (int i = 0; i < n; i++) {
        const int8x16_t v = vld1q_s8(q[0] + 16 * i);
#if MMLA
        const int64x2_t v0 = vreinterpretq_s64_s8(v), v1 = vreinterpretq_s64_s8(vld1q_s8(q[1] + 16 * i));
        vst1q_s8(out[2 * i], vreinterpretq_s8_s64(vzip1q_s64(v0, v1)));
        vst1q_s8(out[2 * i + 1], vreinterpretq_s8_s64(vzip2q_s64(v0, v1)));
#else
        vst1q_s8(out[i], v);
#endif
    }
}

INLINE void pack_floats(float *out, const float v[ROWS_PER_UNIT])
{
#if MMLA
    out[0] = out[1] = v[0];
    out[2] = out[3] = v[1];
#else
    out[0] = v[0];
#endif
}

INLINE void pack_sums(struct acts256 *out, const struct colibri_act_q8x256 *const x[ROWS_PER_UNIT],
                      const enum gemm_kind kind)
{
    int8x16_t high[ROWS_PER_UNIT], low[ROWS_PER_UNIT];
    for (uint32_t i = 0; i < ROWS_PER_UNIT; i++) {
        int16x8_t s0 = vld1q_s16(x[i]->bsum), s1 = vld1q_s16(x[i]->bsum + 8);
        if (kind == GEMM_256_S8_MIN) {
            s0 = vpaddq_s16(s0, s1);
            s1 = vdupq_n_s16(0);
        }
        high[i] = vcombine_s8(vmovn_s16(vshrq_n_s16(s0, 6)), vmovn_s16(vshrq_n_s16(s1, 6)));
        low[i] = vcombine_s8(vmovn_s16(vandq_s16(s0, vdupq_n_s16(63))), vmovn_s16(vandq_s16(s1, vdupq_n_s16(63))));
    }
#if MMLA
    vst1q_s8(out->high[0], vcombine_s8(vget_low_s8(high[0]), vget_low_s8(high[1])));
    vst1q_s8(out->high[1], vcombine_s8(vget_high_s8(high[0]), vget_high_s8(high[1])));
    vst1q_s8(out->low[0], vcombine_s8(vget_low_s8(low[0]), vget_low_s8(low[1])));
    vst1q_s8(out->low[1], vcombine_s8(vget_high_s8(low[0]), vget_high_s8(low[1])));
#else
    vst1q_s8(out->high[0], high[0]);
    vst1q_s8(out->low[0], low[0]);
#endif
}

/* Activation row t of the product. */
INLINE const void *act_row(const struct colibri_matmul_args *a, uint32_t t)
{
    return (const char *)a->x + (size_t)(a->x_index ? a->x_index[t] : t) * a->x_stride;
}

/* A tile of activation rows t .. t + count - 1, from block b0 on: out[block][unit]. */
INLINE void pack_acts32(const struct colibri_matmul_args *a, uint32_t t, uint32_t count, uint32_t units, uint32_t b0,
                        uint32_t n, const int with_sums, struct acts32 *out)
{
    for (uint32_t u = 0; u < units; u++) {
        const struct colibri_act_q8x32 *x[ROWS_PER_UNIT];
        for (uint32_t i = 0; i < ROWS_PER_UNIT; i++) {
            const uint32_t row = u * ROWS_PER_UNIT + i;
            x[i] = (const struct colibri_act_q8x32 *)act_row(a, t + (row < count ? row : count - 1)) + b0;
        }
        for (uint32_t b = 0; b < n; b++) {
            struct acts32 *const o = &out[b * units + u];
            const int8_t *q[ROWS_PER_UNIT];
            float d[ROWS_PER_UNIT], sum[ROWS_PER_UNIT];
            for (uint32_t i = 0; i < ROWS_PER_UNIT; i++) {
                q[i] = x[i][b].q;
                d[i] = x[i][b].d;
                sum[i] = (float)x[i][b].sum;
            }
            pack_codes(o->q, q, 2);
            pack_floats(o->d, d);
            if (with_sums)
                pack_floats(o->sum, sum);
        }
    }
}

INLINE void pack_acts256(const struct colibri_matmul_args *a, uint32_t t, uint32_t count, uint32_t units, uint32_t b0,
                         uint32_t n, const enum gemm_kind kind, struct acts256 *out)
{
    for (uint32_t u = 0; u < units; u++) {
        const struct colibri_act_q8x256 *x[ROWS_PER_UNIT];
        for (uint32_t i = 0; i < ROWS_PER_UNIT; i++) {
            const uint32_t row = u * ROWS_PER_UNIT + i;
            x[i] = (const struct colibri_act_q8x256 *)act_row(a, t + (row < count ? row : count - 1)) + b0;
        }
        for (uint32_t b = 0; b < n; b++) {
            struct acts256 *const o = &out[b * units + u];
            const struct colibri_act_q8x256 *xb[ROWS_PER_UNIT];
            const int8_t *q[ROWS_PER_UNIT];
            float d[ROWS_PER_UNIT];
            for (uint32_t i = 0; i < ROWS_PER_UNIT; i++) {
                xb[i] = x[i] + b;
                q[i] = xb[i]->q;
                d[i] = xb[i]->d;
            }
            pack_codes(o->q, q, 16);
            pack_floats(o->d, d);
            if (has_min(kind))
                pack_sums(o, xb, kind);
        }
    }
}

/* ---- tiles: one quarter times `units` units ----------------------------------------------------------------- */

struct tile {
    const void *w, *x;
    uint32_t n_blocks;
    uint32_t count;  /* activation rows that exist */
    uint32_t n_rows; /* rows of the quarter that exist, 1 .. 4 */
    int more;        /* y has the results of earlier columns */
    float *y;        /* of the first row and activation row */
    size_t y_stride;
};

INLINE float32x4_t load_y(const struct tile *t, uint32_t row)
{
    return load_upto4(t->y + (size_t)(row < t->count ? row : t->count - 1) * t->y_stride, t->n_rows);
}

INLINE void load_acc(const struct tile *t, const int units, float32x4_t acc[MAX_UNITS][N_ACC])
{
    UNROLL
    for (int u = 0; u < units; u++) {
        if (!t->more) {
            UNROLL
            for (int i = 0; i < N_ACC; i++)
                acc[u][i] = vdupq_n_f32(0.0f);
            continue;
        }
#if MMLA
        const float32x4_t y0 = load_y(t, 2 * (uint32_t)u), y1 = load_y(t, 2 * (uint32_t)u + 1);
        acc[u][0] = vcombine_f32(vget_low_f32(y0), vget_low_f32(y1));
        acc[u][1] = vcombine_f32(vget_high_f32(y0), vget_high_f32(y1));
#else
        acc[u][0] = load_y(t, (uint32_t)u);
#endif
    }
}

INLINE void store_acc(const struct tile *t, const int units, float32x4_t acc[MAX_UNITS][N_ACC])
{
    UNROLL
    for (int u = 0; u < units; u++) {
        const uint32_t row = (uint32_t)u * ROWS_PER_UNIT;
        float *const y = t->y + (size_t)row * t->y_stride;
#if MMLA
        store_upto4(y, t->n_rows, vcombine_f32(vget_low_f32(acc[u][0]), vget_low_f32(acc[u][1])));
        if (row + 1 < t->count)
            store_upto4(y + t->y_stride, t->n_rows, vcombine_f32(vget_high_f32(acc[u][0]), vget_high_f32(acc[u][1])));
#else
        store_upto4(y, t->n_rows, acc[u][0]);
#endif
    }
}

INLINE void start_sums(int32x4_t s[N_ACC], const int32_t value)
{
    UNROLL
    for (int i = 0; i < N_ACC; i++)
        s[i] = vdupq_n_s32(value);
}

/* s += products of n = 4 or 8 lines with the activations of a unit. */
INLINE void add_dots(int32x4_t s[N_ACC], const int8x16_t *q, const int8_t (*x)[16], const int n)
{
#if MMLA
    UNROLL
    for (int j = 0; j < n / 2; j++) {
        const int8x16_t v = vld1q_s8(x[j]);
        s[0] = vmmlaq_s32(s[0], v, q[2 * j]);
        s[1] = vmmlaq_s32(s[1], v, q[2 * j + 1]);
    }
#else
    UNROLL
    for (int j = 0; j < n / 4; j++)
        s[0] = dot4(s[0], q + 4 * j, vld1q_s8(x[j]));
#endif
}

/* d * dx, dx as pack_floats wrote it */
INLINE float32x4_t mul_acts(float32x4_t d, const float *dx)
{
#if MMLA
    return vmulq_f32(d, vld1q_f32(dx));
#else
    return vmulq_n_f32(d, dx[0]);
#endif
}

INLINE float32x4_t fma_acts(float32x4_t acc, float32x4_t d, const float *sum)
{
#if MMLA
    return vfmaq_f32(acc, d, vld1q_f32(sum));
#else
    return vfmaq_n_f32(acc, d, sum[0]);
#endif
}

INLINE void load_codes(int8x16_t q[8], const int8_t (*from)[16])
{
    UNROLL
    for (int j = 0; j < 8; j++)
        q[j] = vld1q_s8(from[j]);
}

INLINE void tile32(const struct tile *t, const int units, const int min)
{
    const struct weights32 *w = t->w;
    const struct acts32 *x = t->x;
    float32x4_t acc[MAX_UNITS][N_ACC];
    load_acc(t, units, acc);
    for (uint32_t b = 0; b < t->n_blocks; b++, w++, x += units) {
        int8x16_t q[8];
        load_codes(q, w->q);
        UNROLL
        for (int u = 0; u < units; u++) {
            int32x4_t s[N_ACC];
            start_sums(s, MAGIC_BITS);
            add_dots(s, q, x[u].q, 8);
            UNROLL
            for (int i = 0; i < N_ACC; i++) {
                acc[u][i] = vfmaq_f32(acc[u][i], mul_acts(vld1q_f32(w->d[i]), x[u].d), magic_f32(s[i]));
                if (min)
                    acc[u][i] = fma_acts(acc[u][i], mul_acts(vld1q_f32(w->m[i]), x[u].d), x[u].sum);
            }
        }
    }
    store_acc(t, units, acc);
}

/* The sums of 256 columns of one quarter: isum. */
INLINE void sums256(const struct weights256 *w, const struct acts256 *x, const int units, const int n_scales,
                    int32x4_t isum[MAX_UNITS][N_ACC])
{
    UNROLL
    for (int u = 0; u < units; u++)
        start_sums(isum[u], 0);
    for (uint32_t c = 0; c < 8; c++) {
        int8x16_t q[8];
        load_codes(q, w->q[c]);
        const uint32_t at = c * (MMLA ? 4 : 2);
        if (!n_scales) {
            UNROLL
            for (int u = 0; u < units; u++)
                add_dots(isum[u], q, x[u].q + at, 8);
            continue;
        }
        const int parts = n_scales / 8; /* of 32 columns */
        UNROLL
        for (int p = 0; p < parts; p++) {
            int32x4_t scale[N_ACC];
            UNROLL
            for (int i = 0; i < N_ACC; i++)
                scale[i] = vld1q_s32(w->scale[c * (uint32_t)parts + (uint32_t)p][i]);
            UNROLL
            for (int u = 0; u < units; u++) {
                int32x4_t s[N_ACC];
                start_sums(s, 0);
                add_dots(s, q + 4 * p, x[u].q + at + (MMLA ? 2 : 1) * p, 8 / parts);
                UNROLL
                for (int i = 0; i < N_ACC; i++)
                    isum[u][i] = vmlaq_s32(isum[u][i], s[i], scale[i]);
            }
        }
    }
}

/* Per row: sum of minimum * sum of activations over n = 8 or 16 sub-blocks. */
INLINE void min_sums(const struct weights256 *w, const struct acts256 *x, const int n, int32x4_t m[N_ACC])
{
    const int8_t(*const parts[2])[16] = {x->high, x->low};
    start_sums(m, 0);
    UNROLL
    for (int k = 0; k < 2; k++) {
        UNROLL
        for (int i = 0; k && i < N_ACC; i++)
            m[i] = vshlq_n_s32(m[i], 6);
#if MMLA
        UNROLL
        for (int j = 0; j < n / 8; j++) {
            const int8x16_t v = vld1q_s8(parts[k][j]);
            m[0] = vmmlaq_s32(m[0], v, vld1q_s8(w->min[2 * j]));
            m[1] = vmmlaq_s32(m[1], v, vld1q_s8(w->min[2 * j + 1]));
        }
#else
        const int8x16_t v = vld1q_s8(parts[k][0]);
        m[0] = vdotq_laneq_s32(m[0], vld1q_s8(w->min[0]), v, 0);
        m[0] = vdotq_laneq_s32(m[0], vld1q_s8(w->min[1]), v, 1);
        if (n == 16) {
            m[0] = vdotq_laneq_s32(m[0], vld1q_s8(w->min[2]), v, 2);
            m[0] = vdotq_laneq_s32(m[0], vld1q_s8(w->min[3]), v, 3);
        }
#endif
    }
}

INLINE void tile256(const struct tile *t, const int units, const int n_scales, const int n_mins)
{
    const struct weights256 *w = t->w;
    const struct acts256 *x = t->x;
    float32x4_t acc[MAX_UNITS][N_ACC];
    load_acc(t, units, acc);
    for (uint32_t b = 0; b < t->n_blocks; b++, w++, x += units) {
        int32x4_t isum[MAX_UNITS][N_ACC];
        sums256(w, x, units, n_scales, isum);
        UNROLL
        for (int u = 0; u < units; u++) {
            int32x4_t m[N_ACC];
            if (n_mins)
                min_sums(w, &x[u], n_mins, m);
            UNROLL
            for (int i = 0; i < N_ACC; i++) {
                acc[u][i] = vfmaq_f32(acc[u][i], mul_acts(vld1q_f32(w->d[i]), x[u].d), vcvtq_f32_s32(isum[u][i]));
                if (n_mins)
                    acc[u][i] = vfmsq_f32(acc[u][i], mul_acts(vld1q_f32(w->dmin[i]), x[u].d), vcvtq_f32_s32(m[i]));
            }
        }
    }
    store_acc(t, units, acc);
}

/* One function per kind and number of units. */
#define TILE_FUNCTION(kind, n, call)                                                                                   \
    NOINLINE void tile_##kind##_##n(const struct tile *t)                                                              \
    {                                                                                                                  \
        call;                                                                                                          \
    }
#define TILE_FUNCTIONS(n)                                                                                              \
    TILE_FUNCTION(32, n, tile32(t, n, 0))                                                                              \
    TILE_FUNCTION(32_min, n, tile32(t, n, 1))                                                                          \
    TILE_FUNCTION(256_s8, n, tile256(t, n, 8, 0))                                                                      \
    TILE_FUNCTION(256_s8_min, n, tile256(t, n, 8, 8))                                                                  \
    TILE_FUNCTION(256_s16, n, tile256(t, n, 16, 0))                                                                    \
    TILE_FUNCTION(256_s0, n, tile256(t, n, 0, 0))                                                                      \
    TILE_FUNCTION(256_s0_min, n, tile256(t, n, 0, 16))

/* At least 5 activation rows come here, so that tiles of nearly equal size have at least half of the most. */
#if MMLA
TILE_FUNCTIONS(2)
TILE_FUNCTIONS(3)
TILE_FUNCTIONS(4)
#define TILES_OF(kind)                                                                                                 \
    {                                                                                                                  \
        NULL, tile_##kind##_2, tile_##kind##_3, tile_##kind##_4                                                        \
    }
#else
TILE_FUNCTIONS(4)
TILE_FUNCTIONS(5)
TILE_FUNCTIONS(6)
TILE_FUNCTIONS(7)
TILE_FUNCTIONS(8)
#define TILES_OF(kind)                                                                                                 \
    {                                                                                                                  \
        NULL, NULL, NULL, tile_##kind##_4, tile_##kind##_5, tile_##kind##_6, tile_##kind##_7, tile_##kind##_8          \
    }
#endif

typedef void tile_fn(const struct tile *t);
static tile_fn *const tiles[][MAX_UNITS] = {
    [GEMM_32] = TILES_OF(32),
    [GEMM_32_MIN] = TILES_OF(32_min),
    [GEMM_256_S8] = TILES_OF(256_s8),
    [GEMM_256_S8_MIN] = TILES_OF(256_s8_min),
    [GEMM_256_S16] = TILES_OF(256_s16),
    [GEMM_256_S0] = TILES_OF(256_s0),
    [GEMM_256_S0_MIN] = TILES_OF(256_s0_min),
};

/* ---- the product -------------------------------------------------------------------------------------------- */

/* Activation rows [t0, t0 + count), columns of blocks [b0, b0 + n). */
static void product(const struct colibri_matmul_args *a, const struct gemm_format *f, uint32_t t0, uint32_t count,
                    uint32_t b0, uint32_t n)
{
    const int is32 = f->kind == GEMM_32 || f->kind == GEMM_32_MIN;
    const size_t act_bytes = is32 ? sizeof(struct acts32) : sizeof(struct acts256);
    const size_t quarter_bytes = n * (is32 ? sizeof(struct weights32) : sizeof(struct weights256));
    char *const panel = a->scratch, *const acts = panel + WEIGHTS_BYTES;
    const uint32_t units = parts_of(count, ROWS_PER_UNIT), n_tiles = parts_of(units, MAX_UNITS);

    for (uint32_t i = 0; i < n_tiles; i++) {
        const uint32_t u0 = part_begin(units, n_tiles, i), u1 = part_begin(units, n_tiles, i + 1);
        const uint32_t first = u0 * ROWS_PER_UNIT;
        void *const out = acts + u0 * n * act_bytes;
        if (is32)
            pack_acts32(a, t0 + first, count - first, u1 - u0, b0, n, f->kind == GEMM_32_MIN, out);
        else
            pack_acts256(a, t0 + first, count - first, u1 - u0, b0, n, f->kind, out);
    }
    for (uint32_t g = a->group_begin; g < a->group_end; g++) {
        f->unpack((const char *)a->w + (size_t)g * a->group_stride + b0 * f->block_bytes, n, panel);
        const uint32_t left = a->n_rows - 16 * g, rows = left < 16 ? left : 16;
        for (uint32_t i = 0; i < n_tiles; i++) {
            const uint32_t u0 = part_begin(units, n_tiles, i), u1 = part_begin(units, n_tiles, i + 1);
            const uint32_t first = u0 * ROWS_PER_UNIT;
            for (uint32_t h = 0; 4 * h < rows; h++) {
                const struct tile t = {
                    .w = panel + h * quarter_bytes,
                    .x = acts + u0 * n * act_bytes,
                    .n_blocks = n,
                    .count = count - first,
                    .n_rows = rows - 4 * h < 4 ? rows - 4 * h : 4,
                    .more = b0 != 0,
                    .y = a->y + (size_t)(t0 + first) * a->y_stride + 16 * (size_t)g + 4 * h,
                    .y_stride = a->y_stride,
                };
                tiles[f->kind][u1 - u0 - 1](&t);
            }
        }
    }
}

void GEMM(const struct colibri_matmul_args *a, const struct gemm_format *f)
{
    const uint32_t block_cols = f->kind == GEMM_32 || f->kind == GEMM_32_MIN ? 32 : 256;
    const uint32_t n_blocks = a->n_cols / block_cols, most = GEMM_COLS / block_cols;
    const uint32_t parts = parts_of(a->n_x, MAX_ROWS);
    for (uint32_t i = 0; i < parts; i++) {
        const uint32_t t0 = part_begin(a->n_x, parts, i), t1 = part_begin(a->n_x, parts, i + 1);
        for (uint32_t b = 0; b < n_blocks; b += most)
            product(a, f, t0, t1 - t0, b, n_blocks - b < most ? n_blocks - b : most);
    }
}
