/* Helpers of the format tests: finding the formats, and a slow second reading of the packed groups that follows the
 * text of colibri/blocks.h and shares nothing with the plugins. */
#ifndef CLB_TEST_FORMAT_UTIL_H
#define CLB_TEST_FORMAT_UTIL_H

#include "support.h"

#include "colibri/format.h"
#include "colibri/numerics.h"
#include "plugin/builtin.h"

#include <stdlib.h>
#include <string.h>

#define N_FORMATS 16u

/* Every format linked into the core, in ascending type id. */
static inline void all_formats(const struct colibri_format *out[N_FORMATS])
{
    size_t n = 0;
    for (const struct colibri_plugin *const *p = clb_builtin_plugins; *p; p++)
        for (uint32_t i = 0; (*p)->get(COLIBRI_IFACE_FORMAT, i); i++) {
            assert_true(n < N_FORMATS);
            out[n++] = (*p)->get(COLIBRI_IFACE_FORMAT, i);
        }
    assert_int_equal(n, N_FORMATS);
    for (size_t i = 1; i < N_FORMATS; i++)
        for (size_t j = i; j > 0 && out[j - 1]->gguf_type > out[j]->gguf_type; j--) {
            const struct colibri_format *t = out[j];
            out[j] = out[j - 1];
            out[j - 1] = t;
        }
}

static inline size_t row_bytes_of(const struct colibri_format *f, size_t n_cols)
{
    return n_cols / f->block_elems * f->block_bytes;
}

static inline int same_float(float a, float b)
{
    return (a != a && b != b) || colibri_f32_bits(a) == colibri_f32_bits(b);
}

static inline void *test_alloc(size_t n)
{
    void *p = aligned_alloc(64, (n + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* Writes small finite values over the f16 scales of random row blocks (MXFP4: a middling exponent), so that sums
 * stay comparable. Both signs occur. */
static inline void tame_scales(const struct colibri_format *f, void *blocks, size_t n_blocks, test_rand *rng)
{
    static const struct {
        uint32_t type;
        int d, dmin;
    } at[] = {{COLIBRI_TYPE_Q4_0, 0, -1},  {COLIBRI_TYPE_Q4_1, 0, 2},    {COLIBRI_TYPE_Q5_0, 0, -1},
              {COLIBRI_TYPE_Q5_1, 0, 2},   {COLIBRI_TYPE_Q8_0, 0, -1},   {COLIBRI_TYPE_IQ4_NL, 0, -1},
              {COLIBRI_TYPE_Q2_K, 80, 82}, {COLIBRI_TYPE_Q3_K, 108, -1}, {COLIBRI_TYPE_Q4_K, 0, 2},
              {COLIBRI_TYPE_Q5_K, 0, 2},   {COLIBRI_TYPE_Q6_K, 208, -1}, {COLIBRI_TYPE_IQ4_XS, 0, -1}};
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = (uint8_t *)blocks + b * f->block_bytes;
        if (f->gguf_type == COLIBRI_TYPE_MXFP4)
            block[0] = (uint8_t)(120 + test_rand_below(rng, 8));
        for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
            if (at[i].type == f->gguf_type) {
                const colibri_f16 d = colibri_f32_f16(test_rand_f32(rng, -0.05f, 0.1f));
                const colibri_f16 m = colibri_f32_f16(test_rand_f32(rng, -0.05f, 0.1f));
                memcpy(block + at[i].d, &d, 2);
                if (at[i].dmin >= 0)
                    memcpy(block + at[i].dmin, &m, 2);
            }
        if (f->layout == COLIBRI_LAYOUT_ROWS) {
            const float v = test_rand_f32(rng, -1.0f, 1.0f);
            const uint16_t h =
                f->gguf_type == COLIBRI_TYPE_F16 ? colibri_f32_f16(v) : (uint16_t)(colibri_f32_bits(v) >> 16);
            memcpy(block, f->block_bytes == 4 ? (const void *)&v : (const void *)&h, f->block_bytes);
        }
    }
}

/* One weight of a packed group. 32-column formats: d * q + m. Superblocks: d * sc * q - dmin * min. */
struct elem {
    float d, m, dmin;
    int sc, min, q;
    unsigned sub; /* sub-block of the superblock */
};

static inline int bits_of(unsigned byte, unsigned shift, unsigned n)
{
    return (int)(byte >> shift & ((1u << n) - 1));
}

/* 6-bit scale and minimum number s of 8, from three words (12 bytes) of Q4_K and Q5_K. */
static inline void scale_min(uint32_t s0, uint32_t s1, uint32_t s2, unsigned s, int *sc, int *min)
{
    const unsigned shift = 8 * (s % 4);
    const unsigned a = s0 >> shift & 255, b = s1 >> shift & 255, c = s2 >> shift & 255;
    *sc = (int)(s < 4 ? a & 63 : (c & 15) + 16 * (a >> 6));
    *min = (int)(s < 4 ? b & 63 : (c >> 4) + 16 * (b >> 6));
}

static inline struct elem packed_elem(uint32_t type, const void *group, unsigned r, unsigned col)
{
    static const int8_t iq4[16] = COLIBRI_IQ4_VALUES, mxfp4[16] = COLIBRI_MXFP4_VALUES;
    struct elem e = {.sc = 1};
    const unsigned c = col % 32, k = c % 4, at = 4 * r + k; /* byte of a line */
    /* nibbles of a 32-column block: columns 0-15 low, 16-31 high */
    const unsigned line = c % 16 / 4, high = c / 16 * 4;
    const unsigned sc = col % 256; /* column of a superblock */
    switch (type) {
    case COLIBRI_TYPE_Q4_0: {
        const struct colibri_x16_q4_0 *b = (const struct colibri_x16_q4_0 *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.q = bits_of(b->q[line][at], high, 4) - 8;
        break;
    }
    case COLIBRI_TYPE_Q4_1: {
        const struct colibri_x16_q4_1 *b = (const struct colibri_x16_q4_1 *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.m = colibri_f16_f32(b->m[r]);
        e.q = bits_of(b->q[line][at], high, 4);
        break;
    }
    case COLIBRI_TYPE_Q5_0: {
        const struct colibri_x16_q5_0 *b = (const struct colibri_x16_q5_0 *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.q = bits_of(b->q[line][at], high, 4) + 16 * (int)(b->qh[c / 4] >> at & 1) - 16;
        break;
    }
    case COLIBRI_TYPE_Q5_1: {
        const struct colibri_x16_q5_1 *b = (const struct colibri_x16_q5_1 *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.m = colibri_f16_f32(b->m[r]);
        e.q = bits_of(b->q[line][at], high, 4) + 16 * (int)(b->qh[c / 4] >> at & 1);
        break;
    }
    case COLIBRI_TYPE_Q8_0: {
        const struct colibri_x16_q8_0 *b = (const struct colibri_x16_q8_0 *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.q = b->q[c / 4][at];
        break;
    }
    case COLIBRI_TYPE_IQ4_NL: {
        const struct colibri_x16_iq4_nl *b = (const struct colibri_x16_iq4_nl *)group + col / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.q = iq4[bits_of(b->q[line][at], high, 4)];
        break;
    }
    case COLIBRI_TYPE_MXFP4: {
        const struct colibri_x16_mxfp4 *b = (const struct colibri_x16_mxfp4 *)group + col / 32;
        e.d = ldexpf(1.0f, (int)b->e[r] - 128);
        e.q = mxfp4[bits_of(b->q[line][at], high, 4)];
        break;
    }
    case COLIBRI_TYPE_Q2_K: {
        const struct colibri_x16_q2_k *b = (const struct colibri_x16_q2_k *)group + col / 256;
        e.sub = sc / 16;
        e.d = colibri_f16_f32(b->d[r]);
        e.dmin = colibri_f16_f32(b->dmin[r]);
        e.sc = b->scales[e.sub][r] & 15;
        e.min = b->scales[e.sub][r] >> 4;
        e.q = bits_of(b->q[sc / 128][c / 4][at], sc % 128 / 32 * 2, 2);
        break;
    }
    case COLIBRI_TYPE_Q3_K: {
        const struct colibri_x16_q3_k *b = (const struct colibri_x16_q3_k *)group + col / 256;
        e.sub = sc / 16;
        e.d = colibri_f16_f32(b->d[r]);
        const uint32_t low = b->s[e.sub % 8 / 4][r] >> (8 * (e.sub % 4)) & 255;
        const uint32_t top = b->s[2][r] >> (8 * (e.sub % 4)) & 255;
        e.sc = bits_of(low, e.sub / 8 * 4, 4) + 16 * bits_of(top, e.sub / 4 * 2, 2) - 32;
        e.q =
            bits_of(b->q[sc / 128][c / 4][at], sc % 128 / 32 * 2, 2) + 4 * bits_of(b->hmask[c / 4][at], sc / 32, 1) - 4;
        break;
    }
    case COLIBRI_TYPE_Q4_K: {
        const struct colibri_x16_q4_k *b = (const struct colibri_x16_q4_k *)group + col / 256;
        e.sub = sc / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.dmin = colibri_f16_f32(b->dmin[r]);
        scale_min(b->s[0][r], b->s[1][r], b->s[2][r], e.sub, &e.sc, &e.min);
        e.q = bits_of(b->q[sc / 64][c / 4][at], e.sub % 2 * 4, 4);
        break;
    }
    case COLIBRI_TYPE_Q5_K: {
        const struct colibri_x16_q5_k *b = (const struct colibri_x16_q5_k *)group + col / 256;
        e.sub = sc / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.dmin = colibri_f16_f32(b->dmin[r]);
        scale_min(b->s[0][r], b->s[1][r], b->s[2][r], e.sub, &e.sc, &e.min);
        e.q = bits_of(b->q[sc / 64][c / 4][at], e.sub % 2 * 4, 4) + 16 * bits_of(b->qh[c / 4][at], e.sub, 1);
        break;
    }
    case COLIBRI_TYPE_Q6_K: {
        const struct colibri_x16_q6_k *b = (const struct colibri_x16_q6_k *)group + col / 256;
        const unsigned n = sc / 128, s = sc % 128 / 32;
        e.sub = sc / 16;
        e.d = colibri_f16_f32(b->d[r]);
        e.sc = b->scales[e.sub][r];
        e.q = bits_of(b->ql[n][s % 2 * 8 + c / 4][at], s / 2 * 4, 4) + 16 * bits_of(b->qh[n][c / 4][at], 2 * s, 2) - 32;
        break;
    }
    case COLIBRI_TYPE_IQ4_XS: {
        const struct colibri_x16_iq4_xs *b = (const struct colibri_x16_iq4_xs *)group + col / 256;
        e.sub = sc / 32;
        e.d = colibri_f16_f32(b->d[r]);
        e.sc = bits_of(b->scales_l[r] >> (8 * (e.sub / 2)), e.sub % 2 * 4, 4) +
               16 * bits_of(b->scales_h[r], 2 * e.sub, 2) - 32;
        e.q = iq4[bits_of(b->q[e.sub][line][at], high, 4)];
        break;
    }
    default:
        fail_msg("no packed form of type %u", type);
    }
    return e;
}

static inline int has_minimum(uint32_t type)
{
    return type == COLIBRI_TYPE_Q4_1 || type == COLIBRI_TYPE_Q5_1 || type == COLIBRI_TYPE_Q2_K ||
           type == COLIBRI_TYPE_Q4_K || type == COLIBRI_TYPE_Q5_K;
}

#endif
