/* Sections [foreign.NAME]: functions of other libraries as components. Here only their form is checked, key by key and
 * value by value; what the keys mean together is core/plugin's business. */
#include "config/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "foreign."

static const clb_setting_info keys[] = {
    {.key = "library", .type = CLB_TYPE_STR},
    {.key = "symbol", .type = CLB_TYPE_STR},
    {.key = "signature", .type = CLB_TYPE_STR},
    {.key = "kind", .type = CLB_TYPE_ENUM, .value_name = "expert-policy|kv-strategy|matmul-f32"},
    {.key = "summary", .type = CLB_TYPE_STR},
    {.key = "on-use", .type = CLB_TYPE_STR},
    {.key = "on-use-signature", .type = CLB_TYPE_STR},
    {.key = "reset", .type = CLB_TYPE_STR},
    {.key = "reset-signature", .type = CLB_TYPE_STR},
    {.key = "deterministic", .type = CLB_TYPE_BOOL},
    {.key = "score-rises", .type = CLB_TYPE_BOOL},
    {.key = "thread-safe", .type = CLB_TYPE_BOOL},
    {.key = "rank", .type = CLB_TYPE_INT, .max = 1000000},
    {.key = "window", .type = CLB_TYPE_INT, .min = 1, .max = 1024},
    {.key = "min-x", .type = CLB_TYPE_INT, .min = 1, .max = 1000000},
};
#define N_KEYS (sizeof keys / sizeof *keys)

const char *clb_foreign_section(const char *section)
{
    return strncmp(section, PREFIX, strlen(PREFIX)) ? NULL : section + strlen(PREFIX);
}

int clb_foreign_check_name(const char *name, clb_error *err)
{
    const size_t n = strlen(name);
    if (!n)
        return clb_fail(err, COLIBRI_E_USAGE, "section [" PREFIX "] needs a name: [" PREFIX "NAME]");
    if (n > CLB_FOREIGN_NAME_MAX || name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-")])
        return clb_fail(err, COLIBRI_E_USAGE,
                        "[" PREFIX "%.80s]: the name is 1 to %u characters of a-z, 0-9, '.', '_' and '-'", name,
                        CLB_FOREIGN_NAME_MAX);
    return COLIBRI_OK;
}

static int check_value(const char *key, const char *text, clb_error *err)
{
    const char *names[N_KEYS];
    for (size_t i = 0; i < N_KEYS; i++) {
        names[i] = keys[i].key;
        if (strcmp(keys[i].key, key) != 0)
            continue;
        clb_value value = {0};
        CLB_TRY(clb_value_parse(&keys[i], text, &value, err));
        const bool empty = !*value.text;
        clb_value_free(&value);
        return empty ? clb_fail(err, COLIBRI_E_USAGE, "no value") : COLIBRI_OK;
    }
    const long at = clb_nearest(key, names, N_KEYS);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown key '%.80s'%s%s%s", key,
                    at >= 0 ? "; did you mean '" : " (library, symbol, signature, kind, ...: docs/foreign.md)",
                    at >= 0 ? names[at] : "", at >= 0 ? "'?" : "");
}

static clb_config_foreign *find(const clb_config *config, const char *name, const char *key)
{
    for (size_t i = 0; i < config->n_foreign; i++)
        if (!strcmp(config->foreign[i].name, name) && !strcmp(config->foreign[i].key, key))
            return &config->foreign[i];
    return NULL;
}

int clb_config_assign_foreign(clb_config *config, const char *name, const char *key, const char *text,
                              const char *origin, unsigned layer, unsigned line, clb_error *err)
{
    CLB_TRY(clb_foreign_check_name(name, err));
    CLB_TRY(check_value(key, text, err));
    clb_config_foreign *f = find(config, name, key);
    if (f)
        CLB_TRY(clb_config_given_twice(f->origin, f->layer, f->line, origin, layer, err));
    char *const text_copy = strdup(text), *const origin_copy = strdup(origin);
    char *const name_copy = f ? NULL : strdup(name), *const key_copy = f ? NULL : strdup(key);
    if (!text_copy || !origin_copy || (!f && (!name_copy || !key_copy)))
        goto nomem;
    if (!f) {
        clb_config_foreign *const more = realloc(config->foreign, (config->n_foreign + 1) * sizeof *more);
        if (!more)
            goto nomem;
        config->foreign = more;
        f = &more[config->n_foreign++];
        *f = (clb_config_foreign){.name = name_copy, .key = key_copy};
    }
    free(f->text);
    free(f->origin);
    f->text = text_copy;
    f->origin = origin_copy;
    f->layer = layer;
    f->line = line;
    return COLIBRI_OK;
nomem:
    free(text_copy);
    free(origin_copy);
    free(name_copy);
    free(key_copy);
    return CLB_NOMEM(err, "a foreign function");
}

void clb_config_free_foreign(clb_config *config)
{
    for (size_t i = 0; i < config->n_foreign; i++) {
        free(config->foreign[i].name);
        free(config->foreign[i].key);
        free(config->foreign[i].text);
        free(config->foreign[i].origin);
    }
    free(config->foreign);
}

size_t clb_config_foreign_count(const clb_config *config)
{
    return config->n_foreign;
}

void clb_config_foreign_at(const clb_config *config, size_t i, const char **name, const char **key, const char **value,
                           const char **origin)
{
    const clb_config_foreign *const f = &config->foreign[i];
    *name = f->name;
    *key = f->key;
    *value = f->text;
    *origin = f->origin;
}
