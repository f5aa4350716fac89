#include "plugins_elf.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#ifndef R_X86_64_IRELATIVE
#define R_X86_64_IRELATIVE 37
#endif
#ifndef R_AARCH64_IRELATIVE
#define R_AARCH64_IRELATIVE 1032
#endif

#define MAX_SYMBOLS (1u << 20)

typedef struct object {
    const uint8_t *data;
    size_t size;
    Elf64_Ehdr header;
    /* of the dynamic section; addresses, 0 if absent */
    uint64_t strtab, strsz, symtab, hash, gnu_hash, init_array_size, rela, rela_size, jmprel, jmprel_size;
    bool textrel, rpath, nodelete, stack_exec;
    const char *strings; /* the string table, NULL unless it ends with a NUL */
} object;

/* n bytes at a file offset, NULL if they are not all there. Possibly unaligned: copy before use. */
static const uint8_t *at(const object *o, uint64_t offset, uint64_t n)
{
    return offset <= o->size && n <= o->size - offset ? o->data + offset : NULL;
}

static bool phdr(const object *o, uint32_t i, Elf64_Phdr *out)
{
    const uint8_t *const p = at(o, o->header.e_phoff + (uint64_t)i * sizeof *out, sizeof *out);
    if (p)
        memcpy(out, p, sizeof *out);
    return p != NULL;
}

/* n bytes at an address of the mapped object, as far as they come from the file. */
static const uint8_t *mapped(const object *o, uint64_t address, uint64_t n)
{
    for (uint32_t i = 0; i < o->header.e_phnum; i++) {
        Elf64_Phdr p;
        if (!phdr(o, i, &p) || p.p_type != PT_LOAD || address < p.p_vaddr || address - p.p_vaddr > p.p_filesz ||
            n > p.p_filesz - (address - p.p_vaddr) || p.p_offset > UINT64_MAX - (address - p.p_vaddr))
            continue;
        return at(o, p.p_offset + (address - p.p_vaddr), n);
    }
    return NULL;
}

static void find_strings(object *o)
{
    const uint8_t *const s = o->strsz ? mapped(o, o->strtab, o->strsz) : NULL;
    o->strings = s && s[o->strsz - 1] == '\0' ? (const char *)s : NULL;
}

/* A string of the dynamic string table, NULL if it is not there. */
static const char *string(const object *o, uint64_t offset)
{
    return o->strings && offset < o->strsz ? o->strings + offset : NULL;
}

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* ---- the dynamic section ---------------------------------------------------------------------------------- */

static void take(object *o, const Elf64_Dyn *d)
{
    const uint64_t v = d->d_un.d_val;
    switch (d->d_tag) {
    case DT_STRTAB:
        o->strtab = v;
        break;
    case DT_STRSZ:
        o->strsz = v;
        break;
    case DT_SYMTAB:
        o->symtab = v;
        break;
    case DT_HASH:
        o->hash = v;
        break;
    case DT_GNU_HASH:
        o->gnu_hash = v;
        break;
    case DT_INIT_ARRAYSZ:
        o->init_array_size = v;
        break;
    case DT_RELA:
        o->rela = v;
        break;
    case DT_RELASZ:
        o->rela_size = v;
        break;
    case DT_JMPREL:
        o->jmprel = v;
        break;
    case DT_PLTRELSZ:
        o->jmprel_size = v;
        break;
    case DT_TEXTREL:
        o->textrel = true;
        break;
    case DT_FLAGS:
        o->textrel |= (v & DF_TEXTREL) != 0;
        break;
    case DT_FLAGS_1:
        o->nodelete = (v & DF_1_NODELETE) != 0;
        break;
    case DT_RPATH:
    case DT_RUNPATH:
        o->rpath = true;
        break;
    default:
        break;
    }
}

/* Calls fn for every entry of the dynamic section. false: there is none, or it is cut off. */
static bool each_dyn(object *o, void (*fn)(object *o, const Elf64_Dyn *d, void *ctx), void *ctx)
{
    for (uint32_t i = 0; i < o->header.e_phnum; i++) {
        Elf64_Phdr p;
        if (!phdr(o, i, &p) || p.p_type != PT_DYNAMIC)
            continue;
        for (uint64_t k = 0; k < p.p_filesz / sizeof(Elf64_Dyn); k++) {
            Elf64_Dyn d;
            const uint8_t *const e = p.p_offset <= o->size ? at(o, p.p_offset + k * sizeof d, sizeof d) : NULL;
            if (!e)
                return false;
            memcpy(&d, e, sizeof d);
            if (d.d_tag == DT_NULL)
                return true;
            fn(o, &d, ctx);
        }
        return false;
    }
    return false;
}

static void take_entry(object *o, const Elf64_Dyn *d, void *ctx)
{
    (void)ctx;
    take(o, d);
}

/* ---- symbols ---------------------------------------------------------------------------------------------- */

/* One more than the highest index that the GNU hash table mentions: defined symbols come last. */
static uint32_t gnu_hash_symbols(const object *o)
{
    const uint8_t *const h = mapped(o, o->gnu_hash, 16);
    if (!h)
        return 0;
    const uint32_t n_buckets = u32(h), first = u32(h + 4), n_bloom = u32(h + 8);
    const uint64_t buckets_at = o->gnu_hash + 16 + 8 * (uint64_t)n_bloom;
    const uint8_t *const buckets = mapped(o, buckets_at, 4 * (uint64_t)n_buckets);
    uint32_t last = 0;
    for (uint32_t i = 0; buckets && i < n_buckets; i++)
        last = u32(buckets + 4 * (size_t)i) > last ? u32(buckets + 4 * (size_t)i) : last;
    if (!last || last < first)
        return first < MAX_SYMBOLS ? first : 0;
    const uint64_t chains_at = buckets_at + 4 * (uint64_t)n_buckets;
    for (; last < MAX_SYMBOLS; last++) {
        const uint8_t *const c = mapped(o, chains_at + 4 * (uint64_t)(last - first), 4);
        if (!c)
            return 0;
        if (u32(c) & 1u)
            return last + 1;
    }
    return 0;
}

static uint32_t count_symbols(const object *o)
{
    if (o->gnu_hash)
        return gnu_hash_symbols(o);
    const uint8_t *const h = o->hash ? mapped(o, o->hash, 8) : NULL;
    return h && u32(h + 4) < MAX_SYMBOLS ? u32(h + 4) : 0;
}

static void check_symbols(const object *o, const char *symbol, clb_verdict *out, bool *ifunc)
{
    const uint32_t n = count_symbols(o);
    const uint8_t *const table = n ? mapped(o, o->symtab, (uint64_t)n * sizeof(Elf64_Sym)) : NULL;
    if (!table) {
        clb_verdict_add(out, "exports", false, "its symbol table cannot be read");
        return;
    }
    uint32_t exported = 0, core = 0;
    char other[80] = "", import[80] = "";
    bool right = false;
    for (uint32_t i = 1; i < n; i++) {
        Elf64_Sym s;
        memcpy(&s, table + (size_t)i * sizeof s, sizeof s);
        const char *const name = string(o, s.st_name);
        if (!name) {
            clb_verdict_add(out, "exports", false, "symbol %u has no name", i);
            return;
        }
        if (s.st_shndx == SHN_UNDEF) {
            if (!strncmp(name, "clb_", 4) || !strncmp(name, "colibri_", 8)) {
                core++;
                snprintf(import, sizeof import, "%s", name);
            }
            continue;
        }
        *ifunc |= ELF64_ST_TYPE(s.st_info) == STT_GNU_IFUNC;
        if (ELF64_ST_BIND(s.st_info) == STB_LOCAL || ELF64_ST_VISIBILITY(s.st_other) == STV_HIDDEN ||
            ELF64_ST_VISIBILITY(s.st_other) == STV_INTERNAL)
            continue;
        exported++;
        if (!strcmp(name, symbol))
            right = true;
        else
            snprintf(other, sizeof other, "%s", name);
    }
    if (right && exported == 1)
        clb_verdict_add(out, "exports", true, "exactly one symbol: %s", symbol);
    else
        clb_verdict_add(out, "exports", false, "%u exported symbols%s%s%s: only %s may be one (use the version script)",
                        exported, right ? "" : ", the note's is not among them", *other ? ", for example " : "", other,
                        symbol);
    clb_verdict_add(out, "imports", !core,
                    core ? "it imports %s: everything comes through the host table" : "nothing from the core", import);
}

/* ---- the rest --------------------------------------------------------------------------------------------- */

static bool has_irelative(const object *o, uint64_t table, uint64_t bytes)
{
    const uint64_t n = bytes / sizeof(Elf64_Rela);
    const uint8_t *const r = n ? mapped(o, table, n * sizeof(Elf64_Rela)) : NULL;
    for (uint64_t i = 0; r && i < n; i++) {
        Elf64_Rela rela;
        memcpy(&rela, r + i * sizeof rela, sizeof rela);
        const uint64_t type = ELF64_R_TYPE(rela.r_info);
        if (type == (o->header.e_machine == EM_AARCH64 ? R_AARCH64_IRELATIVE : R_X86_64_IRELATIVE))
            return true;
    }
    return false;
}

static void check_needed(object *o, const Elf64_Dyn *d, void *ctx)
{
    if (d->d_tag != DT_NEEDED)
        return;
    static const char *const openmp[] = {"libgomp.", "libomp.", "libiomp5."};
    const char *const name = string(o, d->d_un.d_val);
    if (!name) {
        clb_verdict_add(ctx, "needed", false, "a library without a name");
        return;
    }
    bool bad = false;
    for (size_t i = 0; i < sizeof openmp / sizeof *openmp; i++)
        bad |= strstr(name, openmp[i]) == name;
    clb_verdict_add(ctx, "needed", !bad, "%.80s%s", name,
                    bad ? ": plugins start no threads, and two OpenMP runtimes in one process abort it" : "");
}

static void check_stack(object *o)
{
    for (uint32_t i = 0; i < o->header.e_phnum; i++) {
        Elf64_Phdr p;
        if (phdr(o, i, &p) && p.p_type == PT_GNU_STACK)
            o->stack_exec = (p.p_flags & PF_X) != 0;
    }
}

int clb_elf_check(const uint8_t *data, size_t size, const char *symbol, clb_verdict *out, clb_error *err)
{
    object o = {.data = data, .size = size};
    const uint8_t *const header = at(&o, 0, sizeof o.header);
    if (!header)
        return clb_fail(err, COLIBRI_E_FORMAT, "not an ELF file");
    memcpy(&o.header, header, sizeof o.header);
    if (o.header.e_phoff > size)
        return clb_fail(err, COLIBRI_E_FORMAT, "truncated: its program headers lie outside of the file");
    if (!each_dyn(&o, take_entry, NULL))
        return clb_fail(err, COLIBRI_E_FORMAT, "its dynamic section is missing or cut off");
    find_strings(&o);
    check_stack(&o);

    bool ifunc = false;
    check_symbols(&o, symbol, out, &ifunc);
    ifunc = ifunc || has_irelative(&o, o.rela, o.rela_size) || has_irelative(&o, o.jmprel, o.jmprel_size);
    clb_verdict_add(out, "ifunc", !ifunc,
                    ifunc ? "it has indirect functions, whose resolvers run while it is being loaded"
                          : "no indirect functions");
    clb_verdict_add(out, "constructors", o.init_array_size <= 8,
                    o.init_array_size <= 8 ? "none beyond the toolchain's own"
                                           : "%llu: code of its own (or of -ffast-math) runs while it is being loaded",
                    (unsigned long long)(o.init_array_size / 8));
    clb_verdict_add(out, "text-relocations", !o.textrel, o.textrel ? "it has some: compile with -fPIC" : "none");
    clb_verdict_add(out, "rpath", !o.rpath,
                    o.rpath ? "it has an RPATH or RUNPATH: libraries could come from anywhere" : "none");
    clb_verdict_add(out, "stack", !o.stack_exec, o.stack_exec ? "it asks for an executable stack" : "not executable");
    clb_verdict_add(out, "nodelete", o.nodelete,
                    o.nodelete ? "linked with -z nodelete"
                               : "not linked with -z nodelete: threads may outlive a dlclose");
    each_dyn(&o, check_needed, out);
    return COLIBRI_OK;
}
