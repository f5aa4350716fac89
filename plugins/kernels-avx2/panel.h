/* Products with many activation rows: 256 columns of one group of 16 rows are unpacked into a panel, which then meets
 * all activation rows while it lies in the L1 cache. Sums over columns wait in scratch memory meanwhile; adding to them
 * later is the same operation on the same numbers. */
#ifndef KERNELS_AVX2_PANEL_H
#define KERNELS_AVX2_PANEL_H

#include "codes.h"

#define PANEL_COLS   256
#define PANEL_TOKENS 120 /* activation rows of one pass: their columns of one panel stay in the L2 cache */
#define PANEL_GROUPS 8   /* groups of one pass: they share what is made of the activations */
/* Activation rows of one register tile. Twice as many sums: 6 in 16 bits and 6 in 32, or with VNNI 12 in 32, which
 * cover the instruction's latency. */
#define PANEL_TILE (VNNI ? 6 : 3)

struct panel {
    uint8_t q[128][64]; /* line j: columns 4j.. of 16 rows; 16-bit codes: of 32 columns 8 lines of wide_even, then 8
                           of wide_odd */
    float d[8][16], m[8][16];
    int32_t scale[16][16]; /* as add_scaled takes them */
    int32_t pair[8][16];
};

struct panel_scratch {
    struct panel w;
    float acc[PANEL_GROUPS][PANEL_TOKENS][16];
    int16_t wide[PANEL_TOKENS][PANEL_COLS]; /* only used with 16-bit codes: activations in the panel's order */
};

INLINE void panel_put(struct panel *p, const int line, const int half, __m256i v)
{
    _mm256_storeu_si256((void *)(p->q[line] + 32 * half), v);
}

/* Codes of quad j of the 32 columns number b, widened, times scale. */
INLINE void panel_put_wide(struct panel *p, const int b, const int j, const int half, __m256i v, __m256i scale)
{
    panel_put(p, 16 * b + j, half, _mm256_mullo_epi16(wide_even(v), scale));
    panel_put(p, 16 * b + 8 + j, half, _mm256_mullo_epi16(wide_odd(v), scale));
}

/* 32 activation codes for panel_put_wide. */
INLINE void widen32(const int8_t *q, int16_t *out)
{
    const __m256i v = load256(q);
    _mm256_storeu_si256((void *)out, wide_even(v));
    _mm256_storeu_si256((void *)(out + 16), wide_odd(v));
}

/* acc += d * dx * s, the float step of one block, or of a superblock. */
INLINE void panel_fma(float *acc, __m256 d, __m256 dx, __m256i s)
{
    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), _mm256_loadu_ps(acc)));
}

/* acc -= d * dx * s */
INLINE void panel_fnma(float *acc, __m256 d, __m256 dx, __m256i s)
{
    _mm256_storeu_ps(acc, _mm256_fnmadd_ps(_mm256_mul_ps(d, dx), _mm256_cvtepi32_ps(s), _mm256_loadu_ps(acc)));
}

/* Activation rows of a pass, so that all passes and tiles are alike in size. */
INLINE uint32_t even_part(uint32_t n, uint32_t most)
{
    const uint32_t parts = (n + most - 1) / most;
    return (n + parts - 1) / parts;
}

/* Asks for piece `i` of `n` of the `size` bytes at p. */
INLINE void panel_prefetch(const char *p, size_t size, uint32_t i, uint32_t n)
{
    const size_t lines = (size + 63) / 64;
    for (size_t at = lines * i / n; at < lines * (i + 1) / n; at++)
        _mm_prefetch(p + 64 * at, _MM_HINT_T0);
}

#endif
