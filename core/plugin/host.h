/* The table of services that plugins receive. */
#ifndef CLB_PLUGIN_HOST_H
#define CLB_PLUGIN_HOST_H

#include "base/log.h"
#include "colibri/plugin.h"

typedef struct clb_host clb_host;

int clb_host_create(struct colibri_cpu_bits cpu, const clb_log *log, clb_host **out, clb_error *err);
const struct colibri_host *clb_host_table(const clb_host *host);
/* A plugin has been given the table: it may keep the pointer until the process ends. */
void clb_host_hand_out(clb_host *host);
/* Detaches the log. The memory is freed only if no plugin has ever seen it. */
void clb_host_retire(clb_host *host);

#endif
