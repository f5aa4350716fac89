/* Reader of `.note.colibri`: what a plugin says about itself, from plain file reads, before anything is mapped.
 *
 * The file is untrusted: every offset and size is checked against the file, every string for its end and its characters
 * (they are printed on terminals and in JSON). [any-thread] */
#ifndef CLB_PLUGIN_NOTE_H
#define CLB_PLUGIN_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "colibri/plugin.h"

/* What a reader may look at: an open file, or bytes in memory (fuzzers). */
typedef struct clb_note_source {
    int fd;              /* used if data is NULL */
    const uint8_t *data; /* borrowed */
    uint64_t size;
} clb_note_source;

typedef struct clb_note {
    struct colibri_elf_note raw; /* the bytes of the file, as far as this host knows the descriptor */
    bool has_id;                 /* raw.desc.id may be shown, even if reading failed later on */
} clb_note;

/* NOT_FOUND: an ELF object of this machine without our note (some other library). FORMAT: not an ELF shared object
 * of this machine, or a broken note. PLUGIN: a sound note of another ABI. IO. The message does not repeat the file's
 * name. */
int clb_note_read(const clb_note_source *source, clb_note *out, clb_error *err);
/* The same on a descriptor that is already in memory (a built-in plugin, a loaded object). */
int clb_note_check(const struct colibri_note_desc *desc, uint32_t descsz, clb_error *err);

/* "kernel", "format", ...: name of one COLIBRI_KIND_* bit, NULL if it has none. */
const char *clb_kind_name(uint32_t kind_bit);
/* "kernel,format" */
char *clb_kinds_format(uint32_t kinds, char out[96]);
/* id -> "colibri_plugin_" and the id with '_' for everything but [a-z0-9]. */
void clb_plugin_symbol(const char *id, char out[COLIBRI_ID_MAX + 16]);
/* Plugin ids and component names: [A-Za-z0-9._+-], 1 .. COLIBRI_ID_MAX - 1 bytes; ids have no capitals and no '+'. */
bool clb_plugin_id_valid(const char *id);
bool clb_component_name_valid(const char *name);
/* UTF-8 without control characters: fit for terminals and JSON. */
bool clb_text_printable(const char *text);
/* <0, 0, >0 as a is older than, as old as, newer than b (semantic versioning; a pre-release is older). */
int clb_version_compare(const char *a, const char *b);

#endif
