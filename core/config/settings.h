/* The settings table as data: what --help, the man pages, completion and the checks read. Values live in clb_config. */
#ifndef CLB_CONFIG_SETTINGS_H
#define CLB_CONFIG_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "config/config.h"

enum clb_setting_type {
    CLB_TYPE_STR,
    CLB_TYPE_PATH,
    CLB_TYPE_INT,
    CLB_TYPE_SIZE,
    CLB_TYPE_REAL,
    CLB_TYPE_SHARE, /* a whole number, or a part of something: "25%" */
    CLB_TYPE_BOOL,
    CLB_TYPE_ENUM,
    CLB_TYPE_LIST,  /* items split at ',' */
    CLB_TYPE_PATHS, /* absolute folders split at ':' */
};

typedef struct clb_setting_info {
    enum clb_setting id;
    enum clb_setting_type type;
    char section[24], key[40]; /* as written in an INI file; the long flag is --key */
    char env[48];              /* "COLIBRI_MAX_MEMORY"; "" for a setting without flag */
    const char *fallback;      /* the default, as text */
    bool flag;
    char short_name;   /* 0: none */
    const char *alias; /* another long flag, or NULL */
    double min, max;   /* 0,0: unchecked */
    const char *value_name, *help;
} clb_setting_info;

clb_setting_info clb_setting_get(enum clb_setting id);
const char *clb_setting_type_name(enum clb_setting_type type); /* "whole number" */
/* What a value may be, for messages and help: "0 to 1024", "auto|mmap|read"; "" when anything goes. Returns out. */
char *clb_setting_allowed(const clb_setting_info *info, char *out, size_t n);

/* "section.key", or "key" where only one section has it. USAGE names the nearest. */
int clb_setting_find(const char *name, enum clb_setting *id, clb_error *err);
/* Within one section of a file: the message names the nearest key, or the section the key belongs to. */
int clb_setting_find_in(const char *section, const char *key, enum clb_setting *id, clb_error *err);
/* By long flag (key or alias, settings with a flag only), environment name, or short flag; CLB_SET_COUNT: none. */
enum clb_setting clb_setting_by_flag(const char *flag);
enum clb_setting clb_setting_by_short(char short_name);
enum clb_setting clb_setting_by_env(const char *name);
bool clb_setting_section_exists(const char *section);

/* Sections "<kind>.<name>" hold the parameters of one plugin component; kinds end with NULL. */
extern const char *const clb_param_kinds[];
/* Splits "expert-policy.lfu" into kind and a pointer to "lfu"; NULL if it is not such a section. */
const char *clb_param_section(const char *section, const char **name);
/* The setting that picks a component of this kind: same key as the kind; CLB_SET_COUNT: none. */
enum clb_setting clb_param_selector(const char *kind);

#endif
