/* Maps one plugin whose note has been accepted, and checks that it is what its note said. [main-thread] */
#ifndef CLB_PLUGIN_LOADER_H
#define CLB_PLUGIN_LOADER_H

#include "base/error.h"
#include "colibri/plugin.h"
#include "plugin/host.h"

/* Called before each step that runs foreign code ("dlopen", "init"), so that a checker's parent knows where its
 * child died. May be NULL. */
typedef void (*clb_loader_stage_fn)(void *ctx, const char *stage);

/* dlopen(path, RTLD_NOW | RTLD_LOCAL), look up the note's symbol, compare the object's note with the file's (`note`),
 * call init. Errors: PLUGIN with the reason; the floating-point state is restored in every case. `path` is absolute. */
int clb_loader_open(const char *path, const struct colibri_elf_note *note, clb_host *host, clb_loader_stage_fn stage,
                    void *stage_ctx, const struct colibri_plugin **out, clb_error *err);

/* The part after dlopen: descriptor against note, then init. Also for plugins that are linked in (note == NULL: the
 * plugin's own is taken). */
int clb_loader_enter(const struct colibri_plugin *plugin, const struct colibri_elf_note *note, clb_host *host,
                     clb_loader_stage_fn stage, void *stage_ctx, clb_error *err);

#endif
