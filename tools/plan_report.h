/* What `colibri plan` found out, and its two forms on paper. */
#ifndef CLB_TOOLS_PLAN_REPORT_H
#define CLB_TOOLS_PLAN_REPORT_H

#include "cpu/topology.h"
#include "engine/engine.h"
#include "plan/predict.h"

/* Bytes of the model by role and tensor type. */
typedef struct clb_plan_role {
    const char *role; /* "attention" */
    uint32_t type;
    uint64_t bytes; /* in memory */
} clb_plan_role;
#define CLB_PLAN_ROLES 64u

/* One budget of --what-if. */
typedef struct clb_plan_row {
    uint64_t budget;
    bool fits;
    char why_not[1024];
    clb_plan plan;
    clb_prediction prediction;
} clb_plan_row;

typedef struct clb_plan_report {
    const clb_engine *engine;
    const char *path;
    clb_topology topology;
    clb_plan_role role[CLB_PLAN_ROLES];
    uint32_t n_roles;
    clb_rates rates;
    const char *trace;    /* NULL: none */
    clb_hit_curve *curve; /* NULL: none */
    clb_plan_row now;     /* the configured budget */
    clb_plan_row *rows;   /* of --what-if */
    uint32_t n_rows;
} clb_plan_report;

/* By role, then by type, largest first within a role. */
void clb_plan_find_roles(const clb_model *model, clb_plan_report *report);

void clb_plan_print(const clb_plan_report *report);
void clb_plan_print_rows(const clb_plan_report *report);
int clb_plan_print_json(const clb_plan_report *report, clb_error *err);

#endif
