#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* How long a waiter spins before it sleeps. A decode step hands out work every few ten microseconds; beyond that
 * the core is better given back. */
#define SPIN_ROUNDS 4000

struct clb_pool {
    uint32_t n_workers;
    uint32_t n_threads; /* started ones: n_workers - 1 */
    int spin_rounds;    /* 0 with more workers than CPUs: a waiter would only keep the others from theirs */
    pthread_t *threads;
    struct worker *workers;

    clb_pool_fn fn;
    void *ctx;
    atomic_uint epoch;   /* bumped once per run; workers wait for a new value */
    atomic_uint pending; /* threads still inside the current run */
    atomic_bool stop;

    atomic_uint barrier_arrived;
    atomic_uint barrier_epoch;

    /* Sleeping: `sleepers` is raised under the lock before the condition is checked again, and read by the waker after
     * it changed the condition; both sides are sequentially consistent, so one of them sees the other. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint sleepers;
};

struct worker {
    clb_pool *pool;
    uint32_t index;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until *word != old. */
static void wait_change(clb_pool *pool, atomic_uint *word, unsigned old)
{
    for (int i = 0; i < pool->spin_rounds; i++) {
        if (atomic_load(word) != old)
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&pool->changed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void wake_all(clb_pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    clb_pool *pool = self->pool;
    unsigned seen = 0;
    for (;;) {
        wait_change(pool, &pool->epoch, seen);
        seen = atomic_load(&pool->epoch);
        if (atomic_load(&pool->stop))
            return NULL;
        pool->fn(pool->ctx, self->index, pool->n_workers);
        if (atomic_fetch_sub(&pool->pending, 1) == 1)
            wake_all(pool);
    }
}

int clb_pool_create(uint32_t n_workers, clb_pool **out, clb_error *err)
{
    *out = NULL;
    if (n_workers == 0 || n_workers > 4096)
        return clb_fail(err, COLIBRI_E_USAGE, "%u worker threads: must be between 1 and 4096", n_workers);
    clb_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return CLB_NOMEM(err, "thread pool");
    pool->n_workers = n_workers;
    cpu_set_t cpus; /* fails on machines with more CPUs than it holds */
    pool->spin_rounds =
        sched_getaffinity(0, sizeof cpus, &cpus) == 0 && n_workers > (uint32_t)CPU_COUNT(&cpus) ? 0 : SPIN_ROUNDS;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->threads = calloc(n_workers, sizeof *pool->threads);
    pool->workers = calloc(n_workers, sizeof *pool->workers);
    if (!pool->threads || !pool->workers) {
        clb_pool_destroy(pool);
        return CLB_NOMEM(err, "thread pool");
    }
    for (uint32_t i = 1; i < n_workers; i++) {
        pool->workers[i] = (struct worker){pool, i};
        const int rc = pthread_create(&pool->threads[pool->n_threads], NULL, worker_main, &pool->workers[i]);
        if (rc) {
            clb_pool_destroy(pool);
            return clb_fail_errno(err, COLIBRI_E_NOMEM, rc, "cannot start worker thread %u of %u", i, n_workers);
        }
        pool->n_threads++;
    }
    *out = pool;
    return COLIBRI_OK;
}

void clb_pool_destroy(clb_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->epoch, 1);
    wake_all(pool);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool->workers);
    free(pool);
}

uint32_t clb_pool_workers(const clb_pool *pool)
{
    return pool->n_workers;
}

void clb_pool_run(clb_pool *pool, clb_pool_fn fn, void *ctx)
{
    if (pool->n_workers == 1) {
        fn(ctx, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store(&pool->pending, pool->n_threads);
    atomic_fetch_add(&pool->epoch, 1);
    wake_all(pool);
    fn(ctx, 0, pool->n_workers);
    for (;;) {
        const unsigned left = atomic_load(&pool->pending);
        if (left == 0)
            return;
        wait_change(pool, &pool->pending, left);
    }
}

void clb_pool_barrier(clb_pool *pool)
{
    if (pool->n_workers == 1)
        return;
    const unsigned epoch = atomic_load(&pool->barrier_epoch);
    if (atomic_fetch_add(&pool->barrier_arrived, 1) + 1 == pool->n_workers) {
        atomic_store(&pool->barrier_arrived, 0);
        atomic_fetch_add(&pool->barrier_epoch, 1);
        wake_all(pool);
    } else {
        wait_change(pool, &pool->barrier_epoch, epoch);
    }
}
