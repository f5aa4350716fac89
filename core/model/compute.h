/* Matrix products over the thread pool: activations quantized once, work split over rows of weights.
 *
 * A clb_acts holds one set of activation rows and their quantized forms, made when first asked for. A job multiplies
 * some of those rows with one matrix. clb_compute_run executes several jobs as one parallel loop. */
#ifndef CLB_MODEL_COMPUTE_H
#define CLB_MODEL_COMPUTE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "store/matrix.h"

#define CLB_MAX_ACT_FORMS 6 /* distinct activation formats in one model */

typedef struct clb_acts {
    const float *x;
    size_t stride; /* floats */
    uint32_t n_rows, n_cols;
    /* quantized forms; buffers belong to the clb_acts, grow as needed */
    struct {
        const char *act;
        void *data;
        size_t row_bytes, cap;
        bool ready;
    } form[CLB_MAX_ACT_FORMS];
    uint32_t n_forms;
} clb_acts;

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

typedef struct clb_compute {
    clb_pool *pool;
    const struct colibri_vecops *ops;
    void **scratch; /* [n_workers], scratch_bytes each */
    size_t scratch_bytes;
} clb_compute;

int clb_compute_init(clb_compute *c, clb_pool *pool, const struct colibri_vecops *ops, clb_error *err);
void clb_compute_free(clb_compute *c);
/* Makes room for a matrix's scratch; call for every matrix before its first product. */
int clb_compute_prepare(clb_compute *c, const clb_matrix *m, clb_error *err);

/* Points acts at new rows; buffers are kept. */
void clb_acts_set(clb_acts *acts, const float *x, size_t stride, uint32_t n_rows, uint32_t n_cols);
void clb_acts_free(clb_acts *acts);
/* For callers that make rows one by one: reserves the form that `format` wants and promises that clb_acts_quantize_row
 * is called for every row that a job will use. *form: -1 if the float rows themselves are used. */
int clb_acts_promise(clb_acts *acts, const struct colibri_format *format, int *form, clb_error *err);
void clb_acts_quantize_row(const clb_compute *c, clb_acts *acts, const struct colibri_format *format, int form,
                           uint32_t row);

int clb_compute_run(clb_compute *c, const clb_job *jobs, uint32_t n_jobs, clb_error *err);

/* fn(ctx, row) for row in [0, n), over the pool if it pays. */
typedef void (*clb_row_fn)(void *ctx, uint32_t row, uint32_t worker);
void clb_compute_rows(clb_compute *c, uint32_t n, uint32_t min_per_worker, clb_row_fn fn, void *ctx);

#endif
