/* Specs: a component's name with parameters, or a chain of KV strategies, as a user writes them on one line. */
#include "config/internal.h"

#include <stdlib.h>
#include <string.h>

#define CHAINED "kv-strategy" /* the only kind whose components wrap each other */

/* "key=value,key=value" behind the ':' of a link. */
static int each_param(const char *name, char *list, clb_config_spec_fn fn, void *ctx, clb_error *err)
{
    for (char *item = list, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        char *equals = strchr(item, '=');
        if (!equals || equals == item)
            return clb_fail(err, COLIBRI_E_USAGE, "'%.60s' is not key=value (write NAME:key=value,key=value)", item);
        *equals = '\0';
        const int rc = fn(ctx, name, item, equals + 1, err);
        if (rc) {
            clb_context(err, "%.60s:%.60s", name, item);
            return rc;
        }
    }
    return COLIBRI_OK;
}

int clb_config_spec_each(const char *kind, const char *text, clb_config_spec_fn fn, void *ctx, clb_error *err)
{
    const bool chained = !strcmp(kind, CHAINED) && strchr(text, '/');
    char *copy = strdup(text);
    if (!copy)
        return CLB_NOMEM(err, "parameters");
    int rc = COLIBRI_OK;
    for (char *link = copy, *next; link && !rc; link = next) {
        next = chained ? strchr(link, '/') : NULL;
        if (next)
            *next++ = '\0';
        char *colon = strchr(link, ':');
        if (colon)
            *colon++ = '\0';
        if (!*link)
            rc = chained ? clb_fail(err, COLIBRI_E_USAGE,
                                    "'%.80s' lacks a name beside a '/' (write OUTER/INNER: OUTER wraps INNER)", text)
                         : clb_fail(err, COLIBRI_E_USAGE, "no name ('colibri plugins list' shows them)");
        if (!rc)
            rc = fn(ctx, link, NULL, NULL, err);
        if (!rc && colon)
            rc = each_param(link, colon, fn, ctx, err);
    }
    free(copy);
    return rc;
}

typedef struct assigning {
    clb_config *config;
    const char *kind, *origin;
    unsigned layer, line;
    clb_buf *names;
} assigning;

static int assign(void *ctx, const char *name, const char *key, const char *value, clb_error *err)
{
    const assigning *a = ctx;
    if (!key)
        return clb_buf_printf(a->names, err, "%s%s", a->names->n ? "/" : "", name);
    return clb_config_assign_param(a->config, a->kind, name, key, value, a->origin, a->layer, a->line, err);
}

int clb_config_assign_spec(clb_config *config, const char *kind, const char *text, const char *origin, unsigned layer,
                           unsigned line, clb_buf *names, clb_error *err)
{
    assigning a = {.config = config, .kind = kind, .origin = origin, .layer = layer, .line = line, .names = names};
    return clb_config_spec_each(kind, text, assign, &a, err);
}
