#include "plugin/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "plugin/fpstate.h"
#include "plugin/mapped.h"
#include "plugin/note.h"

/* Restores `before` if the plugin has changed it. */
static int check_fp(clb_fpstate before, const char *when, clb_error *err)
{
    const clb_fpstate after = clb_fpstate_get();
    if (clb_fpstate_same(before, after))
        return COLIBRI_OK;
    clb_fpstate_set(before);
    return clb_fail(err, COLIBRI_E_PLUGIN,
                    "%s changed the floating-point control state (0x%llx, was 0x%llx): is it linked with -ffast-math",
                    when, (unsigned long long)after.control, (unsigned long long)before.control);
}

static int check_descriptor(const struct colibri_plugin *p, const struct colibri_elf_note *note, clb_error *err)
{
    if (clb_mapped_size(p, false) < sizeof *p)
        return clb_fail(err, COLIBRI_E_PLUGIN, "its descriptor lies outside of every loaded object");
    if (p->struct_size < sizeof *p)
        return clb_fail(err, COLIBRI_E_PLUGIN, "its descriptor has %u bytes, at least %zu are needed", p->struct_size,
                        sizeof *p);
    if (clb_mapped_size(p->note, false) < sizeof *p->note || clb_mapped_object(p->note) != clb_mapped_object(p))
        return clb_fail(err, COLIBRI_E_PLUGIN, "its descriptor points to no note of its own");
    if (note && memcmp(p->note, note, sizeof *note) != 0)
        return clb_fail(err, COLIBRI_E_PLUGIN, "its descriptor differs from the note in its file: one of them lies");
    if (p->init && !clb_mapped_size((const void *)(uintptr_t)p->init, true))
        return clb_fail(err, COLIBRI_E_PLUGIN, "its init points to no code");
    if (!p->get || !clb_mapped_size((const void *)(uintptr_t)p->get, true))
        return clb_fail(err, COLIBRI_E_PLUGIN, "its get points to no code");
    return COLIBRI_OK;
}

int clb_loader_enter(const struct colibri_plugin *p, const struct colibri_elf_note *note, clb_host *host,
                     clb_loader_stage_fn stage, void *stage_ctx, clb_error *err)
{
    CLB_TRY(check_descriptor(p, note, err));
    if (!p->init)
        return COLIBRI_OK;
    if (stage)
        stage(stage_ctx, "init");
    char why[256] = "";
    clb_host_hand_out(host);
    const clb_fpstate before = clb_fpstate_get();
    const int status = p->init(clb_host_table(host), why, sizeof why);
    CLB_TRY(check_fp(before, "its init", err));
    if (!status)
        return COLIBRI_OK;
    why[sizeof why - 1] = '\0';
    for (char *c = why; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    return clb_fail(err, COLIBRI_E_PLUGIN, "its init failed: %s (%s)", *why ? why : "no reason given",
                    clb_status_name(status));
}

/* dlsym also searches the object's dependencies: the symbol must be the object's own. */
static bool own_symbol(void *handle, const void *symbol)
{
    struct link_map *map = NULL;
    return !dlinfo(handle, RTLD_DI_LINKMAP, &map) && clb_mapped_object(symbol) == (uintptr_t)map->l_addr;
}

int clb_loader_open(const char *path, const struct colibri_elf_note *note, clb_host *host, clb_loader_stage_fn stage,
                    void *stage_ctx, const struct colibri_plugin **out, clb_error *err)
{
    if (path[0] != '/') /* dlopen would search the system's folders for it */
        return clb_fail(err, COLIBRI_E_INTERNAL, "plugin path is not absolute: %s", path);
    if (stage)
        stage(stage_ctx, "dlopen");
    const clb_fpstate before = clb_fpstate_get();
    void *const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *const reason = handle ? NULL : dlerror();
    const int fp = check_fp(before, "loading it", err);
    if (!handle)
        return clb_fail(err, COLIBRI_E_PLUGIN, "the dynamic linker refuses it: %s",
                        reason ? reason : "no reason given");
    if (fp) /* a constructor has run: it may have left a thread or an exit handler, so the object stays mapped */
        return fp;
    const void *const symbol = dlsym(handle, note->desc.symbol);
    if (!symbol || !own_symbol(handle, symbol))
        return clb_fail(err, COLIBRI_E_PLUGIN, "it does not export %.*s", (int)sizeof note->desc.symbol,
                        note->desc.symbol);
    /* From here on it stays mapped for ever: its code may be on some thread's stack or in an atexit list. */
    CLB_TRY(clb_loader_enter(symbol, note, host, stage, stage_ctx, err));
    *out = symbol;
    return COLIBRI_OK;
}
