/* --help and the man page, from one text. */
#include "help.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *flag, *value, *text;
} options[] = {
    {"--filter", "TEXT", "only components whose name contains TEXT"},
    {"--seed", "N", "seed of all random cases; the default comes from the clock, and every run prints its seed"},
    {"--cases", "N", "cases per component (default 40)"},
    {"--case", "N", "only this case, as a failure names it"},
    {"--work", "N", "about this many multiplications per case (default 1000000)"},
    {"--bench", NULL, "measure instead of checking"},
    {"--json", NULL, "with --bench: one JSON object on standard output"},
    {"--list", NULL, "list components instead of checking"},
    {"--self-test", NULL, "check that deliberately wrong kernels are refused; needs no plugin"},
    {"--verbose", NULL, "print every case"},
    {"--version", NULL, "print the version and the version of the plugin interface"},
    {"--help", NULL, "print this text"},
};

static const char summary[] = "check and measure kernels of Colibri plugins";
static const char synopsis[] = "colibri-kernelcheck [options] PLUGIN.so...";

/* Paragraphs; a line that starts with a blank stays as it is. */
static const char description[] =
    "Loads plugins as Colibri does (note first, then what the CPU has), runs their matrix products, vector operations "
    "and "
    "format references with random input, and compares the results with a scalar reference, byte for byte (a NaN "
    "equals "
    "any NaN). A component whose CPU features are missing here is skipped, and the output says so.\n"
    "\n"
    "What is varied: shapes, ranges of groups, tails of rows and columns, strides, gathered activation rows, and "
    "contents: "
    "extreme codes, zero, subnormal, huge, infinite and NaN scales and weights.\n"
    "\n"
    "What is checked besides results: every buffer begins or ends at a page that cannot be touched, input is "
    "read-only, "
    "scratch holds garbage and has patterns around it; callee-saved registers, the caller's stack, the direction flag, "
    "x87/MMX state, rounding, flush-to-zero and exception masks are as before the call (the sticky exception flags are "
    "not "
    "compared: ordinary arithmetic sets them), and upper halves of vector registers are clean; a second call, the same "
    "addresses with other contents, and two threads at once give the same results; writable data of the plugin does "
    "not "
    "change; tables and notes make sense.\n"
    "\n"
    "A failure prints the options that repeat just that case. A crash inside a kernel is a failure like any other: the "
    "message says which argument was overrun.\n"
    "\n"
    "--bench prints, for each matrix product with 2048 columns on one thread: GB/s of weights streamed from memory for "
    "one "
    "activation row, also in percent of what a plain read of the same memory reaches in the same run, GB/s from the L2 "
    "cache, ns per block of 16 rows x 32 columns, the factor to the scalar reference, and GMAC/s for 1, 4, 8, 12, 64 "
    "and 12 "
    "gathered activation rows.";

static const struct {
    int status;
    const char *text;
} statuses[] = {
    {0, "everything that ran is equal and well-behaved"},
    {1, "a difference, a broken rule, a plugin that cannot be loaded, or no component matched"},
    {2, "wrong usage"},
    {77, "nothing could run: this CPU lacks what the plugins need (CTest: skipped)"},
};

static const char *const examples[] = {
    "colibri-kernelcheck build/my-kernels.so",
    "colibri-kernelcheck --filter q4_0 --seed 7 --case 12 build/my-kernels.so",
    "colibri-kernelcheck --bench --filter q4_0 build/my-kernels.so",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void usage_line(FILE *f)
{
    fprintf(f, "usage: %s\n", synopsis);
}

/* Breaks text at blanks; continuation lines are indented. */
static void wrap(FILE *f, const char *text, size_t indent)
{
    const size_t width = 100;
    size_t column = indent;
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column > indent && column + 1 + n > width) {
            fprintf(f, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            putc(' ', f);
            column++;
        }
        fprintf(f, "%.*s", (int)n, text);
        column += n;
        text += n;
        if (*text == '\n') {
            for (; *text == '\n'; text++)
                putc('\n', f);
            fprintf(f, "%*s", (int)indent, "");
            column = indent;
        } else if (*text) {
            text++;
        }
    }
    putc('\n', f);
}

void help_short(void)
{
    usage_line(stderr);
    fprintf(stderr, "colibri-kernelcheck --help says more\n");
}

int help_print(void)
{
    FILE *const f = stdout;
    usage_line(f);
    putc('\n', f);
    wrap(f, description, 0);
    fprintf(f, "\nOptions:\n");
    for (size_t i = 0; i < COUNT(options); i++) {
        char flag[40];
        snprintf(flag, sizeof(flag), "%s %s", options[i].flag, options[i].value ? options[i].value : "");
        fprintf(f, "  %-16s", flag);
        wrap(f, options[i].text, 18);
    }
    fprintf(f, "\nExit status:\n");
    for (size_t i = 0; i < COUNT(statuses); i++) {
        fprintf(f, "  %-4d", statuses[i].status);
        wrap(f, statuses[i].text, 6);
    }
    fprintf(f, "\nExamples:\n");
    for (size_t i = 0; i < COUNT(examples); i++)
        fprintf(f, "  %s\n", examples[i]);
    return fflush(f) != 0;
}

/* ---- man page ------------------------------------------------------------------------------------------------ */

static void roff(const char *text)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        start = *text == '\n';
        if (*text == '\n' && text[1] == '\n') {
            fputs("\n.PP", stdout);
            continue;
        }
        if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
    }
    putchar('\n');
}

int help_man(void)
{
    printf(".TH COLIBRI\\-KERNELCHECK 1 \"\" \"Colibri %s\" \"Colibri manual\"\n.SH NAME\n", COLIBRI_VERSION);
    printf("colibri\\-kernelcheck \\- %s\n.SH SYNOPSIS\n.B ", summary);
    roff(synopsis);
    printf(".SH DESCRIPTION\n");
    roff(description);
    printf(".SH OPTIONS\n");
    for (size_t i = 0; i < COUNT(options); i++) {
        printf(".TP\n\\fB");
        for (const char *c = options[i].flag; *c; c++)
            *c == '-' ? (void)fputs("\\-", stdout) : (void)putchar(*c);
        printf("\\fR%s%s%s\n", options[i].value ? " \\fI" : "", options[i].value ? options[i].value : "",
               options[i].value ? "\\fR" : "");
        roff(options[i].text);
    }
    printf(".SH EXIT STATUS\n");
    for (size_t i = 0; i < COUNT(statuses); i++) {
        printf(".TP\n.B %d\n", statuses[i].status);
        roff(statuses[i].text);
    }
    printf(".SH EXAMPLES\n.nf\n");
    for (size_t i = 0; i < COUNT(examples); i++)
        roff(examples[i]);
    printf(".fi\n.SH SEE ALSO\n.BR colibri (1),\n.BR colibri\\-plugins (1)\n");
    return fflush(stdout) != 0;
}
