/* Cost of the thread pool's primitives: an empty run, a barrier inside a run, a run after a pause.
 *
 *     bench_pool [THREADS] [REPEATS]
 *
 * Prints the median and the best of REPEATS batches in nanoseconds. "after N us" is a run that follows N microseconds
 * of work on the calling thread alone, as sampling and text output are between two tokens: its workers spin if the
 * pause is short and sleep if it is long. "idle" is the CPU time that the whole process burns per second while nobody
 * calls the pool. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "base/pool.h"
#include "cpu/topology.h"

#define BATCH 2000u

static void nothing(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)ctx;
    (void)worker;
    (void)n_workers;
}

static void barriers(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    for (uint32_t i = 0; i < BATCH; i++)
        clb_pool_barrier(ctx);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, double *ns, uint32_t n)
{
    qsort(ns, n, sizeof *ns, by_value);
    printf("%-16s median %9.0f ns   best %9.0f ns\n", what, ns[n / 2], ns[0]);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void run_after(clb_pool *pool, uint32_t us, double *ns, uint32_t repeats)
{
    for (uint32_t r = 0; r < repeats; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < 50; i++) {
            const uint64_t t0 = clb_now_ns();
            while (clb_now_ns() - t0 < us * UINT64_C(1000))
                ;
            const uint64_t t1 = clb_now_ns();
            clb_pool_run(pool, nothing, NULL);
            sum += (double)(clb_now_ns() - t1);
        }
        ns[r] = sum / 50;
    }
    char what[32];
    snprintf(what, sizeof what, "after %u us", us);
    report(what, ns, repeats);
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    const uint32_t repeats = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 21;
    double *ns = calloc(repeats ? repeats : 1, sizeof *ns);
    clb_pool *pool;
    clb_error err;
    if (!ns || !repeats || clb_pool_create(n, &pool, &err)) {
        fprintf(stderr, "bench_pool: %s\n", ns && repeats ? err.msg : "needs at least one repeat and memory for it");
        return 1;
    }
    clb_pins pins; /* as a command's threads are */
    const char *loose = clb_pins_set(&pins, pool, true, true);
    printf("%u threads, %u batches%s%s\n", n, repeats, loose ? ", not bound to cores: " : "", loose ? loose : "");
    for (uint32_t r = 0; r < repeats; r++) {
        const uint64_t t0 = clb_now_ns();
        for (uint32_t i = 0; i < BATCH; i++)
            clb_pool_run(pool, nothing, NULL);
        ns[r] = (double)(clb_now_ns() - t0) / BATCH;
    }
    report("empty run", ns, repeats);
    for (uint32_t r = 0; r < repeats; r++) {
        const uint64_t t0 = clb_now_ns();
        clb_pool_run(pool, barriers, pool);
        ns[r] = (double)(clb_now_ns() - t0) / BATCH;
    }
    report("barrier", ns, repeats);
    static const uint32_t pauses[] = {5, 20, 50, 100, 200, 1000};
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++)
        run_after(pool, pauses[i], ns, repeats);
    const double c0 = cpu_seconds();
    const struct timespec pause = {0, 500000000};
    nanosleep(&pause, NULL);
    printf("%-16s %.3f ms of CPU per second\n", "idle", (cpu_seconds() - c0) / 0.5 * 1000);
    clb_pool_destroy(pool);
    free(ns);
    return 0;
}
