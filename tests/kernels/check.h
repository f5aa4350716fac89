/* colibri-kernelcheck: compares kernels with the scalar reference byte for byte.
 *
 * Needs libc and libdl only, so that it also runs cross-built under an emulator. Every case has a seed of its own,
 * made of --seed, the component's name and the case number: what a failure prints is enough to run it again. */
#ifndef KERNELCHECK_CHECK_H
#define KERNELCHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri/format.h"
#include "colibri/kernel.h"
#include "colibri/numerics.h"

#define MAX_PLUGINS 64

struct options {
    uint64_t seed;
    uint32_t cases;     /* per component and check */
    int64_t only_case;  /* -1: all */
    uint64_t work;      /* about this many multiplications per case at most */
    const char *filter; /* part of a component's name, or NULL */
    bool verbose;
};

/* ---- random numbers ------------------------------------------------------------------------------------- */

struct rng {
    uint64_t state;
    uint32_t number; /* of the case: kinds of contents take turns, so that few cases meet every one */
};

uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n);               /* [0, n) */
uint32_t rng_range(struct rng *r, uint32_t lo, uint32_t hi); /* [lo, hi] */
float rng_unit(struct rng *r);                               /* [-1, 1) */
void rng_bytes(struct rng *r, void *p, size_t n);
/* Floats of one of several kinds: ordinary, wide, tiny, equal, with infinities and NaN (only if `specials`). */
void rng_floats(struct rng *r, float *x, size_t n, bool specials);
struct rng rng_case(const struct options *o, const char *name, uint32_t number);

/* ---- memory that ends at a page nobody may touch ---------------------------------------------------------- */

struct guarded {
    char *map;
    size_t map_size;
    void *p; /* n bytes, aligned as asked; as near to the guard as the alignment allows */
    size_t n;
    const char *name; /* for messages */
};

/* front: the memory begins right behind a guard page instead. Exits if the system has no memory. */
struct guarded guarded_alloc(size_t n, size_t align, bool front);
void guarded_free(struct guarded *g); /* also reports writes between the memory and its guard pages */
void guarded_name(struct guarded *g, const char *name);
void guarded_read_only(struct guarded *g, bool on);
struct report;
void guarded_check(struct report *r, const struct guarded *g);
/* What a fault at addr means, in words. [signal handler] */
void guarded_describe(int sig, const void *addr, char *out, size_t size);

/* ---- reporting -------------------------------------------------------------------------------------------- */

struct report {
    const struct options *o;
    uint32_t failures, cases;
    bool quiet;          /* self-test: count, print nothing */
    const char *expect;  /* self-test: what every failure has to say */
    uint32_t unexpected; /* failures that did not */
    char other[200];     /* the first of them */
};

/* Describes the case that runs now; printed with its first failure, and if it crashes. */
void case_begin(struct report *r, const char *component, uint32_t number, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void case_fail(struct report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool case_failed(void);
void case_crashed(void); /* names the case on standard error [signal handler] */
void crash_handler_install(void);

/* Equal bits, or both NaN. */
bool same_f32(float a, float b);
/* Compares n floats; reports the first difference as "what[i]". */
bool compare_f32(struct report *r, const char *what, const float *got, const float *want, size_t n);
bool compare_bytes(struct report *r, const char *what, const void *got, const void *want, size_t n);

/* The control bits of the floating-point unit (rounding, flush to zero, masks). */
uint64_t fp_control(void);
void fp_control_set(uint64_t control);

/* ---- CPU bits and plugins ---------------------------------------------------------------------------------- */

struct colibri_cpu_bits cpu_bits(void);
/* Names of the bits of `need` that `have` lacks, separated by spaces; empty if none. */
void cpu_missing(const struct colibri_cpu_bits *have, const uint64_t need[COLIBRI_CPU_WORDS], char *out, size_t size);

struct loaded {
    const char *path;
    struct colibri_note_desc note;
    const struct colibri_plugin *plugin; /* NULL if skipped */
};

/* Reads the note, compares CPU bits, maps the object, calls init. Returns 0; 77 with a message if the CPU lacks
 * something; 1 with a message otherwise. */
int plugin_load(const char *path, const struct colibri_cpu_bits *cpu, struct loaded *out);

/* ---- formats ----------------------------------------------------------------------------------------------- */

/* What the checks need to know about a format; written from blocks.h alone, independently of the format plugins. */
struct fmt {
    uint32_t type;
    const char *name;
    uint32_t layout;
    uint32_t block_cols;
    size_t block_bytes; /* of a packed block of 16 rows, or of one element in row layout */
    const char *act;
    size_t act_bytes; /* of block_cols activations */
    size_t n_half;    /* f16 scales at the start of a packed block: d[16], and with minimums 16 more */
};

const struct fmt *fmt_find(uint32_t type);
size_t fmt_row_bytes(const struct fmt *f, uint32_t cols); /* a sixteenth of a group */
size_t fmt_act_bytes(const struct fmt *f, uint32_t cols);

/* The product by the contract's words, element by element. */
void fmt_matmul(const struct fmt *f, const struct colibri_matmul_args *args);

/* ---- the checks --------------------------------------------------------------------------------------------- */

/* Notes and tables; false: a table that cannot be used any further. */
void check_plugin(struct report *r, const struct loaded *l);
bool check_matmul_table(struct report *r, const struct colibri_matmul *m);
bool check_vecops_table(struct report *r, const struct colibri_vecops *v);

/* Writable memory of the object that a function belongs to: a copy now, a comparison later (which frees it). */
struct state;
struct state *state_watch(void (*function)(void));
void state_compare(struct report *r, struct state *s, const char *name);
void state_also(const void *p, size_t n); /* self-test: memory that counts as the plugin's */

void check_matmul(struct report *r, const struct colibri_matmul *m);
void check_vecops(struct report *r, const struct colibri_vecops *v);
/* The whole check of a table: its fields, its members through wrap_vecops, its state. */
void check_vecops_component(struct report *r, const struct colibri_vecops *v);
/* A table whose members call v's through the trampoline (call.h) and report to r. One at a time. */
struct colibri_vecops wrap_vecops(struct report *r, const struct colibri_vecops *v);
/* Deliberately wrong kernels; returns the number that were not caught. */
int self_test(const struct options *o);

/* Fills packed weights or rows, and activations, with random, extreme and special values. */
void fill_weights(struct rng *r, const struct fmt *f, void *w, size_t bytes);
void fill_activations(struct rng *r, const struct fmt *f, void *x, size_t stride, uint32_t rows, uint32_t cols);
/* Ordinary values only, for measurements: one activation row of cols <= 4096 columns. */
void fill_ordinary(struct rng *r, const struct fmt *f, void *w, size_t w_bytes, void *x, uint32_t cols);

#endif
