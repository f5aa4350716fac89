/* CPU feature bits that this process may use, and masks over them.
 *
 * "Usable" means: the CPU has the instructions, the operating system saves their registers, a feature's
 * prerequisites are usable too, and for AMX the kernel has given permission. Functions are [any-thread]. */
#ifndef CLB_CPU_CPU_H
#define CLB_CPU_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "colibri/cpu_bits.h"

/* The usable bits of this CPU. On CPUs with AMX this asks the kernel for permission to use it (which enlarges the
 * process's signal frames) unless the process already has it. */
void clb_cpu_detect(struct colibri_cpu_bits *out);

/* What an x86 CPU and its kernel claim, before anything is believed: the input of clb_cpu_usable_x86. */
typedef struct clb_cpu_x86_claims {
    struct colibri_cpu_bits cpuid; /* features that CPUID lists */
    bool osxsave;                  /* CPUID.1:ECX.OSXSAVE: XGETBV exists */
    uint64_t xcr0;                 /* 0 without osxsave */
    uint32_t amx_palettes;         /* CPUID.1Dh.0:EAX, the highest palette; 0: no tiles whatever CPUID.7 says */
    bool amx_permitted;            /* arch_prctl(ARCH_REQ_XCOMP_PERM) succeeded */
} clb_cpu_x86_claims;

/* Adds to *cpuid the features of CPUID leaf 7 that the packaged cpu_features does not know: max_subleaf (EAX) and edx0 of
 * subleaf 0, eax1 of subleaf 1, which counts only if there is one. Pure. */
void clb_cpu_claim_leaf7(struct colibri_cpu_bits *cpuid, uint32_t max_subleaf, uint32_t edx0, uint32_t eax1);

/* The part of the claims that can be used. Pure: tests feed it machines that do not exist here. */
struct colibri_cpu_bits clb_cpu_usable_x86(const clb_cpu_x86_claims *claims);

/* Removes every feature that lacks a prerequisite (AVX2 needs AVX, AVX-512 needs AVX2, FMA and F16C, ...). */
struct colibri_cpu_bits clb_cpu_close(struct colibri_cpu_bits bits);
/* bits without those in mask and without everything that depends on them. */
struct colibri_cpu_bits clb_cpu_mask(struct colibri_cpu_bits bits, struct colibri_cpu_bits mask);

/* Adds the features of a comma-separated list to *bits; "all" is every feature. Unknown name: USAGE, naming the
 * nearest. Empty items are ignored. */
int clb_cpu_parse(const char *names, struct colibri_cpu_bits *bits, clb_error *err);

/* Calls fn for each set bit in ascending order, with its name. Bits without a name are called "bit N". */
typedef void (*clb_cpu_name_fn)(void *ctx, const char *name);
void clb_cpu_each(struct colibri_cpu_bits bits, clb_cpu_name_fn fn, void *ctx);

#define CLB_CPU_TEXT_MAX 512
/* "avx2 fma f16c", or "none". Returns out. */
char *clb_cpu_format(struct colibri_cpu_bits bits, char out[CLB_CPU_TEXT_MAX]);

/* Bits that this header gives a meaning to. */
struct colibri_cpu_bits clb_cpu_known(void);

static inline bool clb_cpu_has(const struct colibri_cpu_bits *bits, unsigned bit)
{
    return bit < 64 * COLIBRI_CPU_WORDS && (bits->w[bit / 64] >> (bit % 64)) & 1u;
}

static inline void clb_cpu_set(struct colibri_cpu_bits *bits, unsigned bit, bool on)
{
    const uint64_t m = UINT64_C(1) << (bit % 64);
    bits->w[bit / 64] = on ? bits->w[bit / 64] | m : bits->w[bit / 64] & ~m;
}

/* need & ~have: what is missing. */
static inline struct colibri_cpu_bits clb_cpu_minus(struct colibri_cpu_bits need, struct colibri_cpu_bits have)
{
    for (size_t i = 0; i < COLIBRI_CPU_WORDS; i++)
        need.w[i] &= ~have.w[i];
    return need;
}

static inline bool clb_cpu_empty(struct colibri_cpu_bits bits)
{
    uint64_t any = 0;
    for (size_t i = 0; i < COLIBRI_CPU_WORDS; i++)
        any |= bits.w[i];
    return !any;
}

#endif
