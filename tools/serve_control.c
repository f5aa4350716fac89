/* Signals of `colibri serve`. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "args.h"
#include "base/clock.h"
#include "serve_run.h"

#define TICK_NS        100000000L
#define ONE_REQUEST_NS 250000000u  /* timeout(1) sends its signal twice */
#define AT_ONCE_NS     5000000000u /* what a pass may still take after the second signal */

static void reload(clb_serve_control *c)
{
    const clb_log *const log = clb_args_log(c->args);
    clb_config *fresh = NULL;
    clb_error err = {0};
    char state[64];
    if (!__atomic_load_n(&c->app->ready, __ATOMIC_ACQUIRE)) {
        clb_logf(log, COLIBRI_LOG_WARN, "SIGHUP: the model is being loaded; settings are not read again");
        return;
    }
    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clb_now_ns() / 1000));
    clb_serve_notify(state);
    const clb_config *const old = c->config ? c->config : clb_args_config(c->args);
    int rc = clb_args_config_with(c->args, NULL, 0, "SIGHUP", &fresh, &err);
    if (!rc)
        rc = clb_serve_reload(c->app, c->args, old, fresh, &err);
    if (rc) {
        clb_logf(log, COLIBRI_LOG_ERROR, "settings stay as they were: %s", err.msg);
        clb_config_destroy(fresh);
    } else {
        clb_config_destroy(c->config); /* nobody uses it any more: clb_serve_reload has put the new one in its place */
        c->config = fresh;
        c->drain_s = (uint32_t)clb_config_u64(fresh, CLB_SET_serve_drain_timeout);
    }
    clb_serve_notify("READY=1");
}

static void drain(const clb_serve_control *c)
{
    clb_http_stats s;
    clb_http_get_stats(c->app->http, &s);
    if (s.pending)
        clb_logf(clb_args_log(c->args), COLIBRI_LOG_WARN,
                 "stopping: %u request%s may go on for %u s; the same signal once more ends at once", s.pending,
                 s.pending == 1 ? "" : "s", c->drain_s);
    else
        clb_logf(clb_args_log(c->args), COLIBRI_LOG_WARN, "stopping");
    clb_serve_notify("STOPPING=1");
    __atomic_store_n(&c->app->draining, true, __ATOMIC_RELEASE);
    clb_scheduler_drain(c->app->scheduler);
}

static void *control(void *ctx)
{
    clb_serve_control *const c = ctx;
    const struct timespec tick = {0, TICK_NS};
    uint64_t first_ns = 0, stopped_ns = 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    while (!atomic_load(&c->over)) {
        const int number = sigtimedwait(&set, NULL, &tick);
        const uint64_t now = clb_now_ns();
        const bool ready = __atomic_load_n(&c->app->ready, __ATOMIC_ACQUIRE);
        if (number == SIGHUP && !first_ns) {
            reload(c);
        } else if (number > 0 && number != SIGHUP && !first_ns) {
            first_ns = now;
            if (ready)
                drain(c);
            else
                atomic_store(&c->cancel, true);
        } else if (number > 0 && number != SIGHUP && now - first_ns >= ONE_REQUEST_NS && !stopped_ns) {
            stopped_ns = now;
            atomic_store(&c->cancel, true);
        } else if (first_ns && !stopped_ns && ready && now - first_ns >= c->drain_s * (uint64_t)1000000000) {
            stopped_ns = now;
            clb_logf(clb_args_log(c->args), COLIBRI_LOG_WARN, "requests that still run are ended");
        }
        if (stopped_ns && ready)
            clb_scheduler_stop(c->app->scheduler);
        /* A drive that does not answer, or a bug: nobody should need kill -9. */
        if (stopped_ns && now - stopped_ns >= AT_ONCE_NS)
            _exit(clb_status_exit_code(COLIBRI_E_CANCELLED));
    }
    return NULL;
}

int clb_serve_control_start(clb_serve_control *c, clb_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* of this thread, and so of all that it starts */
    signal(SIGPIPE, SIG_IGN);
    const int number = pthread_create(&c->thread, NULL, control, c);
    return number ? clb_fail_errno(err, COLIBRI_E_IO, number, "cannot start a thread") : COLIBRI_OK;
}

void clb_serve_control_stop(clb_serve_control *c)
{
    atomic_store(&c->over, true);
    pthread_join(c->thread, NULL);
    clb_config_destroy(c->config);
}
