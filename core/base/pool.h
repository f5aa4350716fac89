/* Thread pool: parallel loops for one caller at a time.
 *
 * clb_pool_run runs fn once per worker, the caller being worker 0, and returns when all are done. Worker w is the same
 * thread in every run. Workers wait by a spin of at most 50 us, then sleep: an idle pool uses no CPU time. Results
 * never depend on the number of workers: callers split by rows. */
#ifndef CLB_BASE_POOL_H
#define CLB_BASE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct clb_pool clb_pool;
typedef void (*clb_pool_fn)(void *ctx, uint32_t worker, uint32_t n_workers);

/* n_workers >= 1, the calling thread included. */
int clb_pool_create(uint32_t n_workers, clb_pool **out, clb_error *err);
void clb_pool_destroy(clb_pool *pool);
uint32_t clb_pool_workers(const clb_pool *pool);
void clb_pool_run(clb_pool *pool, clb_pool_fn fn, void *ctx);
/* Inside fn: waits until every worker has called it. What any of them wrote before is visible to all of them after. */
void clb_pool_barrier(clb_pool *pool);

/* Waiters sleep at once from now on: for more workers than CPUs, where whoever spins keeps another from its work.
 * clb_pool_create does this by itself if the CPUs of the process's binding are fewer; a limit on CPU time is the
 * caller's to know. Not inside a run. */
void clb_pool_never_spin(clb_pool *pool);
bool clb_pool_spins(const clb_pool *pool);

/* The part [*begin, *end) of n units that worker w of n_workers takes: contiguous, sizes differ by at most one. */
static inline void clb_split(uint32_t n, uint32_t w, uint32_t n_workers, uint32_t *begin, uint32_t *end)
{
    *begin = (uint32_t)((uint64_t)n * w / n_workers);
    *end = (uint32_t)((uint64_t)n * (w + 1) / n_workers);
}

#endif
