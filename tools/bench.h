/* `colibri bench`: tests, their figures, their forms on paper. */
#ifndef CLB_TOOLS_BENCH_H
#define CLB_TOOLS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/topology.h"
#include "engine/bench.h"
#include "model_run.h"

#define CLB_BENCH_RUNS   1000u
#define CLB_BENCH_TOKENS 16777216u
#define CLB_BENCH_STREAMS 256u

/* One test, repeated. */
typedef struct clb_bench_test {
    char name[64]; /* "pp512", "tg128 @ 64", "short-answer" */
    uint32_t depth, n_prompt, n_gen;
    uint32_t n_streams;         /* sequences side by side, of which each generates n_gen; 0: one */
    const uint32_t *ids;        /* [n_prompt] of a text; NULL: random tokens */
    uint32_t n;                 /* runs that were measured */
    uint64_t *ns;               /* [n]: the measured part; of a text: reading it */
    uint64_t *ttft_ns, *gen_ns; /* [n], of texts: until the first token is sampled; all tokens after it */
    double *bandwidth;          /* [n]: bytes per second that a plain loop read before the run; 0: not measured */
    uint64_t *token_ns;         /* [n_token_ns] of all runs */
    size_t n_token_ns;
    uint64_t hits, misses, drive_bytes, drive_ns; /* of experts and streamed layers, in the measured parts */
    clb_profile profile;                          /* of one more run, with --split */
    bool has_profile;
} clb_bench_test;

typedef struct clb_bench {
    clb_args *args;
    clb_session *session;
    clb_engine *engine;
    const char *path;
    clb_topology topology;
    char when[32];
    uint32_t runs;
    bool warm_up, split, reset;
    double drive_rate; /* bytes per second that the drive reads; 0: unknown, or nothing was read */
} clb_bench;

/* bench_run.c */
int clb_bench_test_run(clb_bench *b, clb_bench_test *t, clb_error *err);
void clb_bench_test_free(clb_bench_test *t);
/* Generates for so many minutes, printing a line every ten seconds. */
int clb_bench_sustained(clb_bench *b, double minutes, clb_error *err);

/* bench_figures.c */
typedef struct clb_bench_figures {
    double avg_ns, stddev_ns, avg_ts, stddev_ts, median_ts; /* of the test: prompt tokens, or generated ones */
    double ttft_ms, gen_ts, gen_stddev;                     /* of texts: medians, and the spread of generating */
    double p50_ms, p99_ms;                                  /* of single tokens; 0: there are none */
    double hit_rate;                                        /* -1: no experts were looked up */
    double bytes_per_token, bandwidth, bandwidth_share;     /* read from memory; 0: not measured */
    double drive_bytes_per_token, drive_share;              /* of what the drive can do */
} clb_bench_figures;
uint64_t clb_bench_model_bytes(const clb_model *model); /* of all weights */
double clb_bench_tokens(const clb_bench_test *t);       /* that a run is about, of all streams */
clb_bench_figures clb_bench_figures_of(const clb_bench *b, const clb_bench_test *t);

/* bench_print.c. `first`: the head comes before it. */
enum clb_bench_format { CLB_BENCH_MD, CLB_BENCH_CSV, CLB_BENCH_JSON, CLB_BENCH_JSONL };
void clb_bench_print_head(const clb_bench *b);
void clb_bench_print_md(const clb_bench *b, const clb_bench_test *t, bool first);
void clb_bench_print_csv(const clb_bench *b, const clb_bench_test *t, bool first);
void clb_bench_print_split(const clb_bench *b, const clb_bench_test *t);
json_t *clb_bench_json(const clb_bench *b, const clb_bench_test *t); /* bench_json.c */

/* bench_texts.c: texts, each a user's message. They are read and checked before a model is loaded, which may take long. */
typedef struct clb_bench_text {
    char name[48];
    clb_buf text; /* until it is tokenized */
    clb_tokens ids;
} clb_bench_text;
typedef struct clb_bench_texts {
    clb_bench_text *at;
    size_t n;
} clb_bench_texts;
/* A file, "-", or all *.txt of a folder; NULL: the installed ones. */
int clb_bench_texts_add(clb_bench_texts *t, const char *path, clb_error *err);
/* LIMIT: one of them and n_gen tokens more do not fit the context. */
int clb_bench_texts_tokenize(clb_bench_texts *t, clb_args *args, const clb_engine *engine, uint32_t n_gen,
                             clb_error *err);
void clb_bench_texts_free(clb_bench_texts *texts);

/* bench_sweep.c: the same two tests for every number of threads of "threads=A..B"; `ini`: write the best one there. */
int clb_bench_sweep(clb_args *args, const char *what, uint32_t n_prompt, uint32_t n_gen, uint32_t runs, const char *ini,
                    enum clb_bench_format format, clb_error *err);

#endif
