/* The read bandwidth of memory: every thread sums its share of a buffer too large for any cache.
 *
 *     cc -O3 -march=native -pthread stream_read.c -o stream_read;  stream_read THREADS MEBIBYTES
 *
 * Speaks the line protocol of bench/peers: "ready", then for each line "bw N" the answer "bw N SECONDS", the time of N
 * passes over the buffer. Threads are pinned one to a core of those the process may use. Linux, GCC or Clang.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Two registers of 256 bits or one of 512; eight sums, so that additions never wait for each other. */
typedef uint64_t vec __attribute__((vector_size(64)));
enum { SUMS = 8, MAX_THREADS = 1024 };

typedef struct {
    pthread_t thread;
    const vec *data;
    size_t count; /* vectors, a multiple of SUMS */
    int core, passes;
    uint64_t sum;
    pthread_barrier_t *start;
} share;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    (void)sched_setaffinity(0, sizeof set, &set); /* a core taken away meanwhile: run anywhere */
}

static uint64_t read_all(const vec *data, size_t count)
{
    vec sums[SUMS] = {{0}};
    for (size_t i = 0; i < count; i += SUMS)
        for (size_t k = 0; k < SUMS; k++)
            sums[k] += data[i + k];
    uint64_t sum = 0;
    for (size_t k = 0; k < SUMS; k++)
        for (size_t lane = 0; lane < sizeof(vec) / sizeof(uint64_t); lane++)
            sum += sums[k][lane];
    return sum;
}

static void *work(void *argument)
{
    share *s = argument;
    pin(s->core);
    pthread_barrier_wait(s->start);
    for (int pass = 0; pass < s->passes; pass++)
        s->sum += read_all(s->data, s->count);
    return NULL;
}

/* Seconds of the passes of all threads, from the moment the last of them is ready; negative if a thread is missing. */
static double run(share *shares, int threads, int passes)
{
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, (unsigned)threads + 1) != 0)
        return -1;
    for (int i = 0; i < threads; i++) {
        shares[i].passes = passes;
        shares[i].start = &start;
        if (pthread_create(&shares[i].thread, NULL, work, &shares[i]) != 0)
            exit(1); /* the others wait at the barrier for ever */
    }
    pthread_barrier_wait(&start);
    double begin = now();
    for (int i = 0; i < threads; i++)
        pthread_join(shares[i].thread, NULL);
    double seconds = now() - begin;
    pthread_barrier_destroy(&start);
    return seconds;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    int mebibytes = argc > 2 ? atoi(argv[2]) : 1024;
    if (threads < 1 || threads > MAX_THREADS || mebibytes < 1 || mebibytes > 1 << 20) {
        fprintf(stderr, "usage: stream_read THREADS MEBIBYTES\n");
        return 2;
    }
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    int cores[MAX_THREADS], ncores = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        for (int i = 0; i < CPU_SETSIZE && ncores < MAX_THREADS; i++)
            if (CPU_ISSET((size_t)i, &allowed))
                cores[ncores++] = i;
    if (ncores == 0)
        cores[ncores++] = 0;

    size_t per_thread = ((size_t)mebibytes << 20) / (size_t)threads / (SUMS * sizeof(vec)) * (SUMS * sizeof(vec));
    size_t bytes = per_thread * (size_t)threads;
    char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        perror("stream_read");
        return 1;
    }
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    memset(data, 1, bytes); /* real pages: untouched ones all map the same page of zeros */

    static share shares[MAX_THREADS];
    for (int i = 0; i < threads; i++) {
        shares[i].data = (const vec *)(const void *)(data + per_thread * (size_t)i);
        shares[i].count = per_thread / sizeof(vec);
        shares[i].core = cores[i % ncores];
    }
    printf("info {\"bytes_per_pass\": %zu}\nready\n", bytes);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "quit\n") != 0) {
        int passes = strncmp(line, "bw ", 3) == 0 ? atoi(line + 3) : 0;
        double seconds = passes > 0 ? run(shares, threads, passes) : -1;
        if (seconds > 0)
            printf("bw %d %.6f\n", passes, seconds);
        else
            printf("error cannot run '%.*s'\n", (int)strcspn(line, "\n"), line);
        fflush(stdout);
    }
    uint64_t sum = 0; /* printed, so that no compiler may leave the reading out */
    for (int i = 0; i < threads; i++)
        sum += shares[i].sum;
    fprintf(stderr, "sum %llx\n", (unsigned long long)sum);
    return 0;
}
