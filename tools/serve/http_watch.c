/* The thread that sees clients go away and connections take too long. libmicrohttpd does not look at a suspended
 * connection, and most of a request's life is that; and where a connection's end comes together with its last bytes, it
 * sees only those. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/http_impl.h"

#define TICK_MS 250
#define EVENTS  64

/* The client of a connection sends nothing more. If it waits for a reply, it counts as gone: it may only have said that
 * its request is complete, but one that has hung up looks the same. */
static clb_exchange *hung_up(clb_http *h, uint64_t serial)
{
    pthread_mutex_lock(&h->lock);
    clb_conn *c = h->conns;
    while (c && c->serial != serial)
        c = c->next;
    if (c && !c->hup_ns)
        c->hup_ns = clb_now_ns();
    clb_exchange *const x = c && c->x && c->phase == CLB_CONN_WORK ? clb_exchange_hold(c->x) : NULL;
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
            clb_exchange *const x = hung_up(h, events[i].data.u64);
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

static void control(clb_http *h, const clb_conn *c, int op)
{
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = c->serial};
    (void)epoll_ctl(h->watch_epoll, op, c->fd, &e);
}

void clb_http_watch_add(clb_http *h, const clb_conn *c)
{
    control(h, c, EPOLL_CTL_ADD);
}

void clb_http_watch_again(clb_http *h, const clb_conn *c)
{
    control(h, c, EPOLL_CTL_MOD);
}

void clb_http_watch_remove(clb_http *h, const clb_conn *c)
{
    control(h, c, EPOLL_CTL_DEL);
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
