/* A comparison for people. */
#include <math.h>
#include <string.h>

#include "compare.h"

static void see_difference(void *ctx, const char *name, const char *a, const char *b)
{
    unsigned *const n = ctx;
    if ((*n)++ == 0)
        printf("%-34s %-22s %s\n", "setting", "A", "B");
    printf("%-34s %-22s %s\n", name, *a ? a : "-", *b ? b : "-");
}

static void print_side(const clb_side *s)
{
    char a[24], b[24];
    if (!s->known)
        return;
    printf("%c: %s", s->name, s->arch);
    if (s->plan.n_experts)
        printf(", policy %s, predictor %s, %u slots of %u experts", s->policy, s->predictor, s->plan.n_slots,
               s->plan.n_experts);
    printf(", KV %s, %u threads; plan %s of %s%s%s\n", s->strategy, s->threads, clb_human_bytes(s->plan.total_bytes, a),
           clb_human_bytes(s->plan.budget, b), *s->lossy ? "; lossy: " : "", s->lossy);
}

size_t clb_compare_warnings(const clb_comparison *c, const char *out[CLB_COMPARE_WARNINGS])
{
    size_t n = 0;
    if (c->summary.result[CLB_COMPARE_TTFT].n < CLB_COMPARE_ENOUGH)
        out[n++] = "With fewer than 6 prompts intervals are too narrow: wins and losses here are hints, not results.";
    if (!c->together && c->rounds == 1)
        out[n++] = "All prompts ran with A, then all with B: what changed on the machine meanwhile looks like a "
                   "difference (--rounds 2 helps).";
    return n;
}

static void print_head(const clb_comparison *c)
{
    unsigned n = 0;
    printf("%s\n", clb_config_str(c->side[0].config, CLB_SET_model_model));
    clb_compare_differences(c, see_difference, &n);
    if (n == 0)
        printf("A and B have the same settings: what differs below is noise\n");
    print_side(&c->side[0]);
    print_side(&c->side[1]);
    printf("%u prompt%s, %u round%s, up to %u tokens each, seed %llu; %u complete pairs\n", c->prompts.n,
           c->prompts.n == 1 ? "" : "s", c->rounds, c->rounds == 1 ? "" : "s", c->n_tokens, (unsigned long long)c->seed,
           c->summary.n_pairs);
    printf("cache: %s\n", c->warm ? "warm, kept from prompt to prompt on each side"
                                  : "cold, expert slots emptied and page cache dropped before every prompt");
    printf("order: %s\n\n",
           c->together     ? "A B, B A, ... prompt by prompt, both engines open, reversed in every other round"
           : c->rounds > 1 ? "pass by pass over all prompts (A, B, then B, A), one engine open at a time"
                           : "all prompts with A, then all with B");
}

/* "1.05x" or "+1.3", as wide as its column. */
static const char *change_text(const clb_compare_metric_info *info, double v, char out[24])
{
    snprintf(out, 24, info->ratio ? "%.3fx" : "%+.3g", v);
    return out;
}

static void print_results(const clb_comparison *c)
{
    printf("%-28s %10s %10s  %-9s %-22s %-7s %s\n", "", "A", "B", "B to A", "95 % interval", "B is a",
           "would have shown");
    for (int m = 0; m < CLB_COMPARE_METRIC_COUNT; m++) {
        const clb_compare_metric_info info = clb_compare_metric_get((enum clb_compare_metric)m);
        const clb_compare_result *const r = &c->summary.result[m];
        char name[48], change[24], low[24], high[24], range[64], seen[32];
        if (!r->present)
            continue;
        snprintf(name, sizeof name, "%s, %s", info.text, info.unit);
        snprintf(range, sizeof range, "%s .. %s", change_text(&info, r->low, low), change_text(&info, r->high, high));
        if (!isfinite(r->detectable))
            snprintf(seen, sizeof seen, "-");
        else if (info.ratio)
            snprintf(seen, sizeof seen, r->detectable < 0.1 ? "%.2g %%" : "%.0f %%", 100 * r->detectable);
        else
            snprintf(seen, sizeof seen, r->detectable < 100 ? "%.2g %s" : "%.0f %s", r->detectable,
                     !strcmp(info.unit, "%") ? "points" : info.unit);
        printf("%-28s %10.4g %10.4g  %-9s %-22s %-7s %s\n", name, r->mean[0], r->mean[1],
               change_text(&info, r->change, change), range, clb_verdict_name(r->verdict), seen);
    }
    printf("\nMeans over prompts (geometric for times and rates); intervals by paired bootstrap over %u prompts.\n"
           "\"Would have shown\": the smallest true difference that such a comparison sees 4 times in 5.\n",
           c->summary.result[CLB_COMPARE_TTFT].n);
    const char *warnings[CLB_COMPARE_WARNINGS];
    const size_t n = clb_compare_warnings(c, warnings);
    for (size_t i = 0; i < n; i++)
        puts(warnings[i]);
}

static double hits_percent(const clb_comparison *c, const char *topic, uint32_t side)
{
    uint64_t hits = 0, all = 0;
    for (size_t i = 0; i < c->n_runs; i++) {
        const clb_compare_run *const r = &c->runs[i];
        if (r->side != side || strcmp(c->prompts.v[r->prompt].topic, topic) != 0)
            continue;
        hits += r->in_prompt.hits + r->in_steps.hits;
        all += r->in_prompt.hits + r->in_prompt.late + r->in_prompt.misses + r->in_steps.hits + r->in_steps.late +
               r->in_steps.misses;
    }
    return all ? 100.0 * (double)hits / (double)all : NAN;
}

static void print_topics(const clb_comparison *c)
{
    bool head = false;
    for (uint32_t p = 0; p < c->prompts.n; p++) {
        const char *const topic = c->prompts.v[p].topic;
        bool seen = !*topic;
        for (uint32_t q = 0; q < p && !seen; q++)
            seen = !strcmp(c->prompts.v[q].topic, topic);
        const double a = hits_percent(c, topic, 0), b = hits_percent(c, topic, 1);
        if (seen || isnan(a) || isnan(b))
            continue;
        if (!head)
            printf("\n%-28s %10s %10s\n", "hit rate by topic, %", "A", "B");
        head = true;
        printf("%-28.28s %10.2f %10.2f\n", topic, a, b);
    }
}

static void print_prefetch(const clb_comparison *c)
{
    for (uint32_t side = 0; side < CLB_SIDES; side++) {
        clb_compare_counters s = {0};
        for (size_t i = 0; i < c->n_runs; i++) {
            const clb_compare_counters *const part[] = {&c->runs[i].in_prompt, &c->runs[i].in_steps};
            for (int k = 0; k < 2 && c->runs[i].side == side; k++) {
                s.prefetches += part[k]->prefetches;
                s.prefetch_useful += part[k]->prefetch_useful;
                s.prefetch_wasted += part[k]->prefetch_wasted;
                s.late += part[k]->late;
            }
        }
        if (s.prefetches)
            printf("prefetch %c: %llu experts, %llu useful, %llu late, %llu wasted\n", c->side[side].name,
                   (unsigned long long)s.prefetches, (unsigned long long)s.prefetch_useful, (unsigned long long)s.late,
                   (unsigned long long)s.prefetch_wasted);
    }
}

static void print_memory(const clb_comparison *c)
{
    uint64_t peak[CLB_SIDES] = {0};
    char a[24], b[24];
    for (size_t i = 0; i < c->n_runs; i++)
        if (c->runs[i].peak_rss > peak[c->runs[i].side])
            peak[c->runs[i].side] = c->runs[i].peak_rss;
    if (c->together)
        printf("peak RSS, both engines: %s\n", clb_human_bytes(peak[0] > peak[1] ? peak[0] : peak[1], a));
    else if (peak[0] && peak[1])
        printf("peak RSS: A %s, B %s\n", clb_human_bytes(peak[0], a), clb_human_bytes(peak[1], b));
}

static void print_equality(const clb_comparison *c)
{
    const clb_compare_summary *const s = &c->summary;
    if (*c->lossy) {
        printf("lossy (%s): B was given A's tokens; KL divergence of its logits from A's: mean %.3g, largest %.3g "
               "nats; same "
               "best token in %.2f %% of %llu steps\n",
               c->lossy, s->kl_mean, s->kl_max,
               s->n_compared ? 100.0 * (double)s->n_same_top / (double)s->n_compared : 0.0,
               (unsigned long long)s->n_compared);
        return;
    }
    printf("tokens and logits: equal bit by bit in %u of %u pairs%s\n", s->n_equal_pairs, s->n_pairs,
           s->differs ? ": A AND B DIFFER" : "");
}

static void print_gate(const clb_comparison *c)
{
    const clb_compare_gate *const g = &c->summary.gate;
    printf("gate: generation %.3fx (A first %.3fx, B first %.3fx; each at least %.2fx), time to first token %.3fx and "
           "99 %% "
           "latency %.3fx (at most %.2fx): %s%s\n",
           g->gain, g->gain_a_first, g->gain_b_first, CLB_GATE_GAIN, g->ttft, g->p99, CLB_GATE_SLOW,
           g->passed ? "passed" : "NOT passed", g->too_few ? ": too few prompts to judge by" : "");
}

void clb_compare_print(const clb_comparison *c)
{
    print_head(c);
    if (c->summary.n_pairs == 0) {
        printf("no pair of runs is complete\n");
        return;
    }
    print_results(c);
    print_topics(c);
    printf("\n");
    print_prefetch(c);
    print_memory(c);
    print_equality(c);
    if (c->gate)
        print_gate(c);
}
