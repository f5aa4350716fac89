/* Parameters of plugin components: kept as given, checked when the component and so its declaration is known. */
#include "config/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static clb_config_param *find(const clb_config *config, const char *kind, const char *name, const char *key)
{
    for (size_t i = 0; i < config->n_params; i++) {
        clb_config_param *p = &config->params[i];
        if (!strcmp(p->kind, kind) && !strcmp(p->name, name) && !strcmp(p->key, key))
            return p;
    }
    return NULL;
}

int clb_config_assign_param(clb_config *config, const char *kind, const char *name, const char *key, const char *text,
                            const char *origin, unsigned layer, unsigned line, clb_error *err)
{
    if (!*name || !*key)
        return clb_fail(err, COLIBRI_E_USAGE, "a parameter is [%s.NAME] key = value", kind);
    double number = 0;
    CLB_TRY(clb_parse_f64(text, &number, err));
    clb_config_param *p = find(config, kind, name, key);
    if (p)
        CLB_TRY(clb_config_given_twice(p->origin, p->layer, p->line, origin, layer, err));
    char *text_copy = strdup(text), *origin_copy = strdup(origin);
    if (!text_copy || !origin_copy)
        goto nomem;
    if (!p) {
        if (config->n_params == config->cap_params) {
            const size_t cap = config->cap_params ? 2 * config->cap_params : 16;
            clb_config_param *more = realloc(config->params, cap * sizeof *more);
            if (!more)
                goto nomem;
            config->params = more;
            config->cap_params = cap;
        }
        char *name_copy = strdup(name), *key_copy = strdup(key);
        if (!name_copy || !key_copy) {
            free(name_copy);
            free(key_copy);
            goto nomem;
        }
        p = &config->params[config->n_params++];
        *p = (clb_config_param){.kind = kind, .name = name_copy, .key = key_copy};
    }
    free(p->text);
    free(p->origin);
    p->text = text_copy;
    p->origin = origin_copy;
    p->number = number;
    p->layer = layer;
    p->line = line;
    return COLIBRI_OK;
nomem:
    free(text_copy);
    free(origin_copy);
    return CLB_NOMEM(err, "a parameter");
}

static int unknown_param(const clb_config_param *p, const struct colibri_param *params, uint32_t n, clb_error *err)
{
    if (!n)
        return clb_fail(err, COLIBRI_E_USAGE, "%s: %s '%.80s' takes no parameters, so no '%.80s'", p->origin, p->kind,
                        p->name, p->key);
    const char **names = calloc(n, sizeof *names);
    clb_buf list = {0};
    int rc = names ? COLIBRI_OK : CLB_NOMEM(err, "parameter names");
    for (uint32_t i = 0; i < n && !rc; i++) {
        names[i] = params[i].name;
        rc = clb_buf_printf(&list, err, "%s%s", i ? ", " : "", params[i].name);
    }
    if (!rc) {
        const long at = clb_nearest(p->key, names, n);
        if (at >= 0)
            rc = clb_fail(err, COLIBRI_E_USAGE, "%s: %s '%.80s' has no parameter '%.80s'; did you mean '%s'?",
                          p->origin, p->kind, p->name, p->key, names[at]);
        else
            rc = clb_fail(err, COLIBRI_E_USAGE, "%s: %s '%.80s' has no parameter '%.80s'; it has: %.300s", p->origin,
                          p->kind, p->name, p->key, list.data);
    }
    free(names);
    clb_buf_free(&list);
    return rc;
}

static int apply(const clb_config_param *p, const struct colibri_param *params, uint32_t n, double *out, clb_error *err)
{
    uint32_t i = 0;
    while (i < n && strcmp(params[i].name, p->key) != 0)
        i++;
    if (i == n)
        return unknown_param(p, params, n, err);
    if (!(p->number >= params[i].min && p->number <= params[i].max))
        return clb_fail(err, COLIBRI_E_USAGE, "%s: %s.%.80s.%s: %.15g is out of range; allowed: %.15g to %.15g",
                        p->origin, p->kind, p->name, p->key, p->number, params[i].min, params[i].max);
    if (params[i].integer && p->number != floor(p->number))
        return clb_fail(err, COLIBRI_E_USAGE, "%s: %s.%.80s.%s: %.15g is not a whole number", p->origin, p->kind,
                        p->name, p->key, p->number);
    out[i] = p->number;
    return COLIBRI_OK;
}

int clb_config_params(const clb_config *config, const char *kind, const char *name, const struct colibri_param *params,
                      uint32_t n, double *out, clb_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = params[i].value;
    for (size_t k = 0; k < config->n_params; k++) {
        const clb_config_param *p = &config->params[k];
        if (!strcmp(p->kind, kind) && !strcmp(p->name, name))
            CLB_TRY(apply(p, params, n, out, err));
    }
    return COLIBRI_OK;
}

int clb_config_param_apply(const char *kind, const char *name, const char *key, const char *text, const char *origin,
                           const struct colibri_param *params, uint32_t n, double *out, clb_error *err)
{
    clb_config_param p = {
        .kind = kind, .name = (char *)(uintptr_t)name, .key = (char *)(uintptr_t)key, .origin = (char *)(uintptr_t)origin};
    CLB_TRY(clb_parse_f64(text, &p.number, err));
    return apply(&p, params, n, out, err);
}

size_t clb_config_param_count(const clb_config *config)
{
    return config->n_params;
}

void clb_config_param_at(const clb_config *config, size_t i, const char **kind, const char **name, const char **key,
                         const char **value, const char **origin)
{
    const clb_config_param *p = &config->params[i];
    *kind = p->kind;
    *name = p->name;
    *key = p->key;
    *value = p->text;
    *origin = p->origin;
}

int clb_config_params_new(const clb_config *config, const char *kind, const char *name,
                          const struct colibri_param *params, uint32_t n, double **out, clb_error *err)
{
    *out = calloc(n ? n : 1, sizeof **out);
    if (!*out)
        return CLB_NOMEM(err, "parameters");
    return clb_config_params(config, kind, name, params, n, *out, err);
}
