/* Deterministic sine, cosine and powers for rope tables.
 *
 * Only IEEE double +, -, *, / in a written order and no libm: the same bits on every machine and C library, so that
 * positions encode alike everywhere. Accurate far beyond a float; not meant for hot loops. [any-thread] */
#ifndef CLB_OPS_SINCOS_H
#define CLB_OPS_SINCOS_H

#include <stddef.h>

/* cos and sin of `angle` (radians), rounded to float. |angle| < 1e7; beyond, or for NaN and infinity, both are NaN. */
void clb_sincos(double angle, float *c, float *s);

/* inv_freq[i] = base^(-i / n), i < n: the n = n_rot / 2 rotation speeds of a rope dimension n_rot = 2n. base > 0.
 * The angle of position p is (double)p * inv_freq[i], exact in double for p < 2^29. */
void clb_rope_inv_freq(float *inv_freq, size_t n, double base);

/* log2 of a positive normal number, and 2^x for |x| < 1000; relative error below 1e-14. */
double clb_log2(double x);
double clb_exp2(double x);

#endif
