/* Selection by measurement ([kernels] select = measure): the candidates for a matrix product are timed on this machine,
 * in the shapes of the model that is being opened, and the times are remembered in a file.
 *
 * Who takes part: the components between which only the author's rank decides. Filter, deny, CPU features, min_x, "a
 * file before a linked-in copy" and the prefer list have spoken before, and only EXACT components are timed: whatever
 * the clock says, the logits stay the same. (With allow-inexact, a lossy component can be chosen by rank, never by
 * measuring: the bits then follow from the settings and not from the timing.) The format's own scalar reference serves
 * where there is no component at all and is never timed.
 *
 * What is timed: the product as the engine runs it, units of up to 16 groups of rows taken by the workers of a pool of
 * as many threads as the model will use, for one row and for 4, 16 and 64 rows of activations (clb_x_class says which
 * of these stands for how many). Weights are random, valid and packed by the format's own plugin; they lie in a
 * buffer that is walked round and round, so that they come from memory as in decode. Candidates alternate, sample by
 * sample, and the lower quartile of each one's times counts: CPU time, the mean of the workers, so that other programs
 * and the waiting for other workers do not count. The one that rank prefers stays unless another is faster by more than
 * CLB_MEASURE_MARGIN percent; among several that are as good as the fastest, rank decides again.
 *
 * Limits: CLB_MEASURE_BYTES of buffers, less where the memory budget is small, given back before anything else is
 * loaded; about 8 ms for each candidate, shape and number of rows, CLB_MEASURE_LIMIT_NS in total. What that leaves
 * unmeasured is chosen by rank, and measured the next time. A time of zero, or of a clock that goes backwards, counts
 * as none: without a time for every candidate rank decides and nothing is remembered.
 *
 * Remembered is one record for each CPU model, set of usable CPU bits, thread count, format, shape and number of rows,
 * holding the time of every candidate with its plugin's id, version and build (size and hash of its file). A record
 * counts if it has all of today's candidates, built as they are today; otherwise they are measured again and the record
 * is replaced. [main-thread] */
#ifndef CLB_PLUGIN_MEASURE_H
#define CLB_PLUGIN_MEASURE_H

#include "colibri/cpu_bits.h"
#include "plugin/registry.h"

#define CLB_MEASURE_MARGIN    3u /* percent */
#define CLB_MEASURE_BYTES     ((uint64_t)48 << 20)
#define CLB_MEASURE_MIN_BYTES ((uint64_t)1 << 20) /* with less, nothing is measured */
#define CLB_MEASURE_LIMIT_NS  UINT64_C(5000000000)
#define CLB_MEASURE_ROWS      4096u /* a matrix with more rows is measured with this many */
#define CLB_MEASURE_RIVALS    16u   /* candidates that are timed; in the order of rank */

/* Rows of activations that stand for each class in measurements. */
extern const uint32_t clb_measure_n_x[CLB_X_CLASSES];

/* ---- records ---- */

typedef struct clb_measure_time {
    char component[COLIBRI_ID_MAX], plugin[COLIBRI_ID_MAX], version[16];
    char build[40]; /* "<size>-<hash>", hexadecimal */
    uint64_t ps;    /* picoseconds for one product of the key's shape, all threads together; 0: no valid time */
} clb_measure_time;

typedef struct clb_measure_key {
    char cpu[64]; /* CPU model; printable */
    struct colibri_cpu_bits bits;
    uint32_t type, layout;
    char act[COLIBRI_ID_MAX];
    uint32_t n_rows, n_cols, n_x, n_threads;
} clb_measure_key;

typedef struct clb_measure_record {
    clb_measure_key key;
    uint64_t when; /* seconds since 1970 */
    bool fresh;    /* measured by this registry, not read from the file */
    uint32_t n;
    clb_measure_time time[CLB_MEASURE_RIVALS];
} clb_measure_record;

typedef struct clb_measure_records {
    clb_measure_record *at;
    size_t n, cap;
} clb_measure_records;

bool clb_measure_key_equal(const clb_measure_key *a, const clb_measure_key *b);
const clb_measure_record *clb_measure_find(const clb_measure_records *records, const clb_measure_key *key);
/* Adds a copy, in place of the one with the same key if there is one. */
int clb_measure_put(clb_measure_records *records, const clb_measure_record *record, clb_error *err);

/* ---- the file (measure_cache.c) ---- */

/* Appends the records of a file. NOT_FOUND: there is none. FORMAT: not a regular file, not ours, damaged, cut short or
 * too large. USAGE: others may write to it. IO, NOMEM. Nothing is appended then. *foreign (may be NULL): what is there
 * does not even start like our file, or cannot be told. */
int clb_measure_load(const char *path, clb_measure_records *records, bool *foreign, clb_error *err);
/* Merges records into the file: it is read again (another process may have written), theirs are replaced by these, and
 * the result is put in place by a rename. Folders that are missing are made, for the user alone. `replace`: also over a
 * regular file that is not ours. IO, NOMEM, USAGE: nothing was changed. */
int clb_measure_save(const char *path, const clb_measure_records *records, bool replace, clb_error *err);
/* $XDG_CACHE_HOME/colibri/kernels or ~/.cache/colibri/kernels; false: neither variable helps. */
bool clb_measure_default_path(char *out, size_t n);

/* ---- the clock (measure_run.c) ---- */

typedef struct clb_measure_job {
    const struct colibri_format *format;
    uint32_t n_rows, n_cols;
    const struct colibri_matmul *rival[CLB_X_CLASSES][CLB_MEASURE_RIVALS];
    uint32_t n_rivals[CLB_X_CLASSES]; /* 0: this class is not to be measured */
    uint32_t n_threads;
    uint64_t max_bytes;
    uint64_t deadline;                 /* on the clock below */
    uint64_t (*now)(void *ctx);        /* for the deadline */
    uint64_t (*thread_now)(void *ctx); /* for samples: called by each worker */
    void *now_ctx;
    uint64_t ps[CLB_X_CLASSES][CLB_MEASURE_RIVALS]; /* result; 0: none */
} clb_measure_job;

/* NOMEM, LIMIT (does not fit max_bytes), or the format's error when it could not make weights. */
int clb_measure_run(clb_measure_job *job, clb_error *err);

#endif
