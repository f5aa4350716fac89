/* Q4_0 for AVX2: a 32-byte half of a line is 8 rows x 4 columns, and 8 lanes of 32 bits are those 8 rows. */
#include <immintrin.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

/* `halves` halves of group g, from half0 on, times n activation rows from t on. Both counts are constants, so that acc
 * stays in registers. */
INLINE void tile(const struct colibri_matmul_args *a, uint32_t g, int half0, const int halves, uint32_t t, const int n,
                 float out[][16])
{
    const struct colibri_x16_q4_0 *const w = group(a, g);
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const struct colibri_act_q8x32 *x[4];
    __m256 acc[2][4];
    for (int i = 0; i < n; i++) {
        x[i] = activations(a, t + (uint32_t)i);
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    }
    const uint32_t n_blocks = a->n_cols / 32;
    for (uint32_t b = 0; b < n_blocks; b++)
        for (int h = 0; h < halves; h++) {
            __m256i q[8]; /* column quads 0..7: unpacked once for all activation rows */
            for (int j = 0; j < 4; j++) {
                const __m256i line = _mm256_load_si256((const void *)(w[b].q[j] + 32 * (half0 + h)));
                q[j] = _mm256_and_si256(line, low);
                q[4 + j] = _mm256_and_si256(_mm256_srli_epi16(line, 4), low);
            }
            const __m256 d = _mm256_cvtph_ps(_mm_load_si128((const void *)(w[b].d + 8 * (half0 + h))));
            for (int i = 0; i < n; i++) {
                /* maddubs saturates at 16 bits: 8 quads x 2 products x 15 x 127 = 30480 fits */
                __m256i pairs = _mm256_setzero_si256();
                for (int j = 0; j < 8; j++) {
                    int32_t four;
                    memcpy(&four, x[i][b].q + 4 * j, 4);
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(q[j], _mm256_set1_epi32(four)));
                }
                const __m256i offset = _mm256_set1_epi32(8 * x[i][b].sum);
                const __m256i sum = _mm256_sub_epi32(_mm256_madd_epi16(pairs, ones), offset);
                const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x[i][b].d)); /* rounded: the contract says so */
                acc[h][i] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), acc[h][i]);
            }
        }
    for (int h = 0; h < halves; h++)
        for (int i = 0; i < n; i++)
            _mm256_storeu_ps(out[i] + 8 * (half0 + h), acc[h][i]);
}

/* One activation row streams both halves at once, because memory is the limit; four take one half after the other,
 * because registers are. */
INLINE void rows(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, const int n)
{
    float out[4][16];
    if (n == 1) {
        tile(a, g, 0, 2, t, n, out);
    } else {
        tile(a, g, 0, 1, t, n, out);
        tile(a, g, 1, 1, t, n, out);
    }
    for (int i = 0; i < n; i++)
        store(a, g, t + (uint32_t)i, out[i]);
}

void run_simd(const struct colibri_matmul_args *a)
{
    for (uint32_t g = a->group_begin; g < a->group_end; g++) {
        uint32_t t = 0;
        for (; t + 4 <= a->n_x; t += 4)
            rows(a, g, t, 4);
        for (; t < a->n_x; t++)
            rows(a, g, t, 1);
    }
}
