#include "cpu/cpu.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const struct {
    uint8_t bit;
    const char *name;
} known[] = {
#define ENTRY(name, bit, text) {(bit), (text)},
    COLIBRI_CPU_MAP(ENTRY)
#undef ENTRY
};
#define N_KNOWN (sizeof known / sizeof *known)

/* feature <- prerequisite. No real CPU has the first without the second, and compilers assume as much: code built
 * with -mavx512f contains AVX2 and FMA instructions. Prerequisites come before their dependants. */
static const struct {
    uint8_t bit, needs;
} requires[] = {
#define NEEDS(a, b)                                                                                                    \
    {                                                                                                                  \
        COLIBRI_CPU_BIT_##a, COLIBRI_CPU_BIT_##b                                                                       \
    }
    NEEDS(SSSE3, SSE3),
    NEEDS(SSE4_1, SSSE3),
    NEEDS(SSE4_2, SSE4_1),
    NEEDS(AVX, SSE4_2),
    NEEDS(F16C, AVX),
    NEEDS(FMA, AVX),
    NEEDS(AVX2, AVX),
    NEEDS(AVX512F, AVX2),
    NEEDS(AVX512F, FMA),
    NEEDS(AVX512F, F16C),
    NEEDS(AVX512BW, AVX512F),
    NEEDS(AVX512DQ, AVX512F),
    NEEDS(AVX512VL, AVX512F),
    NEEDS(AVX512VNNI, AVX512F),
    NEEDS(AVX512VBMI, AVX512BW),
    NEEDS(AVX512BF16, AVX512BW),
    NEEDS(AVX512FP16, AVX512BW),
    NEEDS(AVX512FP16, AVX512VL),
    NEEDS(AVXVNNI, AVX2),
    NEEDS(AMX_TILE, AVX512F),
    NEEDS(AMX_INT8, AMX_TILE),
    NEEDS(AMX_BF16, AMX_TILE),
    NEEDS(ASIMDHP, NEON),
    NEEDS(ASIMDDP, NEON),
    NEEDS(I8MM, NEON),
    NEEDS(BF16, NEON),
    NEEDS(SVE, ASIMDHP),
    NEEDS(SVE2, SVE),
#undef NEEDS
};

struct colibri_cpu_bits clb_cpu_close(struct colibri_cpu_bits bits)
{
    for (size_t i = 0; i < sizeof requires / sizeof *requires; i++)
        if (!clb_cpu_has(&bits, requires[i].needs))
            clb_cpu_set(&bits, requires[i].bit, false);
    return bits;
}

struct colibri_cpu_bits clb_cpu_mask(struct colibri_cpu_bits bits, struct colibri_cpu_bits mask)
{
    return clb_cpu_close(clb_cpu_minus(bits, mask));
}

struct colibri_cpu_bits clb_cpu_known(void)
{
    struct colibri_cpu_bits all = {{0}};
    for (size_t i = 0; i < N_KNOWN; i++)
        clb_cpu_set(&all, known[i].bit, true);
    return all;
}

static bool same_name(const char *a, const char *b, size_t nb)
{
    return strlen(a) == nb && !strncmp(a, b, nb);
}

static int parse_one(const char *name, size_t n, struct colibri_cpu_bits *bits, clb_error *err)
{
    if (same_name("all", name, n)) {
        const struct colibri_cpu_bits all = clb_cpu_known();
        for (size_t w = 0; w < COLIBRI_CPU_WORDS; w++)
            bits->w[w] |= all.w[w];
        return COLIBRI_OK;
    }
    for (size_t i = 0; i < N_KNOWN; i++)
        if (same_name(known[i].name, name, n)) {
            clb_cpu_set(bits, known[i].bit, true);
            return COLIBRI_OK;
        }
    const char *names[N_KNOWN + 1] = {"all"};
    for (size_t i = 0; i < N_KNOWN; i++)
        names[i + 1] = known[i].name;
    char word[64];
    snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, name);
    const long near = clb_nearest(word, names, N_KNOWN + 1);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown CPU feature '%s'%s%s%s", word,
                    near >= 0 ? "; did you mean '" : " ('colibri plugins cpu' lists them)",
                    near >= 0 ? names[near] : "", near >= 0 ? "'?" : "");
}

int clb_cpu_parse(const char *names, struct colibri_cpu_bits *bits, clb_error *err)
{
    for (const char *p = names; *p;) {
        const char *const start = p + strspn(p, ", \t");
        const size_t n = strcspn(start, ", \t");
        if (n)
            CLB_TRY(parse_one(start, n, bits, err));
        p = start + n;
    }
    return COLIBRI_OK;
}

void clb_cpu_each(struct colibri_cpu_bits bits, clb_cpu_name_fn fn, void *ctx)
{
    for (unsigned b = 0; b < 64 * COLIBRI_CPU_WORDS; b++) {
        if (!clb_cpu_has(&bits, b))
            continue;
        char unnamed[16];
        const char *name = NULL;
        for (size_t i = 0; i < N_KNOWN && !name; i++)
            if (known[i].bit == b)
                name = known[i].name;
        if (!name) {
            snprintf(unnamed, sizeof unnamed, "bit %u", b);
            name = unnamed;
        }
        fn(ctx, name);
    }
}

struct text {
    char *out;
    size_t n;
};

static void add_name(void *ctx, const char *name)
{
    struct text *const t = ctx;
    const int n = snprintf(t->out + t->n, CLB_CPU_TEXT_MAX - t->n, "%s%s", t->n ? " " : "", name);
    if (n > 0 && (size_t)n < CLB_CPU_TEXT_MAX - t->n)
        t->n += (size_t)n;
    else
        t->out[t->n] = '\0'; /* whole names only */
}

char *clb_cpu_format(struct colibri_cpu_bits bits, char out[CLB_CPU_TEXT_MAX])
{
    struct text t = {out, 0};
    out[0] = '\0';
    clb_cpu_each(bits, add_name, &t);
    if (!t.n)
        snprintf(out, CLB_CPU_TEXT_MAX, "none");
    return out;
}

/* ---- x86: from claims to usable bits ---------------------------------------------------------------------- */

#define XCR0_YMM  UINT64_C(0x06) /* SSE and AVX state */
#define XCR0_ZMM  UINT64_C(0xe6) /* ... and opmask, upper halves of ZMM0-15, ZMM16-31 */
#define XCR0_TILE (UINT64_C(3) << 17)

void clb_cpu_claim_leaf7(struct colibri_cpu_bits *cpuid, uint32_t max_subleaf, uint32_t edx0, uint32_t eax1)
{
    clb_cpu_set(cpuid, COLIBRI_CPU_BIT_AVX512FP16, (edx0 >> 23) & 1u);
    clb_cpu_set(cpuid, COLIBRI_CPU_BIT_AVXVNNI, max_subleaf >= 1 && ((eax1 >> 4) & 1u));
}

struct colibri_cpu_bits clb_cpu_usable_x86(const clb_cpu_x86_claims *claims)
{
    struct colibri_cpu_bits bits = claims->cpuid;
    bits.w[1] = 0; /* ARM's */
    const uint64_t xcr0 = claims->osxsave ? claims->xcr0 : 0;
    /* The closure takes away everything above a bit cleared here, F16C included, which has no state check of its own
     * in common detection code. */
    if ((xcr0 & XCR0_YMM) != XCR0_YMM)
        clb_cpu_set(&bits, COLIBRI_CPU_BIT_AVX, false);
    if ((xcr0 & XCR0_ZMM) != XCR0_ZMM)
        clb_cpu_set(&bits, COLIBRI_CPU_BIT_AVX512F, false);
    if ((xcr0 & XCR0_TILE) != XCR0_TILE || claims->amx_palettes < 1 || !claims->amx_permitted)
        clb_cpu_set(&bits, COLIBRI_CPU_BIT_AMX_TILE, false);
    return clb_cpu_close(bits);
}
