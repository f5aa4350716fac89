/* Turns on flush-to-zero, as the start-up code of -ffast-math does. */
#ifndef TEST_PLUGIN_FPCONTROL_H
#define TEST_PLUGIN_FPCONTROL_H

#include <stdint.h>

static inline void test_flush_to_zero(void)
{
#if defined(__x86_64__)
    uint32_t mxcsr;
    __asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
    mxcsr |= 0x8040;
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | UINT64_C(1) << 24));
#endif
}

#endif
