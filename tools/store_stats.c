#include "store_stats.h"

#include "base/str.h"

static double share(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static double rate(uint64_t bytes, uint64_t ns)
{
    return ns ? (double)bytes / (double)ns : 0.0; /* GB/s */
}

clb_cache_lookups clb_prompt_lookups(const clb_store_stats *s)
{
    return s->phase[COLIBRI_PHASE_PREFILL];
}

clb_cache_lookups clb_generation_lookups(const clb_store_stats *s)
{
    const clb_cache_lookups *const d = &s->phase[COLIBRI_PHASE_DECODE], *const v = &s->phase[COLIBRI_PHASE_VERIFY];
    return (clb_cache_lookups){d->hits + v->hits, d->misses + v->misses, d->late + v->late};
}

double clb_hit_percent(const clb_cache_lookups *n, double none)
{
    const uint64_t all = n->hits + n->misses + n->late;
    return all ? share(n->hits, all) : none;
}

/* "; prompt 41.2 %, generating 63.0 %", each if it has look-ups. */
static void print_phases(FILE *f, const clb_store_stats *s)
{
    const clb_cache_lookups prompt = clb_prompt_lookups(s), generation = clb_generation_lookups(s);
    const double p = clb_hit_percent(&prompt, -1), g = clb_hit_percent(&generation, -1);
    if (p >= 0)
        fprintf(f, "; prompt %.1f %%", p);
    if (g >= 0)
        fprintf(f, "%s generating %.1f %%", p >= 0 ? "," : ";", g);
}

static void print_experts(FILE *f, const clb_store_stats *s)
{
    char a[24], b[24];
    fprintf(f, "experts   policy %s: %u slots of %u experts (%s), hits %llu, misses %llu (%.1f %% hit", s->policy,
            s->n_slots, s->n_experts, clb_human_bytes(s->slot_bytes, a), (unsigned long long)s->hits,
            (unsigned long long)s->misses, share(s->hits, s->hits + s->misses + s->late));
    print_phases(f, s);
    fprintf(f, "), evictions %llu, read %s", (unsigned long long)s->evictions,
            clb_human_bytes(s->expert_bytes_read, b));
    if (s->bypassed)
        fprintf(f, ", bypassed %llu", (unsigned long long)s->bypassed);
    fputc('\n', f);
    if (!s->predictor)
        return;
    fprintf(
        f,
        "predictor %s: %llu experts read ahead (%s), useful %llu, late %llu, wasted %llu, called off %llu; held back "
        "%llu\n",
        s->predictor, (unsigned long long)s->guesses, clb_human_bytes(s->guess_bytes, a),
        (unsigned long long)s->guess_useful, (unsigned long long)s->guess_late, (unsigned long long)s->guess_wasted,
        (unsigned long long)s->guess_cancelled, (unsigned long long)s->guess_held_back);
    if (s->ahead_ratio > 0)
        fprintf(f, "          a pass takes %.2f times as long with reading ahead as without: %llu with, %llu without\n",
                s->ahead_ratio, (unsigned long long)s->passes_ahead, (unsigned long long)s->passes_plain);
}

static void print_reading(FILE *f, const clb_store_stats *s)
{
    char a[24];
    fprintf(f,
            "reading   %s%s: %s in %llu reads, drive busy %.2f s (%.2f GB/s), waited for it %.2f s, packing and checksums %.2f s\n",
            s->io.engine, s->io.direct ? ", direct" : ", through the page cache", clb_human_bytes(s->io.bytes, a),
            (unsigned long long)s->io.requests, (double)s->io.busy_ns / 1e9, rate(s->io.bytes, s->io.busy_ns),
            (double)s->stall_ns / 1e9, (double)s->pack_ns / 1e9);
    /* Also those that failed on the way; n_drives counts the others only. */
    const uint32_t most = sizeof s->io.drive_bytes / sizeof *s->io.drive_bytes;
    uint32_t used = 0;
    for (uint32_t d = 0; d < most; d++)
        used += s->io.drive_bytes[d] > 0;
    for (uint32_t d = 0; d < most && (used > 1 || s->io.n_drives > 1); d++)
        if (s->io.drive_bytes[d] || d < s->io.n_drives)
            fprintf(f, "          drive %u: %s, %.2f GB/s of late\n", d, clb_human_bytes(s->io.drive_bytes[d], a),
                    s->io.drive_bytes_per_second[d] / 1e9);
}

void clb_print_store_stats(FILE *f, const clb_store_stats *s)
{
    char a[24], b[24];
    if (s->n_experts)
        print_experts(f, s);
    if (s->streamed_layers)
        fprintf(f, "layers    streamed %llu times (%s), slots %s\n", (unsigned long long)s->streamed_layers,
                clb_human_bytes(s->layer_bytes_read, a), clb_human_bytes(s->layer_slot_bytes, b));
    if (s->reads_ahead)
        print_reading(f, s);
}

static json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *lookups_json(clb_cache_lookups n)
{
    return json_pack("{s:I, s:I, s:I}", "hits", (json_int_t)n.hits, "misses", (json_int_t)n.misses, "late",
                     (json_int_t)n.late);
}

void clb_store_stats_json(json_t *out, const clb_store_stats *s)
{
    if (s->n_experts) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "policy", s->policy, "slots",
                              (json_int_t)s->n_slots, "experts", (json_int_t)s->n_experts, "slot_bytes",
                              (json_int_t)s->slot_bytes, "hits", (json_int_t)s->hits, "misses", (json_int_t)s->misses,
                              "evictions", (json_int_t)s->evictions, "bytes_read", (json_int_t)s->expert_bytes_read,
                              "bad_answers", (json_int_t)s->bad_answers);
        json_object_set_new(o, "late", count(s->late));
        json_object_set_new(o, "prompt", lookups_json(clb_prompt_lookups(s)));
        json_object_set_new(o, "generation", lookups_json(clb_generation_lookups(s)));
        json_object_set_new(o, "bypassed", count(s->bypassed));
        json_object_set_new(o, "policy_seconds", json_real((double)s->policy_ns / 1e9));
        if (s->predictor)
            json_object_set_new(o, "predictor",
                                json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", s->predictor,
                                          "read_ahead", (json_int_t)s->guesses, "bytes", (json_int_t)s->guess_bytes,
                                          "useful", (json_int_t)s->guess_useful, "late", (json_int_t)s->guess_late,
                                          "wasted", (json_int_t)s->guess_wasted, "called_off",
                                          (json_int_t)s->guess_cancelled, "held_back", (json_int_t)s->guess_held_back));
        if (s->predictor && s->ahead_ratio > 0)
            json_object_set_new(o, "ahead",
                                json_pack("{s:f, s:I, s:I}", "time_ratio", s->ahead_ratio, "passes_with",
                                          (json_int_t)s->passes_ahead, "passes_without", (json_int_t)s->passes_plain));
        json_object_set_new(out, "experts", o);
    }
    if (!s->reads_ahead)
        return;
    json_t *r = json_pack("{s:s, s:b, s:I, s:I, s:I, s:f, s:f, s:f}", "engine", s->io.engine, "direct",
                          (int)s->io.direct, "bytes", (json_int_t)s->io.bytes, "requests", (json_int_t)s->io.requests,
                          "retried", (json_int_t)s->io.retried, "busy_seconds", (double)s->io.busy_ns / 1e9,
                          "stall_seconds", (double)s->stall_ns / 1e9, "pack_seconds", (double)s->pack_ns / 1e9);
    json_object_set_new(r, "streamed_layers", count(s->streamed_layers));
    json_object_set_new(r, "layer_bytes", count(s->layer_bytes_read));
    json_object_set_new(out, "reading", r);
}
