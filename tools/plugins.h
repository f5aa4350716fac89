/* The parts of `colibri plugins`: each prints a table for people, or JSON. */
#ifndef CLB_TOOLS_PLUGINS_H
#define CLB_TOOLS_PLUGINS_H

#include <jansson.h>
#include <stdbool.h>

#include "colibri/cpu_bits.h"
#include "json_out.h"
#include "plugin/introspect.h"

int clb_plugins_list(const clb_registry *reg, bool all, bool json, clb_error *err);
int clb_plugins_info(clb_registry *reg, const char *id, bool json, clb_error *err);
int clb_plugins_why(clb_registry *reg, const char *name, bool json, clb_error *err);
int clb_plugins_cpu(struct colibri_cpu_bits usable, bool json, clb_error *err);
int clb_plugins_paths(const clb_registry *reg, bool json, clb_error *err);
/* PLUGIN if anything is wrong with the file. `cpu` are the bits that a plugin may use here. */
int clb_plugins_check(const char *path, struct colibri_cpu_bits cpu, unsigned timeout_seconds, bool json, clb_error *err);
/* Writes the folder `dir` (NULL: `name`) with a plugin of this kind to start from; id NULL: org.example.KIND.NAME. USAGE if
 * the folder exists or the name is wrong or taken; nothing is left of a folder that could not be completed. */
int clb_plugins_new(const clb_registry *reg, const char *kind, const char *name, const char *dir, const char *id,
                    clb_error *err);

/* Names of the bits. */
json_t *clb_json_cpu(struct colibri_cpu_bits bits);
json_t *clb_json_verdict(const clb_verdict *v);
/* Text without control characters, at least `width` columns (negative: no padding at the end of a line). */
void clb_put(const char *text, int width);

#endif
