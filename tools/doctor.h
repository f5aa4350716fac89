/* Findings of `colibri doctor`: what was looked at, what it means, what to do. */
#ifndef CLB_TOOLS_DOCTOR_H
#define CLB_TOOLS_DOCTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "command.h"
#include "cpu/numa.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "plan/memory.h"
#include "plan/predict.h"

enum clb_doctor_level {
    CLB_DOCTOR_OK,
    CLB_DOCTOR_NOTE, /* nothing is wrong; worth knowing */
    CLB_DOCTOR_WARN, /* slower or riskier than it could be */
    CLB_DOCTOR_FAIL, /* the model cannot run like this */
};
const char *clb_doctor_level_name(enum clb_doctor_level level); /* "ok", "note", "warning", "failure" */

typedef struct clb_finding {
    const char *section; /* "cpu", "memory", "drive", "model", "plan" */
    const char *id;      /* "swappiness": stable, for scripts */
    enum clb_doctor_level level;
    char text[600];   /* what is the case */
    char advice[400]; /* what to do; empty: nothing */
} clb_finding;

#define CLB_DOCTOR_MOST 96u

typedef struct clb_doctor {
    const char *root; /* before /proc and /sys: "" */
    const clb_config *config;
    const clb_log *log;
    bool measure, deep;
    clb_finding finding[CLB_DOCTOR_MOST];
    uint32_t n;
} clb_doctor;

/* advice may be NULL. */
void clb_doctor_add(clb_doctor *d, const char *section, const char *id, enum clb_doctor_level level, const char *advice,
                    const char *fmt, ...) CLB_PRINTF(6, 7);

/* One line of a file below root without its newline; false: it cannot be read. */
bool clb_doctor_line(const clb_doctor *d, const char *path, char *out, size_t n);
bool clb_doctor_number(const clb_doctor *d, const char *path, long long *out);
/* The number after "key" in a file of lines. */
bool clb_doctor_key(const clb_doctor *d, const char *path, const char *key, unsigned long long *out);

/* doctor_machine.c: as the engine sees this machine, or by the files below root. False: they do not tell. */
bool clb_doctor_topology(const clb_doctor *d, clb_topology *out);
uint32_t clb_doctor_nodes(const clb_doctor *d, clb_numa_node *out, uint32_t most); /* as clb_numa_nodes */
clb_memory_limits clb_doctor_memory_limits(const clb_doctor *d);
/* "Max open files", RLIMIT_NOFILE; UINT64_MAX: unlimited. */
bool clb_doctor_limit(const clb_doctor *d, const char *name, int resource, uint64_t *out);

void clb_doctor_cpu(clb_doctor *d, const clb_registry *registry); /* doctor_cpu.c */
void clb_doctor_memory(clb_doctor *d);                            /* doctor_memory.c */
/* The drive below a file or folder. (doctor_drive.c) */
void clb_doctor_drive(clb_doctor *d, const char *path);
/* Files and plan of a model that is bound; doctor_model.c. */
int clb_doctor_model(clb_doctor *d, clb_engine *engine, clb_error *err);

#endif
