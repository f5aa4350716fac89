/* Measurements: what is printed, and the clock. */
#ifndef KERNELCHECK_BENCH_H
#define KERNELCHECK_BENCH_H

#include "check.h"

/* CPU time of this thread in seconds: other programs on the machine count less than with a wall clock. */
double bench_now(void);
/* 64-byte aligned, in huge pages where the system gives them on request, as the engine's own memory. free() it. */
void *bench_memory(size_t bytes);

/* json: everything goes into one object on standard output, printed by bench_end. */
void bench_begin(bool json, const struct colibri_cpu_bits *cpu);
void bench_end(void);
void bench_plugin(const char *path, const char *id);

/* Formats of a plugin: their reference products are what kernels are compared with from now on. Formats without one are
 * compared with this program's own decoder, which is slower. */
void bench_reference(const struct colibri_plugin *p);

void bench_matmul(const struct colibri_matmul *m);
void bench_vecops(const struct colibri_vecops *v);
void bench_attention(const struct colibri_vecops *v);
/* One measured vector operation: `what` says the shape; unit is e.g. "ns/element". */
void bench_operation(const char *component, const char *what, double value, const char *unit);

#endif
