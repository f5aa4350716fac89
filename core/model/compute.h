/* Matrix products over the thread pool: activations quantized once, work split over rows of weights.
 *
 * A job multiplies some rows of a clb_acts with one matrix. Each function that takes jobs executes all of them as one
 * parallel loop: the rows of weights are cut into units, every worker starts with an equal, contiguous share of them and
 * helps the others when it is done. No result depends on who computed it. */
#ifndef CLB_MODEL_COMPUTE_H
#define CLB_MODEL_COMPUTE_H

#include "base/pool.h"
#include "model/acts.h"
#include "model/profile.h"
#include "store/matrix.h"

typedef struct clb_job {
    const clb_matrix *m;
    const void *w; /* m->data or an expert's */
    clb_acts *acts;
    const uint32_t *x_index; /* NULL or [n_x] rows of acts */
    uint32_t x_first;        /* without x_index: product row t uses row x_first + t of acts */
    uint32_t n_x;
    float *y;
    size_t y_stride;
} clb_job;

/* What an adapter adds to rows of a product (forward_lora.h): row t gets row_scale[row of its input] * strength * (B t). */
typedef struct clb_delta {
    const float *t; /* A x of the job's row t: t + t * t_stride, [rank] */
    size_t t_stride;
    const float *b; /* [groups of n_out][rank][16] */
    uint32_t rank, n_out;
    const float *row_scale;
    float strength;
} clb_delta;
/* Columns [col, col + n), col a multiple of 16, of the job's row t, whose input is row x_row, at y. */
void clb_delta_add(const struct colibri_vecops *ops, const clb_delta *deltas, uint32_t n_deltas, uint32_t t, uint32_t x_row,
                   uint32_t col, uint32_t n, float *y);

/* The input half of a gated feed-forward: row out_first + t of the result is silu(gate row) * (up row) of product row
 * t. */
typedef struct clb_glu_job {
    const clb_matrix *gate, *up;
    const void *w_gate, *w_up;
    clb_acts *acts;
    const uint32_t *x_index; /* as in clb_job */
    uint32_t x_first;
    uint32_t n_x;
    uint32_t out_first;
    const clb_delta *gate_deltas, *up_deltas; /* added before the activation */
    uint32_t n_gate_deltas, n_up_deltas;
} clb_glu_job;

/* The output half of a mixture of experts: jobs[j] is expert j's down product, whose row t is place x_first + t of
 * `acts`; their y is not used. Output row r is the sum over its experts, k in order, of
 * gates[r * top_k + k] * (product row of place pair_at[r * top_k + k]), starting from zero, by fma. */
#define CLB_MIX_PAIRS 256u /* n_rows * top_k at most: beyond that narrow strips cost more than the memory they save */
typedef struct clb_mix_job {
    const clb_job *jobs;
    uint32_t n_jobs;
    uint32_t n_rows, top_k;
    const uint32_t *pair_at;
    const float *gates;
    float *out;
    size_t out_stride; /* floats */
} clb_mix_job;

struct clb_work; /* one worker's share of a loop */

typedef struct clb_compute {
    clb_pool *pool;
    const struct colibri_vecops *ops;
    void **scratch; /* [n_workers], scratch_bytes each */
    size_t scratch_bytes;
    float **tiles; /* [n_workers]: results that do not leave the worker; tile_floats each */
    size_t tile_floats;
    struct clb_work *work; /* [n_workers] */
    clb_profile *profile;  /* NULL: not measured */
    enum clb_phase phase;
    uint64_t phase_began;
} clb_compute;

int clb_compute_init(clb_compute *c, clb_pool *pool, const struct colibri_vecops *ops, clb_error *err);
void clb_compute_free(clb_compute *c);
/* Makes room for a matrix's scratch; call for every matrix before its first product. */
int clb_compute_prepare(clb_compute *c, const clb_matrix *m, clb_error *err);

int clb_compute_run(clb_compute *c, const clb_job *jobs, uint32_t n_jobs, clb_error *err);
/* Rows go to `out`, which was set to `floats`, in the form that `down` will multiply: the floats themselves are written
 * only if that is what it takes, or with keep_floats. */
int clb_compute_glu(clb_compute *c, const clb_glu_job *jobs, uint32_t n_jobs, clb_acts *out, float *floats,
                    const clb_matrix *down, bool keep_floats, clb_error *err);
int clb_compute_mix(clb_compute *c, const clb_mix_job *mix, clb_error *err);
/* Floats of tiles per worker that the two want for passes of max_rows rows. */
size_t clb_compute_tile_floats(uint32_t max_rows);
int clb_compute_reserve_tiles(clb_compute *c, size_t floats, clb_error *err);

/* fn(ctx, row) for row in [0, n), over the pool if it pays. */
typedef void (*clb_row_fn)(void *ctx, uint32_t row, uint32_t worker);
void clb_compute_rows(clb_compute *c, uint32_t n, uint32_t min_per_worker, clb_row_fn fn, void *ctx);

/* What follows belongs to this phase of the profile. */
void clb_compute_phase(clb_compute *c, enum clb_phase phase);
/* Begin and end of a measured pass. */
void clb_compute_profile_begin(clb_compute *c, enum clb_phase first);
void clb_compute_profile_end(clb_compute *c);

#endif
