/* INI files: where they are, which ones are believed, and what they say. */
#include "config/ini.h"
#include "config/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef COLIBRI_SYSCONF_DIR
#define COLIBRI_SYSCONF_DIR "/etc"
#endif

#define FILE_MAX_BYTES ((size_t)1 << 20)

/* What the file beside a model may set. Everything else, so every section added later, stays out until listed here. */
static const char *const model_sections[] = {"model", "memory", "cpu", "store", "kv", "sampling", "run"};

static bool model_may_set(const clb_setting_info *info)
{
    if (info->type == CLB_TYPE_PATH || info->type == CLB_TYPE_PATHS)
        return false;
    for (size_t i = 0; i < sizeof model_sections / sizeof *model_sections; i++) {
        if (!strcmp(info->section, model_sections[i]))
            return true;
    }
    return false;
}

typedef struct loading {
    clb_config *config;
    const char *name;
    unsigned layer;
    bool untrusted;
} loading;

static int not_allowed(clb_error *err)
{
    return clb_fail(err, COLIBRI_E_USAGE,
                    "not allowed in a file beside a model: a downloaded folder must not load code, relax checks or "
                    "name files; put it into your own colibri.ini or pass this file with --config");
}

static int on_entry(void *ctx, const char *section, const char *key, const char *value, unsigned line, clb_error *err)
{
    const loading *l = ctx;
    const char *component = NULL, *kind = clb_param_section(section, &component);
    const char *const foreign = clb_foreign_section(section);
    enum clb_setting id = CLB_SET_COUNT;
    if (!key) {
        if (kind && !*component)
            return clb_fail(err, COLIBRI_E_USAGE, "section [%s] needs a name: [%sNAME]", section, section);
        if (foreign)
            return clb_foreign_check_name(foreign, err);
        return kind || clb_setting_section_exists(section) ? COLIBRI_OK : clb_setting_find_in(section, "", &id, err);
    }
    char *origin = NULL;
    if (asprintf(&origin, "%s:%u", l->name, line) < 0)
        return CLB_NOMEM(err, "a setting's origin");
    int rc;
    if (kind) {
        rc = clb_config_assign_param(l->config, kind, component, key, value, origin, l->layer, line, err);
    } else if (foreign) {
        rc = l->untrusted ? not_allowed(err)
                          : clb_config_assign_foreign(l->config, foreign, key, value, origin, l->layer, line, err);
    } else {
        rc = clb_setting_find_in(section, key, &id, err);
        if (rc) {
            free(origin);
            return rc;
        }
        const clb_setting_info info = clb_setting_get(id);
        if (l->untrusted && !model_may_set(&info))
            rc = not_allowed(err);
        else
            rc = clb_config_assign(l->config, id, value, origin, l->layer, line, err);
    }
    free(origin);
    if (rc)
        clb_context(err, "%s.%.80s", section, key);
    return rc;
}

int clb_config_load_text(clb_config *config, const char *text, size_t n, const char *name, bool untrusted,
                         clb_error *err)
{
    loading l = {.config = config, .name = name, .layer = ++config->n_layers, .untrusted = untrusted};
    return clb_ini_parse(text, n, name, on_entry, &l, err);
}

/* A default file must be a regular file (a FIFO would hang the start); one that the user names may be a pipe. */
static int load_path(clb_config *config, const char *path, bool is_default, bool untrusted, clb_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | (is_default ? O_NONBLOCK : 0));
    if (fd < 0)
        return clb_fail_errno(err, errno == ENOENT || errno == ENOTDIR ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno,
                              "cannot open %s", path);
    int rc = COLIBRI_OK;
    clb_buf text = {0};
    struct stat st;
    if (fstat(fd, &st)) {
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot examine %s", path);
        goto done;
    }
    if (S_ISDIR(st.st_mode) || (is_default && !S_ISREG(st.st_mode))) {
        rc = clb_fail(err, COLIBRI_E_USAGE, "%s is not a regular file", path);
        goto done;
    }
    if (S_ISREG(st.st_mode) && (st.st_mode & S_IWOTH)) {
        rc = clb_fail(err, COLIBRI_E_USAGE, "%s can be written by every user, so it is not read: chmod o-w it", path);
        goto done;
    }
    CLB_GO(clb_buf_read(&text, fd, path, FILE_MAX_BYTES, err));
    rc = clb_config_load_text(config, text.data ? text.data : "", text.n, path, untrusted, err);
done:
    clb_buf_free(&text);
    close(fd);
    return rc;
}

int clb_config_load_file(clb_config *config, const char *path, clb_error *err)
{
    return load_path(config, path, false, false, err);
}

int clb_config_load_untrusted(clb_config *config, const char *path, clb_error *err)
{
    return load_path(config, path, true, true, err);
}

static int load_default(clb_config *config, const char *path, bool untrusted, clb_error *err)
{
    if (!*path)
        return COLIBRI_OK;
    const int rc = load_path(config, path, true, untrusted, err);
    return rc == COLIBRI_E_NOT_FOUND ? COLIBRI_OK : rc;
}

static char *beside_model(const char *model, char *out, size_t n)
{
    const char *slash = strrchr(model, '/');
    const int len = slash ? (int)(slash - model + 1) : 0;
    if (!*model || snprintf(out, n, "%.*scolibri.ini", len, model) >= (int)n)
        *out = '\0';
    return out;
}

char *clb_config_default_path(int which, const char *model, char *out, size_t n)
{
    *out = '\0';
    if (which == 0) {
        snprintf(out, n, "%s/colibri/colibri.ini", COLIBRI_SYSCONF_DIR);
    } else if (which == 1) {
        /* The XDG specification says that a relative path is to be taken as unset. */
        const char *xdg = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
        int len = 0;
        if (xdg && *xdg == '/')
            len = snprintf(out, n, "%s/colibri/colibri.ini", xdg);
        else if (home && *home == '/')
            len = snprintf(out, n, "%s/.config/colibri/colibri.ini", home);
        if (len >= (int)n)
            *out = '\0';
    } else if (model) {
        beside_model(model, out, n);
    }
    return out;
}

int clb_config_load_from(clb_config *config, const char *sysconf_file, const char *user_file, const char *model,
                         clb_error *err)
{
    char path[4096];
    if (sysconf_file)
        CLB_TRY(load_default(config, sysconf_file, false, err));
    if (user_file)
        CLB_TRY(load_default(config, user_file, false, err));
    return model ? load_default(config, beside_model(model, path, sizeof path), true, err) : COLIBRI_OK;
}

int clb_config_load_defaults(clb_config *config, const char *model, clb_error *err)
{
    char system_file[4096], user_file[4096];
    clb_config_default_path(0, NULL, system_file, sizeof system_file);
    clb_config_default_path(1, NULL, user_file, sizeof user_file);
    return clb_config_load_from(config, system_file, user_file, model, err);
}
