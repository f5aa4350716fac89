/* Deliberately wrong kernels for the self-test: mistakes in results, in memory, and against the calling convention. */
#ifndef KERNELCHECK_MISTAKES_H
#define KERNELCHECK_MISTAKES_H

#include "check.h"

struct mistake {
    const char *name;
    const char *expect; /* what every failure has to say; NULL: the kernel is right */
    uint32_t type;      /* of the weights: Q4_K, Q4_0, Q8_0 or F32 */
    size_t scratch_bytes;
    void (*run)(const struct colibri_matmul_args *args);
    uint64_t cpu;      /* bits of word 0 that the mistake itself needs */
    const void *state; /* memory that counts as writable data of the plugin */
    size_t state_bytes;
};

extern const struct mistake mistakes_result[], mistakes_memory[], mistakes_call[]; /* ended by a NULL name */

#endif
