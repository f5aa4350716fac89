/* What this machine does in a second: its drive, and its kernels on the model's own formats.
 *
 * Measured in a fraction of a second, or remembered from the last time in $XDG_CACHE_HOME/colibri/rates: a drive for a
 * day, kernels for a month as long as CPU, threads and kernels are the same. [main-thread] */
#ifndef CLB_PLAN_RATES_H
#define CLB_PLAN_RATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"
#include "model/model.h"

#define CLB_RATE_KERNELS 12u /* formats of a model; what more there are count as the first one */

enum clb_rate_source { CLB_RATE_ASSUMED = 0, CLB_RATE_REMEMBERED, CLB_RATE_MEASURED };
const char *clb_rate_source_text(enum clb_rate_source source); /* "measured now" */

/* One weight format, with the kernels that the model's matrices have, all threads together. */
typedef struct clb_rate_kernel {
    uint32_t type; /* of GGUF */
    char name[16];
    enum clb_rate_source source;
    double decode_bytes_per_second; /* of weights, for one row of activations, out of memory */
    double prefill_macs_per_second; /* for 64 rows */
    double pack_bytes_per_second;   /* into the layout that is multiplied; 0: nothing is packed */
} clb_rate_kernel;

typedef struct clb_rates {
    clb_rate_kernel kernel[CLB_RATE_KERNELS];
    uint32_t n_kernels; /* at least 1 */
    enum clb_rate_source drive_source;
    bool drive_direct;
    double drive_bytes_per_second;
    double loop_ns; /* a parallel loop with nothing in it */
    enum clb_rate_source loop_source;
    uint64_t spent_ns; /* on measuring */
} clb_rates;

typedef struct clb_rates_options {
    const clb_model *model; /* bound */
    clb_pool *pool;
    const char *cpu_model;  /* NULL: unknown */
    const char *cache_file; /* NULL: nothing is remembered */
    bool measure;           /* what is not remembered; else it is assumed */
    bool again;             /* also what is remembered */
    int direct;             /* of the store: 0 whichever is faster, 1 direct, 2 through the page cache */
} clb_rates_options;

/* Never fails: what cannot be measured is assumed, and its source says so. */
void clb_rates_get(const clb_rates_options *options, clb_rates *out);

/* The entry for a matrix. */
const clb_rate_kernel *clb_rates_kernel(const clb_rates *rates, const clb_matrix *m);

/* What is remembered of this CPU's kernels, whatever the model: the slowest and the fastest format, in bytes of weights
 * per second for one row, all threads together. Records of `threads` threads if there are any; the scalar reference is
 * left out. false: nothing is. */
bool clb_rates_remembered_range(const char *cache_file, const char *cpu_model, uint32_t threads, double *least,
                                double *most);

/* $XDG_CACHE_HOME/colibri/rates or ~/.cache/colibri/rates; false: neither variable helps. */
bool clb_rates_default_path(char *out, size_t n);

/* ---- the file (rates_file.c): lines of key, time and up to four numbers ---- */

#define CLB_RATE_VALUES 4u

typedef struct clb_rate_record {
    char key[240]; /* printable, no tabs */
    uint64_t when; /* seconds since 1970 */
    double value[CLB_RATE_VALUES];
} clb_rate_record;

typedef struct clb_rate_records {
    clb_rate_record *at;
    size_t n, cap;
} clb_rate_records;

/* Appends what the file has. NOT_FOUND, FORMAT (not ours, damaged; nothing was appended), IO, NOMEM. */
int clb_rate_records_load(const char *path, clb_rate_records *records, clb_error *err);
/* The record of a key that is not older than `seconds` at `now`, nor from the future; NULL if there is none. */
const clb_rate_record *clb_rate_records_find(const clb_rate_records *records, const char *key, uint64_t now,
                                             uint64_t seconds);
int clb_rate_records_put(clb_rate_records *records, const clb_rate_record *record, clb_error *err);
/* Replaces the file by a rename; its folder is made if there is none. */
int clb_rate_records_save(const char *path, const clb_rate_records *records, clb_error *err);
void clb_rate_records_free(clb_rate_records *records);

#endif
