/* Bash completion, from the same tables as the help. */
#include "help.h"

#include "commands.h"

#include <string.h>

static void words_of(FILE *out, const clb_command *command)
{
    for (const clb_flag *f = command->flags; f && f->name; f++)
        fprintf(out, " --%s", f->name);
    for (const clb_flag *f = clb_common_flags; f->name; f++)
        fprintf(out, " --%s", f->name);
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        if (!s.flag || !clb_command_takes(command, s.id))
            continue;
        fprintf(out, " --%s", s.key);
        if (s.type == CLB_TYPE_BOOL)
            fprintf(out, " --no-%s", s.key);
    }
}

/* "--flag" patterns of one kind for a case branch. */
static void branch(FILE *out, const char *patterns, const char *reply)
{
    if (*patterns)
        fprintf(out, "    %s) %s; return ;;\n", patterns, reply);
}

static void add(char *list, size_t n, const char *pattern)
{
    const size_t used = strlen(list);
    if (used < n && !strstr(list, pattern))
        snprintf(list + used, n - used, "%s%s", used ? "|" : "", pattern);
}

static void value_branches(FILE *out)
{
    char files[2048] = "--config", other[8192] = "--set";
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        if (!s.flag || s.type == CLB_TYPE_BOOL)
            continue;
        char pattern[160];
        snprintf(pattern, sizeof pattern, "--%s%s%s", s.key, s.alias ? "|--" : "", s.alias ? s.alias : "");
        if (s.short_name)
            snprintf(pattern + strlen(pattern), sizeof pattern - strlen(pattern), "|-%c", s.short_name);
        if (s.type == CLB_TYPE_ENUM) {
            char choices[256], reply[400];
            snprintf(choices, sizeof choices, "%s", s.value_name);
            for (char *p = choices; *p; p++)
                *p = *p == '|' ? ' ' : *p;
            snprintf(reply, sizeof reply, "COMPREPLY=($(compgen -W '%s' -- \"$cur\"))", choices);
            branch(out, pattern, reply);
        } else if (s.type == CLB_TYPE_PATH) {
            add(files, sizeof files, pattern);
        } else {
            add(other, sizeof other, pattern);
        }
    }
    for (size_t c = 0; clb_commands[c]; c++) {
        for (const clb_flag *f = clb_commands[c]->flags; f && f->name; f++) {
            char pattern[96];
            if (!f->value)
                continue;
            snprintf(pattern, sizeof pattern, "--%s", f->name);
            const bool file = strstr(f->value, "FILE") || strstr(f->value, "DIR") || strstr(f->value, "PATH");
            add(file ? files : other, file ? sizeof files : sizeof other, pattern);
        }
    }
    branch(out, files, "COMPREPLY=($(compgen -f -- \"$cur\"))");
    branch(out, other, "COMPREPLY=()");
}

void clb_completion_bash(FILE *out)
{
    fputs("# bash completion for colibri; made by `colibri --completion bash`\n"
          "_colibri() {\n"
          "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
          "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "    COMPREPLY=($(compgen -W '",
          out);
    for (size_t i = 0; clb_commands[i]; i++)
        fprintf(out, "%s ", clb_commands[i]->name);
    fputs("help --help --version --man --completion' -- \"$cur\"))\n"
          "    return\n"
          "  fi\n"
          "  case $prev in\n",
          out);
    value_branches(out);
    fputs("  esac\n"
          "  if [[ $cur != -* ]]; then\n"
          "    COMPREPLY=($(compgen -f -- \"$cur\"))\n"
          "    return\n"
          "  fi\n"
          "  case ${COMP_WORDS[1]} in\n",
          out);
    for (size_t i = 0; clb_commands[i]; i++) {
        fprintf(out, "    %s) words='", clb_commands[i]->name);
        words_of(out, clb_commands[i]);
        fputs("' ;;\n", out);
    }
    fputs("  esac\n"
          "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "}\n"
          "complete -o filenames -F _colibri colibri\n",
          out);
}
