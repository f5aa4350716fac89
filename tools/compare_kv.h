/* colibri compare --strategies: KV strategies x budgets x tasks. What its files share.
 *
 * Everything that is known lies in one grid: settings (strategy, budget, positions) x items (prompts of tasks), filled
 * by records. Records come from runs and from JSON lines of earlier runs, and both go the same way, so that a report
 * over a file is the report of the run that wrote it. */
#ifndef CLB_TOOLS_COMPARE_KV_H
#define CLB_TOOLS_COMPARE_KV_H

#include <jansson.h>

#include "command.h"
#include "engine/compare_kv.h"

#define CLB_KVC_SCHEMA "colibri-compare-kv/1"
#define CLB_KVC_NONE   UINT32_MAX

enum clb_kvc_kind { CLB_KVC_TEXT, CLB_KVC_RECALL, CLB_KVC_PASSKEY, CLB_KVC_KINDS };
const char *clb_kvc_kind_name(enum clb_kvc_kind kind); /* "text", as --task spells it */

/* Items of a task that have something in common: a distance, a cell of the needle grid, a text. */
typedef struct clb_kvc_group {
    char *label;
    double length; /* tokens between what is asked for and the question, or of the whole; NAN: no number */
    double depth;  /* %: where in the text the needle lies; NAN: none */
} clb_kvc_group;

typedef struct clb_kvc_task {
    enum clb_kvc_kind kind;
    char *name, *path, *hash;
    clb_kvc_group *groups;
    uint32_t n_groups, first_group; /* among those of all tasks; set by clb_kvc_summarize */
    uint32_t n_items;
} clb_kvc_task;

typedef struct clb_kvc_setting {
    char *strategy, *budget, *positions; /* as asked for; "": the strategy keeps all; as the strategy declares */
    char *code;                          /* plugins and their hashes, "id=hash id=hash"; "": unknown */
    uint32_t name, size;                 /* into the grid's names and sizes */
} clb_kvc_setting;

typedef struct clb_kvc_record {
    uint32_t setting, item;
    uint64_t bad_answers;                /* of the strategy, replaced by the host */
    double values[CLB_KVC_METRIC_COUNT]; /* in units, not logarithms; NAN: not measured */
} clb_kvc_record;

/* Which positions of one item were kept while it was read and continued: one row per look, from the first tokens to
 * the last, one column per range of positions; the share of (positions, layers, heads) that were kept. */
typedef struct clb_kvc_raster {
    uint32_t setting, item;
    uint32_t n_rows, n_columns, n_positions;
    uint32_t *seen; /* [n_rows] tokens */
    float *share;   /* [n_rows][n_columns], 0 .. 1; NAN: not yet written */
} clb_kvc_raster;

typedef struct clb_kvc_judgement {
    uint32_t task, size;
    enum clb_kvc_metric metric;
    clb_kvc_pair pair;
} clb_kvc_judgement;

typedef struct clb_kvc {
    clb_kvc_setting *settings;
    clb_kvc_task *tasks;
    clb_kvc_item *items;
    char **ids; /* [n_items] */
    clb_kvc_record *records;
    clb_kvc_raster *rasters;
    uint32_t n_settings, n_tasks, n_items, n_records, n_rasters;
    char **names; /* strategies with positions, in order of appearance */
    char **sizes; /* budgets, largest first; "" is first */
    uint32_t n_names, n_sizes;
    json_t *header;     /* of the newest part: model, machine, settings of the run */
    uint32_t n_headers; /* parts that the records come from */
    bool other_machine; /* parts ran on different machines or versions: speeds are not comparable */
    uint64_t seed;      /* of intervals */
    uint32_t resamples; /* 0: the default */
    uint32_t n_run; /* of the records: made by this run */
    bool interrupted;
    uint64_t *filled; /* bits [n_settings][n_items], while grown: see clb_kvc_has */
    uint32_t filled_settings, filled_items;

    /* ---- filled by clb_kvc_summarize ---- */
    double *values; /* of a clb_kvc_grid */
    clb_kvc_grid grid;
    uint32_t n_groups;         /* of all tasks */
    clb_interval *means;       /* [n_settings][n_tasks][metrics] */
    clb_interval *group_means; /* [n_settings][n_groups] of the task's main metric */
    uint32_t baseline;         /* a name; CLB_KVC_NONE: there is none */
    clb_kvc_pair *against;     /* [n_settings][n_tasks][metrics] against the baseline; corrected per (task, metric) */
    clb_kvc_judgement *pairs;  /* all against all at one budget, main metric; corrected per (task, budget) */
    uint32_t n_pairs;
} clb_kvc;

void clb_kvc_free(clb_kvc *c);

/* What is there already is found, not doubled. Errors: NOMEM; USAGE for a task or setting that contradicts the one with
 * the same name (other kind, other hash). */
int clb_kvc_add_setting(clb_kvc *c, const char *strategy, const char *budget, const char *positions, const char *code,
                        uint32_t *out, clb_error *err);
int clb_kvc_add_task(clb_kvc *c, enum clb_kvc_kind kind, const char *name, const char *path, const char *hash,
                     uint32_t *out, clb_error *err);
int clb_kvc_add_item(clb_kvc *c, uint32_t task, const char *id, const char *group, double length, double depth,
                     uint32_t *out, clb_error *err);
uint32_t clb_kvc_find_setting(const clb_kvc *c, const char *strategy, const char *budget, const char *positions);
uint32_t clb_kvc_find_task(const clb_kvc *c, const char *name);
uint32_t clb_kvc_find_item(const clb_kvc *c, uint32_t task, const char *id);
bool clb_kvc_has(const clb_kvc *c, uint32_t setting, uint32_t item);
int clb_kvc_add_record(clb_kvc *c, const clb_kvc_record *record, clb_error *err);
/* Takes seen and share. */
int clb_kvc_add_raster(clb_kvc *c, const clb_kvc_raster *raster, clb_error *err);
/* Answers of a setting's strategy that were bad, in *items of its *of items. */
uint64_t clb_kvc_bad_answers(const clb_kvc *c, uint32_t setting, uint32_t *items, uint32_t *of);
/* One line that says so; false if there were none. */
bool clb_kvc_bad_text(const clb_kvc *c, uint32_t setting, char *out, size_t size);
/* The setting of a strategy at a budget; CLB_KVC_NONE: not there. */
uint32_t clb_kvc_cell(const clb_kvc *c, uint32_t name, uint32_t size);
/* A budget is "25%" or "512". USAGE, with the flag's name, if it is neither. */
#define CLB_KVC_BUDGET_TEXT 32
int clb_kvc_check_budget(const char *flag, const char *text, clb_error *err);
/* Share that a budget in per cent means; NAN for a number of positions. */
double clb_kvc_budget_share(const char *budget);

/* ---- JSON lines (compare_kv_file.c) ---- */

json_t *clb_kvc_header_json(const clb_kvc *c, const json_t *run);
json_t *clb_kvc_record_json(const clb_kvc *c, const clb_kvc_record *record);
json_t *clb_kvc_raster_json(const clb_kvc *c, const clb_kvc_raster *raster);
/* One line of a file. FORMAT if it is none of ours. */
int clb_kvc_read_line(clb_kvc *c, const json_t *line, clb_error *err);
/* A whole file; *complete (may be NULL): length up to the last complete line. A torn last line is left out with a
 * warning: the writer was killed. */
int clb_kvc_read_file(clb_kvc *c, const char *path, const clb_log *log, uint64_t *complete, clb_error *err);
/* USAGE unless records of both runs may stand in one table: what is not about the machine must be equal. */
int clb_kvc_check_same_run(const json_t *a, const json_t *b, const char *path, clb_error *err);

/* ---- what it all says ---- */

/* What settings are judged by on a task. */
enum clb_kvc_metric clb_kvc_main_metric(enum clb_kvc_kind kind);
/* baseline: a strategy's name as in --strategies; NULL: "full" if it is there. USAGE if a name is not there. */
int clb_kvc_summarize(clb_kvc *c, const char *baseline, clb_error *err);
const clb_interval *clb_kvc_mean_of(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric);
const clb_interval *clb_kvc_group_mean(const clb_kvc *c, uint32_t setting, uint32_t task, uint32_t group);
const clb_kvc_pair *clb_kvc_against(const clb_kvc *c, uint32_t setting, uint32_t task, enum clb_kvc_metric metric);
/* The baseline's setting that a setting is compared with: at the same budget, else its only one. */
uint32_t clb_kvc_baseline_of(const clb_kvc *c, uint32_t setting);
/* Settings in the order of tables: by budget, largest first, then as they were named. out[n_settings]. */
void clb_kvc_order(const clb_kvc *c, uint32_t *out);

/* ---- reports ---- */

void clb_kvc_print(const clb_kvc *c, FILE *f);
void clb_kvc_print_markdown(const clb_kvc *c, FILE *f);
int clb_kvc_print_json(const clb_kvc *c, clb_error *err);
int clb_kvc_write_html(const clb_kvc *c, const char *path, bool replace, clb_error *err);

/* ---- the command: compare_kv_cmd.c; called by cmd_compare.c if --strategies or --from is given ---- */

int clb_compare_kv(clb_args *args, clb_error *err);

#endif
