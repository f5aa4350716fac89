/* Template: matrix product of one format with 32-column blocks (activations q8x32). Included once per format with
 *   NAME    the format, e.g. q4_0; the block is struct colibri_x16_NAME
 *   OFFSET  what unpack_NAME added to every code: a power of two, or 0
 *   CHAIN   products that may be added in 16 bits (simd.h)
 *   SIGNED  1 if the codes went through lines_signed
 *   HAS_MIN 1 if the block has minimums m[16]
 * and unpack_NAME(block, struct lines *), scale_NAME(block). Defines run_NAME(args). */

#define CAT_(a, b) a##b
#define CAT(a, b)  CAT_(a, b)
#define BLOCK      struct CAT(colibri_x16_, NAME)

/* One group of 16 rows times `tile` activation rows. */
INLINE void CAT(tile_, NAME)(const struct tile_args *ta, const int tile)
{
    const BLOCK *const w = ta->w;
    const uint32_t n_blocks = ta->n_blocks;
    struct tile_state state, *const st = &state;
    tile_begin(st, ta, tile);
    __m512 acc[TILE_MAX];
    UNROLL
    for (int i = 0; i < tile; i++)
        acc[i] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++) {
        forget_memory();
        if (tile >= AHEAD_TILE)
            prefetch((const char *)(w + b) + ta->a->group_stride, sizeof(BLOCK), 0);
        struct lines l;
        CAT(unpack_, NAME)(w + b, &l);
        const __m512 d = CAT(scale_, NAME)(w + b);
#if HAS_MIN
        const __m512 m = load_f16(w[b].m);
#endif
        UNROLL
        for (int i = 0; i < tile; i++) {
            const struct colibri_act_q8x32 *const xb = (const struct colibri_act_q8x32 *)(const void *)st->x[i] + b;
            const __m512i sum = broadcast32(&xb->sum);
            __m512i s = dot_lines(&l, xb->q, 8, CHAIN, SIGNED);
            if (OFFSET)
                s = _mm512_sub_epi32(s, times_power_of_two(sum, OFFSET));
            const __m512 dx = _mm512_set1_ps(xb->d);
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(s), acc[i]);
#if HAS_MIN
            acc[i] = _mm512_fmadd_ps(_mm512_mul_ps(m, dx), _mm512_cvtepi32_ps(sum), acc[i]);
#endif
        }
    }
    UNROLL
    for (int i = 0; i < tile; i++)
        st->acc[i] = acc[i];
    tile_end(st, ta, tile);
}

#include "tile_run.h"

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    const uint32_t step = token_block(a, TILE_MAX);
    struct tile_args ta = {.a = a, .n_blocks = a->n_cols / 32};
    for (uint32_t t0 = 0; t0 < a->n_x; t0 += step) {
        const uint32_t t1 = a->n_x - t0 < step ? a->n_x : t0 + step;
        for (ta.g = a->group_begin; ta.g < a->group_end; ta.g++) {
            ta.w = (const char *)a->w + (size_t)ta.g * a->group_stride;
            uint32_t size;
            for (ta.t = t0; ta.t < t1; ta.t += size) {
                size = tile_next(t1 - ta.t);
                CAT(pick_, NAME)(&ta, size);
            }
        }
    }
}

#undef BLOCK
#undef CAT
#undef CAT_
#undef NAME
#undef OFFSET
#undef CHAIN
#undef SIGNED
#undef HAS_MIN
