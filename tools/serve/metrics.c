/* GET /metrics: Prometheus' text format. */
#include "serve/metrics.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/app.h"

typedef struct figure {
    const char *name, *type, *help, *labels; /* labels "" or "{...}"; help NULL: of the same name as the one before */
    double value;
} figure;

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *const f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    const bool ok = fscanf(f, "%llu %llu", &size, &resident) == 2;
    fclose(f);
    return ok ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static int print_figures(clb_buf *out, const figure *f, size_t n, clb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (f[i].help)
            CLB_TRY(
                clb_buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n", f[i].name, f[i].help, f[i].name, f[i].type));
        CLB_TRY(clb_buf_printf(out, err, "%s%s %.17g\n", f[i].name, f[i].labels, f[i].value));
    }
    return COLIBRI_OK;
}

static int print_server(const clb_app *a, clb_buf *out, clb_error *err)
{
    clb_http_stats h;
    clb_http_get_stats(a->http, &h);
    const figure figures[] = {
        {"colibri_build_info", "gauge", "The version, as a label.", "{version=\"" COLIBRI_VERSION "\"}", 1},
        {"colibri_start_time_seconds", "gauge", "When the server started (Unix time).", "", (double)a->created},
        {"colibri_ready", "gauge", "1: the model is loaded.", "", __atomic_load_n(&a->ready, __ATOMIC_ACQUIRE)},
        {"colibri_draining", "gauge", "1: the server is about to end.", "",
         __atomic_load_n(&a->draining, __ATOMIC_ACQUIRE)},
        {"colibri_process_resident_bytes", "gauge", "Memory of the process.", "", (double)resident_bytes()},
        {"colibri_http_connections", "gauge", "Open connections.", "", h.connections},
        {"colibri_http_pending", "gauge", "HTTP requests whose reply is not complete.", "", h.pending},
        {"colibri_http_refused_total", "counter", "HTTP requests refused before a handler saw them.", "",
         (double)h.refused},
        {"colibri_http_disconnects_total", "counter", "Clients that went away before their reply was complete.", "",
         (double)h.disconnects},
        {"colibri_http_slow_readers_total", "counter", "Streams given up because their client read too slowly.", "",
         (double)h.slow},
        {"colibri_http_timeouts_total", "counter", "Connections closed because a request came too slowly.", "",
         (double)h.timeouts},
        {"colibri_http_sent_bytes_total", "counter", "Bytes of replies.", "", (double)h.bytes_out},
    };
    return print_figures(out, figures, sizeof figures / sizeof *figures, err);
}

static int print_model(const clb_app *a, clb_buf *out, clb_error *err)
{
    clb_scheduler_stats s;
    clb_scheduler_get_stats(a->scheduler, &s);
    const figure figures[] = {
        {"colibri_load_seconds", "gauge", "Time to load the model.", "", (double)a->load_ns / 1e9},
        {"colibri_parallel", "gauge", "Requests that can run at once.", "", a->parallel},
        {"colibri_requests_running", "gauge", "Requests that generate.", "", s.running},
        {"colibri_requests_reading", "gauge", "Requests whose prompt is being read.", "", s.reading},
        {"colibri_requests_waiting", "gauge", "Requests in the queue.", "", s.waiting},
        {"colibri_requests_total", "counter", "Requests by how they ended.", "{outcome=\"finished\"}",
         (double)s.finished},
        {"colibri_requests_total", NULL, NULL, "{outcome=\"cancelled\"}", (double)s.cancelled},
        {"colibri_requests_total", NULL, NULL, "{outcome=\"failed\"}", (double)s.failed},
        {"colibri_requests_total", NULL, NULL, "{outcome=\"refused\"}", (double)s.refused},
        {"colibri_prompt_tokens_computed_total", "counter", "Tokens of prompts that were computed.", "",
         (double)s.prompt_tokens},
        {"colibri_prompt_tokens_reused_total", "counter", "Tokens of prompts that were taken from shared prefixes.", "",
         (double)s.prompt_reused},
        {"colibri_tokens_generated_total", "counter", "Tokens generated.", "", (double)s.generated_tokens},
        {"colibri_passes_total", "counter", "Forward passes.", "", (double)s.passes},
        {"colibri_interruptions_total", "counter", "Small passes in the middle of a long one.", "",
         (double)s.interruptions},
        {"colibri_passes_given_up_total", "counter", "Long passes that made way for newcomers.", "",
         (double)s.given_up},
        {"colibri_rows_total", "counter", "Token rows in them.", "", (double)s.rows},
        {"colibri_busy_seconds_total", "counter", "Time spent in them.", "", (double)s.busy_ns / 1e9},
        {"colibri_prompt_tokens_per_second", "gauge", "Of the last seconds.", "", s.prompt_per_second},
        {"colibri_generated_tokens_per_second", "gauge", "Of the last seconds, all requests together.", "",
         s.decode_per_second},
        {"colibri_kv_bytes", "gauge", "Memory set aside for the KV cache.", "", (double)s.kv_bytes},
        {"colibri_kv_used_bytes", "gauge", "What of it is used.", "", (double)s.kv_used_bytes},
        {"colibri_kv_shared_bytes", "gauge", "What of it several requests share.", "", (double)s.kv_shared_bytes},
        {"colibri_expert_hits_total", "counter", "Experts that were in memory when they were needed.", "",
         (double)s.expert_hits},
        {"colibri_expert_misses_total", "counter", "Experts that were not.", "", (double)s.expert_misses},
        {"colibri_expert_read_bytes_total", "counter", "Bytes of experts read from the drive.", "",
         (double)s.expert_bytes_read},
        {"colibri_weights_resident_bytes", "gauge", "Weights in memory.", "", (double)s.resident_bytes},
    };
    return print_figures(out, figures, sizeof figures / sizeof *figures, err);
}

void clb_serve_metrics(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    clb_buf out = {0};
    clb_error err = {0};
    int rc = print_server(a, &out, &err);
    if (!rc && __atomic_load_n(&a->ready, __ATOMIC_ACQUIRE))
        rc = print_model(a, &out, &err);
    if (!rc)
        rc = clb_metrics_text(a->metrics, &out, &err);
    if (rc)
        clb_reply_status(x, rc, err.msg);
    else
        clb_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.n);
    clb_buf_free(&out);
}
