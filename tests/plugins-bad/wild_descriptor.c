/* Its descriptor points to no note and no code. */
#include "common_get.h"

static const struct colibri_elf_note in_file COLIBRI_NOTE_ATTR = {8,
                                                                  sizeof(struct colibri_note_desc),
                                                                  COLIBRI_NOTE_TYPE,
                                                                  COLIBRI_NOTE_NAME,
                                                                  {.desc_size = sizeof(struct colibri_note_desc),
                                                                   .abi_major = COLIBRI_ABI_MAJOR,
                                                                   .kinds = COLIBRI_KIND_KERNEL,
                                                                   .rank = 50,
                                                                   .id = "test.wild",
                                                                   .version = "1.0.0",
                                                                   .symbol = "colibri_plugin_test_wild"}};

extern const struct colibri_plugin colibri_plugin_test_wild;
COLIBRI_EXPORT const struct colibri_plugin colibri_plugin_test_wild = {
    sizeof(struct colibri_plugin), (const struct colibri_elf_note *)16, NULL, test_get};
