/* What can be said of a request by its head: limits, host, origin, route, key, size. Called once, before its body
 * comes. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve/http_impl.h"

#define INVALID "invalid_request_error"

uint64_t clb_http_content_length(clb_exchange *x, bool *chunked)
{
    *chunked = clb_exchange_header(x, "Transfer-Encoding") != NULL;
    const char *const text = clb_exchange_header(x, "Content-Length");
    if (!text || *chunked)
        return 0;
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end ? n : UINT64_MAX;
}

static bool path_fits(const clb_http_route *r, const char *path)
{
    return r->flags & CLB_ROUTE_PREFIX ? !strncmp(r->path, path, strlen(r->path)) : !strcmp(r->path, path);
}

/* The route, and the methods that the path has: "GET, HEAD, POST, OPTIONS". */
static const clb_http_route *find_route(const clb_exchange *x, char allow[128], bool *known)
{
    const char *const method = strcmp(x->method, "HEAD") ? x->method : "GET";
    const clb_http_route *found = NULL;
    *allow = '\0';
    *known = false;
    for (const clb_http_route *r = x->h->routes; r->method; r++) {
        if (!path_fits(r, x->path))
            continue;
        *known = true;
        if (!found && !strcmp(r->method, method))
            found = r;
        const size_t n = strlen(allow);
        if (!strstr(allow, r->method))
            snprintf(allow + n, 128 - n, "%s%s, ", r->method, strcmp(r->method, "GET") ? "" : ", HEAD");
    }
    const size_t n = strlen(allow);
    snprintf(allow + n, 128 - n, "OPTIONS");
    return found;
}

/* The headers that a page wants to send are named back, if they are names of headers at all. */
static void preflight(clb_exchange *x, const char *allow)
{
    clb_exchange_set_header(x, "Allow", allow);
    if (x->cors && clb_exchange_header(x, "Access-Control-Request-Method")) {
        const char *const wanted = clb_exchange_header(x, "Access-Control-Request-Headers");
        clb_exchange_set_header(x, "Access-Control-Allow-Methods", allow);
        if (wanted && strlen(wanted) < 1024 &&
            strspn(wanted, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ") == strlen(wanted))
            clb_exchange_set_header(x, "Access-Control-Allow-Headers", wanted);
        if (clb_exchange_header(x, "Access-Control-Request-Private-Network"))
            clb_exchange_set_header(x, "Access-Control-Allow-Private-Network", "true");
        clb_exchange_set_header(x, "Access-Control-Max-Age", "600");
    }
    clb_reply(x, 204, NULL, "", 0);
}

static bool is_unsafe(const char *method)
{
    return strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 && strcmp(method, "OPTIONS") != 0;
}

static bool key_fits(clb_exchange *x)
{
    if (!x->limits->n_api_keys)
        return true;
    const char *const authorization = clb_exchange_header(x, "Authorization"),
                      *const bearer = authorization ? clb_http_bearer(authorization) : NULL,
                      *const plain = clb_exchange_header(x, "X-Api-Key");
    const bool a = bearer && clb_http_key_valid(x->limits, bearer), b = plain && clb_http_key_valid(x->limits, plain);
    return a || b;
}

static bool origin_fits(clb_exchange *x, const char *host)
{
    const char *const origin = clb_exchange_header(x, "Origin");
    if (!origin)
        return true;
    x->cors = clb_http_cors_origin(x->limits, origin);
    /* Without this, a page anywhere could make its visitors' browsers send requests here, if not read the replies. */
    return x->cors || !is_unsafe(x->method) || clb_http_same_origin(origin, host);
}

static void refuse_host(clb_exchange *x, const char *host)
{
    char text[512];
    snprintf(text, sizeof text,
             "the name '%.200s' in the Host header is not allowed: add it with --allowed-hosts, if it is a name of "
             "this server",
             host);
    clb_reply_refusal(x, 403, "permission_error", "host_not_allowed", text);
}

static void refuse_size(clb_exchange *x)
{
    char text[200], most[24];
    snprintf(text, sizeof text, "the request's body is larger than %s (--max-body)",
             clb_human_bytes(x->limits->max_body, most));
    clb_reply_refusal(x, 413, INVALID, "request_too_large", text);
}

static size_t count(const clb_exchange *x, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_fields; i++)
        n += x->fields[i].kind == MHD_HEADER_KIND && !strcasecmp(x->fields[i].name, name);
    return n;
}

static bool names_fit(const clb_exchange *x)
{
    static const char token[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < x->n_fields; i++) {
        const clb_http_field *const f = &x->fields[i];
        if (f->kind == MHD_HEADER_KIND && f->name[strspn(f->name, token)])
            return false;
    }
    return true;
}

/* Heads that libmicrohttpd takes and RFC 9112 (3.2, 5.1, 6.1, 6.3) tells servers not to: two readers could see two
 * different requests in them. The connection ends, for nobody knows where the next request would begin. */
static bool refuse_head(clb_exchange *x)
{
    const size_t n_lengths = count(x, "Content-Length"), n_codings = count(x, "Transfer-Encoding"),
                 n_hosts = count(x, "Host");
    const char *const coding = clb_exchange_header(x, "Transfer-Encoding");
    int status = 400;
    const char *code = "invalid_header", *message = NULL;
    if (!names_fit(x))
        message = "the name of a header has a blank or a character in it that names may not have";
    else if (!n_hosts && !x->http10)
        code = "missing_host", message = "a request of HTTP/1.1 has a Host header";
    else if (n_hosts > 1)
        message = "there is more than one Host header";
    else if (n_lengths > 1)
        code = "invalid_content_length", message = "there is more than one Content-Length header";
    else if (n_lengths && n_codings)
        code = "invalid_content_length", message = "a body has a Content-Length or a Transfer-Encoding, not both";
    else if (n_codings > 1 || (coding && strcasecmp(coding, "chunked") != 0))
        status = 501, code = "unsupported_transfer_encoding", message = "the only Transfer-Encoding here is chunked";
    if (!message)
        return false;
    x->close = x->cut = true;
    clb_reply_refusal(x, status, status == 501 ? "server_error" : INVALID, code, message);
    return true;
}

void clb_http_judge(clb_exchange *x)
{
    char text[512], allow[128];
    bool known, chunked;
    const char *const host = clb_exchange_header(x, "Host");
    const clb_http_route *const route = find_route(x, allow, &known);
    const uint64_t length = clb_http_content_length(x, &chunked);
    x->route = route;
    if (!x->conn || x->conn->surplus) {
        x->close = true;
        clb_exchange_set_header(x, "Retry-After", "1");
        clb_reply_refusal(x, 503, "unavailable_error", "too_many_connections", "too many connections: try again later");
    } else if (refuse_head(x)) {
        /* answered */
    } else if (host && !clb_http_host_allowed(x->limits, x->h->host, x->h->loopback_only, host)) {
        refuse_host(x, host);
    } else if (!origin_fits(x, host)) {
        clb_reply_refusal(x, 403, "permission_error", "origin_not_allowed",
                          "pages of this origin may not use this server: add the origin with --cors-origins");
    } else if (!strcmp(x->method, "OPTIONS") && (known || !strcmp(x->path, "*"))) {
        preflight(x, allow);
    } else if (!known) {
        snprintf(text, sizeof text, "there is no %.32s %.200s here", x->method, x->path);
        clb_reply_refusal(x, 404, "not_found_error", "unknown_url", text);
    } else if (!route) {
        snprintf(text, sizeof text, "%.200s takes %s, not %.32s", x->path, allow, x->method);
        clb_exchange_set_header(x, "Allow", allow);
        clb_reply_refusal(x, 405, INVALID, "method_not_allowed", text);
    } else if (!(route->flags & CLB_ROUTE_PUBLIC) && !key_fits(x)) {
        clb_exchange_set_header(x, "WWW-Authenticate", "Bearer");
        clb_reply_refusal(x, 401, "authentication_error", "invalid_api_key",
                          clb_exchange_header(x, "Authorization") || clb_exchange_header(x, "X-Api-Key")
                              ? "the API key is not one of this server's"
                              : "an API key is needed: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'");
    } else if (length == UINT64_MAX) {
        clb_reply_refusal(x, 400, INVALID, "invalid_content_length", "Content-Length is not a number");
    } else if (length > x->limits->max_body) {
        refuse_size(x);
    } else {
        const char *const coding = clb_exchange_header(x, "Content-Encoding");
        if (coding && *coding && strcasecmp(coding, "identity") != 0)
            clb_reply_refusal(x, 415, INVALID, "unsupported_encoding", "the body must not be compressed");
    }
    if (x->answered) {
        x->discard = true;
        atomic_fetch_add(&x->h->n_refused, x->status >= 400);
    }
}
