/* The thread pool: every worker once per run, barriers, sleeping and waking, many pools. Also meant for
 * ThreadSanitizer: the plain (non-atomic) fields below are published by nothing but the pool itself. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/pool.h"
#include "support.h"

#define MOST_WORKERS 9u

static void pause_us(long us)
{
    const struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

static clb_pool *make(uint32_t n)
{
    clb_error err;
    clb_pool *pool;
    assert_ok(clb_pool_create(n, &pool, &err), &err);
    assert_int_equal(clb_pool_workers(pool), n);
    return pool;
}

struct calls {
    uint32_t n_workers;
    uint64_t round;               /* written by the caller, read by the workers */
    uint64_t seen[MOST_WORKERS];  /* round that worker w last ran in */
    uint32_t calls[MOST_WORKERS]; /* in this round */
    atomic_uint wrong;
    long delay_us; /* of the last worker: the others wait for it */
};

static void note_call(void *ctx, uint32_t worker, uint32_t n_workers)
{
    struct calls *c = ctx;
    if (worker >= n_workers || n_workers != c->n_workers) {
        atomic_fetch_add(&c->wrong, 1);
        return;
    }
    if (c->delay_us && worker == n_workers - 1)
        pause_us(c->delay_us);
    c->seen[worker] = c->round;
    c->calls[worker]++;
}

static void run_rounds(clb_pool *pool, struct calls *c, uint32_t rounds, uint32_t pause_every, long us)
{
    for (uint32_t r = 1; r <= rounds; r++) {
        c->round++;
        memset(c->calls, 0, sizeof c->calls);
        if (pause_every && r % pause_every == 0)
            pause_us(us);
        clb_pool_run(pool, note_call, c);
        for (uint32_t w = 0; w < c->n_workers; w++) { /* all are done, and their writes are visible */
            assert_int_equal(c->seen[w], c->round);
            assert_int_equal(c->calls[w], 1);
        }
    }
    assert_int_equal(atomic_load(&c->wrong), 0);
}

static void every_worker_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST_WORKERS; n++) {
        clb_pool *pool = make(n);
        struct calls c = {.n_workers = n};
        run_rounds(pool, &c, n <= 3 ? 3000 : 150, 0, 0);
        clb_pool_destroy(pool);
    }
}

/* Pauses between runs are far longer than the spin: workers sleep and must be woken. */
static void workers_wake_up(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MOST_WORKERS; n += 3) {
        clb_pool *pool = make(n);
        struct calls c = {.n_workers = n};
        run_rounds(pool, &c, 60, 1, 3000);
        run_rounds(pool, &c, 100, 7, 2000);
        clb_pool_destroy(pool);
    }
}

/* The caller sleeps while a worker is late. */
static void caller_wakes_up(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MOST_WORKERS; n += 2) {
        clb_pool *pool = make(n);
        struct calls c = {.n_workers = n, .delay_us = 3000};
        run_rounds(pool, &c, 40, 0, 0);
        clb_pool_destroy(pool);
    }
}

struct relay {
    clb_pool *pool;
    uint32_t rounds;
    uint32_t value[MOST_WORKERS];
    atomic_uint wrong;
    bool slow;
};

/* In each round every worker writes its own cell and, after the barrier, reads all others'. */
static void relay(void *ctx, uint32_t worker, uint32_t n_workers)
{
    struct relay *r = ctx;
    for (uint32_t round = 1; round <= r->rounds; round++) {
        if (r->slow && (round + worker) % 5 == 0)
            pause_us(2000);
        r->value[worker] = round;
        clb_pool_barrier(r->pool);
        for (uint32_t w = 0; w < n_workers; w++)
            if (r->value[w] != round)
                atomic_fetch_add(&r->wrong, 1);
        clb_pool_barrier(r->pool);
    }
}

static void barriers_hold(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST_WORKERS; n++) {
        clb_pool *pool = make(n);
        struct relay r = {.pool = pool, .rounds = n <= 3 ? 1000 : 30};
        clb_pool_run(pool, relay, &r);
        r.slow = true;
        r.rounds = 20;
        clb_pool_run(pool, relay, &r); /* the barrier's state carries over from run to run */
        assert_int_equal(atomic_load(&r.wrong), 0);
        clb_pool_destroy(pool);
    }
}

/* The same without spinning, and with as many workers as share a counter's line or do not (8 and 9). */
static void never_spins(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST_WORKERS; n++) {
        clb_pool *pool = make(n);
        clb_pool_never_spin(pool);
        assert_false(clb_pool_spins(pool));
        struct calls c = {.n_workers = n};
        run_rounds(pool, &c, 100, 0, 0);
        c.delay_us = 1000;
        run_rounds(pool, &c, 10, 3, 1000);
        struct relay r = {.pool = pool, .rounds = 30};
        clb_pool_run(pool, relay, &r);
        assert_int_equal(atomic_load(&r.wrong), 0);
        clb_pool_destroy(pool);
    }
}

/* More workers than CPUs must not spin, whoever made the pool. */
static void crowds_do_not_spin(void **state)
{
    (void)state;
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus))
        skip();
    clb_pool *pool = make((uint32_t)CPU_COUNT(&cpus) + 1);
    assert_false(clb_pool_spins(pool));
    clb_pool_destroy(pool);
    pool = make((uint32_t)CPU_COUNT(&cpus));
    assert_true(clb_pool_spins(pool));
    clb_pool_destroy(pool);
}

static void nothing(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)ctx;
    (void)worker;
    (void)n_workers;
}

static uint64_t cpu_us(void)
{
    struct rusage u;
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* A prompt that waits for its user must not heat the room: no worker uses CPU time between two runs. What counts is CPU
 * time, so other load on the machine does not matter; a single worker that went on spinning would use the pause itself.
 */
static void idle_costs_nothing(void **state)
{
    (void)state;
    clb_pool *pool = make(4);
    clb_pool_run(pool, nothing, NULL);
    const uint64_t before = cpu_us();
    for (int i = 0; i < 5; i++)
        pause_us(100000);
    const uint64_t used = cpu_us() - before;
    clb_pool_destroy(pool);
    if (used > 50000)
        fail_msg("an idle pool used %llu us of CPU time in 500 ms", (unsigned long long)used);
}

/* Destroyed while its workers start, spin, or sleep. */
static void many_pools(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        clb_pool *pool = make(1 + i % MOST_WORKERS);
        struct calls c = {.n_workers = 1 + i % MOST_WORKERS};
        if (i % 3)
            run_rounds(pool, &c, i % 4, 0, 0);
        if (i % 16 == 15)
            pause_us(2000);
        clb_pool_destroy(pool);
    }
    clb_pool_destroy(NULL);
}

static void refuses_sizes(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 4097, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clb_error err;
        clb_pool *pool = (clb_pool *)&err;
        assert_fails(clb_pool_create(bad[i], &pool, &err), &err, COLIBRI_E_USAGE, "between 1 and 4096");
        assert_null(pool);
        assert_int_equal(clb_pool_create(bad[i], &pool, NULL), COLIBRI_E_USAGE);
    }
}

/* Contiguous, complete, sizes differ by at most one; no overflow at the largest counts. */
static void splits_evenly(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 2, 7, 8, 9, 100, 65537, UINT32_MAX - 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint32_t n_workers = 1; n_workers <= 17; n_workers++) {
            uint32_t at = 0, least = UINT32_MAX, most = 0;
            for (uint32_t w = 0; w < n_workers; w++) {
                uint32_t begin, end;
                clb_split(counts[i], w, n_workers, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end >= begin);
                least = end - begin < least ? end - begin : least;
                most = end - begin > most ? end - begin : most;
                at = end;
            }
            assert_int_equal(at, counts[i]);
            assert_true(most - least <= 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_worker_once),  cmocka_unit_test(workers_wake_up), cmocka_unit_test(caller_wakes_up),
        cmocka_unit_test(barriers_hold),      cmocka_unit_test(many_pools),      cmocka_unit_test(refuses_sizes),
        cmocka_unit_test(splits_evenly),      cmocka_unit_test(never_spins),     cmocka_unit_test(crowds_do_not_spin),
        cmocka_unit_test(idle_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
