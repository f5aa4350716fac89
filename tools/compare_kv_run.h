/* Running the grid of colibri compare --strategies. */
#ifndef CLB_TOOLS_COMPARE_KV_RUN_H
#define CLB_TOOLS_COMPARE_KV_RUN_H

#include "compare_kv_tasks.h"
#include "engine/kv_strategy_settings.h"
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
    uint32_t chunk;
    bool see_question;
    int fd;               /* of --jsonl; -1: none */
    uint32_t raster_case; /* whose positions are watched; UINT32_MAX: none */
    uint32_t raster_size; /* at this budget */
    FILE *reference;
    clb_kv_future *future; /* of the item at hand; NULL: not recorded yet */
    uint64_t done, total;
};

/* Opens the engine, reads lists, tasks and what --jsonl has already, and writes the header. compare_kv_setup.c */
int clb_kvc_prepare(struct clb_kvc_grid_run *g, clb_error *err);
void clb_kvc_close(struct clb_kvc_grid_run *g);
/* One line to --jsonl, if it is wanted; releases it. */
int clb_kvc_write_line(struct clb_kvc_grid_run *g, json_t *line, clb_error *err);

#endif
