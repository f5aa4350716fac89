#include "config/settings.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct row {
    const char *section, *key, *fallback, *alias, *value_name, *help;
    double min, max;
    enum clb_setting_type type;
    bool flag;
    char short_name;
} row;

#define CLB_SETTING(section_, key_, type_, fallback_, flag_, short_, alias_, min_, max_, value_name_, help_)           \
    {.section = #section_,                                                                                             \
     .key = #key_,                                                                                                     \
     .type = CLB_TYPE_##type_,                                                                                         \
     .fallback = (fallback_),                                                                                          \
     .flag = (flag_) != 0,                                                                                             \
     .short_name = (short_),                                                                                           \
     .alias = (alias_),                                                                                                \
     .min = (min_),                                                                                                    \
     .max = (max_),                                                                                                    \
     .value_name = (value_name_),                                                                                      \
     .help = (help_)},
static const row table[CLB_SET_COUNT] = {
#include "config/settings.def"
};
#undef CLB_SETTING

#define CLB_SETTING(section_, key_, ...)                                                                               \
    _Static_assert(sizeof #section_ <= sizeof((clb_setting_info *)0)->section, "section name too long");               \
    _Static_assert(sizeof #key_ <= sizeof((clb_setting_info *)0)->key, "key too long");
#include "config/settings.def"
#undef CLB_SETTING

const char *const clb_param_kinds[] = {"expert-policy", "kv-strategy", "predictor", NULL};

/* C identifiers have '_' where INI names and flags have '-'. */
static void ini_name(char *out, size_t n, const char *identifier)
{
    size_t i = 0;
    for (; identifier[i] && i + 1 < n; i++)
        out[i] = identifier[i] == '_' ? '-' : identifier[i];
    out[i] = '\0';
}

clb_setting_info clb_setting_get(enum clb_setting id)
{
    const row *r = &table[id];
    clb_setting_info info = {.id = id,
                             .type = r->type,
                             .fallback = r->fallback,
                             .flag = r->flag,
                             .short_name = r->short_name,
                             .alias = r->alias,
                             .min = r->min,
                             .max = r->max,
                             .value_name = r->value_name,
                             .help = r->help};
    ini_name(info.section, sizeof info.section, r->section);
    ini_name(info.key, sizeof info.key, r->key);
    if (r->flag) {
        const size_t n = (size_t)snprintf(info.env, sizeof info.env, "COLIBRI_%s", r->key);
        for (size_t i = 0; i < n && i < sizeof info.env; i++)
            info.env[i] = (char)toupper((unsigned char)info.env[i]);
    }
    return info;
}

const char *clb_setting_type_name(enum clb_setting_type type)
{
    switch (type) {
    case CLB_TYPE_STR:
        return "text";
    case CLB_TYPE_PATH:
        return "path";
    case CLB_TYPE_INT:
        return "whole number";
    case CLB_TYPE_SIZE:
        return "size";
    case CLB_TYPE_REAL:
        return "number";
    case CLB_TYPE_SHARE:
        return "whole number or share";
    case CLB_TYPE_BOOL:
        return "yes or no";
    case CLB_TYPE_ENUM:
        return "choice";
    case CLB_TYPE_LIST:
        return "list";
    case CLB_TYPE_PATHS:
        return "absolute folders";
    }
    return "";
}

char *clb_setting_allowed(const clb_setting_info *info, char *out, size_t n)
{
    const bool bounded = info->min != 0 || info->max != 0;
    switch (info->type) {
    case CLB_TYPE_INT:
    case CLB_TYPE_REAL:
        if (bounded)
            snprintf(out, n, "%.15g to %.15g", info->min, info->max);
        else
            snprintf(out, n, "%s", info->type == CLB_TYPE_INT ? "0 or more" : "");
        break;
    case CLB_TYPE_SHARE:
        if (bounded)
            snprintf(out, n, "%.15g to %.15g, or a share up to 100%%", info->min, info->max);
        else
            snprintf(out, n, "0 or more, or a share up to 100%%");
        break;
    case CLB_TYPE_SIZE:
        snprintf(out, n, "bytes, or with K, M, G, T: 512M, 1.5GiB");
        break;
    case CLB_TYPE_BOOL:
        snprintf(out, n, "yes or no");
        break;
    case CLB_TYPE_ENUM:
        snprintf(out, n, "%s", info->value_name);
        break;
    default:
        snprintf(out, n, "%s", "");
    }
    return out;
}

static bool same_name(const char *identifier, const char *name)
{
    for (; *identifier && *name; identifier++, name++) {
        if ((*identifier == '_' ? '-' : *identifier) != *name)
            return false;
    }
    return !*identifier && !*name;
}

bool clb_setting_section_exists(const char *section)
{
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        if (same_name(table[i].section, section))
            return true;
    }
    return false;
}

enum clb_setting clb_setting_by_flag(const char *flag)
{
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        if (table[i].flag && (same_name(table[i].key, flag) || (table[i].alias && !strcmp(table[i].alias, flag))))
            return (enum clb_setting)i;
    }
    return CLB_SET_COUNT;
}

enum clb_setting clb_setting_by_short(char short_name)
{
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        if (table[i].flag && table[i].short_name && table[i].short_name == short_name)
            return (enum clb_setting)i;
    }
    return CLB_SET_COUNT;
}

enum clb_setting clb_setting_by_env(const char *name)
{
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        if (table[i].flag && !strcmp(clb_setting_get((enum clb_setting)i).env, name))
            return (enum clb_setting)i;
    }
    return CLB_SET_COUNT;
}

/* The nearest of all "section.key" (full) or "key" names, into out; false if none is near. */
static bool nearest_setting(const char *word, bool full, char *out, size_t n)
{
    char names[CLB_SET_COUNT][sizeof((clb_setting_info *)0)->section + sizeof((clb_setting_info *)0)->key];
    const char *ptrs[CLB_SET_COUNT];
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        snprintf(names[i], sizeof names[i], "%s%s%s", full ? info.section : "", full ? "." : "", info.key);
        ptrs[i] = names[i];
    }
    const long at = clb_nearest(word, ptrs, CLB_SET_COUNT);
    if (at < 0)
        return false;
    const clb_setting_info info = clb_setting_get((enum clb_setting)at);
    snprintf(out, n, "%s.%s", info.section, info.key);
    return true;
}

int clb_setting_find(const char *name, enum clb_setting *id, clb_error *err)
{
    const char *dot = strrchr(name, '.');
    char near[80];
    if (dot) {
        char section[64];
        snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
        for (int i = 0; i < CLB_SET_COUNT; i++) {
            if (same_name(table[i].section, section) && same_name(table[i].key, dot + 1)) {
                *id = (enum clb_setting)i;
                return COLIBRI_OK;
            }
        }
        if (nearest_setting(name, true, near, sizeof near) || nearest_setting(dot + 1, false, near, sizeof near))
            return clb_fail(err, COLIBRI_E_USAGE, "unknown setting '%.80s'; did you mean '%s'?", name, near);
    } else {
        int found = -1;
        for (int i = 0; i < CLB_SET_COUNT; i++) {
            if (!same_name(table[i].key, name))
                continue;
            if (found >= 0)
                return clb_fail(err, COLIBRI_E_USAGE, "'%.80s' is in both [%s] and [%s]; write %s.%.80s or %s.%.80s",
                                name, table[found].section, table[i].section, table[found].section, name,
                                table[i].section, name);
            found = i;
        }
        if (found >= 0) {
            *id = (enum clb_setting)found;
            return COLIBRI_OK;
        }
        if (nearest_setting(name, false, near, sizeof near))
            return clb_fail(err, COLIBRI_E_USAGE, "unknown setting '%.80s'; did you mean '%s'?", name, near);
    }
    return clb_fail(err, COLIBRI_E_USAGE, "unknown setting '%.80s' ('colibri config list' shows all)", name);
}

static int unknown_section(const char *section, clb_error *err)
{
    const char *names[CLB_SET_COUNT + 8];
    size_t n = 0;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        bool seen = false;
        for (size_t j = 0; j < n && !seen; j++)
            seen = !strcmp(names[j], table[i].section);
        if (!seen)
            names[n++] = table[i].section;
    }
    const size_t n_plain = n;
    for (size_t i = 0; clb_param_kinds[i] && n + 1 < sizeof names / sizeof *names; i++)
        names[n++] = clb_param_kinds[i];
    names[n++] = "foreign";
    const size_t head = strcspn(section, ".");
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(head < 60 ? head : 60), section);
    const long at = clb_nearest(word, names, n);
    if (at >= 0 && (size_t)at >= n_plain)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown section [%.80s]; did you mean [%s.NAME]?", section, names[at]);
    if (at >= 0) {
        char name[64];
        ini_name(name, sizeof name, names[at]);
        return clb_fail(err, COLIBRI_E_USAGE, "unknown section [%.80s]; did you mean [%s]?", section, name);
    }
    return clb_fail(err, COLIBRI_E_USAGE, "unknown section [%.80s] ('colibri config list' shows all)", section);
}

int clb_setting_find_in(const char *section, const char *key, enum clb_setting *id, clb_error *err)
{
    if (!clb_setting_section_exists(section))
        return unknown_section(section, err);
    const char *names[CLB_SET_COUNT];
    char dashed[CLB_SET_COUNT][sizeof((clb_setting_info *)0)->key];
    size_t n = 0;
    const char *elsewhere = NULL;
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const bool here = same_name(table[i].section, section), match = same_name(table[i].key, key);
        if (here && match) {
            *id = (enum clb_setting)i;
            return COLIBRI_OK;
        }
        if (match)
            elsewhere = table[i].section;
        if (here) {
            ini_name(dashed[n], sizeof dashed[n], table[i].key);
            names[n] = dashed[n];
            n++;
        }
    }
    if (elsewhere) {
        char name[64];
        ini_name(name, sizeof name, elsewhere);
        return clb_fail(err, COLIBRI_E_USAGE, "unknown key '%.80s' in [%s]; it belongs to [%s]", key, section, name);
    }
    const long at = clb_nearest(key, names, n);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown key '%.80s' in [%s]; did you mean '%s'?", key, section,
                        names[at]);
    char near[80];
    if (nearest_setting(key, false, near, sizeof near))
        return clb_fail(err, COLIBRI_E_USAGE, "unknown key '%.80s' in [%s]; did you mean '%s'?", key, section, near);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown key '%.80s' in [%s] ('colibri config list' shows all)", key,
                    section);
}

const char *clb_param_section(const char *section, const char **name)
{
    for (size_t i = 0; clb_param_kinds[i]; i++) {
        const size_t n = strlen(clb_param_kinds[i]);
        if (!strncmp(section, clb_param_kinds[i], n) && section[n] == '.') {
            *name = section + n + 1;
            return clb_param_kinds[i];
        }
    }
    return NULL;
}

enum clb_setting clb_param_selector(const char *kind)
{
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        if (table[i].type == CLB_TYPE_STR && same_name(table[i].key, kind))
            return (enum clb_setting)i;
    }
    return CLB_SET_COUNT;
}
