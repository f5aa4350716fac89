#include "serve/metrics.h"

#include <pthread.h>
#include <stdlib.h>

enum { QUEUE, FIRST, TOTAL, PROMPT, GENERATED, N_HISTOGRAMS };
#define BUCKETS 14

typedef struct histogram {
    const char *name, *help;
    const double *bounds;
    double scale; /* of what is counted, to the unit of the bounds */
    uint64_t counts[BUCKETS + 1], n;
    double sum;
} histogram;

/* Figures by route: [status / 100], 0: the client went away before there was a reply. */
struct clb_metrics {
    pthread_mutex_t lock;
    const clb_http_route *routes;
    size_t n_routes;
    uint64_t (*by_route)[6]; /* [n_routes + 1], the last for what no route fits */
    histogram histograms[N_HISTOGRAMS];
    uint64_t queue_timeouts;
};

static const double seconds[BUCKETS] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800};
static const double tokens[BUCKETS] = {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536, 262144};

int clb_metrics_create(const clb_http_route *routes, clb_metrics **out, clb_error *err)
{
    clb_metrics *const m = calloc(1, sizeof *m);
    *out = m;
    if (!m)
        return CLB_NOMEM(err, "metrics");
    pthread_mutex_init(&m->lock, NULL);
    m->routes = routes;
    while (routes[m->n_routes].method)
        m->n_routes++;
    m->histograms[QUEUE] = (histogram){.name = "colibri_queue_seconds",
                                       .help = "Time that a request waited for its turn.",
                                       .bounds = seconds,
                                       .scale = 1e-9};
    m->histograms[FIRST] = (histogram){.name = "colibri_time_to_first_token_seconds",
                                       .help = "Time from a request's arrival to its first text.",
                                       .bounds = seconds,
                                       .scale = 1e-9};
    m->histograms[TOTAL] = (histogram){.name = "colibri_request_seconds",
                                       .help = "Time from a request's arrival to the end of its reply.",
                                       .bounds = seconds,
                                       .scale = 1e-9};
    m->histograms[PROMPT] = (histogram){
        .name = "colibri_prompt_tokens", .help = "Tokens of a request's prompt.", .bounds = tokens, .scale = 1};
    m->histograms[GENERATED] = (histogram){
        .name = "colibri_generated_tokens", .help = "Tokens of a request's text.", .bounds = tokens, .scale = 1};
    m->by_route = calloc(m->n_routes + 1, sizeof *m->by_route);
    if (m->by_route)
        return COLIBRI_OK;
    clb_metrics_destroy(m);
    *out = NULL;
    return CLB_NOMEM(err, "metrics");
}

void clb_metrics_destroy(clb_metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m->by_route);
    free(m);
}

static void count(histogram *h, uint64_t value)
{
    const double v = (double)value * h->scale;
    size_t i = 0;
    while (i < BUCKETS && v > h->bounds[i])
        i++;
    h->counts[i]++;
    h->n++;
    h->sum += v;
}

void clb_metrics_add(clb_metrics *m, const clb_metrics_request *r)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    count(&m->histograms[QUEUE], r->queued_ns);
    if (r->first_ns)
        count(&m->histograms[FIRST], r->first_ns);
    count(&m->histograms[TOTAL], r->total_ns);
    count(&m->histograms[PROMPT], r->n_prompt);
    count(&m->histograms[GENERATED], r->n_generated);
    pthread_mutex_unlock(&m->lock);
}

void clb_metrics_queue_timeout(clb_metrics *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    m->queue_timeouts++;
    pthread_mutex_unlock(&m->lock);
}

void clb_metrics_http(clb_metrics *m, const clb_http_done *done)
{
    if (!m)
        return;
    const size_t route = done->route ? (size_t)(done->route - m->routes) : m->n_routes;
    const int class = done->status / 100;
    pthread_mutex_lock(&m->lock);
    m->by_route[route][class > 0 && class < 6 ? class : 0]++;
    pthread_mutex_unlock(&m->lock);
}

static int print_routes(const clb_metrics *m, clb_buf *out, clb_error *err)
{
    CLB_TRY(clb_buf_printf(out, err,
                           "# HELP colibri_http_requests_total HTTP requests by route and status.\n"
                           "# TYPE colibri_http_requests_total counter\n"));
    for (size_t i = 0; i <= m->n_routes; i++) {
        for (int c = 0; c < 6; c++) {
            if (!m->by_route[i][c])
                continue;
            char code[8] = "none";
            if (c)
                snprintf(code, sizeof code, "%dxx", c);
            CLB_TRY(clb_buf_printf(out, err,
                                   "colibri_http_requests_total{method=\"%s\",path=\"%s\",code=\"%s\"} %llu\n",
                                   i < m->n_routes ? m->routes[i].method : "", i < m->n_routes ? m->routes[i].path : "",
                                   code, (unsigned long long)m->by_route[i][c]));
        }
    }
    return COLIBRI_OK;
}

static int print_histogram(const histogram *h, clb_buf *out, clb_error *err)
{
    uint64_t n = 0;
    CLB_TRY(clb_buf_printf(out, err, "# HELP %s %s\n# TYPE %s histogram\n", h->name, h->help, h->name));
    for (size_t i = 0; i < BUCKETS; i++) {
        n += h->counts[i];
        CLB_TRY(
            clb_buf_printf(out, err, "%s_bucket{le=\"%.10g\"} %llu\n", h->name, h->bounds[i], (unsigned long long)n));
    }
    return clb_buf_printf(out, err, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.10g\n%s_count %llu\n", h->name,
                          (unsigned long long)h->n, h->name, h->sum, h->name, (unsigned long long)h->n);
}

int clb_metrics_text(clb_metrics *m, clb_buf *out, clb_error *err)
{
    int rc = COLIBRI_OK;
    pthread_mutex_lock(&m->lock);
    CLB_GO(print_routes(m, out, err));
    CLB_GO(clb_buf_printf(out, err,
                          "# HELP colibri_queue_timeouts_total Requests refused because they waited for too long.\n"
                          "# TYPE colibri_queue_timeouts_total counter\ncolibri_queue_timeouts_total %llu\n",
                          (unsigned long long)m->queue_timeouts));
    for (size_t i = 0; i < N_HISTOGRAMS; i++)
        CLB_GO(print_histogram(&m->histograms[i], out, err));
done:
    pthread_mutex_unlock(&m->lock);
    return rc;
}
