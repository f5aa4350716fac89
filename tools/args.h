/* The command line of one subcommand: parsed first, then the settings layers are loaded. Commands see command.h only.
 */
#ifndef CLB_TOOLS_ARGS_H
#define CLB_TOOLS_ARGS_H

#include "command.h"
#include "config/settings.h"
#include "term.h"

/* Flags that every command has; ends with name == NULL. */
extern const clb_flag clb_common_flags[];

/* The command's flag or setting at hand: what --help, the man page and completion walk through. */
bool clb_command_takes(const clb_command *command, enum clb_setting id);
const clb_flag *clb_flag_find(const clb_flag *flags, const char *name);
const clb_flag *clb_flag_find_short(const clb_flag *flags, char short_name);

typedef struct clb_given {
    const clb_flag *flag; /* a flag of the command or a common one; NULL: a setting */
    enum clb_setting setting;
    const char *value; /* points into argv, or a literal; NULL: a switch */
    bool negated;      /* --no-KEY */
} clb_given;

struct clb_args {
    const clb_command *command;
    clb_given *given; /* in order */
    size_t n_given;
    const char **positional;
    size_t n_positional;
    const char **values; /* scratch of clb_args_values */
    bool help, print_config;
    clb_config *config;
    clb_log log;
};

/* argv starts behind the command's name. Stops at --help (args->help). Errors: USAGE. */
int clb_args_parse(clb_args *args, const clb_command *command, int argc, char **argv, clb_error *err);
/* Default files, --config, environment, flags and --set into args->config. */
int clb_args_load(clb_args *args, clb_error *err);
void clb_args_free(clb_args *args);
/* Level of the log from -v and -q. */
int clb_args_level(const clb_args *args);

#endif
