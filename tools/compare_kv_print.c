/* A comparison of KV strategies for people: on the terminal and as Markdown. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare_kv_table.h"

static const char *text_of(const json_t *o, const char *key)
{
    const char *const text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void print_run(const clb_kvc *c, FILE *f, const char *newline)
{
    const json_t *const d = json_object_get(c->header, "decides"), *const m = json_object_get(c->header, "machine");
    fprintf(f, "%s %s (%s)%s", text_of(d, "arch"), text_of(d, "model"), text_of(d, "model_hash"), newline);
    fprintf(f, "%s, %lld thread%s; colibri %s, %s; seed %llu; prompts in pieces of %lld tokens%s%s", text_of(m, "cpu"),
            (long long)json_integer_value(json_object_get(m, "threads")),
            json_integer_value(json_object_get(m, "threads")) == 1 ? "" : "s", text_of(m, "version"),
            text_of(c->header, "date"), (unsigned long long)json_integer_value(json_object_get(d, "seed")),
            (long long)json_integer_value(json_object_get(d, "chunk")),
            json_is_true(json_object_get(d, "see_question")) ? ", compressed when the question is known" : "", newline);
    fprintf(f, "%u of %u results%s", c->n_records, c->n_settings * c->n_items, newline);
}

static size_t width_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_table(const clb_kvc_table *t, const clb_kvc *c, FILE *f)
{
    for (uint32_t r = 0; r <= t->n_rows; r++) {
        if (r > 1 && c->settings[t->settings[r]].size != c->settings[t->settings[r - 1]].size)
            fputc('\n', f);
        for (uint32_t k = 0; k < t->used; k++) {
            size_t width = 0;
            for (uint32_t i = 0; i <= t->n_rows; i++) {
                const size_t w = width_of(clb_kvc_table_cell(t, i, k));
                width = w > width ? w : width;
            }
            const char *const text = clb_kvc_table_cell(t, r, k);
            const int pad = (int)(width - width_of(text));
            if (k == 0)
                fprintf(f, "%s%*s", text, pad, "");
            else
                fprintf(f, "  %*s%s", pad, "", text);
        }
        fputc('\n', f);
    }
}

static void markdown_cell(const char *text, FILE *f)
{
    for (; *text; text++) {
        if (strchr("|\\`*_<>[]", *text))
            fputc('\\', f);
        fputc((unsigned char)*text < 32 ? ' ' : *text, f);
    }
}

static void print_markdown_table(const clb_kvc_table *t, const clb_kvc *c, FILE *f)
{
    (void)c;
    for (uint32_t r = 0; r <= t->n_rows; r++) {
        fputc('|', f);
        for (uint32_t k = 0; k < t->used; k++) {
            fputc(' ', f);
            markdown_cell(clb_kvc_table_cell(t, r, k), f);
            fputs(" |", f);
        }
        fputc('\n', f);
        for (uint32_t k = 0; r == 0 && k < t->used; k++)
            fputs(k ? "---:|" : "|---|", f);
        if (r == 0)
            fputc('\n', f);
    }
}

/* ---- strategies by budgets at a glance ---- */

/* The main figure of a setting with its interval; of perplexities the ratio to the baseline's. "~": a tie with it. */
static void overview_cell(const clb_kvc *c, uint32_t setting, uint32_t task, char out[64])
{
    const enum clb_kvc_metric metric = clb_kvc_main_metric(c->tasks[task].kind);
    const clb_interval *const v = setting == CLB_KVC_NONE ? NULL : clb_kvc_mean_of(c, setting, task, metric);
    out[0] = '\0';
    if (!v || !v->n)
        return;
    const clb_kvc_pair *const p = c->baseline == CLB_KVC_NONE ? NULL : clb_kvc_against(c, setting, task, metric);
    const bool ratio = clb_kvc_metric_get(metric).average == CLB_KVC_LOG && p && p->n;
    const char *const tie = p && p->n > 1 && p->verdict == CLB_TIE ? " ~" : "";
    if (ratio)
        snprintf(out, 64, p->n > 1 ? "x%.4f (%.4f to %.4f)%s" : "x%.4f", p->change, p->low, p->high, tie);
    else
        snprintf(out, 64, v->n > 1 ? "%.1f (%.1f to %.1f)%s" : "%.1f", v->value, v->low, v->high, tie);
}

static bool in_overview(const clb_kvc *c, uint32_t name, uint32_t task)
{
    char text[64] = "";
    for (uint32_t b = 0; b < c->n_sizes && !*text; b++)
        overview_cell(c, clb_kvc_cell(c, name, b), task, text);
    return *text != '\0';
}

static void print_overview(const clb_kvc *c, uint32_t task, FILE *f, bool markdown)
{
    const clb_kvc_metric_info info = clb_kvc_metric_get(clb_kvc_main_metric(c->tasks[task].kind));
    const bool ratio = info.average == CLB_KVC_LOG && c->baseline != CLB_KVC_NONE;
    char text[400];
    fprintf(f, "\n%s%s %s: %s%s%s%s by budget\n\n", markdown ? "### " : "", clb_kvc_kind_name(c->tasks[task].kind),
            c->tasks[task].name, info.text, *info.unit ? ", " : "", info.unit, ratio ? " against the baseline" : "");
    for (uint32_t n = 0; n <= c->n_names; n++) { /* 0: the head */
        if (n && !in_overview(c, n - 1, task))
            continue;
        snprintf(text, sizeof text, "%s", n ? c->names[n - 1] : "strategy");
        if (markdown) {
            fputs("| ", f);
            markdown_cell(text, f);
        } else {
            fprintf(f, "%-20s", text);
        }
        for (uint32_t b = 0; b < c->n_sizes; b++) {
            if (n)
                overview_cell(c, clb_kvc_cell(c, n - 1, b), task, text);
            else
                snprintf(text, sizeof text, "%s", *c->sizes[b] ? c->sizes[b] : "all");
            if (markdown)
                fputs(" | ", f);
            markdown ? markdown_cell(text, f) : (void)fprintf(f, "  %28s", text);
        }
        fputs(markdown ? " |\n" : "\n", f);
        for (uint32_t b = 0; markdown && n == 0 && b <= c->n_sizes; b++)
            fputs(b == 0 ? "|---|" : b < c->n_sizes ? "---:|" : "---:|\n", f);
    }
}

/* Items of a task that have results: a grid may have been stopped on the way. */
static uint32_t items_with_results(const clb_kvc *c, uint32_t task)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < c->n_settings; s++) {
        const uint32_t n = clb_kvc_mean_of(c, s, task, CLB_KVC_RETAINED)->n;
        most = n > most ? n : most;
    }
    return most;
}

static const char *const notes =
    "Means over items (geometric for perplexity and speeds), with 95 % intervals by resampling items 10 000 times; "
    "comparisons are paired. Verdicts come from the interval; p is corrected (Holm) over all settings in the column, "
    "and "
    "\"~\" marks a tie with the baseline, \"?\" a verdict that does not survive that. \"Would have shown\": the "
    "smallest true difference that such a "
    "comparison sees 4 times in 5. Where all items agree, an interval has no width: the number of items says how much "
    "that "
    "is worth.";

static void print_pairs(const clb_kvc *c, uint32_t task, FILE *f)
{
    for (uint32_t b = 0; b < c->n_sizes; b++) {
        uint32_t n = 0, claims = 0;
        for (uint32_t i = 0; i < c->n_pairs; i++)
            if (c->pairs[i].task == task && c->pairs[i].size == b) {
                n++;
                claims += clb_kvc_claims(&c->pairs[i].pair);
            }
        if (n)
            fprintf(f, "At %s: %u of %u pairs of strategies differ (Holm over the %u).\n",
                    *c->sizes[b] ? c->sizes[b] : "the whole cache", claims, n, n);
    }
}

static void print_all(const clb_kvc *c, FILE *f, bool markdown)
{
    clb_error err;
    print_run(c, f, markdown ? "  \n" : "\n");
    for (uint32_t t = 0; t < c->n_tasks; t++)
        print_overview(c, t, f, markdown);
    for (uint32_t t = 0; t < c->n_tasks; t++)
        for (int kind = CLB_KVC_QUALITY; kind <= CLB_KVC_COST; kind++) {
            clb_kvc_table table;
            if (!clb_kvc_table_make(c, t, (enum clb_kvc_table_kind)kind, &table, &err) && table.n_rows) {
                fprintf(f, "\n%s%s %s: %s, %u items\n\n", markdown ? "### " : "", clb_kvc_kind_name(c->tasks[t].kind),
                        c->tasks[t].name, kind == CLB_KVC_QUALITY ? "quality" : "cost", items_with_results(c, t));
                if (markdown)
                    print_markdown_table(&table, c, f);
                else
                    print_table(&table, c, f);
                if (kind == CLB_KVC_QUALITY && c->n_pairs) {
                    fputc('\n', f);
                    print_pairs(c, t, f);
                }
            }
            clb_kvc_table_free(&table);
        }
    fprintf(f, "\n%s\n", notes);
    char bad[320];
    for (uint32_t s = 0; s < c->n_settings; s++)
        if (clb_kvc_bad_text(c, s, bad, sizeof bad)) {
            fputs(markdown ? "\n**Warning:** " : "Warning: ", f);
            if (markdown)
                markdown_cell(bad, f);
            else
                fputs(bad, f);
            fputc('\n', f);
        }
    if (c->other_machine)
        fprintf(f, "%sParts of this were run on different machines or versions: do not compare their speeds.\n",
                markdown ? "\n" : "");
    if (c->interrupted)
        fprintf(f, "%sStopped on request: what is complete is shown.\n", markdown ? "\n" : "");
}

void clb_kvc_print(const clb_kvc *c, FILE *f)
{
    print_all(c, f, false);
}

void clb_kvc_print_markdown(const clb_kvc *c, FILE *f)
{
    print_all(c, f, true);
}
