/* Settings of `colibri serve`: read at the start and again after SIGHUP. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "serve_run.h"

#define KEYS_MOST      1024u
#define KEYS_FILE_MOST (256u << 10)

void clb_serve_keys_free(clb_serve_keys *keys)
{
    for (size_t i = 0; i < keys->n; i++) {
        explicit_bzero(keys->keys[i], strlen(keys->keys[i]));
        free(keys->keys[i]);
    }
    free(keys->keys);
    *keys = (clb_serve_keys){0};
}

static int add_key(clb_serve_keys *keys, const char *text, size_t n, const char *where, clb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f)
            return clb_fail(err, COLIBRI_E_USAGE, "%s: a key is of printable ASCII characters without blanks", where);
    }
    if (!n)
        return clb_fail(err, COLIBRI_E_USAGE, "%s: a key is empty", where);
    if (keys->n == KEYS_MOST)
        return clb_fail(err, COLIBRI_E_LIMIT, "%s: more than %u keys", where, KEYS_MOST);
    char **const grown = realloc(keys->keys, (keys->n + 1) * sizeof *grown);
    if (grown)
        keys->keys = grown;
    char *const copy = grown ? strndup(text, n) : NULL;
    if (!copy)
        return CLB_NOMEM(err, "API keys");
    keys->keys[keys->n++] = copy;
    return COLIBRI_OK;
}

/* One key a line; empty lines and those that start with # are none. */
static int read_lines(clb_serve_keys *keys, const clb_buf *text, const char *path, clb_error *err)
{
    const size_t before = keys->n;
    for (size_t at = 0; at < text->n;) {
        const char *line = text->data + at;
        const char *const end = memchr(line, '\n', text->n - at);
        size_t n = end ? (size_t)(end - line) : text->n - at;
        at += n + 1;
        while (n && (line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t'))
            n--;
        while (n && (*line == ' ' || *line == '\t'))
            line++, n--;
        if (n && *line != '#')
            CLB_TRY(add_key(keys, line, n, path, err));
    }
    return keys->n > before ? COLIBRI_OK : clb_fail(err, COLIBRI_E_USAGE, "%s: there is no key in it", path);
}

static int read_file(clb_serve_keys *keys, const char *path, const clb_log *log, clb_error *err)
{
    clb_buf text = {0};
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "cannot open %s", path);
    int rc = COLIBRI_OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "%s is not a regular file", path));
    if (st.st_mode & S_IRWXO)
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "%s: every user of the machine can read the keys: chmod 600 it", path));
    if (st.st_mode & S_IRWXG)
        clb_logf(log, COLIBRI_LOG_WARN, "%s: its group can read the keys (chmod 600 keeps them to its owner)", path);
    CLB_GO(clb_buf_read(&text, fd, path, KEYS_FILE_MOST, err));
    CLB_GO(read_lines(keys, &text, path, err));
done:
    if (text.data)
        explicit_bzero(text.data, text.n);
    clb_buf_free(&text);
    close(fd);
    return rc;
}

int clb_serve_http_options(const clb_config *config, const clb_log *log, clb_http_options *out, clb_serve_keys *keys,
                           clb_error *err)
{
    const char *const *items;
    const size_t n = clb_config_list(config, CLB_SET_serve_api_key, &items);
    const char *const file = clb_config_str(config, CLB_SET_serve_api_key_file), *const host = clb_config_str(
                                                                                     config, CLB_SET_serve_host);
    *keys = (clb_serve_keys){0};
    for (size_t i = 0; i < n; i++)
        CLB_TRY(add_key(keys, items[i], strlen(items[i]), clb_config_origin(config, CLB_SET_serve_api_key), err));
    if (*file)
        CLB_TRY(read_file(keys, file, log, err));
    if (!keys->n && !clb_http_is_loopback(host))
        return clb_fail(
            err, COLIBRI_E_USAGE,
            "listening on %.200s would let everybody in the network use the model: give --api-key-file (or --api-key)",
            host);
    *out = (clb_http_options){
        .host = host,
        .port = (uint16_t)clb_config_u64(config, CLB_SET_serve_port),
        .log = log,
        .api_keys = (const char *const *)keys->keys,
        .n_api_keys = keys->n,
        .max_body = (size_t)clb_config_u64(config, CLB_SET_serve_max_body),
        .max_stream_backlog = (size_t)1 << 20,
        .max_connections = (uint32_t)clb_config_u64(config, CLB_SET_serve_max_connections),
        .max_per_address = (uint32_t)clb_config_u64(config, CLB_SET_serve_max_per_address),
        .idle_timeout_s = (uint32_t)clb_config_u64(config, CLB_SET_serve_idle_timeout),
        .log_requests = clb_config_bool(config, CLB_SET_serve_log_requests),
    };
    out->n_allowed_hosts = clb_config_list(config, CLB_SET_serve_allowed_hosts, &out->allowed_hosts);
    out->n_cors_origins = clb_config_list(config, CLB_SET_serve_cors_origins, &out->cors_origins);
    return COLIBRI_OK;
}

void clb_serve_app_settings(clb_app *app, const clb_config *config)
{
    pthread_mutex_lock(app->settings_lock);
    app->config = config;
    app->sampling = clb_engine_sampler_params(config);
    app->sampling.seed = clb_config_u64(config, CLB_SET_sampling_seed); /* 0: a fresh one for each request */
    /* 256 tokens are a default for people at a terminal; who asks by API gets what there is room for. */
    app->max_tokens =
        clb_config_is_set(config, CLB_SET_run_predict) ? (uint32_t)clb_config_u64(config, CLB_SET_run_predict) : 0;
    app->timeout_ns = clb_config_u64(config, CLB_SET_serve_request_timeout) * 1000000000u;
    app->queue_timeout_ns = clb_config_u64(config, CLB_SET_serve_queue_timeout) * 1000000000u;
    app->keep_alive_s = (uint32_t)clb_config_u64(config, CLB_SET_serve_keep_alive);
    pthread_mutex_unlock(app->settings_lock);
}

void clb_serve_log_level(clb_args *args, const clb_config *config)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    int level = 0;
    while (level < COLIBRI_LOG_DEBUG && strcmp(clb_config_str(config, CLB_SET_serve_log_level), names[level]) != 0)
        level++;
    if (!clb_args_has(args, "quiet") && !clb_args_has(args, "verbose"))
        clb_log_set_level(&args->log, level);
}

static bool may_change(enum clb_setting id)
{
    static const enum clb_setting fixed[] = {CLB_SET_serve_host, CLB_SET_serve_port, CLB_SET_serve_parallel,
                                             CLB_SET_serve_alias, CLB_SET_serve_lora_dir};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (fixed[i] == id)
            return false;
    }
    const clb_setting_info info = clb_setting_get(id);
    return !strcmp(info.section, "serve") || !strcmp(info.section, "sampling") || id == CLB_SET_run_predict;
}

static void name(clb_buf *list, const clb_setting_info *info)
{
    (void)clb_buf_printf(list, NULL, "%s%s.%s", list->n ? ", " : "", info->section, info->key);
}

int clb_serve_reload(clb_app *app, clb_args *args, const clb_config *old, const clb_config *fresh, clb_error *err)
{
    const clb_log *const log = clb_args_log(args);
    clb_http_options options;
    clb_serve_keys keys;
    clb_buf taken = {0}, kept = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_serve_http_options(fresh, log, &options, &keys, err));
    CLB_GO(clb_http_reconfigure(app->http, &options, err));
    clb_serve_app_settings(app, fresh);
    clb_serve_log_level(args, fresh);
    clb_scheduler_set_limits(app->scheduler, (uint32_t)clb_config_u64(fresh, CLB_SET_serve_queue),
                             clb_config_u64(fresh, CLB_SET_serve_slice) * 1000000u);
    for (int i = 0; i < CLB_SET_COUNT; i++) {
        const clb_setting_info info = clb_setting_get((enum clb_setting)i);
        if (clb_command_takes(args->command, info.id) &&
            strcmp(clb_config_text(old, info.id), clb_config_text(fresh, info.id)) != 0)
            name(may_change(info.id) ? &taken : &kept, &info);
    }
    clb_logf(log, COLIBRI_LOG_WARN, "settings read again; changed: %s%s", taken.n ? taken.data : "nothing",
             *clb_config_str(fresh, CLB_SET_serve_api_key_file) ? "; keys read again" : "");
    if (kept.n)
        clb_logf(log, COLIBRI_LOG_WARN, "only a restart takes over: %s", kept.data);
done:
    clb_serve_keys_free(&keys);
    clb_buf_free(&taken);
    clb_buf_free(&kept);
    return rc;
}
