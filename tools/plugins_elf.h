/* Static checks of a plugin file: what the dynamic linker would do with it, found out without mapping it. */
#ifndef CLB_TOOLS_PLUGINS_ELF_H
#define CLB_TOOLS_PLUGINS_ELF_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "plugin/verdict.h"

/* `data` is the whole file, whose header the note reader has accepted; `symbol` the one that it may export. Every rule
 * adds one passing or failing line to out. FORMAT: the dynamic section cannot be read. */
int clb_elf_check(const uint8_t *data, size_t size, const char *symbol, clb_verdict *out, clb_error *err);

#endif
