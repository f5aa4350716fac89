/* How often an expert is already there, for every number of slots at once.
 *
 * Three sources: an independent draw with equal chances (the worst that routing can be), one with chances as Zipf's law
 * gives them (what published traces look like), and a recorded trace, replayed through an LRU stack. */
#ifndef CLB_PLAN_HIT_CURVE_H
#define CLB_PLAN_HIT_CURVE_H

#include <stdint.h>

#include "base/error.h"
#include "replay/trace.h"

/* Share of uses that find one of n_experts experts of a layer in memory when `held` of them are, top_k of them used in
 * every visit, the chance of rank r being proportional to r^-exponent, under LRU. 0: equal chances. By Che's approximation
 * (H. Che, Y. Tung, Z. Wang, Hierarchical Web Caching Systems, IEEE JSAC 20(7), 2002). */
double clb_hit_rate_zipf(uint32_t n_experts, uint32_t top_k, double held, double exponent);

/* The exponent that stands for real models. Published hit rates of LRU on OLMoE (64 experts, top 8): 27.8 % with 8 slots a
 * layer, 68.4 % with 24; this exponent gives 32 and 61 %. */
#define CLB_TYPICAL_SKEW 0.8

/* Hits by number of slots, all layers sharing them (LRU over the whole model), in passes of decoding; the first use of an
 * expert counts neither as use nor as hit: what is predicted is the steady state. */
typedef struct clb_hit_curve {
    uint32_t n_blocks; /* layers * experts of the trace */
    uint64_t uses;
    uint64_t *hits; /* [n_blocks + 1]: with so many slots */
} clb_hit_curve;

/* NOMEM; USAGE if the trace has too little decoding. */
int clb_hit_curve_make(const clb_trace *trace, clb_hit_curve *out, clb_error *err);
double clb_hit_curve_at(const clb_hit_curve *curve, double slots);
void clb_hit_curve_free(clb_hit_curve *curve);

#endif
