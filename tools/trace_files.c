/* colibri trace import, export, info. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "config/value.h"
#include "json_out.h"
#include "replay/replay.h"
#include "trace.h"

int clb_trace_flag(const clb_args *args, const char *flag, uint32_t most, uint32_t *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    uint64_t v = 0;
    if (!text)
        return COLIBRI_OK;
    if (clb_parse_u64(text, &v, NULL) || v < 1 || v > most)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %.60s: must be a whole number between 1 and %u", flag, text, most);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

static int import_options(const clb_args *args, clb_trace_import_options *o, int *format, clb_error *err)
{
    *o = (clb_trace_import_options){.label = clb_args_value(args, "label")};
    *format = -1;
    const char *const from = clb_args_value(args, "from"), *const bytes = clb_args_value(args, "expert-bytes");
    if (from && (*format = clb_trace_format_of(from)) < 0)
        return clb_fail(err, COLIBRI_E_USAGE, "--from %.40s: clbt, csv, jsonl, oracleGeneral or trc1 is expected",
                        from);
    if (bytes && (clb_parse_size(bytes, &o->expert_bytes, NULL) || !o->expert_bytes))
        return clb_fail(err, COLIBRI_E_USAGE, "--expert-bytes %.40s: a size such as 700K is expected", bytes);
    CLB_TRY(clb_trace_flag(args, "prefill", CLB_TRACE_ROWS_MAX, &o->prefill, err));
    CLB_TRY(clb_trace_flag(args, "layers", CLB_TRACE_LAYERS_MAX, &o->n_layers, err));
    CLB_TRY(clb_trace_flag(args, "experts", CLB_TRACE_EXPERTS_MAX, &o->n_experts, err));
    return clb_trace_flag(args, "top-k", CLB_TRACE_EXPERTS_MAX, &o->top_k, err);
}

static int open_any(const clb_args *args, const char *file, clb_trace **out, clb_error *err)
{
    clb_trace_import_options o;
    int format;
    CLB_TRY(import_options(args, &o, &format, err));
    CLB_TRY(clb_trace_import_file(file, format, &o, out, err));
    if ((*out)->ends_early)
        clb_logf(clb_args_log(args), COLIBRI_LOG_WARN, "%s ends early: its %" PRIu64 " complete passes are used", file,
                 (*out)->n_passes);
    return COLIBRI_OK;
}

int clb_trace_cmd_import(clb_args *args, const char *file, clb_error *err)
{
    const char *const out = clb_args_value(args, "output");
    clb_trace *t = NULL;
    if (!out)
        return clb_fail(err, COLIBRI_E_USAGE, "say with -o where the trace goes");
    if (clb_args_has(args, "to"))
        return clb_fail(err, COLIBRI_E_USAGE, "--to goes with 'export'");
    CLB_TRY(open_any(args, file, &t, err));
    const int rc = clb_trace_save(t, out, clb_args_has(args, "force"), err);
    if (!rc)
        printf("%s: %" PRIu64 " units, %" PRIu64 " passes, %" PRIu64 " tokens\n", out, t->n_units, t->n_passes,
               t->n_rows);
    clb_trace_close(t);
    return rc;
}

static int to_stream(void *ctx, const void *data, size_t n, clb_error *err)
{
    return fwrite(data, 1, n, ctx) == n ? COLIBRI_OK
                                        : clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write the trace");
}

static int to_file(void *ctx, const void *data, size_t n, clb_error *err)
{
    return clb_file_write(ctx, data, n, err);
}

static int export_to(const clb_trace *t, enum clb_trace_format format, const char *out, bool replace, clb_error *err)
{
    clb_new_file f;
    int rc = clb_file_begin(&f, out, replace, err);
    if (!rc)
        rc = clb_trace_export(t, format, &(struct clb_trace_sink){to_file, &f}, err);
    if (!rc)
        rc = clb_file_finish(&f, err);
    clb_file_drop(&f);
    return rc;
}

int clb_trace_cmd_export(clb_args *args, const char *file, clb_error *err)
{
    const char *const to = clb_args_value(args, "to"), *const named = clb_args_value(args, "output");
    const char *const out = named && strcmp(named, "-") != 0 ? named : NULL; /* standard output */
    const int format = to ? clb_trace_format_of(to) : -1;
    clb_trace *t = NULL;
    if (format != CLB_TRACE_CSV && format != CLB_TRACE_JSONL && format != CLB_TRACE_ORACLE)
        return clb_fail(err, COLIBRI_E_USAGE, "--to csv, jsonl or oracleGeneral is expected%s%.40s", to ? ", not " : "",
                        to ? to : "");
    CLB_TRY(open_any(args, file, &t, err));
    int rc;
    if (out) {
        rc = export_to(t, (enum clb_trace_format)format, out, clb_args_has(args, "force"), err);
    } else {
        rc = clb_trace_export(t, (enum clb_trace_format)format, &(struct clb_trace_sink){to_stream, stdout}, err);
        if (!rc && fflush(stdout))
            rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to standard output");
    }
    clb_trace_close(t);
    return rc;
}

/* ---- info ---- */

struct facts {
    uint64_t passes[3], rows[3]; /* by phase */
    uint64_t lookups, took_ns;
    double *effective; /* [n_layers]: exp(entropy) of the experts' shares */
    double *busiest;   /* [n_layers]: share of the busiest quarter */
    double again;      /* chance that an expert is used by the next decode token, too */
};

static int compare_counts(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static int layer_use(const clb_trace *t, struct facts *f, clb_error *err)
{
    const clb_trace_info *const i = &t->info;
    uint64_t *const count = malloc(i->n_experts * sizeof *count);
    f->effective = calloc(i->n_layers, sizeof *f->effective);
    f->busiest = calloc(i->n_layers, sizeof *f->busiest);
    if (!count || !f->effective || !f->busiest) {
        free(count);
        return CLB_NOMEM(err, "the trace's figures");
    }
    for (uint32_t l = 0; l < i->n_layers; l++) {
        uint64_t sum = 0;
        memset(count, 0, i->n_experts * sizeof *count);
        for (uint64_t p = 0; p < t->n_passes; p++) {
            const uint64_t at = clb_trace_at(t, p, l), n = (uint64_t)t->passes[p].n_rows * i->top_k;
            for (uint64_t k = 0; k < n; k++)
                count[t->ids[at + k]]++;
            sum += n;
        }
        if (i->n_experts > 1)
            qsort(count, i->n_experts, sizeof *count, compare_counts);
        double entropy = 0, top = 0;
        for (uint32_t e = 0; e < i->n_experts && sum; e++) {
            const double share = (double)count[e] / (double)sum;
            entropy -= share > 0 ? share * log(share) : 0;
            top += e < (i->n_experts + 3) / 4 ? share : 0;
        }
        f->effective[l] = exp(entropy);
        f->busiest[l] = top;
    }
    free(count);
    return COLIBRI_OK;
}

static void reuse(const clb_trace *t, struct facts *f)
{
    const uint32_t k = t->info.top_k;
    uint64_t same = 0, all = 0;
    for (uint64_t p = 1; p < t->n_passes; p++) {
        const clb_trace_pass *const a = &t->passes[p - 1], *const b = &t->passes[p];
        if (a->n_rows != 1 || b->n_rows != 1 || a->unit != b->unit)
            continue;
        for (uint32_t l = 0; l < t->info.n_layers; l++) {
            const uint32_t *const x = t->ids + clb_trace_at(t, p - 1, l), *const y = t->ids + clb_trace_at(t, p, l);
            for (uint32_t i = 0; i < k; i++)
                for (uint32_t j = 0; j < k; j++)
                    same += x[i] == y[j];
            all += k;
        }
    }
    f->again = all ? (double)same / (double)all : (double)NAN;
}

static void print_info(const clb_trace *t, const struct facts *f)
{
    static const char *const phases[] = {"prefill", "decode", "verify"};
    static const char *const gates[] = {"not recorded", "f16", "f32"};
    const clb_trace_info *const i = &t->info;
    printf("model      %s%s%s%s\n", *i->model ? i->model : "not named", *i->arch ? " (" : "", i->arch,
           *i->arch ? ")" : "");
    printf("experts    %u layers of %u, top %u", i->n_layers, i->n_experts, i->top_k);
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < i->n_layers; l++)
        bytes += i->expert_bytes[l];
    char text[24];
    printf(bytes ? "; %s each in the mean\n" : "; size not known\n", clb_human_bytes(bytes / i->n_layers, text));
    printf("recorded   %" PRIu64 " units, %" PRIu64 " passes, %" PRIu64 " tokens, %" PRIu64 " look-ups%s\n", t->n_units,
           t->n_passes, t->n_rows, f->lookups, t->ends_early ? "; ends early" : "");
    for (int p = 0; p < 3; p++)
        if (f->passes[p])
            printf("%-10s %" PRIu64 " passes, %" PRIu64 " tokens\n", phases[p], f->passes[p], f->rows[p]);
    printf("weights    %s\nguesses    ", gates[i->gates]);
    if (i->ahead_layers)
        printf("%u best of %u layers ahead\n", i->ahead_top, i->ahead_layers);
    else
        puts("not recorded");
    const clb_trace_rates *const r = &t->rates;
    if (r->decode_layer_ns > 0)
        printf("rates      decode: %.1f us per layer, %.2f us per expert; prompt: %.1f us per token and layer, %.2f us "
               "per "
               "expert and token\n",
               r->decode_layer_ns / 1e3, r->decode_expert_ns / 1e3, r->prefill_layer_ns / 1e3,
               r->prefill_expert_ns / 1e3);
    if (r->read_bytes_per_s > 0)
        printf("drive      %.2f GB/s, first byte ", r->read_bytes_per_s / 1e9);
    if (r->read_bytes_per_s > 0 && r->read_latency_ns > 0)
        printf("after %.0f us\n", r->read_latency_ns / 1e3);
    else if (r->read_bytes_per_s > 0)
        puts("not measured");
    if (!isnan(f->again))
        printf("reuse      %.1f %% of a token's experts are used by the next one, too\n", 100 * f->again);
    printf("%-6s %20s %28s\n", "layer", "effective experts", "share of the busiest quarter");
    for (uint32_t l = 0; l < i->n_layers; l++)
        printf("%-6u %20.1f %27.1f%%\n", l, f->effective[l], 100 * f->busiest[l]);
}

static int print_info_json(const clb_trace *t, const struct facts *f, clb_error *err)
{
    json_t *const layers = json_array(), *const units = json_array();
    for (uint32_t l = 0; l < t->info.n_layers; l++)
        json_array_append_new(layers,
                              json_pack("{s:I, s:f, s:f}", "expert_bytes", (json_int_t)t->info.expert_bytes[l],
                                        "effective_experts", f->effective[l], "busiest_quarter", f->busiest[l]));
    for (uint64_t u = 0; u < t->n_units; u++)
        json_array_append_new(units,
                              json_pack("{s:o, s:I, s:I}", "label", clb_json_text(t->units[u].label), "passes",
                                        (json_int_t)t->units[u].n_passes, "tokens", (json_int_t)t->units[u].n_rows));
    const clb_trace_rates *const r = &t->rates;
    json_t *const o = json_pack(
        "{s:o, s:o, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:b, s:i, s:i, s:{s:f, s:f, s:f, s:f, s:f, s:f}, s:o, s:o, s:o}",
        "model", clb_json_text(t->info.model), "arch", clb_json_text(t->info.arch), "n_layers", (int)t->info.n_layers,
        "n_experts", (int)t->info.n_experts, "top_k", (int)t->info.top_k, "passes", (json_int_t)t->n_passes, "tokens",
        (json_int_t)t->n_rows, "lookups", (json_int_t)f->lookups, "decode_passes",
        (json_int_t)f->passes[COLIBRI_PHASE_DECODE], "ends_early", t->ends_early, "ahead_layers",
        (int)t->info.ahead_layers, "ahead_top", (int)t->info.ahead_top, "rates", "decode_layer_ns", r->decode_layer_ns,
        "decode_expert_ns", r->decode_expert_ns, "prefill_layer_ns", r->prefill_layer_ns, "prefill_expert_ns",
        r->prefill_expert_ns, "read_bytes_per_s", r->read_bytes_per_s, "read_latency_ns", r->read_latency_ns,
        "reuse_next_token", isnan(f->again) ? json_null() : json_real(f->again), "layers", layers, "units", units);
    return clb_json_print(o, err);
}

int clb_trace_cmd_info(clb_args *args, const char *file, clb_error *err)
{
    clb_trace *t = NULL;
    clb_replay_index index = {0};
    struct facts f = {0};
    CLB_TRY(open_any(args, file, &t, err));
    for (uint64_t p = 0; p < t->n_passes; p++) {
        f.passes[t->passes[p].phase]++;
        f.rows[t->passes[p].phase] += t->passes[p].n_rows;
    }
    int rc = t->n_passes ? clb_replay_index_make(t, &index, err) : COLIBRI_OK;
    f.lookups = index.n_lookups;
    if (!rc)
        rc = layer_use(t, &f, err);
    if (!rc) {
        reuse(t, &f);
        if (clb_args_has(args, "json"))
            rc = print_info_json(t, &f, err);
        else
            print_info(t, &f);
    }
    free(f.effective);
    free(f.busiest);
    clb_replay_index_free(&index);
    clb_trace_close(t);
    return rc;
}
