/* The thread that sees clients go away and connections take too long: libmicrohttpd does not look at a suspended connection, and
 * most of a request's life is that. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/http_impl.h"

#define TICK_MS 250
#define EVENTS  64

static clb_exchange *find(clb_http *h, uint64_t serial)
{
    pthread_mutex_lock(&h->lock);
    clb_exchange *x = h->exchanges;
    while (x && x->serial != serial)
        x = x->next;
    if (x)
        clb_exchange_hold(x);
    pthread_mutex_unlock(&h->lock);
    return x;
}

static clb_exchange *pop(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    clb_exchange *const x = h->gone_queue;
    if (x) {
        h->gone_queue = x->next_gone;
        x->in_gone_queue = false;
    }
    pthread_mutex_unlock(&h->lock);
    return x;
}

static void *watch(void *ctx)
{
    clb_http *const h = ctx;
    uint64_t swept = clb_now_ns();
    for (bool over = false; !over;) {
        struct epoll_event events[EVENTS];
        const int n = epoll_wait(h->watch_epoll, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (!events[i].data.u64) { /* the event */
                (void)!read(h->watch_event, &count, sizeof count);
                continue;
            }
            clb_exchange *const x = find(h, events[i].data.u64);
            if (x)
                clb_exchange_mark_gone(x);
            clb_exchange_release(x);
        }
        for (clb_exchange *x = pop(h); x; x = pop(h)) {
            clb_exchange_mark_gone(x);
            clb_exchange_release(x);
        }
        if (clb_now_ns() - swept >= (uint64_t)TICK_MS * 1000000u) {
            clb_http_sweep(h);
            swept = clb_now_ns();
        }
        pthread_mutex_lock(&h->lock);
        over = h->watcher_over && !h->gone_queue;
        pthread_mutex_unlock(&h->lock);
    }
    return NULL;
}

static void wake(clb_http *h)
{
    const uint64_t one = 1;
    (void)!write(h->watch_event, &one, sizeof one);
}

void clb_http_gone_later(clb_exchange *x)
{
    clb_http *const h = x->h;
    pthread_mutex_lock(&h->lock);
    if (!x->in_gone_queue && !h->watcher_over) {
        x->in_gone_queue = true;
        x->next_gone = h->gone_queue;
        h->gone_queue = clb_exchange_hold(x);
        wake(h);
    }
    pthread_mutex_unlock(&h->lock);
}

void clb_http_watch_add(clb_exchange *x, int fd)
{
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = x->serial};
    if (!x->watched && fd >= 0)
        x->watched = !epoll_ctl(x->h->watch_epoll, EPOLL_CTL_ADD, fd, &e);
}

void clb_http_watch_remove(clb_exchange *x, int fd)
{
    if (x->watched)
        (void)epoll_ctl(x->h->watch_epoll, EPOLL_CTL_DEL, fd, NULL);
    x->watched = false;
}

int clb_http_watch_start(clb_http *h, clb_error *err)
{
    h->watch_epoll = epoll_create1(EPOLL_CLOEXEC);
    h->watch_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    if (h->watch_epoll < 0 || h->watch_event < 0 || epoll_ctl(h->watch_epoll, EPOLL_CTL_ADD, h->watch_event, &e))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot watch connections");
    const int number = pthread_create(&h->watcher, NULL, watch, h);
    if (number)
        return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot start a thread of the HTTP server");
    h->watcher_runs = true;
    return COLIBRI_OK;
}

void clb_http_watch_stop(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    h->watcher_over = true;
    pthread_mutex_unlock(&h->lock);
    if (h->watcher_runs) {
        wake(h);
        pthread_join(h->watcher, NULL);
        h->watcher_runs = false;
    }
    if (h->watch_epoll >= 0)
        close(h->watch_epoll);
    if (h->watch_event >= 0)
        close(h->watch_event);
    h->watch_epoll = h->watch_event = -1;
}
