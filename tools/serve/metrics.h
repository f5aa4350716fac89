/* Figures for Prometheus that nobody else keeps: requests by route, and how long things took.
 *
 * [any-thread] */
#ifndef CLB_SERVE_METRICS_H
#define CLB_SERVE_METRICS_H

#include "serve/http.h"

typedef struct clb_metrics clb_metrics;

/* What a text or embeddings request took, once it is over; 0: it did not come so far. */
typedef struct clb_metrics_request {
    uint64_t queued_ns; /* in the queue */
    uint64_t first_ns;  /* from its arrival to its first text */
    uint64_t total_ns;
    uint64_t n_prompt, n_generated;
} clb_metrics_request;

int clb_metrics_create(const clb_http_route *routes, clb_metrics **out, clb_error *err);
void clb_metrics_destroy(clb_metrics *m);
/* m may be NULL. */
void clb_metrics_add(clb_metrics *m, const clb_metrics_request *r);
void clb_metrics_queue_timeout(clb_metrics *m);
void clb_metrics_http(clb_metrics *m, const clb_http_done *done);
/* Prometheus' text of all of it, appended. */
int clb_metrics_text(clb_metrics *m, clb_buf *out, clb_error *err);

#endif
