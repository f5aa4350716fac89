/* Which plugin files may be loaded: the file, its note, ABI, CPU, deny list; and two plugins of one id. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "plugin/registry_private.h"

void clb_candidate_set_state(clb_candidate *c, enum clb_plugin_state state, const char *fmt, ...)
{
    char *reason = NULL;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&reason, fmt, args) < 0)
        reason = NULL;
    va_end(args);
    free(c->reason);
    c->reason = reason;
    c->state = state;
}

/* ---- filter ----------------------------------------------------------------------------------------------- */

int clb_candidate_read_note(const clb_search_file *file, clb_note *note, clb_error *err)
{
    clb_search_file now; /* checked again: time has passed */
    int fd;
    CLB_TRY(clb_search_open_file(file->path, &now, &fd, err));
    const clb_note_source source = {.fd = fd, .size = now.size > 0 ? (uint64_t)now.size : 0};
    const int rc = clb_note_read(&source, note, err);
    close(fd);
    clb_search_file_free(&now);
    return rc;
}

static bool filter_cpu(const clb_registry *reg, clb_candidate *c)
{
    struct colibri_cpu_bits need;
    for (size_t i = 0; i < COLIBRI_CPU_WORDS; i++)
        need.w[i] = c->note.desc.cpu[i];
    char a[CLB_CPU_TEXT_MAX], b[CLB_CPU_TEXT_MAX];
    const struct colibri_cpu_bits unknown = clb_cpu_minus(need, clb_cpu_known());
    if (!clb_cpu_empty(unknown)) {
        clb_verdict_add(&c->verdict, "cpu", false, "needs CPU features that this Colibri does not know: %s",
                        clb_cpu_format(unknown, a));
        clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "needs CPU features that this Colibri does not know: %s", a);
        return false;
    }
    const struct colibri_cpu_bits missing = clb_cpu_minus(need, reg->cpu);
    if (!clb_cpu_empty(missing)) {
        clb_verdict_add(&c->verdict, "cpu", false, "needs %s, of which this CPU or its mask lacks %s",
                        clb_cpu_format(need, a), clb_cpu_format(missing, b));
        clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "needs %s", b);
        return false;
    }
    clb_verdict_add(&c->verdict, "cpu", true, "needs %s: all usable", clb_cpu_format(need, a));
    return true;
}

static bool filter_deny(const clb_registry *reg, clb_candidate *c)
{
    for (size_t i = 0; i < reg->n_deny; i++)
        if (clb_id_matches(reg->deny[i], c->note.desc.id)) {
            clb_verdict_add(&c->verdict, "deny", false, "the deny list's \"%s\" matches", reg->deny[i]);
            clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "denied by \"%s\"", reg->deny[i]);
            return false;
        }
    clb_verdict_add(&c->verdict, "deny", true,
                    reg->n_deny ? "no entry of the deny list matches" : "the deny list is empty");
    return true;
}

void clb_candidate_filter(clb_registry *reg, clb_candidate *c)
{
    if (c->foreign) {
        if (filter_deny(reg, c))
            c->state = CLB_PLUGIN_AVAILABLE;
        return;
    }
    const clb_search_file *const f = c->file;
    if (f->refused) {
        clb_verdict_add(&c->verdict, "file", false, "%s", f->refused);
        clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "%s", f->refused);
        return;
    }
    clb_verdict_add(&c->verdict, "file", true, "regular file, owner %lu, mode %04o", (unsigned long)f->uid, f->mode);
    clb_note note = {0};
    clb_error e = {0};
    const int rc = clb_candidate_read_note(f, &note, &e);
    c->note = note.raw;
    c->has_id = note.has_id;
    if (rc) {
        clb_verdict_add(&c->verdict, rc == COLIBRI_E_PLUGIN ? "abi" : "note", false, "%s", e.msg);
        clb_candidate_set_state(c, CLB_PLUGIN_REJECTED, "%s", e.msg);
        clb_logf(reg->log, rc == COLIBRI_E_NOT_FOUND ? COLIBRI_LOG_INFO : COLIBRI_LOG_WARN,
                 "plugin file %s ignored: %s", f->path, e.msg);
        return;
    }
    c->has_note = true;
    const struct colibri_note_desc *const d = &c->note.desc;
    clb_verdict_add(&c->verdict, "abi", true, "built for plugin ABI %u.%u, this Colibri has %u.%u", d->abi_major,
                    d->abi_minor, COLIBRI_ABI_MAJOR, COLIBRI_ABI_MINOR);
    if (filter_cpu(reg, c) && filter_deny(reg, c))
        c->state = CLB_PLUGIN_AVAILABLE;
}

/* ---- two plugins of one id -------------------------------------------------------------------------------- */

/* Whether a (earlier in the search) gives way to b; says why. */
static bool gives_way(const clb_candidate *a, const clb_candidate *b, char why[160])
{
    if (a->file && clb_candidate_linked_in(b)) {
        snprintf(why, 160, "a plugin file comes before the linked-in copy");
        return false;
    }
    const int v = clb_version_compare(a->note.desc.version, b->note.desc.version);
    if (v) {
        snprintf(why, 160, "version %.15s %s %.15s", a->note.desc.version, v < 0 ? "<" : ">", b->note.desc.version);
        return v < 0;
    }
    if (a->note.desc.rank != b->note.desc.rank) {
        snprintf(why, 160, "same version, rank %d %s %d", a->note.desc.rank,
                 a->note.desc.rank < b->note.desc.rank ? "<" : ">", b->note.desc.rank);
        return a->note.desc.rank < b->note.desc.rank;
    }
    snprintf(why, 160, "same version and rank, the earlier folder wins");
    return false;
}

const char *clb_candidate_path(const clb_candidate *c)
{
    return c->file ? c->file->path : c->foreign ? clb_foreign_library(c->foreign) : NULL;
}

const char *clb_candidate_place(const clb_candidate *c)
{
    return clb_candidate_path(c) ? clb_candidate_path(c) : "the linked-in plugin";
}

void clb_registry_resolve_shadows(clb_registry *reg)
{
    for (size_t i = 0; i < reg->n_candidates; i++) {
        clb_candidate *const a = &reg->candidates[i];
        for (size_t j = i + 1; j < reg->n_candidates && a->state == CLB_PLUGIN_AVAILABLE; j++) {
            clb_candidate *const b = &reg->candidates[j];
            if (b->state != CLB_PLUGIN_AVAILABLE || strcmp(a->note.desc.id, b->note.desc.id) != 0)
                continue;
            char why[160];
            const bool second = gives_way(a, b, why);
            clb_candidate *const winner = second ? b : a, *const loser = second ? a : b;
            clb_verdict_add(&winner->verdict, "id", true, "%s has the same id: %s", clb_candidate_place(loser), why);
            clb_verdict_add(&loser->verdict, "id", false, "%s has the same id: %s", clb_candidate_place(winner), why);
            loser->shadowed_by = second ? j : i;
            clb_candidate_set_state(loser, CLB_PLUGIN_SHADOWED, "shadowed by %s", clb_candidate_place(winner));
            if (loser->file)
                clb_logf(reg->log, COLIBRI_LOG_INFO, "plugin %s: %s is shadowed by %s (%s)", a->note.desc.id,
                         loser->file->path, clb_candidate_place(winner), why);
        }
    }
}

void clb_registry_unshadow(clb_registry *reg, size_t failed)
{
    bool any = false;
    for (size_t i = 0; i < reg->n_candidates; i++) {
        clb_candidate *const c = &reg->candidates[i];
        if (c->state != CLB_PLUGIN_SHADOWED || c->shadowed_by != failed)
            continue;
        clb_verdict_add(&c->verdict, "id", true, "%s failed: this one takes its place",
                        clb_candidate_place(&reg->candidates[failed]));
        free(c->reason);
        c->reason = NULL;
        c->state = CLB_PLUGIN_AVAILABLE;
        any = true;
    }
    if (any)
        clb_registry_resolve_shadows(reg);
}
