#include "help.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static bool applies(const clb_command *command, enum clb_setting id)
{
    return !command || clb_command_takes(command, id);
}

static bool param_applies(const clb_command *command, const char *kind)
{
    const enum clb_setting id = clb_param_selector(kind);
    return id == CLB_SET_COUNT ? !command || clb_command_takes(command, CLB_SET_store_expert_policy)
                               : applies(command, id);
}

/* Quotes where the INI syntax needs them. */
static void put_value(FILE *out, const char *text)
{
    const size_t n = strlen(text);
    const bool quote = strchr(text, '#') || (n && (strchr(" \t", text[0]) || strchr(" \t", text[n - 1])));
    fprintf(out, quote ? "\"%s\" " : n ? "%s " : "%s", text);
}

/* What is printed ends up in terminals' histories and bug reports. */
static bool is_secret(const clb_config *config, const clb_setting_info *info)
{
    return info->id == CLB_SET_serve_api_key && *clb_config_text(config, info->id);
}

void clb_print_setting(FILE *out, const clb_config *config, const clb_setting_info *info)
{
    fprintf(out, "%s = ", info->key);
    put_value(out, is_secret(config, info) ? "(not shown)" : clb_config_text(config, info->id));
    fprintf(out, "; %s\n", clb_config_origin(config, info->id));
}

static void print_foreign(FILE *out, const clb_config *config)
{
    const size_t n = clb_config_foreign_count(config);
    const char *section, *key, *value, *origin, *name;
    for (size_t i = 0; i < n; i++) { /* keys of one section may come from several places */
        bool seen = false;
        clb_config_foreign_at(config, i, &section, &key, &value, &origin);
        for (size_t k = 0; k < i && !seen; k++) {
            clb_config_foreign_at(config, k, &name, &key, &value, &origin);
            seen = !strcmp(name, section);
        }
        if (seen)
            continue;
        fprintf(out, "\n[foreign.%s]\n", section);
        for (size_t k = i; k < n; k++) {
            clb_config_foreign_at(config, k, &name, &key, &value, &origin);
            if (strcmp(name, section) != 0)
                continue;
            fprintf(out, "%s = ", key);
            put_value(out, value);
            fprintf(out, "; %s\n", origin);
        }
    }
}

void clb_print_config(FILE *out, const clb_config *config, const clb_command *command)
{
    char section[sizeof((clb_setting_info *)0)->section] = "";
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (!applies(command, info.id))
            continue;
        if (strcmp(section, info.section) != 0)
            fprintf(out, "%s[%s]\n", *section ? "\n" : "", info.section);
        memcpy(section, info.section, sizeof section);
        clb_print_setting(out, config, &info);
    }
    clb_print_params(out, config, command);
}

void clb_print_params(FILE *out, const clb_config *config, const clb_command *command)
{
    const char *last_kind = "", *last_name = "";
    for (size_t i = 0; i < clb_config_param_count(config); i++) {
        const char *kind, *name, *key, *value, *origin;
        clb_config_param_at(config, i, &kind, &name, &key, &value, &origin);
        if (!param_applies(command, kind))
            continue;
        if (strcmp(kind, last_kind) != 0 || strcmp(name, last_name) != 0)
            fprintf(out, "\n[%s.%s]\n", kind, name);
        last_kind = kind;
        last_name = name;
        fprintf(out, "%s = %s ; %s\n", key, value, origin);
    }
    if (applies(command, CLB_SET_plugins_path))
        print_foreign(out, config);
}

static json_t *value_json(const clb_config *config, const clb_setting_info *info)
{
    if (is_secret(config, info))
        return json_string("(not shown)");
    switch (info->type) {
    case CLB_TYPE_INT:
    case CLB_TYPE_SIZE: {
        const uint64_t v = clb_config_u64(config, info->id);
        char digits[24];
        snprintf(digits, sizeof digits, "%" PRIu64, v);
        return v <= INT64_MAX ? json_integer((json_int_t)v) : json_string(digits); /* JSON readers stop at 2^63 */
    }
    case CLB_TYPE_SHARE: {
        const clb_share v = clb_config_share(config, info->id);
        return v.part > 0 ? json_string(clb_config_text(config, info->id)) : json_integer((json_int_t)v.n);
    }
    case CLB_TYPE_REAL:
        return json_real(clb_config_f64(config, info->id));
    case CLB_TYPE_BOOL:
        return json_boolean(clb_config_bool(config, info->id));
    case CLB_TYPE_LIST:
    case CLB_TYPE_PATHS: {
        const char *const *items;
        const size_t n = clb_config_list(config, info->id, &items);
        json_t *array = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(array, json_stringn_nocheck(items[i], strlen(items[i])));
        return array;
    }
    default:
        return json_stringn_nocheck(clb_config_text(config, info->id), strlen(clb_config_text(config, info->id)));
    }
}

static json_t *setting_json(const clb_config *config, const clb_setting_info *s)
{
    char allowed[80];
    clb_setting_allowed(s, allowed, sizeof allowed);
    json_t *o = json_object();
    json_object_set_new(o, "section", json_string(s->section));
    json_object_set_new(o, "key", json_string(s->key));
    json_object_set_new(o, "value", value_json(config, s));
    json_object_set_new(o, "origin", json_string(clb_config_origin(config, s->id)));
    json_object_set_new(o, "default", json_string(s->fallback));
    json_object_set_new(o, "type", json_string(clb_setting_type_name(s->type)));
    json_object_set_new(o, "allowed", json_string(allowed));
    json_object_set_new(o, "flag", s->flag ? json_sprintf("--%s", s->key) : json_null());
    json_object_set_new(o, "short", s->short_name ? json_sprintf("-%c", s->short_name) : json_null());
    json_object_set_new(o, "alias", s->alias ? json_sprintf("--%s", s->alias) : json_null());
    json_object_set_new(o, "env", s->flag ? json_string(s->env) : json_null());
    json_object_set_new(o, "help", json_string(s->help));
    return o;
}

int clb_print_config_json(FILE *out, const clb_config *config, const clb_command *command, clb_error *err)
{
    json_t *root = json_object(), *list = json_array(), *params = json_array();
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (applies(command, info.id))
            json_array_append_new(list, setting_json(config, &info));
    }
    for (size_t i = 0; i < clb_config_param_count(config); i++) {
        const char *kind, *name, *key, *value, *origin;
        clb_config_param_at(config, i, &kind, &name, &key, &value, &origin);
        if (param_applies(command, kind))
            json_array_append_new(params, json_pack("{s:s, s:s, s:s, s:s, s:s}", "kind", kind, "name", name, "key", key,
                                                    "value", value, "origin", origin));
    }
    json_object_set_new(root, "settings", list);
    json_object_set_new(root, "parameters", params);
    json_t *const foreign = json_array();
    for (size_t i = 0; applies(command, CLB_SET_plugins_path) && i < clb_config_foreign_count(config); i++) {
        const char *name, *key, *value, *origin;
        clb_config_foreign_at(config, i, &name, &key, &value, &origin);
        json_array_append_new(foreign, json_pack("{s:s, s:s, s:s, s:s}", "name", name, "key", key, "value", value,
                                                 "origin", origin));
    }
    json_object_set_new(root, "foreign", foreign);
    const int failed = json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    /* A write error shows at the end of the process; this one is memory, or a path that is not UTF-8. */
    if (failed && !ferror(out))
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "cannot write the settings as JSON: a value is not UTF-8");
    putc('\n', out);
    return COLIBRI_OK;
}
