/* colibri serve: the model for other programs, over HTTP. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "model_run.h"
#include "paths.h"
#include "serve/completion.h"
#include "serve/json_memory.h"
#include "serve/metrics.h"
#include "serve_run.h"

#define GRACE_MS      2000u /* for what is written, to reach its client */
#define GRACE_STOP_MS 200u

static const clb_flag flags[] = {{0}};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS,
                                            CLB_SAMPLING_SETTINGS,
                                            CLB_SET_run_predict,
                                            CLB_SET_run_raw,
                                            CLB_SET_model_chat_template,
                                            CLB_SET_serve_host,
                                            CLB_SET_serve_port,
                                            CLB_SET_serve_parallel,
                                            CLB_SET_serve_queue,
                                            CLB_SET_serve_queue_timeout,
                                            CLB_SET_serve_request_timeout,
                                            CLB_SET_serve_api_key,
                                            CLB_SET_serve_api_key_file,
                                            CLB_SET_serve_allowed_hosts,
                                            CLB_SET_serve_cors_origins,
                                            CLB_SET_serve_max_body,
                                            CLB_SET_serve_max_connections,
                                            CLB_SET_serve_max_per_address,
                                            CLB_SET_serve_idle_timeout,
                                            CLB_SET_serve_slice,
                                            CLB_SET_serve_alias,
                                            CLB_SET_serve_keep_alive,
                                            CLB_SET_serve_log_requests,
                                            CLB_SET_serve_log_level,
                                            CLB_SET_serve_drain_timeout,
                                            CLB_SET_serve_lora_dir,
                                            CLB_SET_COUNT};

typedef struct serve {
    clb_args *args;
    const clb_config *config; /* as it was at the start */
    pthread_mutex_t settings_lock;
    clb_app app;
    clb_serve_control control;
    clb_token_tree *tree;
    bool control_runs;
} serve;

static bool cancelled(void *ctx)
{
    return atomic_load(&((serve *)ctx)->control.cancel);
}

static void on_done(void *app, const clb_http_done *done)
{
    clb_metrics_http(((clb_app *)app)->metrics, done);
}

static char *name_of_model(const clb_config *config)
{
    const char *const alias = clb_config_str(config, CLB_SET_serve_alias), *const path = clb_config_str(
                                                                               config, CLB_SET_model_model);
    const char *const slash = strrchr(path, '/');
    return strdup(*alias ? alias : slash ? slash + 1 : path);
}

/* A file per connection, and some for the model and for what is loaded. */
static void allow_files(const serve *s)
{
    const rlim_t need = 2 * clb_config_u64(s->config, CLB_SET_serve_max_connections) + 512;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= need)
        return;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < need)
        clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN,
                 "the limit of open files (%llu, ulimit -n) is too low for so many connections",
                 (unsigned long long)limit.rlim_cur);
}

/* Before the model: whoever waits for the server finds it, and is told that it is loading. */
static int start_http(serve *s, clb_error *err)
{
    clb_http_options options;
    clb_serve_keys keys;
    int rc = COLIBRI_OK;
    CLB_GO(clb_serve_http_options(s->config, clb_args_log(s->args), &options, &keys, err));
    options.routes = clb_serve_routes;
    options.app = &s->app;
    options.admit = clb_serve_admit;
    options.on_done = on_done;
    allow_files(s);
    CLB_GO(clb_metrics_create(clb_serve_routes, &s->app.metrics, err));
    CLB_GO(clb_serve_control_start(&s->control, err));
    s->control_runs = true;
    rc = clb_http_start(&options, &s->app.http, err);
done:
    clb_serve_keys_free(&keys);
    return rc;
}

static int open_model(serve *s, clb_error *err)
{
    char dir[PATH_MAX];
    const clb_engine_options options = {
        .config = s->config,
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(s->args),
        .n_sequences = s->app.parallel,
        .interruptible = s->app.parallel > 1,
        .cancelled = cancelled,
        .cancelled_ctx = s,
        .pin_caller = true,
    };
    CLB_TRY(clb_engine_open(&options, &s->app.engine, err));
    const int rc = clb_open_chat(s->args, s->app.engine, &s->app.chat, err);
    if (rc == COLIBRI_E_UNSUPPORTED) { /* plain completions do without */
        clb_logf(clb_args_log(s->args), COLIBRI_LOG_WARN, "no chats: %s", err->msg);
        s->app.chat = NULL;
    } else if (rc) {
        return rc;
    }
    CLB_TRY(clb_token_tree_create(s->app.engine->vocab, &s->tree, err));
    s->app.tree = s->tree;
    const clb_scheduler_options scheduling = {
        .engine = s->app.engine,
        .n_sequences = s->app.parallel,
        .queue = (uint32_t)clb_config_u64(s->config, CLB_SET_serve_queue),
        .slice_ns = clb_config_u64(s->config, CLB_SET_serve_slice) * 1000000u,
    };
    CLB_TRY(clb_scheduler_create(&scheduling, &s->app.scheduler, err));
    return clb_watch_start(&s->app, err);
}

static void announce(serve *s)
{
    const char *const host = clb_config_str(s->config, CLB_SET_serve_host);
    const bool six = strchr(host, ':') != NULL;
    s->app.load_ns = clb_now_ns() - s->app.start_ns;
    __atomic_store_n(&s->app.ready, true, __ATOMIC_RELEASE);
    printf("server ready: http://%s%s%s:%u (loaded in %.1f s, %s, %u requests at once, context %u)\n", six ? "[" : "",
           host, six ? "]" : "", (unsigned)clb_http_port(s->app.http), (double)s->app.load_ns / 1e9, s->app.model_name,
           s->app.parallel, s->app.engine->ctx);
    fflush(stdout);
    clb_serve_notify("READY=1");
}

static void close_all(serve *s, bool at_once)
{
    __atomic_store_n(&s->app.draining, true, __ATOMIC_RELEASE);
    if (s->app.http)
        clb_http_stop(s->app.http, at_once ? GRACE_STOP_MS : GRACE_MS);
    if (s->control_runs)
        clb_serve_control_stop(&s->control);
    clb_watch_stop(&s->app);
    clb_scheduler_destroy(s->app.scheduler);
    clb_token_tree_destroy(s->tree);
    clb_chat_free(s->app.chat);
    clb_engine_close(s->app.engine);
    clb_metrics_destroy(s->app.metrics);
    pthread_mutex_destroy(&s->settings_lock);
    free(s->app.model_name);
}

/* A folder that is not there would show only when a client wants an adapter, and look like the client's mistake. */
static int check_lora_dir(const char *dir, clb_error *err)
{
    struct stat st;
    if (!dir)
        return COLIBRI_OK;
    if (stat(dir, &st))
        return clb_fail(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, "--lora-dir: cannot open %s: %s",
                        dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return clb_fail(err, COLIBRI_E_USAGE, "--lora-dir: %s is not a folder", dir);
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    serve s = {.args = args, .config = clb_args_config(args), .settings_lock = PTHREAD_MUTEX_INITIALIZER};
    clb_json_memory_watch();
    const char *const lora_dir = clb_config_str(s.config, CLB_SET_serve_lora_dir);
    int rc = COLIBRI_OK;
    if (!*clb_config_str(s.config, CLB_SET_model_model))
        return clb_fail(err, COLIBRI_E_USAGE, "no model given: use -m FILE, or model.model in a colibri.ini");
    s.app = (clb_app){
        .log = clb_args_log(args),
        .model_name = name_of_model(s.config),
        .created = (uint64_t)time(NULL),
        .start_ns = clb_now_ns(),
        .lora_dir = *lora_dir ? lora_dir : NULL,
        .settings_lock = &s.settings_lock,
        .parallel = (uint32_t)clb_config_u64(s.config, CLB_SET_serve_parallel),
    };
    s.control = (clb_serve_control){
        .args = args, .app = &s.app, .drain_s = (uint32_t)clb_config_u64(s.config, CLB_SET_serve_drain_timeout)};
    clb_serve_log_level(args, s.config);
    clb_serve_app_settings(&s.app, s.config);
    if (!s.app.model_name)
        CLB_GO(CLB_NOMEM(err, "the model's name"));
    CLB_GO(check_lora_dir(s.app.lora_dir, err));
    CLB_GO(start_http(&s, err));
    CLB_GO(open_model(&s, err));
    announce(&s);
    rc = clb_scheduler_run(s.app.scheduler, err);
done:;
    const bool at_once = rc || atomic_load(&s.control.cancel);
    if (!rc && at_once)
        rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request, with requests that had not ended");
    close_all(&s, at_once);
    return rc;
}

const struct clb_command clb_command_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP (OpenAI's and Anthropic's API)",
    .usage = "colibri serve -m MODEL [flags]",
    .description = "Clients of OpenAI's API find it under http://127.0.0.1:8080/v1, those of Anthropic's under "
                   "http://127.0.0.1:8080. A line "
                   "'server ready: ...' on standard output says that the model is loaded; until then requests are "
                   "answered with 503.\n\n"
                   "The server listens on this machine only. With --host it listens elsewhere, and then asks every "
                   "client for a key "
                   "(--api-key-file). TLS is a proxy's work.\n\n"
                   "SIGTERM or Ctrl-C: running requests are brought to their end, for at most --drain-timeout seconds; "
                   "a second one ends them. "
                   "SIGHUP: settings and keys are read again; those that need a restart are named.",
    .examples = "colibri serve -m model.gguf   # for programs on this machine\n"
                "colibri serve -m moe.gguf --max-memory 8G --parallel 2 --ctx 16384   # within 8 GiB, two long "
                "requests at once\n"
                "colibri serve -m model.gguf --host 0.0.0.0 --api-key-file keys.txt --log-requests   # for a network\n"
                "colibri serve --config server.ini   # everything from a file",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
