/* The parts of `colibri serve`: what it is told by the settings, signals, and the service manager. */
#ifndef CLB_TOOLS_SERVE_RUN_H
#define CLB_TOOLS_SERVE_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "command.h"
#include "serve/app.h"

/* serve_settings.c: the HTTP options of a configuration; keys come from the setting and from its file. Points into
 * `config` and into *keys, which clb_serve_keys_free frees. USAGE: a file of keys that others may read, a key with
 * blanks. */
typedef struct clb_serve_keys {
    char **keys;
    size_t n;
} clb_serve_keys;
int clb_serve_http_options(const clb_config *config, const clb_log *log, clb_http_options *out, clb_serve_keys *keys,
                           clb_error *err);
void clb_serve_keys_free(clb_serve_keys *keys);
/* What handlers read under the lock of the settings. */
void clb_serve_app_settings(clb_app *app, const clb_config *config);
/* How much is written to standard error. */
void clb_serve_log_level(clb_args *args, const clb_config *config);
/* Takes over what may change from one configuration to the next, and says so; what is not taken over is named. */
int clb_serve_reload(clb_app *app, clb_args *args, const clb_config *old, const clb_config *fresh, clb_error *err);

/* serve_control.c: SIGTERM, SIGINT and SIGHUP come to a thread of their own, which is started before all others. */
typedef struct clb_serve_control {
    clb_args *args;
    clb_app *app;
    pthread_t thread;
    atomic_bool cancel; /* for the engine: give up loading, or a pass */
    atomic_bool over;   /* the thread ends */
    clb_config *config; /* the latest one that was loaded; NULL: that of args */
    uint32_t drain_s;
} clb_serve_control;
int clb_serve_control_start(clb_serve_control *c, clb_error *err);
void clb_serve_control_stop(clb_serve_control *c);

/* serve_notify.c: a line for systemd, if it waits for one ($NOTIFY_SOCKET). */
void clb_serve_notify(const char *state);

#endif
