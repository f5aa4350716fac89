/* Where the parts of this installation lie, seen from the executable. */
#ifndef CLB_TOOLS_PATHS_H
#define CLB_TOOLS_PATHS_H

#include <limits.h>
#include <stdbool.h>

/* The plugin folder that belongs to the running executable: the executable lies in PREFIX/bin, the folder is
 * PREFIX/lib/.../colibri/plugins; holds for the build tree, an installation, and one that was moved. false: the
 * executable lies elsewhere (the folder given at build time counts, see clb_registry_from_config). */
bool clb_paths_plugin_dir(char out[PATH_MAX]);
/* The same for an executable path that is given. Pure. */
bool clb_paths_plugin_dir_of(const char *exe, char out[PATH_MAX]);

/* The folder of data files, PREFIX/share/colibri, by the same rule: templates, traces. false: the executable lies elsewhere. */
bool clb_paths_data_dir(char out[PATH_MAX]);

#endif
