#include "plugin/host.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct clb_host {
    struct colibri_host table; /* first: plugins hand this pointer back */
    _Atomic(const clb_log *) log;
    bool handed_out;
    clb_host *next;
};

/* Hosts that a plugin has seen. Plugins are never unloaded and the contract lets them keep the pointer, so these live
 * until the process ends, as the plugins do; the list only keeps them reachable for leak checkers. */
static _Atomic(clb_host *) retired;

static void host_log(const struct colibri_host *table, int level, const char *plugin_id, const char *msg)
{
    if (!table || !msg)
        return;
    const clb_log *const log = atomic_load(&((const clb_host *)(const void *)table)->log);
    const bool blames_host = level == COLIBRI_LOG_HOST_MISBEHAVING;
    if (blames_host || level < COLIBRI_LOG_ERROR || level > COLIBRI_LOG_DEBUG)
        level = COLIBRI_LOG_WARN;
    char line[900]; /* one line, whatever the plugin sent */
    size_t n = 0;
    for (; *msg && n + 1 < sizeof line; msg++)
        line[n++] = (unsigned char)*msg < ' ' || *msg == 0x7f ? ' ' : *msg;
    line[n] = '\0';
    clb_logf(log, level, "plugin %.63s%s: %s", plugin_id ? plugin_id : "?", blames_host ? " blames the host" : "",
             line);
}

static const void *host_query(const struct colibri_host *table, const char *iface)
{
    (void)table;
    (void)iface;
    return NULL; /* ABI 1.0 has no optional services */
}

int clb_host_create(struct colibri_cpu_bits cpu, const clb_log *log, clb_host **out, clb_error *err)
{
    clb_host *const host = malloc(sizeof *host);
    if (!host)
        return CLB_NOMEM(err, "the plugin host");
    *host = (clb_host){.table = {.struct_size = sizeof host->table,
                                 .abi_major = COLIBRI_ABI_MAJOR,
                                 .abi_minor = COLIBRI_ABI_MINOR,
                                 .cpu = cpu,
                                 .log = host_log,
                                 .query = host_query}};
    atomic_init(&host->log, log);
    *out = host;
    return COLIBRI_OK;
}

const struct colibri_host *clb_host_table(const clb_host *host)
{
    return &host->table;
}

void clb_host_hand_out(clb_host *host)
{
    host->handed_out = true;
}

void clb_host_retire(clb_host *host)
{
    if (!host)
        return;
    atomic_store(&host->log, NULL);
    if (!host->handed_out) {
        free(host);
        return;
    }
    host->next = atomic_load(&retired);
    while (!atomic_compare_exchange_weak(&retired, &host->next, host))
        ;
}
