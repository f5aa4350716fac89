/* Prediction against reality, for --stats. */
#include "plan_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>

#include "plan/predict.h"
#include "store_stats.h"

/* With remembered rates only: measuring takes memory that the budget has not got any more. */
static bool predict(const clb_engine *e, const clb_generation *g, clb_prediction *out)
{
    char path[4096];
    clb_topology topology;
    clb_rates rates;
    clb_topology_read(&topology);
    const clb_rates_options options = {.model = e->model,
                                       .pool = e->pool,
                                       .cpu_model = topology.model,
                                       .cache_file = clb_rates_default_path(path, sizeof path) ? path : NULL};
    clb_rates_get(&options, &rates);
    clb_plan_input in = e->plan_input;
    const uint32_t n_new = g->n_prompt - g->n_reused;
    if (n_new && n_new < in.max_rows)
        in.max_rows = n_new;
    const clb_predict_input input = {.model = e->model,
                                     .plan_input = &in,
                                     .plan = &e->plan,
                                     .rates = &rates,
                                     .n_kv = g->n_prompt + (uint32_t)g->tokens.n / 2};
    clb_predict(&input, out);
    return rates.kernel[0].source != CLB_RATE_ASSUMED && (!out->needs_drive || rates.drive_source != CLB_RATE_ASSUMED);
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

/* Of generation alone, as the prediction is; in percent, -1: nothing was looked up. */
static double hit_percent(const clb_engine *e)
{
    clb_store_stats s;
    clb_store_get_stats(e->model->store, &s);
    const clb_cache_lookups n = clb_generation_lookups(&s);
    return clb_hit_percent(&n, -1);
}

static uint64_t peak_rss(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * 1024;
}

/* How long the threads that there are were ready to run while others had the processor, in ns; false where the kernel
 * does not say. */
static bool waited_for_cpu(uint64_t *out)
{
    DIR *const tasks = opendir("/proc/self/task");
    bool known = false;
    *out = 0;
    for (const struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300];
        unsigned long long ran, waited;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
        FILE *const f = *d->d_name == '.' ? NULL : fopen(path, "re");
        if (f && fscanf(f, "%llu %llu", &ran, &waited) == 2) {
            *out += waited;
            known = true;
        }
        if (f)
            fclose(f);
    }
    if (tasks)
        closedir(tasks);
    return known;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* A run that is slower than predicted is so because of the drive, which print_reading shows, or because of this. */
static void print_processor(FILE *f)
{
    struct rusage usage;
    uint64_t waited;
    if (getrusage(RUSAGE_SELF, &usage))
        return;
    fprintf(f, "processor %.2f s used by all threads", seconds(usage.ru_utime) + seconds(usage.ru_stime));
    if (waited_for_cpu(&waited))
        fprintf(f, ", %.2f s waited for it while other programs had it", (double)waited / 1e9);
    fputc('\n', f);
}

void clb_plan_stats_print(FILE *f, const clb_engine *e, const clb_generation *g)
{
    char a[24], b[24], c[24];
    clb_prediction p;
    fprintf(f, "planned   %s of %s, peak RSS %s\n", clb_human_bytes(e->plan.total_bytes, a),
            clb_human_bytes(e->plan.budget, b), clb_human_bytes(peak_rss(), c));
    print_processor(f);
    if (!g)
        return;
    if (!predict(e, g, &p)) {
        fputs("predicted nothing: 'colibri plan' measures the rates for it, once\n", f);
        return;
    }
    fprintf(f, "predicted %.1f to %.1f tok/s generating, was %.1f; prompt %.1f to %.1f, was %.1f",
            p.decode_low.tokens_per_second, p.decode_high.tokens_per_second, per_second(g->tokens.n, g->decode_ns),
            p.prefill_low.tokens_per_second, p.prefill_high.tokens_per_second,
            per_second(g->n_prompt - g->n_reused, g->prompt_ns));
    const double hit = hit_percent(e);
    if (e->plan.n_experts && !e->plan.all_experts && hit >= 0)
        fprintf(f, "; hits generating %.0f to %.0f %%, were %.0f %%", 100 * p.decode_low.hit, 100 * p.decode_high.hit,
                hit);
    fputc('\n', f);
}

json_t *clb_plan_stats_json(const clb_engine *e, const clb_generation *g)
{
    clb_prediction p;
    json_t *o = json_pack("{s:I, s:I, s:I}", "budget_bytes", (json_int_t)e->plan.budget, "planned_bytes",
                          (json_int_t)e->plan.total_bytes, "peak_rss_bytes", (json_int_t)peak_rss());
    if (g && predict(e, g, &p))
        json_object_set_new(
            o, "predicted",
            json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "decode_per_second_low", p.decode_low.tokens_per_second,
                      "decode_per_second_high", p.decode_high.tokens_per_second, "prompt_per_second_low",
                      p.prefill_low.tokens_per_second, "prompt_per_second_high", p.prefill_high.tokens_per_second,
                      "hit_rate_low", p.decode_low.hit, "hit_rate_high", p.decode_high.hit));
    return o;
}
