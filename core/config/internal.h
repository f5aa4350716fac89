/* Inside core/config only. */
#ifndef CLB_CONFIG_INTERNAL_H
#define CLB_CONFIG_INTERNAL_H

#include "config/config.h"
#include "config/settings.h"
#include "config/value.h"

typedef struct clb_config_param {
    const char *kind; /* one of clb_param_kinds */
    char *name, *key, *text, *origin;
    double number;
    unsigned layer, line; /* where it was set: for keys given twice in one file */
} clb_config_param;

/* One key of a section [foreign.NAME]. */
typedef struct clb_config_foreign {
    char *name, *key, *text, *origin;
    unsigned layer, line;
} clb_config_foreign;

struct clb_config {
    clb_value value[CLB_SET_COUNT];
    char *origin[CLB_SET_COUNT]; /* NULL: default */
    unsigned layer[CLB_SET_COUNT], line[CLB_SET_COUNT];
    clb_config_param *params;
    size_t n_params, cap_params;
    clb_config_foreign *foreign;
    size_t n_foreign;
    unsigned n_layers;
};

/* An error if the new value repeats one of the same file, or both come from the command line or from one variable. */
int clb_config_given_twice(const char *old_origin, unsigned old_layer, unsigned old_line, const char *origin,
                           unsigned layer, clb_error *err);
/* `layer` numbers the file, 0: not a file. Messages have no location. */
int clb_config_assign(clb_config *config, enum clb_setting id, const char *text, const char *origin, unsigned layer,
                      unsigned line, clb_error *err);
int clb_config_assign_param(clb_config *config, const char *kind, const char *name, const char *key, const char *text,
                            const char *origin, unsigned layer, unsigned line, clb_error *err);

/* spec.c. The parameters of "NAME:key=value/NAME2:key=value" are assigned; "NAME/NAME2" into names. Only KV strategies wrap
 * each other. */
int clb_config_assign_spec(clb_config *config, const char *kind, const char *text, const char *origin, unsigned layer,
                           unsigned line, clb_buf *names, clb_error *err);

/* foreign.c. The part of a section's name behind "foreign.", NULL if it is no such section. */
#define CLB_FOREIGN_NAME_MAX 55u /* the plugin's id puts "foreign." in front */
const char *clb_foreign_section(const char *section);
int clb_foreign_check_name(const char *name, clb_error *err);
int clb_config_assign_foreign(clb_config *config, const char *name, const char *key, const char *text,
                              const char *origin, unsigned layer, unsigned line, clb_error *err);
void clb_config_free_foreign(clb_config *config);

/* The default files under other paths, for tests; each may be NULL. */
int clb_config_load_from(clb_config *config, const char *sysconf_file, const char *user_file, const char *model,
                         clb_error *err);

#endif
