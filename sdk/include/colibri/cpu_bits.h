/* CPU feature bits: our own numbers, append-only, shared by notes, INI masks and tables.
 *
 * A bit means "usable", not "present": the operating system has enabled the register state (XCR0), and for
 * AMX the process has obtained permission. x86 and ARM bits live in one number space, so that a note for
 * one architecture can never be satisfied on the other. An unknown bit in a note means refusal. */
#ifndef COLIBRI_CPU_BITS_H
#define COLIBRI_CPU_BITS_H

#include <stdint.h>

#define COLIBRI_CPU_WORDS 2

/* X(NAME, bit, "name") */
#define COLIBRI_CPU_MAP(X)                  \
    X(SSE3, 0, "sse3")                      \
    X(SSSE3, 1, "ssse3")                    \
    X(SSE4_1, 2, "sse4_1")                  \
    X(SSE4_2, 3, "sse4_2")                  \
    X(AVX, 4, "avx")                        \
    X(F16C, 5, "f16c")                      \
    X(FMA, 6, "fma")                        \
    X(AVX2, 7, "avx2")                      \
    X(BMI2, 8, "bmi2")                      \
    X(AVX512F, 9, "avx512f")                \
    X(AVX512BW, 10, "avx512bw")             \
    X(AVX512DQ, 11, "avx512dq")             \
    X(AVX512VL, 12, "avx512vl")             \
    X(AVX512VNNI, 13, "avx512vnni")         \
    X(AVX512VBMI, 14, "avx512vbmi")         \
    X(AVX512BF16, 15, "avx512bf16")         \
    X(AVX512FP16, 16, "avx512fp16")         \
    X(AVXVNNI, 17, "avxvnni")               \
    X(AMX_TILE, 18, "amx_tile")             \
    X(AMX_INT8, 19, "amx_int8")             \
    X(AMX_BF16, 20, "amx_bf16")             \
    X(NEON, 64, "neon")                     \
    X(ASIMDHP, 65, "asimdhp")               \
    X(ASIMDDP, 66, "dotprod")               \
    X(I8MM, 67, "i8mm")                     \
    X(SVE, 68, "sve")                       \
    X(SVE2, 69, "sve2")                     \
    X(BF16, 70, "bf16")

struct colibri_cpu_bits {
    uint64_t w[COLIBRI_CPU_WORDS];
};

enum {
#define COLIBRI_CPU_ENUM(name, bit, text) COLIBRI_CPU_BIT_##name = (bit),
    COLIBRI_CPU_MAP(COLIBRI_CPU_ENUM)
#undef COLIBRI_CPU_ENUM
};

/* Word masks for notes and component tables: COLIBRI_CPU0(AVX2) | COLIBRI_CPU0(FMA) goes into word 0,
 * COLIBRI_CPU1(NEON) into word 1. */
#define COLIBRI_CPU0(name) (UINT64_C(1) << COLIBRI_CPU_BIT_##name)
#define COLIBRI_CPU1(name) (UINT64_C(1) << (COLIBRI_CPU_BIT_##name - 64))

#endif
