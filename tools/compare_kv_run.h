/* Running the grid of colibri compare --strategies. */
#ifndef CLB_TOOLS_COMPARE_KV_RUN_H
#define CLB_TOOLS_COMPARE_KV_RUN_H

#include "compare_kv_tasks.h"
#include "engine/kv_strategy_settings.h"
#include "engine/kv_trial.h"
#include "kv/future.h"

#define CLB_KVC_LISTED 512u

/* Opens the model, runs what is asked for and not there yet (--continue), and keeps every result in --jsonl as it
 * comes. On request it stops between results: c->interrupted, OK. */
int clb_kvc_run(clb_kvc *c, clb_args *args, clb_error *err);

/* ---- what the files of the run share ---- */

/* A strategy as it was asked for; its settings in the grid. */
struct clb_kvc_listed {
    char *spec; /* without "@compact" */
    char positions[16];
    clb_kv_choice choice;
    bool budgeted; /* budgets mean something to it */
};

struct clb_kvc_grid_run {
    clb_kvc *c;
    clb_args *args;
    clb_engine *engine;
    struct clb_kvc_listed *list;
    uint32_t n_list;
    char *budgets[CLB_KVC_LISTED];
    uint32_t n_budgets;
    clb_kvc_cases cases;
    uint32_t *plan; /* settings to run, [n_plan]; the full cache first */
    uint32_t *of;   /* [n_plan] index into list */
    uint32_t n_plan;
    bool *tried; /* [n_plan] on the item at hand */
    uint32_t chunk;
    bool see_question;
    bool share_passes; /* some prompts are read in one pass: there is room for a second sequence */
    int fd;               /* of --jsonl; -1: none */
    uint64_t complete;    /* bytes of it that are there already (--continue) */
    uint32_t raster_case; /* whose positions are watched; UINT32_MAX: none */
    uint32_t raster_size; /* at this budget */
    FILE *reference;
    clb_kv_future *future; /* of the item at hand; NULL: not recorded yet */
    clb_kv_trial_base *base; /* of the item at hand; NULL: none */
    uint64_t done, total;
};

/* Opens the engine, reads lists, tasks and what --jsonl has already, and writes the header. compare_kv_setup.c */
int clb_kvc_prepare(struct clb_kvc_grid_run *g, clb_error *err);
void clb_kvc_close(struct clb_kvc_grid_run *g);
/* One line to --jsonl, if it is wanted; releases it. */
int clb_kvc_write_line(struct clb_kvc_grid_run *g, json_t *line, clb_error *err);

/* ---- what colibri evaluate does the same way ---- */

/* A trial of an item; the choice and the budget are still to be set. */
clb_kv_trial_input clb_kvc_input_of(const clb_kvc_case *item, uint32_t chunk, bool see_question);
/* Positions that a budget ("25%", "512"; "": all) means for it. */
uint32_t clb_kvc_budget_of(const char *budget, const clb_kv_trial_input *in);
/* Metrics of a trial in units, [CLB_KVC_METRIC_COUNT]; NAN: not measured. said: what was generated. */
void clb_kvc_values(const clb_kvc_case *item, const clb_kv_trial *t, const clb_buf *said, double *v);
/* *out also on an error: destroy it. */
int clb_kvc_record_future(clb_engine *engine, const clb_kv_trial_input *of, clb_kv_future **out, clb_error *err);

/* compare_kv_setup.c */
/* "snapkv=xxh3:...": the plugin file of every strategy of a chain. / The hash of all files of a model. */
int clb_kvc_code_of(clb_registry *registry, const char *chain, char out[512], clb_error *err);
int clb_kvc_model_hash(const clb_gguf *gguf, char out[40], clb_error *err);
void clb_kvc_cpu_name(char out[128]);
/* Whether the strategy starts with what the budget is of the shortest item, so that this does not show after hours. */
int clb_kvc_try_budget(clb_engine *engine, const clb_kv_choice *choice, const char *budget, const clb_kvc *c,
                       const clb_kvc_cases *cases, clb_error *err);
/* A whole number from 1 on; `initial` without the flag. USAGE. */
int clb_kvc_parse_number(clb_args *args, const char *flag, uint32_t initial, uint32_t *out, clb_error *err);
/* One line of compact JSON in one write; releases it. */
int clb_kvc_write_json(int fd, const char *path, json_t *line, clb_error *err);

#endif
