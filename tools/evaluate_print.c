/* Results of colibri evaluate for people. */
#include <math.h>
#include <string.h>

#include "evaluate.h"

/* "18.824 +/- 0.412"; without an error where one item says nothing about others. */
static char *with_error(double value, double se, int digits, char out[64])
{
    if (isnan(value))
        snprintf(out, 64, "-");
    else if (isnan(se))
        snprintf(out, 64, "%.*f", digits, value);
    else
        snprintf(out, 64, "%.*f +/- %.*f", digits, value, digits, se);
    return out;
}

static char *share(const clb_eval_mean *m, char out[64])
{
    if (m->n == 0)
        snprintf(out, 64, "-");
    else if (isnan(m->low))
        snprintf(out, 64, "%.1f %%", m->value);
    else
        snprintf(out, 64, "%.1f %% (%.1f to %.1f)", m->value, m->low, m->high);
    return out;
}

static int print_text(const clb_evaluation *e, uint32_t task, clb_error *err)
{
    static const char *const levels[] = {"maximum", "99.9 %", "99 %", "95 %", "90 %", "median", "10 %"};
    char text[64];
    clb_eval_text t;
    CLB_TRY(clb_eval_text_of(e, task, &t, err));
    const clb_eval_mean *const full = &t.nll[CLB_EVAL_FULL], *const own = &t.nll[CLB_EVAL_OWN];
    printf("%u piece%s of %u tokens, %llu scored%s\n", t.n_pieces, t.n_pieces == 1 ? "" : "s", e->text_tokens,
           (unsigned long long)t.n_scored, t.n_pieces == 1 ? " (one piece: no errors)" : "; +/- over pieces");
    printf("  perplexity, full f16 cache  %s\n", with_error(exp(full->value), exp(full->value) * full->se, 4, text));
    if (e->alone || t.n_pieces == 0)
        return COLIBRI_OK;
    printf("  perplexity, as configured   %s\n", with_error(exp(own->value), exp(own->value) * own->se, 4, text));
    printf("  ratio                       %s\n",
           with_error(exp(t.difference.value), exp(t.difference.value) * t.difference.se, 5, text));
    printf("  KL divergence, mean         %s nats\n", with_error(t.kl.value, t.kl.se, 6, text));
    for (int i = 0; i < 7; i++)
        printf("    %-25s %.6f\n", levels[i], t.kl_at[i]);
    printf("  same best token             %s %%\n", with_error(t.same_top.value, t.same_top.se, 3, text));
    printf("  delta p, mean               %s %%\n", with_error(t.delta_p.value, t.delta_p.se, 3, text));
    printf("  delta p, RMS                %s %%\n", with_error(t.delta_p_rms.value, t.delta_p_rms.se, 3, text));
    return COLIBRI_OK;
}

static int recall_row(const clb_evaluation *e, uint32_t task, uint32_t group, const char *sort, const char *name,
                      clb_error *err)
{
    char a[64], b[64], c[64];
    clb_eval_mean full, own = {0}, tokens, difference = {0};
    CLB_TRY(clb_eval_mean_of(e, task, group, sort, CLB_EVAL_FULL, CLB_KVC_EXACT, &full, err));
    if (full.n == 0)
        return COLIBRI_OK;
    if (e->alone) {
        CLB_TRY(clb_eval_mean_of(e, task, group, sort, CLB_EVAL_FULL, CLB_KVC_TOKENS, &tokens, err));
        printf("  %-20.40s %5u  %-24s  %s\n", name, full.n, share(&full, a), share(&tokens, b));
        return COLIBRI_OK;
    }
    CLB_TRY(clb_eval_mean_of(e, task, group, sort, CLB_EVAL_OWN, CLB_KVC_EXACT, &own, err));
    CLB_TRY(clb_eval_mean_of(e, task, group, sort, CLB_EVAL_OWN, CLB_KVC_TOKENS, &tokens, err));
    CLB_TRY(clb_eval_difference(e, task, group, sort, CLB_KVC_EXACT, &difference, err));
    snprintf(c, sizeof c, "%+.1f (%+.1f to %+.1f)", difference.value, difference.low, difference.high);
    if (isnan(difference.low))
        snprintf(c, sizeof c, "%+.1f", difference.value);
    printf("  %-20.40s %5u  %-24s  %-24s  %-24s  %.1f %%\n", name, full.n, share(&full, a), share(&own, b), c,
           tokens.value);
    return COLIBRI_OK;
}

static int print_recall(const clb_evaluation *e, uint32_t task, clb_error *err)
{
    const clb_kvc_task *const k = &e->grid.tasks[task];
    const char *sorts[64];
    const uint32_t n_sorts = clb_eval_sorts(e, task, sorts, 64);
    if (e->alone)
        printf("  %-20s %5s  %-24s  %s\n", "distance", "items", "right answers (95 %)", "right tokens");
    else
        printf("  %-20s %5s  %-24s  %-24s  %-24s  %s\n", "distance", "items", "full f16 cache (95 %)", "as configured",
               "difference", "right tokens");
    for (uint32_t g = 0; g < k->n_groups; g++) {
        CLB_TRY(recall_row(e, task, g, NULL, k->groups[g].label, err));
        for (uint32_t s = 0; s < n_sorts && n_sorts > 1; s++) {
            char name[48];
            snprintf(name, sizeof name, "  %.40s", sorts[s]);
            CLB_TRY(recall_row(e, task, g, sorts[s], name, err));
        }
    }
    return recall_row(e, task, CLB_KVC_ALL, NULL, "all", err);
}

/* Rows and columns of the needle grid at most; what lies beyond is in --json. */
#define MOST_LINES 32u

static void note(double *list, uint32_t *n, double v)
{
    for (uint32_t i = 0; i < *n; i++)
        if (fabs(list[i] - v) < 1e-9)
            return;
    if (*n < MOST_LINES)
        list[(*n)++] = v;
}

/* Needles found, depth by length. */
static int print_needles(const clb_evaluation *e, uint32_t task, int side, clb_error *err)
{
    const clb_kvc_task *const k = &e->grid.tasks[task];
    double lengths[MOST_LINES], depths[MOST_LINES];
    uint32_t n_lengths = 0, n_depths = 0;
    char text[64];
    for (uint32_t g = 0; g < k->n_groups; g++) {
        note(lengths, &n_lengths, k->groups[g].length);
        note(depths, &n_depths, k->groups[g].depth);
    }
    clb_sort_doubles(depths, n_depths);
    printf("  %s\n   depth", side == CLB_EVAL_FULL ? "full f16 cache" : "as configured");
    for (uint32_t i = 0; i < n_lengths; i++)
        printf("  %8.0f", lengths[i]);
    printf("  tokens\n");
    for (uint32_t d = 0; d < n_depths; d++) {
        printf("  %4.0f %%", depths[d]);
        for (uint32_t i = 0; i < n_lengths; i++) {
            clb_eval_mean m = {0};
            for (uint32_t g = 0; g < k->n_groups; g++)
                if (fabs(k->groups[g].length - lengths[i]) < 1e-9 && fabs(k->groups[g].depth - depths[d]) < 1e-9)
                    CLB_TRY(clb_eval_mean_of(e, task, g, NULL, side, CLB_KVC_EXACT, &m, err));
            snprintf(text, sizeof text, "%.0f of %u", m.value * m.n / 100, m.n);
            printf("  %8s", m.n ? text : "-");
        }
        putchar('\n');
    }
    clb_eval_mean all;
    CLB_TRY(clb_eval_mean_of(e, task, CLB_KVC_ALL, NULL, side, CLB_KVC_EXACT, &all, err));
    printf("  found of all %u (95 %% interval): %s\n", all.n, share(&all, text));
    return COLIBRI_OK;
}

static int cost_row(const clb_evaluation *e, uint32_t task, int side, clb_error *err)
{
    static const struct {
        enum clb_kvc_metric metric;
        int digits;
    } of[] = {{CLB_KVC_RETAINED, 1}, {CLB_KVC_BYTES, 2},  {CLB_KVC_PEAK, 2},
              {CLB_KVC_PREFILL, 1},  {CLB_KVC_DECODE, 1}, {CLB_KVC_ATTENTION, 3}};
    printf("  %-16s", side == CLB_EVAL_FULL ? "full f16 cache" : "as configured");
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        clb_eval_mean m;
        CLB_TRY(clb_eval_mean_of(e, task, CLB_KVC_ALL, NULL, side, of[i].metric, &m, err));
        if (m.n == 0)
            printf("  %11s", "-");
        else
            printf("  %11.*f", of[i].digits, m.value);
    }
    putchar('\n');
    return COLIBRI_OK;
}

static int print_costs(const clb_evaluation *e, uint32_t task, clb_error *err)
{
    printf("  %-16s  %11s  %11s  %11s  %11s  %11s  %11s\n", "", "kept %", "KV MiB, end", "most", "prompt t/s",
           "gen. t/s", "attn. ms/t");
    CLB_TRY(cost_row(e, task, CLB_EVAL_FULL, err));
    return e->alone ? COLIBRI_OK : cost_row(e, task, CLB_EVAL_OWN, err);
}

static void print_bad_answers(const clb_evaluation *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->cases.n; i++)
        n += e->items[i].done && e->items[i].run[CLB_EVAL_OWN].trial.bad_answers;
    if (n)
        printf("\nWarning: the strategy answered badly in %u of %u items, where the first and the newest positions stayed "
               "instead: the figures are not the strategy's.\n",
               n, e->n_done);
}

int clb_evaluate_print(const clb_evaluation *e, clb_error *err)
{
    printf("configured: %s\n", e->label);
    if (e->n_done < e->cases.n)
        printf("stopped after %u of %u items\n", e->n_done, e->cases.n);
    for (uint32_t t = 0; t < e->grid.n_tasks; t++) {
        const clb_kvc_task *const k = &e->grid.tasks[t];
        printf("\n%s %.200s\n", clb_kvc_kind_name(k->kind), k->name);
        if (k->kind == CLB_KVC_TEXT)
            CLB_TRY(print_text(e, t, err));
        else if (k->kind == CLB_KVC_RECALL)
            CLB_TRY(print_recall(e, t, err));
        else
            for (int side = 0; side < (e->alone ? 1 : 2); side++)
                CLB_TRY(print_needles(e, t, side, err));
        CLB_TRY(print_costs(e, t, err));
    }
    print_bad_answers(e);
    return COLIBRI_OK;
}
