/* The listening socket: made here rather than by libmicrohttpd, for names, for both families, and for messages that
 * help. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/http_impl.h"

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static int open_socket(const struct addrinfo *a)
{
    const int on = 1, off = 0, send_buffer = 128 << 10,
              fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* a restart does not wait for old connections */
    /* Inherited by connections: what a client has not read may not grow to megabytes in the kernel, beyond our own
     * bound. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    if (a->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); /* "::" is both */
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024))
        return fd;
    const int number = errno;
    close(fd);
    errno = number;
    return -1;
}

static int refused(const char *host, uint16_t port, int number, clb_error *err)
{
    if (number == EADDRINUSE)
        return clb_fail(err, COLIBRI_E_IO,
                        "port %u on %s is in use by another program: choose one with --port, or 0 for any that is free",
                        (unsigned)port, host);
    if (number == EADDRNOTAVAIL)
        return clb_fail(err, COLIBRI_E_IO, "%s is no address of this machine", host);
    if (number == EACCES)
        return clb_fail(err, COLIBRI_E_IO, "port %u needs privileges: choose one from 1024 on with --port",
                        (unsigned)port);
    return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot listen on %s port %u", host, (unsigned)port);
}

int clb_http_listen(const char *host, uint16_t port, int *out, uint16_t *bound, bool *loopback, clb_error *err)
{
    char service[8];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int rc = getaddrinfo(host, service, &hints, &list);
    if (rc)
        return clb_fail(err, COLIBRI_E_IO, "cannot find the address of '%.200s': %s", host,
                        rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    int number = EADDRNOTAVAIL;
    *out = -1;
    /* IPv4 first: of the two that "localhost" has, it is the one that every client tries. */
    for (int pass = 0; pass < 2 && *out < 0; pass++) {
        for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) {
            if ((a->ai_family == AF_INET) == (pass == 0) && (*out = open_socket(a)) < 0)
                number = errno;
        }
        if (number == EADDRINUSE)
            break; /* the other family would be a server that half of the clients do not find */
    }
    freeaddrinfo(list);
    if (*out < 0)
        return refused(host, port, number, err);
    struct sockaddr_storage name;
    socklen_t n = sizeof name;
    if (getsockname(*out, (struct sockaddr *)&name, &n)) {
        number = errno;
        close(*out);
        return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot look at the listening socket");
    }
    *loopback = is_loopback((const struct sockaddr *)&name);
    *bound = ntohs(name.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&name)->sin6_port
                                              : ((const struct sockaddr_in *)(const void *)&name)->sin_port);
    return COLIBRI_OK;
}
