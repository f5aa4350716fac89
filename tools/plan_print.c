/* colibri plan, for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/kv_settings.h"
#include "plan_report.h"

static const char *human(uint64_t bytes)
{
    static char ring[16][24]; /* a line prints a handful */
    static unsigned at;
    return clb_human_bytes(bytes, ring[at++ % 16]);
}

static double per_cent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static const char *rate(double v, char out[24])
{
    snprintf(out, 24, v < 9.995 ? "%.2f" : v < 99.95 ? "%.1f" : "%.0f", v);
    return out;
}

/* "12.1 .. 19.3", or one number where both ends are the same. */
static const char *range(double low, double high, char out[56])
{
    char a[24], b[24];
    rate(low, a);
    rate(high, b);
    if (strcmp(a, b) == 0)
        snprintf(out, 56, "%s", a);
    else
        snprintf(out, 56, "%s .. %s", a, b);
    return out;
}

static void head(const clb_plan_report *r)
{
    const clb_hparams *hp = &r->engine->model->hp;
    const clb_plan *p = &r->now.plan;
    printf("%s\n%s, %u layers", r->path, r->engine->model->arch->name, hp->n_layers);
    if (hp->n_experts)
        printf(", %u with %u experts each, %u of them for a token", r->engine->model->n_moe_layers, hp->n_experts,
               hp->top_k);
    printf("\n%u threads on %s, %u memory node%s\n", clb_pool_workers(r->engine->pool), r->topology.model,
           r->topology.numa, r->topology.numa == 1 ? "" : "s");
    printf("budget %s", human(p->budget));
    if (p->budget_is_default)
        printf(" (%u %% of what is free)", p->share);
    if (p->limited_by)
        printf(" (all that %s leaves)", clb_memory_limit_text(p->limited_by));
    printf(", the machine has %s free\n\n", human(p->available));
}

static void weights(const clb_plan_report *r)
{
    uint64_t sum = 0;
    char type[16];
    for (uint32_t i = 0; i < r->n_roles; i++)
        sum += r->role[i].bytes;
    printf("weights of the model\n");
    for (uint32_t i = 0; i < r->n_roles; i++)
        printf("  %-22s %-8s %12s %6.1f %%\n", i && r->role[i].role == r->role[i - 1].role ? "" : r->role[i].role,
               clb_gguf_type_name(r->role[i].type, type), human(r->role[i].bytes),
               per_cent((double)r->role[i].bytes, (double)sum));
    printf("  %-31s %12s\n\n", "together", human(sum));
}

static void line(const clb_plan *p, const char *what, uint64_t bytes)
{
    printf("  %-45s %12s %6.1f %%\n", what, human(bytes), per_cent((double)bytes, (double)p->budget));
}

static void memory(const clb_plan_report *r)
{
    const clb_plan *p = &r->now.plan;
    const clb_engine *e = r->engine;
    char what[96];
    printf("memory                                                bytes  of the budget\n");
    line(p, "the process itself", p->base_bytes);
    line(p, "embeddings and output matrix", p->embedding_bytes);
    snprintf(what, sizeof what, "dense weights, %u of %u layers", p->resident_layers, p->n_layers);
    line(p, what, p->dense_bytes);
    if (p->n_stream_slots) {
        snprintf(what, sizeof what, "slots for streamed layers, %u of %s", p->n_stream_slots,
                 human(p->layer_slot_bytes));
        line(p, what, p->stream_bytes);
    }
    if (p->n_experts) {
        snprintf(what, sizeof what, "expert slots, %u for %u experts (%.1f %%)", p->n_slots, p->n_experts,
                 per_cent(p->n_slots, p->n_experts));
        line(p, what, p->slot_bytes);
    }
    char types[CLB_KV_LAYOUT_TEXT];
    const uint64_t recent = e->plan_input.n_sequences * clb_kv_recent_bytes(&e->kv_layout, e->plan_input.kv_positions,
                                                                            e->plan_input.max_rows);
    snprintf(what, sizeof what, "KV cache, %u tokens, %s", e->plan_input.kv_positions,
             clb_kv_types_text(&e->kv_layout, types));
    line(p, what, p->kv_bytes - recent);
    snprintf(what, sizeof what, "its last %u tokens, and chunks of %u, in f16", e->kv_layout.recent,
             e->plan_input.max_rows);
    if (recent)
        line(p, what, recent);
    snprintf(what, sizeof what, "its tables, and what the strategy %.24s keeps", e->kv_choice.name);
    line(p, what, p->kv_strategy_bytes);
    snprintf(what, sizeof what, "buffers for %u rows", e->plan_input.max_rows);
    line(p, what, p->buffer_bytes);
    line(p, "read buffers", p->staging_bytes);
    snprintf(what, sizeof what, "LoRA adapters, %zu given, and their work space", e->adapters.n);
    if (p->lora_bytes)
        line(p, what, p->lora_bytes);
    line(p, "together", p->total_bytes);
    line(p, "left over", p->budget > p->total_bytes ? p->budget - p->total_bytes : 0);
    if (p->mapped_bytes)
        printf("  beside it, used in place in the file (page cache): %s\n", human(p->mapped_bytes));
    if (p->total_bytes + p->mapped_bytes > p->available)
        printf("  the machine has only %s free: it will %s\n", human(p->available),
               p->total_bytes > p->available ? "swap" : "read mapped weights again and again");
    putchar('\n');
}

static void speed(const clb_plan_report *r)
{
    const clb_prediction *d = &r->now.prediction;
    char a[56], b[56];
    printf("predicted speed, tokens per second\n  generating  %s\n  prompts     %s   (chunks of %u rows)\n\n",
           range(d->decode_low.tokens_per_second, d->decode_high.tokens_per_second, a),
           range(d->prefill_low.tokens_per_second, d->prefill_high.tokens_per_second, b), d->chunk_rows);
}

static void drive_lines(const clb_plan_report *r)
{
    const clb_prediction *d = &r->now.prediction;
    const clb_predict_case *low = &d->decode_low, *high = &d->decode_high;
    const double gb = r->rates.drive_bytes_per_second / 1e9;
    char a[56], b[56];
    if (r->now.plan.n_experts && low->hit < 1) {
        printf("  of the %.0f expert uses %s %% find the expert in memory, the others read %s each\n", d->expert_uses,
               range(100 * low->hit, 100 * high->hit, a), human((uint64_t)d->bytes_per_use));
    }
    if (d->stream_bytes > 0)
        printf("  the %u layers that do not stay are read for every token: %s\n",
               r->now.plan.n_layers - r->now.plan.resident_layers, human((uint64_t)d->stream_bytes));
    if (d->needs_drive)
        printf("  the drive: %s MB at %.2f GB/s: %s ms, while what is there is computed\n",
               range(high->drive_bytes / 1e6, low->drive_bytes / 1e6, a), gb,
               range(high->drive_ns / 1e6, low->drive_ns / 1e6, b));
    if (low->pack_ns > 0)
        printf("  packing what was read: %s ms\n", range(high->pack_ns / 1e6, low->pack_ns / 1e6, a));
}

static void reasons(const clb_plan_report *r)
{
    const clb_prediction *d = &r->now.prediction;
    char a[56];
    printf("why: a token\n  multiplies %s of dense weights: %.2f ms\n", human((uint64_t)d->dense_bytes),
           d->dense_ns / 1e6);
    if (d->expert_uses > 0)
        printf("  and %s of experts, %u in each of %u layers: %.2f ms\n", human((uint64_t)d->expert_bytes),
               r->engine->model->hp.top_k, r->engine->model->n_moe_layers, d->expert_ns / 1e6);
    printf("  reads %s of keys and values: %.2f ms; starts its parallel loops: %.2f ms\n", human((uint64_t)d->kv_bytes),
           d->kv_ns / 1e6, d->loop_ns / 1e6);
    drive_lines(r);
    const bool drive = d->decode_low.drive_ns > d->expert_ns + d->decode_low.pack_ns;
    printf("  together %s ms: %s\n", range(d->decode_high.ns / 1e6, d->decode_low.ns / 1e6, a),
           !d->needs_drive ? "nothing is read from the drive"
           : drive         ? "the drive is what it waits for, so memory, a faster drive or a better policy would help"
                           : "reads hide behind computing");
    printf("why: a chunk of %u rows of a prompt\n  multiplies for %.0f ms in dense matrices", d->chunk_rows,
           d->chunk_dense_ns / 1e6);
    if (d->chunk_experts > 0)
        printf(" and %.0f ms in %.0f experts, each read once", d->chunk_expert_ns / 1e6, d->chunk_experts);
    printf("; attention and the rest %.0f ms\n", d->chunk_other_ns / 1e6);
    if (d->prefill_low.drive_bytes > 0)
        printf("  reads %s MB: %s ms\n", range(d->prefill_high.drive_bytes / 1e6, d->prefill_low.drive_bytes / 1e6, a),
               range(d->prefill_high.drive_ns / 1e6, d->prefill_low.drive_ns / 1e6, (char[56]){0}));
    putchar('\n');
}

static void rates(const clb_plan_report *r)
{
    const clb_rates *v = &r->rates;
    printf("rates\n");
    for (uint32_t i = 0; i < v->n_kernels; i++) {
        const clb_rate_kernel *k = &v->kernel[i];
        printf("  %-8s %7.2f GB/s for one row, %7.0f G multiply-adds/s for 64", k->name,
               k->decode_bytes_per_second / 1e9, k->prefill_macs_per_second / 1e9);
        if (k->pack_bytes_per_second > 0)
            printf(", packed at %.1f GB/s", k->pack_bytes_per_second / 1e9);
        printf("   (%s)\n", clb_rate_source_text(k->source));
    }
    printf("  drive    %7.2f GB/s %s   (%s)\n", v->drive_bytes_per_second / 1e9,
           v->drive_direct ? "past the page cache" : "through the page cache", clb_rate_source_text(v->drive_source));
    printf("  a parallel loop %.1f us   (%s)\n", v->loop_ns / 1e3, clb_rate_source_text(v->loop_source));
    if (v->spent_ns)
        printf("  measured in %.2f s\n", (double)v->spent_ns / 1e9);
    if (!r->now.plan.n_experts || r->now.plan.all_experts)
        return;
    if (r->trace)
        printf("hit rates of LRU in the trace %s, first uses apart\n", r->trace);
    else
        printf(
            "hit rates are assumed: LRU, experts drawn with equal chances .. by Zipf's law with exponent %.1f, as in "
            "published traces (--trace uses yours)\n",
            CLB_TYPICAL_SKEW);
}

void clb_plan_print_rows(const clb_plan_report *r)
{
    const bool moe = r->engine->model->n_moe_layers > 0;
    printf("%10s  %9s  %s%18s  %18s\n", "budget", "layers", moe ? "  experts  " : "", "generating tok/s",
           "prompts tok/s");
    for (uint32_t i = 0; i < r->n_rows; i++) {
        const clb_plan_row *row = &r->rows[i];
        const clb_plan *p = &row->plan;
        const clb_prediction *d = &row->prediction;
        char layers[32], a[56], b[56];
        if (!row->fits) {
            printf("%10s  does not fit: %s\n", human(row->budget), row->why_not);
            continue;
        }
        snprintf(layers, sizeof layers, "%u/%u", p->resident_layers, p->n_layers);
        printf("%10s  %9s  ", human(row->budget), layers);
        if (moe)
            printf("%7.1f %%  ", per_cent(p->all_experts ? p->n_experts : p->n_slots, p->n_experts));
        printf("%18s  %18s\n", range(d->decode_low.tokens_per_second, d->decode_high.tokens_per_second, a),
               range(d->prefill_low.tokens_per_second, d->prefill_high.tokens_per_second, b));
        if (p->limited_by)
            printf("%10s  (only %s of it: that is what %s leaves)\n", "", human(p->budget),
                   clb_memory_limit_text(p->limited_by));
    }
    putchar('\n');
}

void clb_plan_print(const clb_plan_report *r)
{
    head(r);
    weights(r);
    memory(r);
    speed(r);
    reasons(r);
    rates(r);
}
