/* Connections: how many there are and from where, and how long they may take. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/http_impl.h"

#define SECOND 1000000000ull

/* IPv4 addresses in their IPv6 form, so that one comparison does for both. */
static bool address_of(const struct sockaddr *a, struct in6_addr *out)
{
    memset(out, 0, sizeof *out);
    if (a->sa_family == AF_INET6) {
        *out = ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return true;
    }
    if (a->sa_family != AF_INET)
        return false;
    out->s6_addr[10] = out->s6_addr[11] = 0xff;
    memcpy(&out->s6_addr[12], &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    return true;
}

static void print_address(const struct in6_addr *a, char out[CLB_HTTP_ADDRESS])
{
    if (IN6_IS_ADDR_V4MAPPED(a))
        inet_ntop(AF_INET, &a->s6_addr[12], out, CLB_HTTP_ADDRESS);
    else
        inet_ntop(AF_INET6, a, out, CLB_HTTP_ADDRESS);
}

/* One user has one IPv4 address, and a whole /64 of IPv6. */
static bool same_client(const struct in6_addr *a, const struct in6_addr *b)
{
    return !memcmp(a, b, IN6_IS_ADDR_V4MAPPED(a) ? sizeof *a : 8);
}

static void opened(clb_http *h, struct MHD_Connection *m, void **socket_context)
{
    const union MHD_ConnectionInfo *const fd = MHD_get_connection_info(m, MHD_CONNECTION_INFO_CONNECTION_FD);
    clb_conn *const c = calloc(1, sizeof *c);
    *socket_context = c; /* NULL: its request is refused */
    if (!c || !fd) {
        free(c);
        *socket_context = NULL;
        return;
    }
    c->fd = fd->connect_fd;
    c->since_ns = clb_now_ns();
    struct sockaddr_storage peer, self;
    socklen_t n_peer = sizeof peer, n_self = sizeof self;
    struct in6_addr own;
    if (!getpeername(c->fd, (struct sockaddr *)&peer, &n_peer) && address_of((struct sockaddr *)&peer, &c->address)) {
        print_address(&c->address, c->remote);
        c->local = clb_http_is_loopback(c->remote) ||
                   (!getsockname(c->fd, (struct sockaddr *)&self, &n_self) &&
                    address_of((struct sockaddr *)&self, &own) && !memcmp(&own, &c->address, sizeof own));
    }
    pthread_mutex_lock(&h->lock);
    uint32_t same = 1;
    for (const clb_conn *o = h->conns; o && !c->local; o = o->next)
        same += same_client(&c->address, &o->address);
    c->surplus = h->n_conns >= h->limits->max_connections || (!c->local && same > h->limits->max_per_address);
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    c->serial = ++h->next_serial;
    pthread_mutex_unlock(&h->lock);
    clb_http_watch_add(h, c);
}

static void closed(clb_http *h, void **socket_context)
{
    clb_conn *const c = *socket_context;
    *socket_context = NULL;
    if (!c)
        return;
    clb_http_watch_remove(h, c);
    pthread_mutex_lock(&h->lock);
    if (c->prev)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    h->n_conns--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    free(c);
}

void clb_http_on_connection(void *ctx, struct MHD_Connection *m, void **socket_context,
                            enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        opened(ctx, m, socket_context);
    else
        closed(ctx, socket_context); /* its socket is still open here: nobody can shut down another's by its number */
}

clb_conn *clb_http_conn_of(struct MHD_Connection *m)
{
    const union MHD_ConnectionInfo *const info = MHD_get_connection_info(m, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void clb_conn_phase(clb_http *h, clb_conn *c, enum clb_conn_phase phase, uint64_t bytes)
{
    if (!c)
        return;
    pthread_mutex_lock(&h->lock);
    if (c->phase != phase)
        c->since_ns = clb_now_ns();
    c->n_requests += c->phase != phase && phase == CLB_CONN_HEAD;
    c->phase = phase;
    c->bytes = bytes;
    pthread_mutex_unlock(&h->lock);
}

void clb_conn_set_exchange(clb_http *h, clb_conn *c, clb_exchange *x)
{
    if (!c)
        return;
    pthread_mutex_lock(&h->lock);
    c->x = x;
    pthread_mutex_unlock(&h->lock);
}

/* libmicrohttpd's timeout starts anew with every byte; a client that sends or reads a byte now and then would hold its
 * place for ever. */
void clb_http_sweep(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    const uint64_t now = clb_now_ns(), idle = h->limits->idle_s * SECOND;
    for (clb_conn *c = h->conns; c; c = c->next) {
        const uint64_t extra =
            c->phase == CLB_CONN_BODY || c->phase == CLB_CONN_REPLY ? c->bytes / CLB_HTTP_BYTES_PER_S * SECOND : 0;
        const bool hung_up =
            c->hup_ns && now - c->hup_ns > SECOND && now - c->since_ns > SECOND && c->phase <= CLB_CONN_BODY;
        if (c->timed_out || c->phase == CLB_CONN_WORK || (!hung_up && now - c->since_ns <= idle + extra))
            continue;
        c->timed_out = true;
        if (!hung_up && (c->phase != CLB_CONN_HEAD || !c->n_requests)) /* otherwise it was only kept alive */
            atomic_fetch_add(&h->n_timeouts, 1);
        shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd sees the end */
    }
    pthread_mutex_unlock(&h->lock);
}

void clb_http_close_all(clb_http *h)
{
    pthread_mutex_lock(&h->lock);
    for (const clb_conn *c = h->conns; c; c = c->next)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&h->lock);
}
