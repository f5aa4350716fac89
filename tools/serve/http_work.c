/* The threads that call handlers. */
#include <stdlib.h>

#include "serve/http_impl.h"

static clb_exchange *next(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    while (!h->work_first && !h->work_over)
        pthread_cond_wait(&h->changed, &h->lock);
    clb_exchange *const x = h->work_first;
    if (x) {
        h->work_first = x->next_work;
        if (!h->work_first)
            h->work_last = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    return x;
}

static void *work(void *ctx)
{
    clb_http *const h = ctx;
    for (clb_exchange *x = next(h); x; x = next(h)) {
        pthread_mutex_lock(&x->lock);
        const bool gone = x->gone;
        x->answered = gone; /* nobody waits for it any more, and no handler knows it yet */
        pthread_mutex_unlock(&x->lock);
        if (gone)
            clb_exchange_release(x);
        else
            clb_exchange_handle(x);
    }
    return NULL;
}

void clb_http_work_add(clb_exchange *x)
{
    clb_http *const h = x->h;
    pthread_mutex_lock(&h->lock);
    if (h->work_last)
        h->work_last->next_work = x;
    else
        h->work_first = x;
    h->work_last = x;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

int clb_http_work_start(clb_http *h, uint32_t n, clb_error *err)
{
    h->workers = calloc(n, sizeof *h->workers);
    if (!h->workers)
        return CLB_NOMEM(err, "threads of the HTTP server");
    for (; h->n_workers < n; h->n_workers++) {
        const int number = pthread_create(&h->workers[h->n_workers], NULL, work, h);
        if (number)
            return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot start a thread of the HTTP server");
    }
    return COLIBRI_OK;
}

void clb_http_work_stop(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    h->work_over = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    for (uint32_t i = 0; i < h->n_workers; i++)
        pthread_join(h->workers[i], NULL);
    h->n_workers = 0;
    free(h->workers);
    h->workers = NULL;
}
