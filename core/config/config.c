#include "config/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int clb_config_create(clb_config **out, clb_error *err)
{
    clb_config *config = calloc(1, sizeof *config);
    if (!config)
        return CLB_NOMEM(err, "settings");
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        const int rc = clb_value_parse(&info, info.fallback, &config->value[i], err);
        if (rc) {
            clb_config_destroy(config);
            return clb_context(err, "default of %s.%s", info.section, info.key);
        }
    }
    *out = config;
    return COLIBRI_OK;
}

void clb_config_destroy(clb_config *config)
{
    if (!config)
        return;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        clb_value_free(&config->value[i]);
        free(config->origin[i]);
    }
    for (size_t i = 0; i < config->n_params; i++) {
        clb_config_param *p = &config->params[i];
        free(p->name);
        free(p->key);
        free(p->text);
        free(p->origin);
    }
    free(config->params);
    clb_config_free_foreign(config);
    free(config);
}

static const char *kind_selected_by(enum clb_setting id)
{
    for (size_t i = 0; clb_param_kinds[i]; i++) {
        if (clb_param_selector(clb_param_kinds[i]) == id)
            return clb_param_kinds[i];
    }
    return NULL;
}

int clb_config_given_twice(const char *old_origin, unsigned old_layer, unsigned old_line, const char *origin,
                           unsigned layer, clb_error *err)
{
    if (!old_origin)
        return COLIBRI_OK;
    if (layer && old_layer == layer)
        return clb_fail(err, COLIBRI_E_USAGE, "given twice, first in line %u", old_line);
    /* On the command line the order of flags means nothing, so a second value would be a guess. */
    const bool flags = !strncmp(old_origin, "--", 2) && !strncmp(origin, "--", 2);
    const bool same = !strcmp(old_origin, origin);
    if (same && (flags || !strncmp(origin, "COLIBRI_", 8)))
        return clb_fail(err, COLIBRI_E_USAGE, "given twice");
    if (flags)
        return clb_fail(err, COLIBRI_E_USAGE, "already given by %s", old_origin);
    return COLIBRI_OK;
}

int clb_config_assign(clb_config *config, enum clb_setting id, const char *text, const char *origin, unsigned layer,
                      unsigned line, clb_error *err)
{
    CLB_TRY(clb_config_given_twice(config->origin[id], config->layer[id], config->line[id], origin, layer, err));
    const clb_setting_info info = clb_setting_get(id);
    const char *kind = kind_selected_by(id);
    char *copy = strdup(origin);
    clb_buf names = {0};
    clb_value value = {0};
    int rc = COLIBRI_OK;
    if (!copy) {
        rc = CLB_NOMEM(err, "a setting's value");
        goto done;
    }
    if (kind) /* the names first: text without control characters */
        CLB_GO(clb_value_parse(&info, text, &value, err));
    clb_value_free(&value);
    if (kind)
        CLB_GO(clb_config_assign_spec(config, kind, text, origin, layer, line, &names, err));
    CLB_GO(clb_value_parse(&info, kind ? names.data : text, &value, err));
    clb_value_free(&config->value[id]);
    free(config->origin[id]);
    config->value[id] = value;
    config->origin[id] = copy;
    config->layer[id] = layer;
    config->line[id] = line;
    value = (clb_value){0};
    copy = NULL;
done:
    clb_value_free(&value);
    clb_buf_free(&names);
    free(copy);
    return rc;
}

int clb_config_set_value(clb_config *config, enum clb_setting id, const char *value, const char *origin, clb_error *err)
{
    const int rc = clb_config_assign(config, id, value, origin, 0, 0, err);
    if (rc)
        clb_context(err, "%s", origin);
    return rc;
}

int clb_config_set(clb_config *config, const char *assignment, const char *origin, clb_error *err)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return clb_fail(err, COLIBRI_E_USAGE, "%s '%.80s': write section.key=value", origin, assignment);
    char *name = strndup(assignment, (size_t)(equals - assignment));
    if (!name)
        return CLB_NOMEM(err, "a setting's name");
    const char *component = NULL, *kind = clb_param_section(name, &component);
    char *dot = strrchr(name, '.');
    int rc;
    if (kind && component < dot) {
        *dot = '\0';
        rc = clb_config_assign_param(config, kind, component, dot + 1, equals + 1, origin, 0, 0, err);
        *dot = '.';
        if (rc)
            clb_context(err, "%s %.120s", origin, name);
    } else if (clb_foreign_section(name) && clb_foreign_section(name) < dot) {
        *dot = '\0';
        rc = clb_config_assign_foreign(config, clb_foreign_section(name), dot + 1, equals + 1, origin, 0, 0, err);
        *dot = '.';
        if (rc)
            clb_context(err, "%s %.120s", origin, name);
    } else {
        enum clb_setting id = CLB_SET_COUNT;
        rc = clb_setting_find(name, &id, err);
        if (!rc)
            rc = clb_config_assign(config, id, equals + 1, origin, 0, 0, err);
        if (rc)
            clb_context(err, "%s %.120s", origin, name);
    }
    free(name);
    return rc;
}

#define HAS_TYPE(id, types) ((1u << clb_setting_get(id).type) & (types))

const char *clb_config_str(const clb_config *config, enum clb_setting id)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_STR | 1u << CLB_TYPE_PATH | 1u << CLB_TYPE_ENUM));
    return config->value[id].text;
}

uint64_t clb_config_u64(const clb_config *config, enum clb_setting id)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_INT | 1u << CLB_TYPE_SIZE));
    return config->value[id].u;
}

clb_share clb_config_share(const clb_config *config, enum clb_setting id)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_SHARE));
    return (clb_share){config->value[id].u, config->value[id].f};
}

double clb_config_f64(const clb_config *config, enum clb_setting id)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_REAL));
    return config->value[id].f;
}

bool clb_config_bool(const clb_config *config, enum clb_setting id)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_BOOL));
    return config->value[id].u != 0;
}

size_t clb_config_list(const clb_config *config, enum clb_setting id, const char *const **items)
{
    assert(HAS_TYPE(id, 1u << CLB_TYPE_LIST | 1u << CLB_TYPE_PATHS));
    *items = config->value[id].items;
    return config->value[id].n_items;
}

bool clb_config_is_set(const clb_config *config, enum clb_setting id)
{
    return config->origin[id] != NULL;
}

const char *clb_config_origin(const clb_config *config, enum clb_setting id)
{
    return config->origin[id] ? config->origin[id] : "default";
}

const char *clb_config_text(const clb_config *config, enum clb_setting id)
{
    return config->value[id].text;
}
