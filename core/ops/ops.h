/* Scalar reference of every vector operation: the numerics contract, in code.
 *
 * Each function is the definition that an EXACT kernel must equal bit for bit; the orders of operations are those of
 * sdk/include/colibri/kernel.h and numerics.h. All are reentrant and allocate nothing. [any-thread]
 *
 * NaN and infinity. Results follow from the written operations; a NaN equals any NaN (payload and sign are outside
 * the contract). Maxima ignore a NaN and start at -inf, so that one bad element never hides the others; the exp of
 * that element then makes the sum, and with it every output of the same softmax or head, NaN: a broken input gives a
 * visibly broken result, not a plausible number. */
#ifndef CLB_OPS_OPS_H
#define CLB_OPS_OPS_H

#include "colibri/kernel.h"

/* The table of the functions below; rank INT32_MIN, no CPU bits, every member present. Constant. */
const struct colibri_vecops *clb_vecops_reference(void);

void clb_ref_rms_norm(float *y, const float *x, const float *w, size_t n, float eps);
void clb_ref_rope(float *x, const float *cs, size_t n_rot, int neox);
void clb_ref_softmax(float *x, size_t n);
void clb_ref_swiglu(float *y, const float *g, const float *u, size_t n);
void clb_ref_add(float *y, const float *x, size_t n);
void clb_ref_axpy(float *y, const float *x, float s, size_t n);
void clb_ref_axpy_x16(float *y, const float *x, size_t group_stride, const float *s, uint32_t n_s, size_t n);
void clb_ref_scale(float *y, float s, size_t n);
void clb_ref_act_q8x32(const float *x, struct colibri_act_q8x32 *out, size_t n);
void clb_ref_act_q8x256(const float *x, struct colibri_act_q8x256 *out, size_t n);
void clb_ref_f32_to_f16(const float *x, colibri_f16 *out, size_t n);
void clb_ref_f16_to_f32(const colibri_f16 *x, float *out, size_t n);
void clb_ref_attention(const struct colibri_attention_args *args);

/* ---- gates that no plugin offers: scalar, used as they are ------------------------------------------ */

/* 1 / (1 + exp(-x)) */
float clb_sigmoid(float x);
/* y[i] = gelu(g[i]) * u[i] with the tanh form of gelu, written as x * sigmoid(2z),
 * z = sqrt(2/pi) * (x + 0.044715 x^3). y may be g or u. */
void clb_geglu(float *y, const float *g, const float *u, size_t n);
/* gpt-oss: with g' = min(g, limit) and u' = clamp(u, -limit, limit), y = g' * sigmoid(alpha * g') * (u' + 1). */
void clb_swiglu_clamped(float *y, const float *g, const float *u, size_t n, float alpha, float limit);

#endif
