/* Hidden state: the writable memory of a plugin, before and after its functions ran. Kernels must be reentrant; a
 * static buffer shows here in every run, where two threads would have to meet in it. */
#include "check.h"

#include <link.h>
#include <stdlib.h>

#define MAX_RANGES 8

struct state {
    struct {
        const char *p; /* NULL: not there yet */
        char *copy;
        size_t n;
        bool tls;
    } range[MAX_RANGES];
    size_t n;
    const void *inside;
};

/* Sanitizers put red zones between variables; here they are bytes like any other. */
#define RAW __attribute__((no_sanitize("address", "thread"), noinline))

RAW static void copy_raw(char *to, const volatile char *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}

/* The first difference, or n. */
RAW static size_t differ_raw(const volatile char *now, const char *before, size_t n)
{
    size_t i = 0;
    while (i < n && now[i] == before[i])
        i++;
    return i;
}

static void add(struct state *s, const char *p, size_t n, bool tls)
{
    if (!n || s->n == MAX_RANGES)
        return;
    char *const copy = malloc(n);
    if (!copy)
        abort();
    if (p)
        copy_raw(copy, p, n);
    s->range[s->n].p = p;
    s->range[s->n].copy = copy;
    s->range[s->n].n = n;
    s->range[s->n++].tls = tls;
}

static bool contains(const struct dl_phdr_info *info, const void *p)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const uintptr_t begin = (uintptr_t)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (uintptr_t)p - begin < info->dlpi_phdr[i].p_memsz)
            return true;
    }
    return false;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct state *const s = data;
    (void)size;
    if (!contains(info, s->inside))
        return 0;
    if (!info->dlpi_name || !info->dlpi_name[0])
        return 1; /* this program itself (self-test): its own variables do change */
    uintptr_t relro = 0, relro_end = 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            relro = (uintptr_t)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            relro_end = relro + info->dlpi_phdr[i].p_memsz;
        }
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *const h = &info->dlpi_phdr[i];
        uintptr_t begin = (uintptr_t)info->dlpi_addr + h->p_vaddr;
        const uintptr_t end = begin + h->p_memsz;
        if (h->p_type == PT_TLS)
            add(s, info->dlpi_tls_data, h->p_memsz, true);
        if (h->p_type != PT_LOAD || !(h->p_flags & PF_W))
            continue;
        if (relro <= begin && begin < relro_end)
            begin = relro_end < end ? relro_end : end;
        add(s, (const char *)begin, end - begin, false); // NOLINT(performance-no-int-to-ptr)
    }
    return 1;
}

static const void *extra;
static size_t extra_size;

void state_also(const void *p, size_t n)
{
    extra = p;
    extra_size = n;
}

struct state *state_watch(void (*function)(void))
{
    struct state *const s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    memcpy(&s->inside, &function, sizeof(s->inside)); /* POSIX: code addresses fit data pointers */
    dl_iterate_phdr(visit, s);
    add(s, extra, extra ? extra_size : 0, false);
    return s;
}

void state_compare(struct report *r, struct state *s, const char *name)
{
    struct state now = {.inside = s->inside};
    dl_iterate_phdr(visit, &now);
    for (size_t i = 0; i < now.n; i++)
        free(now.range[i].copy);
    for (size_t i = 0; i < s->n; i++) {
        const char *const p = s->range[i].tls && i < now.n ? now.range[i].p : s->range[i].p;
        const size_t at = s->range[i].p ? differ_raw(p, s->range[i].copy, s->range[i].n) : 0;
        if (s->range[i].p ? at < s->range[i].n : p != NULL) {
            case_begin(r, name, 0, "%s", "all cases");
            case_fail(r, "changed %s data of its plugin (byte %zu of %zu): kernels keep no state",
                      s->range[i].tls ? "thread-local" : "writable", at, s->range[i].n);
            break;
        }
    }
    for (size_t i = 0; i < s->n; i++)
        free(s->range[i].copy);
    free(s);
}
