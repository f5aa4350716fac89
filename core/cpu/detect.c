/* Feature bits of the running CPU, through the cpu_features library, plus what the packaged version of it leaves
 * out. */
#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <cpu_features/cpuinfo_x86.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_GET_XCOMP_PERM_ 0x1022
#define ARCH_REQ_XCOMP_PERM_ 0x1023
#define XFEATURE_XTILEDATA   18

static bool amx_permission(void)
{
    unsigned long permitted = 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM_, &permitted) == 0 && (permitted >> XFEATURE_XTILEDATA) & 1u)
        return true;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, (unsigned long)XFEATURE_XTILEDATA) == 0;
}

static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0)); /* the intrinsic would need -mxsave */
    return (uint64_t)hi << 32 | lo;
}

void clb_cpu_detect(struct colibri_cpu_bits *out)
{
    const X86Info info = GetX86Info();
    const X86Features *const f = &info.features;
    clb_cpu_x86_claims c = {.xcr0 = 0};
#define CLAIM(name, value) clb_cpu_set(&c.cpuid, COLIBRI_CPU_BIT_##name, (value) != 0)
    CLAIM(SSE3, f->sse3);
    CLAIM(SSSE3, f->ssse3);
    CLAIM(SSE4_1, f->sse4_1);
    CLAIM(SSE4_2, f->sse4_2);
    CLAIM(AVX, f->avx);
    CLAIM(F16C, f->f16c);
    CLAIM(FMA, f->fma3);
    CLAIM(AVX2, f->avx2);
    CLAIM(BMI2, f->bmi2);
    CLAIM(AVX512F, f->avx512f);
    CLAIM(AVX512BW, f->avx512bw);
    CLAIM(AVX512DQ, f->avx512dq);
    CLAIM(AVX512VL, f->avx512vl);
    CLAIM(AVX512VNNI, f->avx512vnni);
    CLAIM(AVX512VBMI, f->avx512vbmi);
    CLAIM(AVX512BF16, f->avx512_bf16);
    CLAIM(AMX_TILE, f->amx_tile);
    CLAIM(AMX_INT8, f->amx_int8);
    CLAIM(AMX_BF16, f->amx_bf16);

    uint32_t a, b, ecx, d;
    if (__get_cpuid(1, &a, &b, &ecx, &d))
        c.osxsave = (ecx >> 27) & 1u;
    if (__get_cpuid_count(7, 0, &a, &b, &ecx, &d)) {
        const uint32_t subleaves = a, edx0 = d;
        if (subleaves < 1 || !__get_cpuid_count(7, 1, &a, &b, &ecx, &d))
            a = 0;
        clb_cpu_claim_leaf7(&c.cpuid, subleaves, edx0, a);
    }
#undef CLAIM
    if (c.osxsave)
        c.xcr0 = read_xcr0();
    if (__get_cpuid_count(0x1d, 0, &a, &b, &ecx, &d))
        c.amx_palettes = a;
    /* Only a CPU that could use the tiles is asked to pay for their signal frames. */
    c.amx_permitted = true;
    const struct colibri_cpu_bits would_be = clb_cpu_usable_x86(&c);
    c.amx_permitted = clb_cpu_has(&would_be, COLIBRI_CPU_BIT_AMX_TILE) && amx_permission();
    *out = clb_cpu_usable_x86(&c);
}

#elif defined(__aarch64__)
#include <cpu_features/cpuinfo_aarch64.h>

void clb_cpu_detect(struct colibri_cpu_bits *out)
{
    /* From the kernel's HWCAP words: a feature is listed only if its registers are saved. */
    const Aarch64Info info = GetAarch64Info();
    const Aarch64Features *const f = &info.features;
    struct colibri_cpu_bits bits = {{0}};
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_NEON, f->asimd != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_ASIMDHP, f->asimdhp != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_ASIMDDP, f->asimddp != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_I8MM, f->i8mm != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_SVE, f->sve != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_SVE2, f->sve2 != 0);
    clb_cpu_set(&bits, COLIBRI_CPU_BIT_BF16, f->bf16 != 0);
    *out = clb_cpu_close(bits);
}

#else

void clb_cpu_detect(struct colibri_cpu_bits *out)
{
    *out = (struct colibri_cpu_bits){{0}}; /* no bits are defined for this architecture: the scalar reference runs */
}

#endif
