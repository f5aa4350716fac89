/* What a user reads: help, man pages, completion. All of it is made from the commands' structs and the settings table.
 */
#ifndef CLB_TOOLS_HELP_H
#define CLB_TOOLS_HELP_H

#include "args.h"

#include <stdio.h>

void clb_help_overview(FILE *out);
void clb_help_command(FILE *out, const clb_command *command);

/* roff for man(7). */
void clb_man_overview(FILE *out);
void clb_man_command(FILE *out, const clb_command *command);
void clb_man_ini(FILE *out); /* colibri.ini(5) */

void clb_completion_bash(FILE *out);

/* [section] key = value ; origin, for every setting the command takes (NULL: all). Values of settings can be read back.
 */
void clb_print_config(FILE *out, const clb_config *config, const clb_command *command);
void clb_print_setting(FILE *out, const clb_config *config, const clb_setting_info *info); /* one line of it */
void clb_print_params(FILE *out, const clb_config *config, const clb_command *command);    /* the last part of it */
int clb_print_config_json(FILE *out, const clb_config *config, const clb_command *command, clb_error *err);

/* "   # " splits one line of clb_command.examples: returns the comment ("" if none) and the length of the command. */
const char *clb_example_comment(const char *line, size_t line_len, size_t *command_len);
const clb_command *clb_command_find(const char *name);

#endif
