/* Quantized rows of keys and values: GGUF blocks of 32 elements, Q8_0 and Q4_0.
 *
 * A value is scale * code, the scale an F16. Codes are rounded to the nearest (ties to even) against the scale as it is
 * stored: Q8_0  scale = amax / 127, codes -127 .. 127 Q4_0  scale = m / -8 or m / -8.5, m the element of largest
 * magnitude (the first of several), whichever leaves the smaller sum of squared errors (a tie: -8); codes -8 .. 7. The
 * second choice clips m by half a step and makes all other steps smaller: on normally distributed blocks the squared
 * error falls by 6 %. A scale beyond the largest F16 is that. A block with an infinity or NaN gets scale NaN and codes
 * 0, so that whatever reads it is visibly broken. One order of operations on every CPU; reads write back exactly what
 * attention kernels see. [any-thread] */
#ifndef CLB_OPS_KV_QUANT_H
#define CLB_OPS_KV_QUANT_H

#include <stddef.h>

#include "colibri/blocks.h"

#define CLB_KV_QUANT_BLOCK 32u

/* n: a multiple of 32. */
void clb_kv_quant_q8_0(const float *x, struct colibri_q8_0 *out, size_t n);
void clb_kv_quant_q4_0(const float *x, struct colibri_q4_0 *out, size_t n);
void clb_kv_widen_q8_0(const struct colibri_q8_0 *in, float *x, size_t n);
void clb_kv_widen_q4_0(const struct colibri_q4_0 *in, float *x, size_t n);

#endif
