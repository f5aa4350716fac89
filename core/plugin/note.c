#include "plugin/note.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#elif defined(__riscv) && __riscv_xlen == 64
#define HOST_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define HOST_MACHINE EM_PPC64
#elif defined(__loongarch64)
#define HOST_MACHINE 258
#else
#error "name this machine's ELF number here"
#endif

#define MAX_PHDRS      256u         /* real objects have about ten */
#define MAX_NOTE_BYTES (256u << 10) /* of all note segments together */
#define NOTE_HEADER    12u

static int get(const clb_note_source *s, uint64_t offset, void *out, size_t n, clb_error *err)
{
    if (offset > s->size || n > s->size - offset)
        return clb_fail(err, COLIBRI_E_FORMAT, "truncated: bytes %llu..%llu of a %llu-byte file",
                        (unsigned long long)offset, (unsigned long long)(offset + n), (unsigned long long)s->size);
    if (s->data) {
        memcpy(out, s->data + offset, n);
        return COLIBRI_OK;
    }
    for (size_t done = 0; done < n;) {
        const ssize_t r = pread(s->fd, (uint8_t *)out + done, n - done, (off_t)(offset + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return clb_fail_errno(err, COLIBRI_E_IO, errno, "reading %zu bytes at %llu", n, (unsigned long long)offset);
        if (r == 0)
            return clb_fail(err, COLIBRI_E_FORMAT, "truncated while it was read");
        done += (size_t)r;
    }
    return COLIBRI_OK;
}

/* ---- strings ---------------------------------------------------------------------------------------------- */

static bool ends_inside(const char *s, size_t size)
{
    return memchr(s, 0, size) != NULL;
}

static bool all_of(const char *s, const char *more, bool capitals)
{
    for (; *s; s++) {
        const char c = *s;
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (capitals && c >= 'A' && c <= 'Z') ||
              strchr(more, c)))
            return false;
    }
    return true;
}

bool clb_plugin_id_valid(const char *id)
{
    const size_t n = strnlen(id, COLIBRI_ID_MAX);
    return n > 0 && n < COLIBRI_ID_MAX && all_of(id, "._-", false);
}

bool clb_component_name_valid(const char *name)
{
    const size_t n = strnlen(name, COLIBRI_ID_MAX);
    return n > 0 && n < COLIBRI_ID_MAX && all_of(name, "._+-", true);
}

bool clb_text_printable(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        if (*p < 0x80) {
            if (*p < 0x20 || *p == 0x7f)
                return false;
            p++;
            continue;
        }
        const int n = *p >= 0xf0 ? 3 : *p >= 0xe0 ? 2 : 1;
        if (*p < 0xc2 || *p > 0xf4)
            return false;
        uint32_t c = *p++ & (0x3fu >> n);
        for (int i = 0; i < n; i++, p++) {
            if ((*p & 0xc0) != 0x80) /* also stops at the NUL */
                return false;
            c = c << 6 | (*p & 0x3fu);
        }
        if (c < 0xa0 || (n == 2 && c < 0x800) || (n == 3 && (c < 0x10000 || c > 0x10ffff)) ||
            (c >= 0xd800 && c < 0xe000))
            return false;
    }
    return true;
}

void clb_plugin_symbol(const char *id, char out[COLIBRI_ID_MAX + 16])
{
    snprintf(out, COLIBRI_ID_MAX + 16, "colibri_plugin_%.*s", COLIBRI_ID_MAX - 1, id);
    for (char *p = out + strlen("colibri_plugin_"); *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')))
            *p = '_';
}

static uint64_t number(const char **p)
{
    uint64_t v = 0;
    for (; **p >= '0' && **p <= '9'; (*p)++)
        v = v > (UINT64_MAX - 9) / 10 ? v : v * 10 + (uint64_t)(**p - '0');
    return v;
}

int clb_version_compare(const char *a, const char *b)
{
    while (*a && *a != '+' && *b && *b != '+') {
        const bool digits = *a >= '0' && *a <= '9' && *b >= '0' && *b <= '9';
        if (digits) {
            const uint64_t x = number(&a), y = number(&b);
            if (x != y)
                return x < y ? -1 : 1;
        } else if (*a != *b) {
            /* "1.2-rc" < "1.2" < "1.2.1": a '-' ends a version early, a '.' goes on */
            if (*a == '-' || *b == '-')
                return *a == '-' ? -1 : 1;
            return *a < *b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    const char ca = *a == '+' ? '\0' : *a, cb = *b == '+' ? '\0' : *b; /* build metadata does not count */
    if (ca == cb)
        return 0;
    if (!cb)
        return ca == '-' ? -1 : 1;
    return cb == '-' ? 1 : -1;
}

/* ---- kinds ------------------------------------------------------------------------------------------------ */

const char *clb_kind_name(uint32_t kind_bit)
{
    switch (kind_bit) {
    case COLIBRI_KIND_KERNEL:
        return "kernel";
    case COLIBRI_KIND_FORMAT:
        return "format";
    case COLIBRI_KIND_EXPERT_POLICY:
        return "expert-policy";
    case COLIBRI_KIND_PREDICTOR:
        return "predictor";
    case COLIBRI_KIND_KV_STRATEGY:
        return "kv-strategy";
    default:
        return NULL;
    }
}

char *clb_kinds_format(uint32_t kinds, char out[96])
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t bit = 1; bit <= COLIBRI_KIND_ALL; bit <<= 1)
        if (kinds & bit && clb_kind_name(bit))
            n += (size_t)snprintf(out + n, 96 - n, "%s%s", n ? "," : "", clb_kind_name(bit));
    return out;
}

/* ---- the note --------------------------------------------------------------------------------------------- */

int clb_note_check(const struct colibri_note_desc *d, uint32_t descsz, clb_error *err)
{
    if (descsz < sizeof *d || d->desc_size < sizeof *d || d->desc_size > descsz)
        return clb_fail(err, COLIBRI_E_FORMAT, "note: descriptor of %u bytes says it has %u, at least %zu are needed",
                        descsz, d->desc_size, sizeof *d);
    if (!ends_inside(d->id, sizeof d->id) || !clb_plugin_id_valid(d->id))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: the id is not 1..%d characters of [a-z0-9._-]",
                        COLIBRI_ID_MAX - 1);
    char symbol[COLIBRI_ID_MAX + 16];
    clb_plugin_symbol(d->id, symbol);
    if (!ends_inside(d->symbol, sizeof d->symbol) || strcmp(d->symbol, symbol) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "note: the symbol of plugin %s must be %s", d->id, symbol);
    if (!ends_inside(d->version, sizeof d->version) || !*d->version || !all_of(d->version, ".+-", true))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: the version of plugin %s is not like 1.2.3", d->id);
    if (!ends_inside(d->summary, sizeof d->summary) || !clb_text_printable(d->summary))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: the summary of plugin %s is not printable UTF-8", d->id);
    if (!ends_inside(d->license, sizeof d->license) || !clb_text_printable(d->license))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: the license of plugin %s is not printable UTF-8", d->id);
    if (!d->kinds || d->kinds & ~COLIBRI_KIND_ALL)
        return clb_fail(err, COLIBRI_E_FORMAT, "note: plugin %s offers %s (kinds 0x%x)", d->id,
                        d->kinds ? "kinds that do not exist" : "nothing", d->kinds);
    return COLIBRI_OK;
}

static int check_abi(const struct colibri_note_desc *d, clb_error *err)
{
    if (d->abi_major != COLIBRI_ABI_MAJOR)
        return clb_fail(err, COLIBRI_E_PLUGIN, "built for plugin ABI %u.%u, this Colibri has %u.%u: %s", d->abi_major,
                        d->abi_minor, COLIBRI_ABI_MAJOR, COLIBRI_ABI_MINOR,
                        d->abi_major > COLIBRI_ABI_MAJOR ? "a newer Colibri is needed" : "the plugin must be rebuilt");
    if (d->abi_minor > COLIBRI_ABI_MINOR)
        return clb_fail(err, COLIBRI_E_PLUGIN,
                        "built for plugin ABI %u.%u, this Colibri has %u.%u: a newer Colibri is needed", d->abi_major,
                        d->abi_minor, COLIBRI_ABI_MAJOR, COLIBRI_ABI_MINOR);
    return COLIBRI_OK;
}

/* Our note at `at` of the file, of which `room` bytes belong to the segment. */
static int read_ours(const clb_note_source *s, uint64_t at, uint64_t room, uint32_t descsz, clb_note *out,
                     clb_error *err)
{
    if (descsz > room - offsetof(struct colibri_elf_note, desc))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: its %u bytes reach over the end of their segment", descsz);
    const size_t known = descsz < sizeof out->raw.desc ? descsz : sizeof out->raw.desc;
    CLB_TRY(get(s, at, &out->raw, offsetof(struct colibri_elf_note, desc) + known, err));
    const struct colibri_note_desc *const d = &out->raw.desc;
    out->has_id = ends_inside(d->id, sizeof d->id) && clb_plugin_id_valid(d->id);
    /* Only desc_size and the two ABI numbers keep their meaning in every ABI: they come first. */
    if (known < offsetof(struct colibri_note_desc, kinds))
        return clb_fail(err, COLIBRI_E_FORMAT, "note: a descriptor of %u bytes is too short", descsz);
    CLB_TRY(check_abi(d, err));
    return clb_note_check(d, descsz, err);
}

/* Notes of one segment, padded to `align`. *found: ours was there (and the status is its). */
static int scan_segment(const clb_note_source *s, uint64_t begin, uint64_t size, uint64_t align, bool *found,
                        clb_note *out, clb_error *err)
{
    const uint64_t end = begin + size;
    for (uint64_t at = begin; end - at >= NOTE_HEADER;) {
        uint32_t h[3]; /* namesz, descsz, type */
        CLB_TRY(get(s, at, h, sizeof h, err));
        char name[8] = {0};
        if (h[0] == sizeof name && end - at >= NOTE_HEADER + sizeof name)
            CLB_TRY(get(s, at + NOTE_HEADER, name, sizeof name, err));
        if (!memcmp(name, COLIBRI_NOTE_NAME, sizeof name) && h[2] == COLIBRI_NOTE_TYPE) {
            *found = true;
            return read_ours(s, at, end - at, h[1], out, err);
        }
        /* 64-bit sums of 32-bit numbers cannot overflow */
        uint64_t n = (NOTE_HEADER + (uint64_t)h[0] + align - 1) & ~(align - 1);
        n = (n + h[1] + align - 1) & ~(align - 1);
        if (n > end - at)
            return COLIBRI_OK; /* broken, or the last one without padding */
        at += n;
    }
    return COLIBRI_OK;
}

static int check_header(const Elf64_Ehdr *h, clb_error *err)
{
    if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        return clb_fail(err, COLIBRI_E_FORMAT, "not an ELF file");
    if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELFDATA2LSB ||
        h->e_ident[EI_VERSION] != EV_CURRENT)
        return clb_fail(err, COLIBRI_E_FORMAT, "not a 64-bit little-endian ELF file");
    if (h->e_type != ET_DYN)
        return clb_fail(err, COLIBRI_E_FORMAT, "not a shared object (ELF type %u)", h->e_type);
    if (h->e_machine != HOST_MACHINE)
        return clb_fail(err, COLIBRI_E_FORMAT, "built for another machine (ELF machine %u, this one is %u)",
                        h->e_machine, HOST_MACHINE);
    if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 || h->e_phnum > MAX_PHDRS)
        return clb_fail(err, COLIBRI_E_FORMAT, "%u program headers of %u bytes: 1..%u of %zu are expected", h->e_phnum,
                        h->e_phentsize, MAX_PHDRS, sizeof(Elf64_Phdr));
    return COLIBRI_OK;
}

int clb_note_read(const clb_note_source *s, clb_note *out, clb_error *err)
{
    memset(out, 0, sizeof *out);
    Elf64_Ehdr header;
    if (s->size < sizeof header)
        return clb_fail(err, COLIBRI_E_FORMAT, "not an ELF file");
    CLB_TRY(get(s, 0, &header, sizeof header, err));
    CLB_TRY(check_header(&header, err));
    uint64_t budget = MAX_NOTE_BYTES; /* a hostile file could list the same segment many times */
    uint64_t needed = 0;              /* bytes of the file that loading would map */
    bool found = false;
    for (uint32_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr p;
        if (header.e_phoff > s->size)
            return clb_fail(err, COLIBRI_E_FORMAT, "truncated: its program headers lie outside of the file");
        CLB_TRY(get(s, header.e_phoff + i * sizeof p, &p, sizeof p, err));
        if (p.p_type == PT_LOAD) {
            const uint64_t end = p.p_filesz > UINT64_MAX - p.p_offset ? UINT64_MAX : p.p_offset + p.p_filesz;
            needed = end > needed ? end : needed;
        }
        if (p.p_type != PT_NOTE || found)
            continue;
        if (p.p_offset > s->size || p.p_filesz > s->size - p.p_offset)
            return clb_fail(err, COLIBRI_E_FORMAT, "truncated: a note segment lies outside of the file");
        if (p.p_filesz > budget)
            return clb_fail(err, COLIBRI_E_FORMAT, "more than %u bytes of notes", MAX_NOTE_BYTES);
        budget -= p.p_filesz;
        CLB_TRY(scan_segment(s, p.p_offset, p.p_filesz, p.p_align == 8 ? 8 : 4, &found, out, err));
    }
    if (found && needed > s->size) /* the loader would map it, and the first touch of what is missing would be fatal */
        return clb_fail(err, COLIBRI_E_FORMAT, "truncated: it has %llu bytes, its segments need %llu",
                        (unsigned long long)s->size, (unsigned long long)needed);
    if (found)
        return COLIBRI_OK;
    return clb_fail(err, COLIBRI_E_NOT_FOUND, "not a Colibri plugin: it has no .note.colibri");
}
