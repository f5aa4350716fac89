/* Its note says rank 50; its descriptor carries another note that says 1000. */
#include "common_get.h"

static const struct colibri_elf_note in_file COLIBRI_NOTE_ATTR = {8,
                                                                  sizeof(struct colibri_note_desc),
                                                                  COLIBRI_NOTE_TYPE,
                                                                  COLIBRI_NOTE_NAME,
                                                                  {.desc_size = sizeof(struct colibri_note_desc),
                                                                   .abi_major = COLIBRI_ABI_MAJOR,
                                                                   .kinds = COLIBRI_KIND_KERNEL,
                                                                   .rank = 50,
                                                                   .id = "test.lies",
                                                                   .version = "1.0.0",
                                                                   .symbol = "colibri_plugin_test_lies"}};

static const struct colibri_elf_note in_memory = {8,
                                                  sizeof(struct colibri_note_desc),
                                                  COLIBRI_NOTE_TYPE,
                                                  COLIBRI_NOTE_NAME,
                                                  {.desc_size = sizeof(struct colibri_note_desc),
                                                   .abi_major = COLIBRI_ABI_MAJOR,
                                                   .kinds = COLIBRI_KIND_KERNEL,
                                                   .rank = 1000,
                                                   .id = "test.lies",
                                                   .version = "1.0.0",
                                                   .symbol = "colibri_plugin_test_lies"}};

extern const struct colibri_plugin colibri_plugin_test_lies;
COLIBRI_EXPORT const struct colibri_plugin colibri_plugin_test_lies = {sizeof(struct colibri_plugin), &in_memory, NULL,
                                                                       test_get};
