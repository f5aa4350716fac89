/* The turn of keys and values before they are quantized: products with an orthonormal Hadamard matrix.
 *
 * A head of `dim` elements is cut into blocks of clb_hadamard_block(dim) = B, the largest power of two that divides dim
 * (at most CLB_HADAMARD_MOST); each block x becomes H x, H[i][j] = (-1)^popcount(i & j) / sqrt(B). H is symmetric and
 * its own inverse, so the same call turns back (up to rounding), and dot products of two turned heads are those of the
 * heads. What stood out in one element is spread over all of its block: the elements that share a scale become alike.
 *
 * Order of operations: butterflies (a, b) -> (a + b, a - b) over distances 1, 2, 4, ..., B/2, then one product with
 * 1 / sqrt(B) rounded to F32 (exact where B is a power of four). [any-thread] */
#ifndef CLB_OPS_HADAMARD_H
#define CLB_OPS_HADAMARD_H

#include <stdint.h>

#define CLB_HADAMARD_MOST 1024u

uint32_t clb_hadamard_block(uint32_t dim);
/* x: [dim], in place; dim >= 1. */
void clb_hadamard(float *x, uint32_t dim);

#endif
