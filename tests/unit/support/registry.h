/* A plugin folder, a registry on it, and what it logged: shared by the tests of the registry. */
#ifndef CLB_TESTS_SUPPORT_REGISTRY_H
#define CLB_TESTS_SUPPORT_REGISTRY_H

#include "plugin/introspect.h"
#include "plugin/note.h"
#include "support.h"

typedef struct fixture {
    test_dir dir;
    clb_registry_options options;
    const char *dirs[4];
    clb_registry *reg;
    char log_text[16384];
    clb_log log;
} fixture;

/* An empty folder as the only one of the options; no registry yet. */
void fixture_begin(fixture *f);
/* Opens the registry (again) with f->options; the log starts anew. */
void fixture_open(fixture *f);
void fixture_end(fixture *f);

/* Copies tests/plugins-bad/<plugin>.so into the folder, as <as>.so (may name a subfolder) or under its own name. */
void fixture_install(const fixture *f, const char *plugin, const char *as);
/* Overwrites bytes of an installed plugin's note. */
void fixture_patch(const fixture *f, const char *file, size_t offset, const void *bytes, size_t n);
#define AT(field) offsetof(struct colibri_note_desc, field)

/* The plugin whose path ends with this ("/good.so"), or the linked-in one of this id. */
clb_plugin_view fixture_view(const fixture *f, const char *file);
void fixture_assert_state(const fixture *f, const char *file, enum clb_plugin_state state, const char *reason);
void fixture_load_all(fixture *f);
size_t fixture_n_components(const fixture *f, const char *file);
bool fixture_has_component(const fixture *f, const char *name);
/* Name of the Q4_0 kernel for n_x rows, or "none". */
const char *fixture_kernel_for(fixture *f, uint32_t n_x);
bool fixture_verdict_has(const clb_verdict *v, const char *rule, bool pass, const char *part);

#endif
