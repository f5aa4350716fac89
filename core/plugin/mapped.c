#include "plugin/mapped.h"

#include <link.h>
#include <string.h>

struct search {
    uintptr_t address;
    bool code;
    size_t size;
    uintptr_t base;
};

static int visit(struct dl_phdr_info *info, size_t info_size, void *data)
{
    (void)info_size;
    struct search *const s = data;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *const p = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + p->p_vaddr;
        if (p->p_type != PT_LOAD || s->address < begin || s->address - begin >= p->p_memsz)
            continue;
        if (!(p->p_flags & (s->code ? PF_X : PF_R)))
            continue;
        s->size = (size_t)(p->p_memsz - (s->address - begin));
        s->base = info->dlpi_addr;
        return 1;
    }
    return 0;
}

size_t clb_mapped_size(const void *p, bool code)
{
    struct search s = {.address = (uintptr_t)p, .code = code};
    dl_iterate_phdr(visit, &s);
    return s.size;
}

uintptr_t clb_mapped_object(const void *p)
{
    struct search s = {.address = (uintptr_t)p};
    dl_iterate_phdr(visit, &s);
    return s.base;
}

bool clb_mapped_string(const char *p, size_t max)
{
    const size_t size = p ? clb_mapped_size(p, false) : 0;
    const size_t limit = size < max ? size : max;
    return limit && memchr(p, 0, limit) != NULL;
}
