/* Bytes of a plugin file into the note reader; what it accepts must be sound in every field.
 * Seeds: any plugin .so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/note.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clb_note note;
    clb_error err = {0};
    const int rc = clb_note_read(&(clb_note_source){.data = data, .size = size}, &note, &err);
    if (rc) {
        if (!*err.msg || strchr(err.msg, '\n'))
            abort();
        /* An id that may be shown must be a sound one even if the rest is not. */
        if (note.has_id && !clb_plugin_id_valid(note.raw.desc.id))
            abort();
        return 0;
    }
    char kinds[96], symbol[COLIBRI_ID_MAX + 16];
    if (!note.has_id || clb_note_check(&note.raw.desc, note.raw.descsz, &err) ||
        !*clb_kinds_format(note.raw.desc.kinds, kinds))
        abort();
    clb_plugin_symbol(note.raw.desc.id, symbol);
    if (strcmp(symbol, note.raw.desc.symbol) != 0 || !clb_text_printable(note.raw.desc.summary) ||
        clb_version_compare(note.raw.desc.version, note.raw.desc.version) != 0)
        abort();
    return 0;
}
