/* The candidates of top-p and min-p out of a whole vocabulary, sorted, without sorting the rest of it. */
#ifndef CLB_ENGINE_SAMPLER_SELECT_H
#define CLB_ENGINE_SAMPLER_SELECT_H

#include <stddef.h>
#include <stdint.h>

struct clb_candidate {
    float logit;
    uint32_t id;
};

/* The order of all of this: larger logits first, of equal ones the lower id. For qsort. */
static inline int clb_by_logit(const void *a, const void *b)
{
    const struct clb_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Cuts a sorted list where the next candidate is out of the top-p mass or below min-p of the best. weights: [n],
 * overwritten. */
size_t clb_candidates_cut(const struct clb_candidate *c, size_t n, double top_p, double min_p, double *weights);

/* Sorts c and cuts it: the same first candidates and the same number of them as qsort by clb_by_logit and
 * clb_candidates_cut give, to the bit. c: [n], n >= 1, logits are numbers, ids rise; what is behind the result is
 * unspecified. best: the place of the largest logit. weights: [n], overwritten. */
size_t clb_candidates_select(struct clb_candidate *c, size_t n, size_t best, double top_p, double min_p,
                             double *weights);

#endif
