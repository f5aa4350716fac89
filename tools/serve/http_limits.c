/* The settings of the HTTP layer that may change while it runs. */
#include <stdlib.h>
#include <string.h>

#include "serve/http_impl.h"

static void free_list(char **list, size_t n)
{
    for (size_t i = 0; list && i < n; i++)
        free(list[i]);
    free(list);
}

static int copy_list(const char *const *from, size_t n, char ***out, size_t *n_out, clb_error *err)
{
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(err, "settings of the HTTP server");
    for (; *n_out < n; ++*n_out) {
        (*out)[*n_out] = strdup(from[*n_out]);
        if (!(*out)[*n_out])
            return CLB_NOMEM(err, "settings of the HTTP server");
    }
    return COLIBRI_OK;
}

int clb_http_limits_create(const clb_http_options *o, clb_http_limits **out, clb_error *err)
{
    int rc = COLIBRI_OK;
    clb_http_limits *const l = calloc(1, sizeof *l);
    if (!l)
        return CLB_NOMEM(err, "settings of the HTTP server");
    atomic_init(&l->refs, 1);
    l->max_body = o->max_body ? o->max_body : (size_t)8 << 20;
    l->max_backlog = o->max_stream_backlog ? o->max_stream_backlog : (size_t)1 << 20;
    l->max_connections = o->max_connections ? o->max_connections : 256;
    l->max_per_address = o->max_per_address ? o->max_per_address : l->max_connections;
    l->idle_s = o->idle_timeout_s ? o->idle_timeout_s : 60;
    l->log_requests = o->log_requests;
    CLB_GO(copy_list(o->api_keys, o->n_api_keys, &l->api_keys, &l->n_api_keys, err));
    CLB_GO(copy_list(o->allowed_hosts, o->n_allowed_hosts, &l->hosts, &l->n_hosts, err));
    CLB_GO(copy_list(o->cors_origins, o->n_cors_origins, &l->origins, &l->n_origins, err));
    *out = l;
    return COLIBRI_OK;
done:
    clb_http_limits_release(l);
    return rc;
}

clb_http_limits *clb_http_limits_hold(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    clb_http_limits *const l = h->limits;
    atomic_fetch_add(&l->refs, 1);
    pthread_mutex_unlock(&h->lock);
    return l;
}

void clb_http_limits_release(clb_http_limits *l)
{
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    for (size_t i = 0; i < l->n_api_keys; i++)
        explicit_bzero(l->api_keys[i], strlen(l->api_keys[i]));
    free_list(l->api_keys, l->n_api_keys);
    free_list(l->hosts, l->n_hosts);
    free_list(l->origins, l->n_origins);
    free(l);
}
