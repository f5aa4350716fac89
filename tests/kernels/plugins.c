/* CPU bits, and a minimal loader. The engine's own are not used: this program must run where only libc is. */
#include "check.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static void set_bit(struct colibri_cpu_bits *bits, unsigned bit, bool on)
{
    if (on)
        bits->w[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static struct colibri_cpu_bits detect(void)
{
    struct colibri_cpu_bits b = {{0}};
#if defined(__x86_64__)
    __builtin_cpu_init();
#define SET(name, feature) set_bit(&b, COLIBRI_CPU_BIT_##name, __builtin_cpu_supports(feature) != 0)
    SET(SSE3, "sse3");
    SET(SSSE3, "ssse3");
    SET(SSE4_1, "sse4.1");
    SET(SSE4_2, "sse4.2");
    SET(AVX, "avx");
    SET(FMA, "fma");
    SET(AVX2, "avx2");
    SET(BMI2, "bmi2");
    SET(AVX512F, "avx512f");
    SET(AVX512BW, "avx512bw");
    SET(AVX512DQ, "avx512dq");
    SET(AVX512VL, "avx512vl");
    SET(AVX512VNNI, "avx512vnni");
    SET(AVX512VBMI, "avx512vbmi");
#undef SET
    /* What not every compiler has a name for. The builtins above include the operating system's part (XCR0). */
    const bool avx = __builtin_cpu_supports("avx") != 0, avx512 = __builtin_cpu_supports("avx512f") != 0;
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        set_bit(&b, COLIBRI_CPU_BIT_F16C, avx && (ecx >> 29 & 1));
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        const unsigned subleaves = eax;
        set_bit(&b, COLIBRI_CPU_BIT_AVX512FP16, avx512 && (edx >> 23 & 1));
        if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) {
            set_bit(&b, COLIBRI_CPU_BIT_AVXVNNI, avx && (eax >> 4 & 1));
            set_bit(&b, COLIBRI_CPU_BIT_AVX512BF16, avx512 && (eax >> 5 & 1));
        }
    }
#elif defined(__aarch64__)
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    set_bit(&b, COLIBRI_CPU_BIT_NEON, cap >> 1 & 1);     /* HWCAP_ASIMD */
    set_bit(&b, COLIBRI_CPU_BIT_ASIMDHP, cap >> 10 & 1); /* HWCAP_ASIMDHP */
    set_bit(&b, COLIBRI_CPU_BIT_ASIMDDP, cap >> 20 & 1); /* HWCAP_ASIMDDP */
    set_bit(&b, COLIBRI_CPU_BIT_SVE, cap >> 22 & 1);     /* HWCAP_SVE */
    set_bit(&b, COLIBRI_CPU_BIT_SVE2, cap2 >> 1 & 1);    /* HWCAP2_SVE2 */
    set_bit(&b, COLIBRI_CPU_BIT_I8MM, cap2 >> 13 & 1);   /* HWCAP2_I8MM */
    set_bit(&b, COLIBRI_CPU_BIT_BF16, cap2 >> 14 & 1);   /* HWCAP2_BF16 */
#endif
    return b;
}

struct colibri_cpu_bits cpu_bits(void)
{
    static struct colibri_cpu_bits bits; /* CPUID is slow in virtual machines */
    static bool known;
    if (!known) {
        bits = detect();
        known = true;
    }
    return bits;
}

void cpu_missing(const struct colibri_cpu_bits *have, const uint64_t need[COLIBRI_CPU_WORDS], char *out, size_t size)
{
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {
#define NAME(id, bit, text) {bit, text},
        COLIBRI_CPU_MAP(NAME)
#undef NAME
    };
    out[0] = '\0';
    for (unsigned w = 0; w < COLIBRI_CPU_WORDS; w++)
        for (unsigned b = 0; b < 64; b++) {
            if (!((need[w] & ~have->w[w]) >> b & 1))
                continue;
            const char *name = "unknown";
            for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                if (names[i].bit == 64 * w + b)
                    name = names[i].name;
            const size_t len = strlen(out);
            snprintf(out + len, size - len, "%s%s", len ? " " : "", name);
        }
}

/* Whether all that the loader would map is there: what is missing would be a crash later. */
static bool is_whole(const char *bytes, size_t n)
{
    Elf64_Ehdr h;
    if (n < sizeof(h))
        return false;
    memcpy(&h, bytes, sizeof(h));
    for (size_t i = 0; i < h.e_phnum; i++) {
        Elf64_Phdr p;
        if (h.e_phoff > n || (i + 1) * sizeof(p) > n - h.e_phoff)
            return false;
        memcpy(&p, bytes + h.e_phoff + i * sizeof(p), sizeof(p));
        if (p.p_type == PT_LOAD && (p.p_offset > n || p.p_filesz > n - p.p_offset))
            return false;
    }
    return true;
}

/* The note lies in the file as it is in memory: its 20 leading bytes are looked for at every 4-byte offset. NULL, or why
 * there is none to use. */
static const char *find_note(const char *path, struct colibri_note_desc *desc)
{
    FILE *const f = fopen(path, "rb");
    if (!f)
        return strerror(errno);
    struct colibri_elf_note head = {.namesz = 8, .type = COLIBRI_NOTE_TYPE, .name = COLIBRI_NOTE_NAME};
    head.descsz = sizeof(struct colibri_note_desc);
    const size_t head_size = offsetof(struct colibri_elf_note, desc);
    const char *why = "cannot be read";
    if (fseek(f, 0, SEEK_END) == 0) {
        const long end = ftell(f);
        char *const bytes = end > 0 ? malloc((size_t)end) : NULL;
        rewind(f);
        if (bytes && fread(bytes, 1, (size_t)end, f) == (size_t)end) {
            why = "not a Colibri plugin: it has no .note.colibri";
            for (size_t at = 0; why && at + sizeof(head) <= (size_t)end; at += 4)
                if (memcmp(bytes + at, &head, head_size) == 0) {
                    memcpy(desc, bytes + at + head_size, sizeof(*desc));
                    why = NULL;
                }
            if (!why && !is_whole(bytes, (size_t)end))
                why = "truncated: its segments need more bytes than the file has";
        }
        free(bytes);
    }
    fclose(f);
    return why;
}

static void host_log(const struct colibri_host *host, int level, const char *id, const char *msg)
{
    (void)host;
    fprintf(stderr, "%s: level %d: %s\n", id, level, msg);
}

static const void *host_query(const struct colibri_host *host, const char *iface)
{
    (void)host;
    (void)iface;
    return NULL;
}

int plugin_load(const char *path, const struct colibri_cpu_bits *cpu, struct loaded *out)
{
    static struct colibri_host host = {.struct_size = sizeof(struct colibri_host),
                                       .abi_major = COLIBRI_ABI_MAJOR,
                                       .abi_minor = COLIBRI_ABI_MINOR,
                                       .log = host_log,
                                       .query = host_query};
    host.cpu = *cpu;
    out->path = path;
    out->plugin = NULL;
    const char *const why_not = find_note(path, &out->note);
    if (why_not) {
        fprintf(stderr, "colibri-kernelcheck: %s: %s\n", path, why_not);
        return 1;
    }
    char missing[300];
    cpu_missing(cpu, out->note.cpu, missing, sizeof(missing));
    if (missing[0]) {
        fprintf(stderr, "skip %s: this CPU lacks %s\n", out->note.id, missing);
        return 77;
    }
    void *const object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        fprintf(stderr, "colibri-kernelcheck: %s\n", dlerror());
        return 1;
    }
    const struct colibri_plugin *const p = dlsym(object, out->note.symbol);
    if (!p || !p->get) {
        fprintf(stderr, "colibri-kernelcheck: %s: no symbol %s\n", path, out->note.symbol);
        return 1;
    }
    char why[256] = "no reason given";
    if (p->init && p->init(&host, why, sizeof(why)) != COLIBRI_OK) {
        fprintf(stderr, "colibri-kernelcheck: %s: init failed: %s\n", path, why);
        return 1;
    }
    out->plugin = p;
    return 0;
}
