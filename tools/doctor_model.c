/* A model's files, and what its plan comes to here. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "doctor.h"
#include "gguf/pack.h"
#include "machine_rates.h"
#include "plan/memory.h"

#define DECODE_KV 256u

static void files(clb_doctor *d, const clb_engine *e)
{
    const clb_gguf *g = e->gguf;
    uint64_t bytes = 0, want = 0;
    char a[24];
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        bytes += clb_gguf_shard_size(g, i);
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++)
        want += clb_gguf_tensor_at(g, i)->n_bytes;
    clb_doctor_add(d, "model", "files", CLB_DOCTOR_OK, NULL,
                   "%u file%s, %s, %llu tensors of %.2f GB in all; every one lies inside its file",
                   clb_gguf_n_shards(g), clb_gguf_n_shards(g) == 1 ? "" : "s", clb_human_bytes(bytes, a),
                   (unsigned long long)clb_gguf_n_tensors(g), (double)want / 1e9);
    const clb_hparams *hp = &e->model->hp;
    if (hp->n_experts)
        clb_doctor_add(d, "model", "architecture", CLB_DOCTOR_OK, NULL,
                       "%s: %u layers, %u experts in each, %u per token, context %u", e->model->arch->name,
                       hp->n_layers, hp->n_experts, hp->top_k, hp->n_ctx_train);
    else
        clb_doctor_add(d, "model", "architecture", CLB_DOCTOR_OK, NULL, "%s: %u layers, dense, context %u",
                       e->model->arch->name, hp->n_layers, hp->n_ctx_train);
}

static void ignore_report(void *ctx, const char *file, const char *what)
{
    (void)ctx;
    (void)file;
    (void)what;
}

static void checksums(clb_doctor *d, const clb_engine *e)
{
    if (!clb_gguf_has_checksums(e->gguf)) {
        clb_doctor_add(d, "model", "checksums", CLB_DOCTOR_NOTE,
                       "Compare the publisher's SHA-256, or pack the model ('colibri pack'), which adds checksums.",
                       "the file has no checksums: damage in the weights cannot be told");
        return;
    }
    if (!d->deep) {
        clb_doctor_add(d, "model", "checksums", CLB_DOCTOR_OK, NULL,
                       "the file has checksums of its weights (--deep compares them)");
        return;
    }
    uint64_t n_bad = 0;
    clb_error err;
    const clb_pack_options options = {.pool = e->pool, .log = d->log};
    const int rc = clb_pack_verify(e->gguf, &options, ignore_report, NULL, &n_bad, &err);
    if (rc || n_bad)
        clb_doctor_add(d, "model", "checksums", CLB_DOCTOR_FAIL, "Fetch the file again.", "%s%llu checksums differ",
                       rc ? err.msg : "", (unsigned long long)n_bad);
    else
        clb_doctor_add(d, "model", "checksums", CLB_DOCTOR_OK, NULL, "all checksums are right");
}

struct uses {
    char text[500];
};

static void add_use(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id,
                    const char *path)
{
    struct uses *u = ctx;
    const size_t at = strlen(u->text);
    (void)plugin_id;
    (void)path;
    if (strcmp(kind, "kernel") == 0)
        snprintf(u->text + at, sizeof u->text - at, "%s%s by %s", at ? ", " : "", what, component);
}

static void kernels(clb_doctor *d, const clb_engine *e)
{
    struct uses u = {""};
    clb_registry_uses(e->registry, add_use, &u);
    const bool slow = strstr(u.text, "by scalar") || strstr(u.text, "reference") || !*u.text;
    clb_doctor_add(d, "model", "kernels", slow ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                   slow ? "'colibri plugins why FORMAT' tells why no faster kernel serves." : NULL,
                   "its formats are served: %s", *u.text ? u.text : "by the scalar reference");
}

/* Where nothing is read from the drive, both ends are the same: one number. */
static const char *range(double low, double high, char out[64])
{
    char text[2][24];
    snprintf(text[0], sizeof text[0], low < 10 ? "%.1f" : "%.0f", low);
    snprintf(text[1], sizeof text[1], high < 10 ? "%.1f" : "%.0f", high);
    const bool one = strcmp(text[0], text[1]) == 0;
    snprintf(out, 64, one ? "about %s" : "%s to %s", text[0], text[1]);
    return out;
}

static void speed(clb_doctor *d, const clb_engine *e, const clb_plan *plan)
{
    clb_topology t;
    clb_rates rates;
    clb_prediction p;
    clb_topology_read(&t);
    clb_machine_rates(d->config, e, t.model, d->measure, false, &rates);
    const clb_predict_input in = {.model = e->model,
                                  .plan_input = &e->plan_input,
                                  .plan = plan,
                                  .rates = &rates,
                                  .n_kv =
                                      e->plan_input.kv_positions < DECODE_KV ? e->plan_input.kv_positions : DECODE_KV};
    clb_predict(&in, &p);
    const double drive = rates.drive_bytes_per_second;
    if (rates.drive_source != CLB_RATE_ASSUMED)
        clb_doctor_add(d, "drive", "throughput", p.needs_drive && drive < 1e9 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                       p.needs_drive && drive < 1e9
                           ? "The model does not fit memory, so this drive decides the speed: a faster one, or more "
                             "memory, helps most."
                           : NULL,
                       "reads %.2f GB/s %s (%s)", drive / 1e9,
                       rates.drive_direct ? "past the page cache" : "through the page cache",
                       clb_rate_source_text(rates.drive_source));
    char text[2][64];
    const double high = p.decode_high.tokens_per_second;
    clb_doctor_add(d, "plan", "speed", high < 1.0 ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                   high < 1.0 ? "'colibri plan --what-if 8G,16G,32G' shows what more memory would bring." : NULL,
                   "%s tokens per second when generating, %s when reading a prompt%s",
                   range(p.decode_low.tokens_per_second, high, text[0]),
                   range(p.prefill_low.tokens_per_second, p.prefill_high.tokens_per_second, text[1]),
                   d->measure ? "" : " (rates remembered or assumed)");
}

int clb_doctor_model(clb_doctor *d, clb_engine *e, clb_error *err)
{
    clb_plan plan = {0};
    char a[24], b[24];
    files(d, e);
    checksums(d, e);
    kernels(d, e);
    e->plan_input.resident = clb_memory_resident();
    const int rc = clb_plan_make(&e->plan_input, &plan, err);
    if (rc == COLIBRI_E_NOMEM || rc == COLIBRI_E_USAGE) {
        clb_doctor_add(d, "plan", "fit", CLB_DOCTOR_FAIL, "'colibri plan --what-if 4G,8G,16G' shows what would fit.",
                       "%s", err->msg);
        return COLIBRI_OK;
    }
    CLB_TRY(rc);
    const bool swaps = plan.total_bytes > plan.available;
    clb_doctor_add(d, "plan", "fit", swaps ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                   swaps ? "Lower --max-memory, or close other programs: more is planned than is free." : NULL,
                   "the model runs with %s of a budget of %s", clb_human_bytes(plan.total_bytes, a),
                   clb_human_bytes(plan.budget, b));
    if (plan.n_experts)
        clb_doctor_add(d, "plan", "experts", plan.n_slots * 4ull < plan.n_experts ? CLB_DOCTOR_WARN : CLB_DOCTOR_OK,
                       plan.all_experts ? NULL : "More memory holds more of them (--max-memory).",
                       "%u of %u experts fit memory%s", plan.n_slots < plan.n_experts ? plan.n_slots : plan.n_experts,
                       plan.n_experts, plan.all_experts ? "" : "; the others are read while running");
    if (plan.resident_layers < plan.n_layers)
        clb_doctor_add(d, "plan", "layers", CLB_DOCTOR_WARN, "More memory (--max-memory), or a smaller quantization.",
                       "the dense weights of %u of %u layers are read again for every token",
                       plan.n_layers - plan.resident_layers, plan.n_layers);
    speed(d, e, &plan);
    clb_plan_free(&plan);
    return COLIBRI_OK;
}
