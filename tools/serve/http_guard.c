/* Who may ask: the names that the server goes by, the pages that may call it, the keys. */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "serve/http_impl.h"

#define NAME_MOST 256

/* The name or address of a Host header: without port, brackets and final dot. False: it is malformed. */
static bool host_name(const char *host, char out[NAME_MOST], const char **port)
{
    *port = "";
    const bool bracketed = *host == '[';
    const char *const begin = host + bracketed, *end = bracketed ? strchr(begin, ']') : begin + strcspn(begin, ":");
    if (!end || end == begin || end - begin >= NAME_MOST)
        return false;
    const char *const rest = end + bracketed;
    if (*rest && (*rest != ':' || strspn(rest + 1, "0123456789") != strlen(rest + 1)))
        return false;
    if (*rest)
        *port = rest + 1;
    memcpy(out, begin, (size_t)(end - begin));
    out[end - begin] = '\0';
    if (!bracketed && end - begin > 1 && end[-1] == '.')
        out[end - begin - 1] = '\0';
    return true;
}

static bool is_address(const char *name)
{
    struct in6_addr six;
    struct in_addr four;
    return inet_pton(AF_INET, name, &four) == 1 || inet_pton(AF_INET6, name, &six) == 1;
}

bool clb_http_is_loopback(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    if (!strcasecmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
    return false;
}

/* A page of another site can make the name of its own server point to this machine, and is then of the same origin: the
 * Host header still has that name. Addresses cannot be turned in that way. */
bool clb_http_host_allowed(const clb_http_limits *l, const char *bound_host, bool loopback_only, const char *host)
{
    char name[NAME_MOST];
    const char *port;
    if (!host_name(host, name, &port))
        return false;
    if (clb_http_is_loopback(name) || !strcasecmp(name, bound_host) || (!loopback_only && is_address(name)))
        return true;
    for (size_t i = 0; i < l->n_hosts; i++) {
        const char *const allowed = l->hosts[i];
        const size_t n = strlen(allowed), n_name = strlen(name);
        if (!strcmp(allowed, "*") || !strcasecmp(allowed, name))
            return true;
        if (*allowed == '.' && n_name > n && !strcasecmp(name + n_name - n, allowed)) /* ".example.org": all below it */
            return true;
    }
    return false;
}

bool clb_http_same_origin(const char *origin, const char *host)
{
    char a[NAME_MOST], b[NAME_MOST];
    const char *port_a, *port_b, *const colon = strstr(origin, "://");
    if (!colon || !host || !host_name(colon + 3, a, &port_a) || !host_name(host, b, &port_b) || strcasecmp(a, b) != 0)
        return false;
    /* A proxy that ends TLS passes on "Host: name" without port: any scheme's default port is none. */
    const char *const usual = !strncasecmp(origin, "https://", 8) ? "443" : "80";
    return !strcmp(*port_a ? port_a : usual, *port_b ? port_b : usual);
}

const char *clb_http_cors_origin(const clb_http_limits *l, const char *origin)
{
    for (size_t i = 0; i < l->n_origins; i++) {
        if (!strcmp(l->origins[i], "*"))
            return l->origins[i];
        if (!strcasecmp(l->origins[i], origin))
            return origin;
    }
    return NULL;
}

static bool same_key(const char *key, const char *given, size_t n_given)
{
    const size_t n = strlen(key);
    volatile unsigned differ = n != n_given;
    for (size_t i = 0; i < n_given; i++)
        differ |= (unsigned)(unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0];
    return !differ && n;
}

bool clb_http_key_valid(const clb_http_limits *l, const char *key)
{
    size_t n = strlen(key);
    unsigned found = 0;
    while (n && (key[n - 1] == ' ' || key[n - 1] == '\t')) /* no part of a header's value; libmicrohttpd leaves them */
        n--;
    for (size_t i = 0; i < l->n_api_keys; i++)
        found |= same_key(l->api_keys[i], key, n);
    return found != 0;
}

const char *clb_http_bearer(const char *authorization)
{
    if (strncasecmp(authorization, "Bearer ", 7) != 0)
        return NULL;
    authorization += 7;
    return authorization + strspn(authorization, " ");
}
