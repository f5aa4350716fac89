/* Inside compute: parallel loops over units, one kernel call. */
#ifndef CLB_MODEL_COMPUTE_INTERNAL_H
#define CLB_MODEL_COMPUTE_INTERNAL_H

#include <stdatomic.h>

#include "model/compute.h"

/* Work is handed out per worker first: neighbouring units read neighbouring memory. */
struct clb_work {
    _Alignas(64) atomic_uint next;
    uint32_t end;
};

typedef void (*clb_unit_fn)(void *ctx, uint32_t unit, uint32_t worker);
void clb_compute_units(clb_compute *c, uint32_t n_units, clb_unit_fn fn, void *ctx);

/* Makes the form of acts that m takes, if it is not there yet. */
int clb_compute_form(clb_compute *c, clb_acts *acts, const clb_matrix *m, int *form, clb_error *err);

static inline uint32_t clb_groups(const clb_matrix *m)
{
    return (m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
}

/* Groups per unit for a loop over total_groups groups of n_cols columns, each for n_x activation rows: several units
 * per worker, so that a slow one can be helped, but neither so small that memory is not read in long stretches nor so
 * large that the last one is waited for. */
uint32_t clb_compute_unit_groups(const clb_compute *c, uint64_t total_groups, uint32_t n_cols, uint32_t n_x);

/* Groups [begin, end) of m (at w) times n_x rows of acts, x_index and x_first as in clb_job. y[t * y_stride + row]. */
void clb_compute_product(const clb_compute *c, const clb_matrix *m, const void *w, const clb_acts *acts, int form,
                         const uint32_t *x_index, uint32_t x_first, uint32_t n_x, uint32_t begin, uint32_t end, float *y,
                         size_t y_stride, uint32_t worker);

/* Index of the job that unit belongs to: first[j] <= unit < first[j + 1]. */
static inline uint32_t clb_job_of(const uint32_t *first, uint32_t n_jobs, uint32_t unit)
{
    uint32_t lo = 0, hi = n_jobs;
    while (hi - lo > 1) {
        const uint32_t mid = (lo + hi) / 2;
        if (first[mid] <= unit)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

#endif
