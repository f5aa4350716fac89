#include "help.h"

#include "commands.h"

#include <string.h>

#define INDENT 26 /* column of the explanations */

const clb_command *clb_command_find(const char *name)
{
    for (size_t i = 0; clb_commands[i]; i++) {
        if (!strcmp(clb_commands[i]->name, name))
            return clb_commands[i];
    }
    return NULL;
}

const char *clb_example_comment(const char *line, size_t line_len, size_t *command_len)
{
    for (size_t i = 0; i + 2 < line_len; i++) {
        if (line[i] == ' ' && line[i + 1] == '#' && line[i + 2] == ' ') {
            *command_len = i;
            while (*command_len && line[*command_len - 1] == ' ')
                --*command_len;
            return line + i + 3;
        }
    }
    *command_len = line_len;
    return "";
}

static unsigned text_width(FILE *out)
{
    const unsigned columns = clb_term_columns(out);
    return columns < 50 ? 50 : columns > 120 ? 120 : columns;
}

/* Words of text[0..n) from column `at` on, following lines indented. Columns are counted in UTF-8 characters. */
static void wrap(FILE *out, const char *text, size_t n, unsigned at, unsigned indent, unsigned width)
{
    bool first = true;
    for (size_t i = 0; i < n;) {
        while (i < n && (text[i] == ' ' || text[i] == '\n'))
            i++;
        size_t end = i;
        unsigned columns = 0;
        while (end < n && text[end] != ' ' && text[end] != '\n') {
            columns += ((unsigned char)text[end] & 0xc0) != 0x80;
            end++;
        }
        if (end == i)
            break;
        if (!first && at + 1 + columns > width) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        fprintf(out, "%s%.*s", first ? "" : " ", (int)(end - i), text + i);
        at += columns + !first;
        first = false;
        i = end;
    }
    putc('\n', out);
}

/* Paragraphs are separated by empty lines; a line that starts with a blank is kept as it is. */
static void paragraphs(FILE *out, const char *text, unsigned width)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (*text == ' ' || !n) {
            fprintf(out, "%.*s\n", (int)n, text);
        } else {
            while (text[n] == '\n' && text[n + 1] && text[n + 1] != '\n' && text[n + 1] != ' ')
                n += 1 + strcspn(text + n + 1, "\n");
            wrap(out, text, n, 0, 0, width);
        }
        text += n + (text[n] == '\n');
    }
}

static void entry(FILE *out, const char *head, const char *text, unsigned width)
{
    const int n = fprintf(out, "  %s", head);
    if (n + 2 > INDENT)
        fprintf(out, "\n%*s", INDENT, "");
    else
        fprintf(out, "%*s", INDENT - n, "");
    wrap(out, text, strlen(text), INDENT, INDENT, width);
}

static void flag_entry(FILE *out, const clb_flag *f, unsigned width)
{
    char head[128], start[8] = "    ";
    if (f->short_name)
        snprintf(start, sizeof start, "-%c, ", f->short_name);
    snprintf(head, sizeof head, "%s--%s%s%s", start, f->name, f->value ? " " : "", f->value ? f->value : "");
    char text[1024];
    snprintf(text, sizeof text, "%s%s", f->help, f->repeat && f->value ? " (may be repeated)" : "");
    entry(out, head, text, width);
}

static void setting_entry(FILE *out, const clb_setting_info *s, unsigned width)
{
    char head[160], start[8] = "    ", text[1200], allowed[80];
    if (s->short_name)
        snprintf(start, sizeof start, "-%c, ", s->short_name);
    if (!s->flag)
        snprintf(head, sizeof head, "    --set %s.%s=%s", s->section, s->key, s->value_name);
    else if (s->type == CLB_TYPE_BOOL)
        snprintf(head, sizeof head, "%s--[no-]%s", start, s->key);
    else
        snprintf(head, sizeof head, "%s--%s %s", start, s->key, s->value_name);
    clb_setting_allowed(s, allowed, sizeof allowed);
    const bool numeric = s->type == CLB_TYPE_INT || s->type == CLB_TYPE_REAL || s->type == CLB_TYPE_SHARE;
    snprintf(text, sizeof text, "%s [%s%s%s%s%s%s%s%s]", s->help, *s->fallback ? "default " : "no default", s->fallback,
             numeric && *allowed ? "; " : "", numeric ? allowed : "", s->alias ? "; also --" : "",
             s->alias ? s->alias : "", s->flag ? "; " : "", s->env);
    entry(out, head, text, width);
}

static void settings(FILE *out, const clb_command *command, unsigned width)
{
    char section[sizeof((clb_setting_info *)0)->section] = "";
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (!clb_command_takes(command, info.id))
            continue;
        if (strcmp(section, info.section) != 0)
            fprintf(out, "\nSettings, [%s] in a colibri.ini:\n", info.section);
        memcpy(section, info.section, sizeof section);
        setting_entry(out, &info, width);
    }
}

static void exit_codes(FILE *out, unsigned width)
{
    fputs("\nExit codes:\n", out);
#define EXIT_LINE(name, value, exit_code, text)                                                                        \
    if (code == (exit_code)) {                                                                                         \
        fprintf(out, "  %3d  ", code);                                                                                 \
        wrap(out, text, strlen(text), 7, 7, width);                                                                    \
    }
    for (int code = 0; code < 256; code++) {
        COLIBRI_STATUS_MAP(EXIT_LINE)
    }
#undef EXIT_LINE
}

void clb_help_command(FILE *out, const clb_command *command)
{
    const unsigned width = text_width(out);
    char head[256];
    snprintf(head, sizeof head, "colibri %s - %s", command->name, command->summary);
    wrap(out, head, strlen(head), 0, 2, width);
    fputs("\nUsage:\n", out);
    for (const char *p = command->usage; *p;) {
        const size_t n = strcspn(p, "\n");
        fputs("  ", out);
        wrap(out, p, n, 2, 10, width);
        p += n + (p[n] == '\n');
    }
    if (command->description && *command->description) {
        putc('\n', out);
        paragraphs(out, command->description, width);
    }
    fputs("\nFlags:\n", out);
    for (const clb_flag *f = command->flags; f && f->name; f++)
        flag_entry(out, f, width);
    for (const clb_flag *f = clb_common_flags; f->name; f++)
        flag_entry(out, f, width);
    settings(out, command, width);
    if (command->examples && *command->examples) {
        fputs("\nExamples:\n", out);
        for (const char *p = command->examples; *p;) {
            const size_t n = strcspn(p, "\n");
            size_t length;
            const char *comment = clb_example_comment(p, n, &length);
            if (*comment) {
                fputs("  # ", out);
                wrap(out, comment, (size_t)(p + n - comment), 4, 4, width);
            }
            fprintf(out, "  %.*s\n", (int)length, p);
            p += n + (p[n] == '\n');
        }
    }
    exit_codes(out, width);
}

void clb_help_overview(FILE *out)
{
    const unsigned width = text_width(out);
    fputs("colibri " COLIBRI_VERSION " - Mixture-of-Experts language models bigger than memory, on ordinary CPUs\n"
          "\nUsage:\n  colibri COMMAND [flags] [arguments]\n  colibri COMMAND --help\n\nCommands:\n",
          out);
    for (size_t i = 0; clb_commands[i]; i++) {
        const int n = fprintf(out, "  %s", clb_commands[i]->name);
        fprintf(out, "%*s", 16 - n > 1 ? 16 - n : 1, "");
        wrap(out, clb_commands[i]->summary, strlen(clb_commands[i]->summary), 16, 16, width);
    }
    fputs("\nFlags:\n", out);
    entry(out, "-h, --help", "show this overview", width);
    entry(out, "    --version", "show the version", width);
    entry(out, "    --man [PAGE]", "print a man page (roff): a command's name, colibri.ini, or nothing for colibri(1)",
          width);
    entry(out, "    --completion bash", "print the completion script", width);
    static const char last[] =
        "Settings come from colibri.ini files, COLIBRI_* variables and flags; 'colibri config list' shows "
        "them all.";
    putc('\n', out);
    wrap(out, last, sizeof last - 1, 0, 0, width);
    exit_codes(out, width);
}
