/* Floating-point control state of the calling thread: rounding, denormals, traps; not the sticky exception flags.
 * A plugin linked with -ffast-math sets flush-to-zero from a constructor: every later result would change. */
#ifndef CLB_PLUGIN_FPSTATE_H
#define CLB_PLUGIN_FPSTATE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct clb_fpstate {
    uint64_t control; /* MXCSR without its flags, or FPCR */
    uint16_t x87;     /* precision and rounding of long double */
} clb_fpstate;

#if defined(__x86_64__)
#define CLB_MXCSR_FLAGS 0x3fu

static inline clb_fpstate clb_fpstate_get(void)
{
    clb_fpstate s;
    uint32_t mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    __asm__ volatile("fnstcw %0" : "=m"(s.x87));
    s.control = mxcsr & ~CLB_MXCSR_FLAGS;
    return s;
}

static inline void clb_fpstate_set(clb_fpstate s)
{
    const uint32_t mxcsr = (uint32_t)s.control;
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
    __asm__ volatile("fldcw %0" : : "m"(s.x87));
}
#elif defined(__aarch64__)
static inline clb_fpstate clb_fpstate_get(void)
{
    clb_fpstate s = {0, 0};
    __asm__ volatile("mrs %0, fpcr" : "=r"(s.control));
    return s;
}

static inline void clb_fpstate_set(clb_fpstate s)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(s.control));
}
#else
static inline clb_fpstate clb_fpstate_get(void)
{
    return (clb_fpstate){0, 0};
}

static inline void clb_fpstate_set(clb_fpstate s)
{
    (void)s;
}
#endif

static inline bool clb_fpstate_same(clb_fpstate a, clb_fpstate b)
{
    return a.control == b.control && a.x87 == b.x87;
}

#endif
