/* colibri evaluate: the configured KV settings against the full F16 cache, item by item. What its files share. */
#ifndef CLB_TOOLS_EVALUATE_H
#define CLB_TOOLS_EVALUATE_H

#include "compare_kv_run.h"
#include "engine/kv_reference.h"

enum { CLB_EVAL_FULL, CLB_EVAL_OWN, CLB_EVAL_SIDES };

/* One side's run of an item. */
typedef struct clb_eval_run {
    double values[CLB_KVC_METRIC_COUNT]; /* as clb_kvc_values gives them */
    clb_kv_trial trial;
    clb_buf said; /* what was generated */
} clb_eval_run;

typedef struct clb_eval_item {
    bool done; /* both sides, or the full cache alone if that is what is configured */
    clb_eval_run run[CLB_EVAL_SIDES];
} clb_eval_item;

typedef struct clb_evaluation {
    clb_args *args;
    clb_config *config; /* that the engine was opened with: room for the full cache */
    clb_engine *engine;
    clb_kv_reference reference;
    clb_kv_choice choice; /* as configured */
    char budget[CLB_KVC_BUDGET_TEXT]; /* "25%", "512"; "": the strategy keeps all */
    bool alone;           /* the full F16 cache is what is configured: nothing to compare it with */
    char label[256];      /* of the configured side: "h2o at 25%, q8_0" */
    uint32_t chunk, text_tokens;
    bool see_question;
    clb_kvc grid; /* tasks and items */
    clb_kvc_cases cases;
    clb_eval_item *items; /* [cases.n] */
    uint32_t n_done;
    bool interrupted;
    json_t *header;
    int fd; /* of --jsonl; -1: none */
} clb_evaluation;

/* Runs what is asked for; evaluate_run.c. On request it stops between items: interrupted, OK. */
int clb_evaluate_all(clb_evaluation *e, clb_error *err);

/* ---- what the items of a task say: evaluate_figures.c ---- */

/* A mean over items with its standard error and 95 % interval (bootstrap over items; of shares of
 * right answers Wilson's, of their paired difference Newcombe's); NAN where one item says nothing. */
typedef struct clb_eval_mean {
    double value, se, low, high;
    uint32_t n; /* items; 0: none */
} clb_eval_mean;

/* Texts, over the scored tokens of the complete items; errors are over the pieces, since the tokens of a piece hang
 * together. */
typedef struct clb_eval_text {
    uint32_t n_pieces;
    uint64_t n_scored, n_compared;
    clb_eval_mean nll[CLB_EVAL_SIDES];                /* nats per token; perplexity is exp of it */
    clb_eval_mean difference;                         /* own - full, paired; the ratio of perplexities is exp of it */
    clb_eval_mean kl, same_top, delta_p, delta_p_rms; /* same_top and delta_p in % */
    double kl_at[7];                                  /* quantiles, see clb_eval_kl_levels */
} clb_eval_text;
extern const double clb_eval_kl_levels[7];

/* A metric of one side over the items of a task, or of one (group, sort) of them: group CLB_KVC_ALL and sort NULL mean
 * all. The difference is own - full, paired. */
int clb_eval_mean_of(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort, int side,
                     enum clb_kvc_metric metric, clb_eval_mean *out, clb_error *err);
int clb_eval_difference(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort,
                        enum clb_kvc_metric metric, clb_eval_mean *out, clb_error *err);
int clb_eval_text_of(const clb_evaluation *e, uint32_t task, clb_eval_text *out, clb_error *err);
/* The sorts ("kind" of recall items) of a task, in order of appearance; at most `most`, returns how many. */
uint32_t clb_eval_sorts(const clb_evaluation *e, uint32_t task, const char **out, uint32_t most);

int clb_evaluate_print(const clb_evaluation *e, clb_error *err);
/* evaluate_json.c */
json_t *clb_evaluate_header(const clb_evaluation *e, const char *model_hash, const char *code);
json_t *clb_evaluate_item_json(const clb_evaluation *e, uint32_t number);
int clb_evaluate_print_json(const clb_evaluation *e, clb_error *err);

#endif
