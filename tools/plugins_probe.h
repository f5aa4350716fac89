/* What a checking child process does with a plugin. */
#ifndef CLB_TOOLS_PLUGINS_PROBE_H
#define CLB_TOOLS_PLUGINS_PROBE_H

#include "colibri/plugin.h"

/* Loads the plugin, exercises its entry, and writes one line per finding to fd: "S stage" before foreign code runs,
 * "+ text" or "- text" for a passed or failed check, "D" at the end. */
void clb_plugins_probe(const char *path, const struct colibri_elf_note *note, struct colibri_cpu_bits cpu, int fd);

#endif
