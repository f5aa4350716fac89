/* Routing traces: which experts every token chose, in every layer, with the router's weights.
 *
 * File format: docs/traces.md. Little-endian; a header, then records; a trace that was cut off in the middle (a crash,
 * a full drive) is readable up to its last complete record. Everything in a file is checked before it is used: ids lie
 * in range and differ inside a row, weights are finite, sizes agree.
 *
 * A unit is a prompt or another piece of text that stands on its own: the sampling unit of statistics. Every pass
 * belongs to the unit that began last. Layers are numbered from 0 over the model's MoE layers. A clb_trace is constant
 * once it is read and can be shared by threads; a writer is used by one thread at a time. */
#ifndef CLB_REPLAY_TRACE_H
#define CLB_REPLAY_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "colibri/expert_policy.h"

#define CLB_TRACE_VERSION     1u
#define CLB_TRACE_NAME_MAX    256u
#define CLB_TRACE_LAYERS_MAX  65535u
#define CLB_TRACE_EXPERTS_MAX 65535u
#define CLB_TRACE_BYTES_MAX   (UINT64_C(1) << 40) /* of an expert: sums do not overflow */
#define CLB_TRACE_ROWS_MAX    (1u << 20)          /* of one pass */
#define CLB_TRACE_AHEAD_MAX   2u                  /* layers */

enum clb_trace_gates { CLB_GATES_NONE = 0, CLB_GATES_F16 = 1, CLB_GATES_F32 = 2 };

/* Rates of the machine that recorded, for the timing model; 0: not known. A row's time in a layer is the part that does
 * not depend on experts (attention, norms, router, dense parts; the output layer spread over all layers). */
typedef struct clb_trace_rates {
    double decode_layer_ns;   /* per pass of one row and MoE layer, without experts */
    double decode_expert_ns;  /* per expert and row, one row */
    double prefill_layer_ns;  /* per row and MoE layer in passes of many rows */
    double prefill_expert_ns; /* per expert and row in passes of many rows */
    double read_bytes_per_s;
    double read_latency_ns;
} clb_trace_rates;

typedef struct clb_trace_info {
    char model[CLB_TRACE_NAME_MAX]; /* general.name or the file's name; printable */
    char arch[CLB_TRACE_NAME_MAX];
    uint32_t n_layers, n_experts, top_k;
    uint64_t *expert_bytes; /* [n_layers]; 0: not known. Owned by the trace or the writer's caller */
    enum clb_trace_gates gates;
    uint32_t ahead_layers; /* 0 ... CLB_TRACE_AHEAD_MAX */
    uint32_t ahead_top;    /* best guesses kept per row and layer ahead */
} clb_trace_info;

typedef struct clb_trace_unit {
    const char *label; /* printable */
    uint64_t first_pass, n_passes;
    uint64_t first_row, n_rows;
} clb_trace_unit;

typedef struct clb_trace_pass {
    uint32_t phase; /* enum colibri_phase */
    uint32_t n_rows, n_sequences;
    uint32_t unit;
    uint64_t first_row;
    uint64_t start_ns, took_ns; /* since the trace began; 0 in imported traces */
} clb_trace_pass;

typedef struct clb_trace_guess {
    uint32_t expert;
    float logit;
} clb_trace_guess;

typedef struct clb_trace {
    clb_trace_info info;
    clb_trace_rates rates;
    bool ends_early; /* the file has no end record: what is there was complete */
    uint64_t n_units, n_passes, n_rows;
    clb_trace_unit *units;
    clb_trace_pass *passes;
    uint32_t *tokens;    /* [n_rows]; UINT32_MAX: not known */
    uint32_t *sequences; /* [n_rows] */
    /* Per pass p and layer l: [n_rows of p][top_k], at clb_trace_at(t, p, l). */
    uint32_t *ids;
    float *gates; /* NULL: not recorded */
    /* [n_rows][ahead_layers][ahead_top] per pass and layer, best first; expert == UINT32_MAX: fewer were recorded.
     * NULL if ahead_layers is 0. */
    clb_trace_guess *ahead;
    char *labels; /* storage */
} clb_trace;

static inline uint64_t clb_trace_at(const clb_trace *t, uint64_t pass, uint32_t layer)
{
    const clb_trace_pass *p = &t->passes[pass];
    return (p->first_row * t->info.n_layers + (uint64_t)p->n_rows * layer) * t->info.top_k;
}
static inline uint64_t clb_trace_ahead_at(const clb_trace *t, uint64_t pass, uint32_t layer)
{
    const clb_trace_pass *p = &t->passes[pass];
    return (p->first_row * t->info.n_layers + (uint64_t)p->n_rows * layer) * t->info.ahead_layers * t->info.ahead_top;
}

/* Reads a .clbt file. Errors: NOT_FOUND, IO, FORMAT (what and where), NOMEM. */
int clb_trace_open(const char *path, clb_trace **out, clb_error *err);
int clb_trace_parse(const void *data, size_t size, clb_trace **out, clb_error *err);
void clb_trace_close(clb_trace *trace);
/* "general text": true if the file begins as a .clbt does. */
bool clb_trace_is(const void *data, size_t size);

/* ---- writing ---- */

typedef struct clb_trace_writer clb_trace_writer;

/* Refuses to replace an existing file unless `replace`. Errors: IO, USAGE, NOMEM. Records are written as they are
 * complete; the file grows at `path` itself. */
int clb_trace_create(const char *path, bool replace, const clb_trace_info *info, clb_trace_writer **out,
                     clb_error *err);
int clb_trace_unit_begin(clb_trace_writer *w, const char *label, clb_error *err);

typedef struct clb_trace_put {
    uint32_t phase, n_rows, n_sequences;
    const uint32_t *tokens;    /* [n_rows] or NULL */
    const uint32_t *sequences; /* [n_rows] or NULL: all 0 */
    uint64_t start_ns, took_ns;
    const uint32_t *ids;          /* [n_layers][n_rows][top_k] */
    const float *gates;           /* the same shape, or NULL if the trace has none */
    const clb_trace_guess *ahead; /* [n_layers][n_rows][ahead_layers][ahead_top], NULL if the trace has none */
} clb_trace_put;
/* Checked as a reader would: USAGE for what could not be read back. */
int clb_trace_pass_put(clb_trace_writer *w, const clb_trace_put *pass, clb_error *err);
/* Rates (NULL: none), the end record, and the file to the drive. The writer is gone also on failure. */
int clb_trace_finish(clb_trace_writer *w, const clb_trace_rates *rates, clb_error *err);
/* Leaves what was written, without an end record. */
void clb_trace_abandon(clb_trace_writer *w);
uint64_t clb_trace_written(const clb_trace_writer *w); /* bytes so far */

/* Writes a trace that is in memory. */
int clb_trace_save(const clb_trace *trace, const char *path, bool replace, clb_error *err);

/* ---- other formats ---- */

enum clb_trace_format { CLB_TRACE_CLBT, CLB_TRACE_CSV, CLB_TRACE_JSONL, CLB_TRACE_ORACLE, CLB_TRACE_TRC1 };
/* "clbt", "csv", "jsonl", "oracleGeneral", "trc1"; -1: unknown. */
int clb_trace_format_of(const char *name);
const char *clb_trace_format_name(enum clb_trace_format format);
/* What a file holds, by its first bytes and, for oracleGeneral, its name (.oracleGeneral, .bin). -1: not to be told. */
int clb_trace_guess_format(const char *path, const void *data, size_t size);

typedef struct clb_trace_import_options {
    uint32_t prefill;       /* TRC1: so many tokens of a window are one pass; 0: 128 */
    uint32_t prefill_chunk; /* at most so many rows in a pass; 0: no limit */
    /* What CSV and oracleGeneral do not say; 0: not given. For CSV they are found out from the rows. */
    uint32_t n_layers, n_experts, top_k;
    uint64_t expert_bytes; /* of every layer; 0: not known (oracleGeneral: from the file) */
    const char *label;     /* of the unit, where the format has no units; NULL: the model's name */
} clb_trace_import_options;

int clb_trace_import(const void *data, size_t size, enum clb_trace_format format,
                     const clb_trace_import_options *options, clb_trace **out, clb_error *err);
int clb_trace_import_file(const char *path, int format /* -1: guess */, const clb_trace_import_options *options,
                          clb_trace **out, clb_error *err);
/* CSV, JSONL, ORACLE. To an open stream; IO on failure. */
struct clb_trace_sink {
    int (*write)(void *ctx, const void *data, size_t n, clb_error *err);
    void *ctx;
};
int clb_trace_export(const clb_trace *trace, enum clb_trace_format format, const struct clb_trace_sink *sink,
                     clb_error *err);

/* ---- recording ---- */

/* Collects the routing of a pass from the engine's hook and puts it into a writer. The caller says what is being fed:
 *   clb_recorder_feed      before feeding tokens (a prompt or one token); they may come in several passes
 *   clb_recorder_route     from the engine's on_route; remembers its first error
 *   clb_recorder_flush     after feeding: the last pass is complete (or was abandoned) */
typedef struct clb_recorder clb_recorder;
int clb_recorder_create(clb_trace_writer *writer, const clb_trace_info *info, uint64_t (*now_ns)(void),
                        clb_recorder **out, clb_error *err);
void clb_recorder_destroy(clb_recorder *r);
void clb_recorder_feed(clb_recorder *r, uint32_t phase, const uint32_t *tokens, uint64_t n);
void clb_recorder_route(void *recorder, const struct colibri_route *route);
int clb_recorder_flush(clb_recorder *r, clb_error *err);

#endif
