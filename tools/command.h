/* Subcommands of the `colibri` executable: each lives in one file tools/cmd_<name>.c that defines one
 * `const struct clb_command clb_command_<name>`; the build makes the list from the file names. */
#ifndef CLB_TOOLS_COMMAND_H
#define CLB_TOOLS_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"
#include "config/config.h"

/* A flag of one command that is not a setting. */
typedef struct clb_flag {
    const char *name;  /* "json", without dashes */
    char short_name;   /* 0: none */
    const char *value; /* NULL: a switch; else the placeholder, "FILE" */
    const char *help;
    bool repeat;       /* may be given more than once */
} clb_flag;

typedef struct clb_args clb_args;

typedef struct clb_command {
    const char *name;
    const char *summary;         /* one line */
    const char *usage;           /* "colibri run -m MODEL [flags] [PROMPT]" */
    const char *description;     /* paragraphs for --help and the man page */
    const char *examples;        /* lines "colibri run ...   # what it does" */
    const clb_flag *flags;       /* ends with name == NULL; may be NULL */
    const enum clb_setting *settings; /* settings that apply, ends with CLB_SET_COUNT; NULL: none */
    int max_positional;          /* -1: any number */
    int (*run)(clb_args *args, clb_error *err); /* returns a status */
} clb_command;

/* Parsed command line, settings layers loaded in order. */
const clb_config *clb_args_config(const clb_args *args);
/* The same layers with `assignments` ("section.key=value", "key=value", ...) on top; what flags and --set say about the same
 * settings is left out. For commands that run several configurations; destroy *out. */
int clb_args_config_with(const clb_args *args, const char *const *assignments, size_t n, const char *origin,
                         clb_config **out, clb_error *err);
const clb_log *clb_args_log(const clb_args *args); /* warnings and progress on stderr; level from -v / -q */
bool clb_args_has(const clb_args *args, const char *flag);
const char *clb_args_value(const clb_args *args, const char *flag); /* last one, NULL if absent */
size_t clb_args_values(const clb_args *args, const char *flag, const char *const **out);
size_t clb_args_positional(const clb_args *args, const char *const **out);
/* Set by the first SIGINT/SIGTERM; commands poll it. The second one ends the process. */
bool clb_args_interrupted(const clb_args *args);
/* Forgets a SIGINT that the command has dealt with (a chat goes on); false after SIGTERM: the command must end. */
bool clb_args_rearm(clb_args *args);

#endif
