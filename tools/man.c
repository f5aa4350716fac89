/* Man pages in the man(7) macros. No date in .TH: two builds of one version print the same page. */
#include "help.h"

#include "commands.h"

#include <ctype.h>
#include <string.h>

/* What roff would read as its own, spelled so that it prints as it is. */
static const char *escape(char c)
{
    switch (c) {
    case '\\':
        return "\\e";
    case '-':
        return "\\-";
    case '\'':
        return "\\(aq";
    case '"':
        return "\\(dq";
    case '~':
        return "\\(ti";
    case '^':
        return "\\(ha";
    case '`':
        return "\\(ga";
    default:
        return NULL;
    }
}

/* One word; returns the columns it takes in the roff source. At the start of a line a '.' would be a request. */
static unsigned word(FILE *out, const char *text, size_t n, bool line_start)
{
    unsigned columns = 0;
    if (line_start && n && *text == '.')
        columns += (unsigned)fprintf(out, "\\&");
    for (size_t i = 0; i < n; i++) {
        const char *e = escape(text[i]);
        columns += e ? (unsigned)fprintf(out, "%s", e) : (unsigned)fprintf(out, "%c", text[i]);
    }
    return columns;
}

/* n bytes of prose, broken into input lines. */
static void text_n(FILE *out, const char *text, size_t n)
{
    unsigned column = 0;
    for (size_t i = 0; i < n;) {
        size_t end = i, columns = 0;
        for (; end < n && text[end] != ' ' && text[end] != '\n'; end++)
            columns += escape(text[end]) ? strlen(escape(text[end])) : 1;
        if (column && column + columns > 76) {
            putc('\n', out);
            column = 0;
        } else if (column && end > i) {
            putc(' ', out);
            column++;
        }
        column += word(out, text + i, end - i, column == 0);
        i = end;
        while (i < n && (text[i] == ' ' || text[i] == '\n'))
            i++;
    }
    putc('\n', out);
}

static void text(FILE *out, const char *s)
{
    text_n(out, s, strlen(s));
}

/* Keeps the blanks of one line: for code. */
static void code_line(FILE *out, const char *s, size_t n)
{
    word(out, s, n, true);
    putc('\n', out);
}

/* Same rules as help.c: empty line: new paragraph; leading blank: as it is. */
static void paragraphs(FILE *out, const char *s)
{
    bool first = true;
    while (*s) {
        size_t n = strcspn(s, "\n");
        if (!n) {
            s++;
            continue;
        }
        if (!first)
            fputs(".PP\n", out);
        first = false;
        if (*s == ' ') {
            fputs(".nf\n", out);
            while (*s == ' ') {
                n = strcspn(s, "\n");
                code_line(out, s, n);
                s += n + (s[n] == '\n');
            }
            fputs(".fi\n", out);
            continue;
        }
        while (s[n] == '\n' && s[n + 1] && s[n + 1] != '\n' && s[n + 1] != ' ')
            n += 1 + strcspn(s + n + 1, "\n");
        text_n(out, s, n);
        s += n + (s[n] == '\n');
    }
}

static void title(FILE *out, const char *name, const char *section, const char *summary)
{
    fputs(".TH ", out);
    for (const char *p = name; *p; p++)
        fprintf(out, "%s%c", *p == '-' ? "\\" : "", toupper((unsigned char)*p));
    fprintf(out, " %s \"\" \"colibri " COLIBRI_VERSION "\" \"Colibri manual\"\n.nh\n.ad l\n.SH NAME\n", section);
    for (const char *p = name; *p; p++)
        fprintf(out, "%s%c", *p == '-' ? "\\" : "", *p);
    fputs(" \\- ", out);
    text(out, summary);
}

static void bold(FILE *out, const char *s)
{
    fputs("\\fB", out);
    for (; *s; s++)
        fprintf(out, "%s%c", *s == '-' ? "\\" : "", *s);
    fputs("\\fR", out);
}

static void flag_head(FILE *out, char short_name, const char *name, const char *value, bool is_bool)
{
    fputs(".TP\n", out);
    if (short_name)
        fprintf(out, "\\fB\\-%c\\fR, ", short_name);
    bold(out, "--");
    if (is_bool)
        fputs("[\\fBno\\-\\fR]", out);
    bold(out, name);
    if (value)
        fprintf(out, " \\fI%s\\fR", value);
    putc('\n', out);
}

static void flags(FILE *out, const clb_flag *list)
{
    for (const clb_flag *f = list; f && f->name; f++) {
        flag_head(out, f->short_name, f->name, f->value, false);
        text(out, f->help);
        if (f->repeat && f->value)
            text(out, "(may be repeated)");
    }
}

static void setting_details(FILE *out, const clb_setting_info *s, bool ini_page)
{
    char allowed[80], how[256] = "", line[512];
    clb_setting_allowed(s, allowed, sizeof allowed);
    if (s->type == CLB_TYPE_BOOL) /* the type says it */
        *allowed = '\0';
    if (!s->flag)
        snprintf(how, sizeof how, "; --set %s.%s=%s", s->section, s->key, s->value_name);
    else if (ini_page)
        snprintf(how, sizeof how, "; flag --%s, variable %s", s->key, s->env);
    else
        snprintf(how, sizeof how, "%s%s; variable %s", s->alias ? "; also --" : "", s->alias ? s->alias : "", s->env);
    snprintf(line, sizeof line, "(%s%s%s; %s%s%s)", clb_setting_type_name(s->type), *allowed ? ": " : "", allowed,
             *s->fallback ? "default " : "no default", s->fallback, how);
    text(out, s->help);
    fputs(".br\n", out);
    text(out, line);
}

static void settings(FILE *out, const clb_command *command)
{
    char section[sizeof((clb_setting_info *)0)->section] = "";
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info s = clb_setting_get((enum clb_setting)i);
        if (command && !clb_command_takes(command, s.id))
            continue;
        if (strcmp(section, s.section) != 0) {
            if (!*section && command)
                fputs(".SH SETTINGS\nEach is also a key of the section shown in a\n.BR colibri.ini (5).\n", out);
            fprintf(out, ".SS [%s]\n", s.section);
        }
        memcpy(section, s.section, sizeof section);
        if (command && s.flag) {
            flag_head(out, s.short_name, s.key, s.type == CLB_TYPE_BOOL ? NULL : s.value_name, s.type == CLB_TYPE_BOOL);
        } else {
            fputs(".TP\n", out);
            bold(out, s.key);
            fprintf(out, " = \\fI%s\\fR\n", s.value_name);
        }
        setting_details(out, &s, !command);
    }
}

static void exit_status(FILE *out)
{
    fputs(".SH EXIT STATUS\n", out);
#define EXIT_LINE(name, value, exit_code, meaning)                                                                     \
    if (code == (exit_code)) {                                                                                         \
        fprintf(out, ".TP\n.B %d\n", code);                                                                            \
        text(out, meaning);                                                                                            \
    }
    for (int code = 0; code < 256; code++) {
        COLIBRI_STATUS_MAP(EXIT_LINE)
    }
#undef EXIT_LINE
}

static void examples(FILE *out, const char *s)
{
    fputs(".SH EXAMPLES\n", out);
    for (bool first = true; *s; first = false) {
        const size_t n = strcspn(s, "\n");
        size_t length;
        const char *comment = clb_example_comment(s, n, &length);
        if (*comment) {
            fputs(first ? "" : ".PP\n", out);
            text_n(out, comment, (size_t)(s + n - comment));
        }
        fputs(".RS 4\n.nf\n", out);
        code_line(out, s, length);
        fputs(".fi\n.RE\n", out);
        s += n + (s[n] == '\n');
    }
}

void clb_man_command(FILE *out, const clb_command *command)
{
    char name[64];
    snprintf(name, sizeof name, "colibri-%s", command->name);
    title(out, name, "1", command->summary);
    fputs(".SH SYNOPSIS\n.nf\n", out);
    for (const char *p = command->usage; *p;) {
        const size_t n = strcspn(p, "\n");
        code_line(out, p, n);
        p += n + (p[n] == '\n');
    }
    fputs(".fi\n", out);
    if (command->description && *command->description) {
        fputs(".SH DESCRIPTION\n", out);
        paragraphs(out, command->description);
    }
    fputs(".SH OPTIONS\n", out);
    flags(out, command->flags);
    flags(out, clb_common_flags);
    settings(out, command);
    if (command->examples && *command->examples)
        examples(out, command->examples);
    exit_status(out);
    fputs(".SH SEE ALSO\n.BR colibri (1),\n.BR colibri.ini (5)\n", out);
}

void clb_man_overview(FILE *out)
{
    title(out, "colibri", "1", "run Mixture-of-Experts language models bigger than memory");
    fputs(".SH SYNOPSIS\n.nf\n\\fBcolibri\\fR \\fICOMMAND\\fR [flags] [arguments]\n\\fBcolibri\\fR \\fICOMMAND\\fR "
          "\\fB\\-\\-help\\fR\n.fi\n"
          ".SH DESCRIPTION\n",
          out);
    paragraphs(
        out,
        "Colibri runs language models on ordinary CPUs. The experts of a Mixture-of-Experts model that do not fit in "
        "memory stay on the drive and are brought in when a token needs them. Kernels, quantization formats, expert "
        "policies and KV strategies are plugins, chosen when it starts.\n"
        "\n"
        "An error is one line on stderr: \"colibri COMMAND: message\". Nothing is ignored silently: an unknown or "
        "inapplicable flag, key or variable is an error that names the nearest valid one.\n");
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 0; clb_commands[i]; i++) {
        fputs(".TP\n\\fBcolibri\\-", out);
        bold(out, clb_commands[i]->name);
        fputs("(1)\n", out);
        text(out, clb_commands[i]->summary);
    }
    fputs(".SH OPTIONS\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nshow the commands\n.TP\n\\fB\\-\\-version\\fR\nshow the "
          "version\n"
          ".TP\n\\fB\\-\\-man\\fR [\\fIPAGE\\fR]\nprint a man page: of a command, of colibri.ini, or this one\n"
          ".TP\n\\fB\\-\\-completion bash\\fR\nprint the completion script\n"
          ".PP\nEvery command has these:\n",
          out);
    flags(out, clb_common_flags);
    fputs(".SH ENVIRONMENT\n", out);
    text(out,
         "COLIBRI_KEY sets the setting with the flag --key; colibri.ini(5) lists them. COLIBRI_PLUGIN_PATH adds plugin "
         "folders. "
         "No other variable may start with COLIBRI_, except COLIBRI_TEST_ (the project's own tests).");
    exit_status(out);
    fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; clb_commands[i]; i++)
        fprintf(out, ".BR colibri\\-%s (1),\n", clb_commands[i]->name);
    fputs(".BR colibri.ini (5)\n", out);
}

void clb_man_ini(FILE *out)
{
    title(out, "colibri.ini", "5", "settings of colibri");
    char path[4096];
    fputs(".SH FILES\n.TP\n", out);
    bold(out, clb_config_default_path(0, NULL, path, sizeof path));
    fputs("\nof the system\n.TP\n\\fB$XDG_CONFIG_HOME/colibri/colibri.ini\\fR\n"
          "of the user; without the variable, the file\n\\&.config/colibri/colibri.ini in the home folder\n"
          ".TP\n\\fBcolibri.ini\\fR in the model\\(aqs folder\nless trusted, see below\n"
          ".TP\n\\fB\\-\\-profile\\fR \\fINAME\\fR\n"
          "\\fINAME\\fR.ini in the folder profiles beside the user\\(aqs file, else in share/colibri/profiles of the "
          "installation: saver, balanced, speed\n"
          ".TP\n\\fB\\-\\-config\\fR \\fIFILE\\fR\nmust exist\n"
          ".PP\nLater wins; environment, then flags and \\fB\\-\\-set\\fR, win over all files.\n"
          ".SH SYNTAX\n",
          out);
    paragraphs(out, "Text in UTF-8, with or without a byte order mark: [section] lines and key = value lines (key: "
                    "value too), one each "
                    "to a line. Blanks around names and values do not count. A line whose first character is ';' or "
                    "'#' is a comment; "
                    "so is the rest of a line from a ';' that follows a blank. A value may stand in double quotes, "
                    "which keeps its outer "
                    "blanks and allows '#'; there is no escape character.\n"
                    "\n"
                    "    [memory]\n"
                    "    max-memory = 24G   ; everything together\n"
                    "\n"
                    "Keys and sections are lower case. An unknown one, a key given twice in one file, and a value of "
                    "the wrong type are "
                    "errors with file and line. '~' and '$HOME' are not expanded. Sizes are bytes, or a number with K, "
                    "M, G, T (or KiB, "
                    "MiB...: powers of 1024) or KB, MB... (powers of 1000).\n");
    fputs(".SH TRUST\n", out);
    paragraphs(
        out,
        "A file that every user may write is refused. The file beside a model may come with a download: it may set the "
        "sections model, memory, cpu, store, kv, sampling and run, except paths, and parameters of plugins. Anything "
        "else "
        "in it, such as a plugin folder or permission for inexact kernels, is an error.\n");
    fputs(".SH PARAMETERS OF PLUGINS\n", out);
    paragraphs(
        out, "Sections [expert-policy.NAME], [kv-strategy.NAME] and [predictor.NAME] hold the parameters of one plugin "
             "component; 'colibri plugins list' shows names and parameters. They are checked when the component is "
             "used. The "
             "settings that choose a component take parameters too, as NAME:key=value,key=value.\n");
    fputs(".SH FOREIGN FUNCTIONS\n", out);
    paragraphs(
        out, "A section [foreign.NAME] binds a function of any library as a component called NAME, with the keys "
             "library (an absolute path, or the name of a system library), symbol, signature and kind "
             "(expert-policy or matmul-f32). Loading a library runs its constructors. docs/foreign.md has the rest.\n");
    fputs(".SH SETTINGS\n", out);
    settings(out, NULL);
    fputs(".SH SEE ALSO\n.BR colibri (1),\n.BR colibri\\-config (1)\n", out);
}
