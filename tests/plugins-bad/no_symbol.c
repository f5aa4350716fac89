/* It exports another symbol than its note says. */
#include "common_get.h"

static const struct colibri_elf_note in_file COLIBRI_NOTE_ATTR = {8,
                                                                  sizeof(struct colibri_note_desc),
                                                                  COLIBRI_NOTE_TYPE,
                                                                  COLIBRI_NOTE_NAME,
                                                                  {.desc_size = sizeof(struct colibri_note_desc),
                                                                   .abi_major = COLIBRI_ABI_MAJOR,
                                                                   .kinds = COLIBRI_KIND_KERNEL,
                                                                   .rank = 50,
                                                                   .id = "test.no-symbol",
                                                                   .version = "1.0.0",
                                                                   .symbol = "colibri_plugin_test_no_symbol"}};

extern const struct colibri_plugin colibri_plugin_test_other_symbol;
COLIBRI_EXPORT const struct colibri_plugin colibri_plugin_test_other_symbol = {sizeof(struct colibri_plugin), &in_file,
                                                                               NULL, test_get};
