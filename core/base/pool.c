#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

/* How long a waiter spins before it sleeps: about what a wake-up costs, so that a wait costs at most twice what the
 * better choice would have. Bounded by the clock, because the cost of a pause instruction differs tenfold between CPUs.
 */
#define SPIN_NS 50000u
/* Pauses between two looks at the clock: reading it costs as much as one of them, and takes 1 to 5 us of spinning. */
#define SPIN_BATCH 32

/* Two lines: the prefetchers of some CPUs fetch lines in pairs. */
#define LINE 128

/* A value that threads wait for, alone with its sleepers. The waker looks at `sleepers` right after it changed `value`,
 * which then costs no further cache miss, and enters the kernel only if somebody sleeps. A waiter raises `sleepers`
 * before the kernel compares `value` again; both sides are sequentially consistent, so one of them sees the other. */
struct event {
    alignas(LINE) atomic_uint value;
    atomic_uint sleepers;
    atomic_uint near; /* the counter that leads to the change, with few workers */
};

/* A counter on the line of its event saves few workers a transfer of a line between cores per arrival. Many would slow
 * each other down: whoever arrives takes the line from all who already wait on it. */
#define FEW_WORKERS 8u

struct clb_pool {
    uint32_t n_workers;
    uint32_t n_threads; /* started ones: n_workers - 1 */
    atomic_uint spin_ns;
    atomic_bool stop;
    pthread_t *threads;
    struct worker *workers;
    atomic_uint *pending; /* threads still inside the current run */
    atomic_uint *arrived; /* workers that wait at the barrier */

    struct event run; /* bumped once per run; workers wait for a new value */
    clb_pool_fn fn;   /* on the line of `run`, which the workers fetch anyway */
    void *ctx;

    struct event done;    /* bumped when the last thread has left the run */
    struct event barrier; /* bumped when the last worker has arrived */
    struct {
        alignas(LINE) atomic_uint n;
    } far[2];
};

/* On lines of their own: `cpu` is written by its worker in every run. */
struct worker {
    alignas(LINE) clb_pool *pool;
    uint32_t index;
    atomic_int cpu; /* where it last began to work */
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether another worker was last seen on this CPU. If the machine is busy, the scheduler may leave two workers on one
 * CPU; the one that spins then delays just the one it waits for. */
static bool shares_cpu(const clb_pool *pool)
{
    const int here = sched_getcpu();
    uint32_t n = 0;
    for (uint32_t i = 0; i < pool->n_workers; i++)
        n += atomic_load_explicit(&pool->workers[i].cpu, memory_order_relaxed) == here;
    return n > 1;
}

static void note_cpu(clb_pool *pool, uint32_t worker)
{
    const int cpu = sched_getcpu();
    if (cpu != atomic_load_explicit(&pool->workers[worker].cpu, memory_order_relaxed))
        atomic_store_explicit(&pool->workers[worker].cpu, cpu, memory_order_relaxed);
}

static void sleep_while(struct event *e, unsigned old)
{
    atomic_fetch_add(&e->sleepers, 1);
    while (atomic_load(&e->value) == old)
        syscall(SYS_futex, &e->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0); /* returns early: looked at again */
    atomic_fetch_sub_explicit(&e->sleepers, 1, memory_order_relaxed);
}

/* Waits until e->value != old; what was written before the change is visible then. */
static void wait_change(clb_pool *pool, struct event *e, unsigned old)
{
    const unsigned spin_ns = atomic_load_explicit(&pool->spin_ns, memory_order_relaxed);
    uint64_t start = 0;
    while (spin_ns) {
        for (int i = 0; i < SPIN_BATCH; i++) {
            if (atomic_load_explicit(&e->value, memory_order_acquire) != old)
                return;
            relax();
        }
        const uint64_t now = clb_now_ns();
        start = start ? start : now;
        if (now - start >= spin_ns || shares_cpu(pool))
            break;
    }
    sleep_while(e, old);
}

static void bump(struct event *e)
{
    atomic_fetch_add(&e->value, 1);
    if (atomic_load(&e->sleepers))
        syscall(SYS_futex, &e->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void *worker_main(void *arg)
{
    const struct worker *self = arg;
    clb_pool *pool = self->pool;
    for (unsigned seen = 0;; seen++) {
        wait_change(pool, &pool->run, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return NULL;
        note_cpu(pool, self->index);
        pool->fn(pool->ctx, self->index, pool->n_workers);
        if (atomic_fetch_sub_explicit(pool->pending, 1, memory_order_acq_rel) == 1)
            bump(&pool->done);
    }
}

/* More workers than CPUs, and a waiter would only keep the others from theirs. */
static bool crowded(uint32_t n_workers)
{
    cpu_set_t cpus; /* fails on machines with more CPUs than it holds */
    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && n_workers > (uint32_t)CPU_COUNT(&cpus);
}

int clb_pool_create(uint32_t n_workers, clb_pool **out, clb_error *err)
{
    *out = NULL;
    if (n_workers == 0 || n_workers > 4096)
        return clb_fail(err, COLIBRI_E_USAGE, "%u worker threads: must be between 1 and 4096", n_workers);
    clb_pool *pool = aligned_alloc(alignof(clb_pool), sizeof *pool);
    if (!pool)
        return CLB_NOMEM(err, "thread pool");
    *pool = (clb_pool){.n_workers = n_workers, .spin_ns = crowded(n_workers) ? 0 : SPIN_NS};
    const bool few = n_workers <= FEW_WORKERS;
    pool->pending = few ? &pool->done.near : &pool->far[0].n;
    pool->arrived = few ? &pool->barrier.near : &pool->far[1].n;
    pool->threads = calloc(n_workers, sizeof *pool->threads);
    pool->workers = aligned_alloc(alignof(struct worker), n_workers * sizeof *pool->workers);
    if (!pool->threads || !pool->workers) {
        clb_pool_destroy(pool);
        return CLB_NOMEM(err, "thread pool");
    }
    for (uint32_t i = 0; i < n_workers; i++)
        pool->workers[i] = (struct worker){.pool = pool, .index = i, .cpu = -1};
    for (uint32_t i = 1; i < n_workers; i++) {
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
    bump(&pool->run);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    free(pool->threads);
    free(pool->workers);
    free(pool);
}

uint32_t clb_pool_workers(const clb_pool *pool)
{
    return pool->n_workers;
}

void clb_pool_never_spin(clb_pool *pool)
{
    atomic_store_explicit(&pool->spin_ns, 0, memory_order_relaxed);
}

bool clb_pool_spins(const clb_pool *pool)
{
    return atomic_load_explicit(&pool->spin_ns, memory_order_relaxed) != 0;
}

void clb_pool_run(clb_pool *pool, clb_pool_fn fn, void *ctx)
{
    if (pool->n_workers == 1) {
        fn(ctx, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(pool->pending, pool->n_threads, memory_order_relaxed); /* published with `run` */
    const unsigned done = atomic_load_explicit(&pool->done.value, memory_order_relaxed);
    bump(&pool->run);
    note_cpu(pool, 0);
    fn(ctx, 0, pool->n_workers);
    wait_change(pool, &pool->done, done);
}

void clb_pool_barrier(clb_pool *pool)
{
    if (pool->n_workers == 1)
        return;
    const unsigned seen = atomic_load_explicit(&pool->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(pool->arrived, 1, memory_order_acq_rel) + 1 == pool->n_workers) {
        atomic_store_explicit(pool->arrived, 0, memory_order_relaxed); /* published with `barrier` */
        bump(&pool->barrier);
    } else {
        wait_change(pool, &pool->barrier, seen);
    }
}
