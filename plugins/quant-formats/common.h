/* Shared by the format plugins: the plugin entry, and what every row or matmul loop needs.
 *
 * Everything here is static inline: each format file stays one plugin with one exported symbol, and the same file is
 * linked into the core as the built-in fallback. Only the baseline ISA is used. */
#ifndef CLB_QUANT_FORMATS_COMMON_H
#define CLB_QUANT_FORMATS_COMMON_H

#include "colibri/format.h"
#include "colibri/numerics.h"
#include "colibri/plugin.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF blocks are little-endian and read in place");

/* The engines below take the format's decode functions as arguments; only inlined they become tight loops. */
#define CLB_INLINE static inline __attribute__((always_inline))

/* Activation rows that share one decoded weight block. */
#define CLB_TILE 8u

static inline size_t clb_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline const void *clb_act_row(const struct colibri_matmul_args *a, size_t t)
{
    const size_t row = a->x_index ? a->x_index[t] : t;
    return (const char *)a->x + row * a->x_stride;
}

/* acc[t][r] of group g and activation rows t0.. to y; rows that the last group lacks are left alone. */
static inline void clb_store_tile(const struct colibri_matmul_args *a, size_t g, size_t t0, size_t n_t,
                                  const float acc[CLB_TILE][COLIBRI_GROUP_ROWS])
{
    const size_t first = g * COLIBRI_GROUP_ROWS;
    const size_t n_r = clb_min_size(COLIBRI_GROUP_ROWS, a->n_rows - first);
    for (size_t t = 0; t < n_t; t++)
        memcpy(a->y + (t0 + t) * a->y_stride + first, acc[t], n_r * sizeof(float));
}

/* Groups that hold at least one row. */
static inline size_t clb_group_end(const struct colibri_matmul_args *a)
{
    return clb_min_size(a->group_end, ((size_t)a->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS);
}

/* Words of GGUF scale bytes: those fields have no alignment of their own. */
static inline uint32_t clb_load32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline void clb_widen(const int8_t *in, int16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = in[i];
}

/* Exact integer dot product; the callers' bounds keep it inside 32 bits. */
CLB_INLINE int32_t clb_idot(const int16_t *w, const int16_t *x, size_t n)
{
    int32_t sum = 0;
#ifdef __clang__ /* it would unroll the short constant loops before it tries to vectorize them */
#pragma clang loop unroll(disable)
#endif
    for (size_t i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

/* Defines the plugin of file <stem>.c with the component array `formats`. */
#define CLB_FORMAT_PLUGIN(stem, formats, text)                                                                         \
    static const void *get(const char *iface, uint32_t index)                                                          \
    {                                                                                                                  \
        const size_t count = sizeof(formats) / sizeof((formats)[0]);                                                   \
        return strcmp(iface, COLIBRI_IFACE_FORMAT) == 0 && index < count ? &(formats)[index] : NULL;                   \
    }                                                                                                                  \
    COLIBRI_PLUGIN_DEFINE(colibri_format_##stem, NULL, get, .kinds = COLIBRI_KIND_FORMAT,                              \
                          .id = "colibri.format." #stem, .version = "0.1.0", .summary = text, .license = "MIT")

#endif
