/* A bad drive, for programs that are tested as a whole: loaded with LD_PRELOAD it stands in front of pread.
 *
 *     LD_PRELOAD=slow_read.so SLOW_READ_PATH=model SLOW_READ_RATE=10000000 colibri run --set store.io=pread ...
 *
 * Reads through io_uring never come by here, hence store.io=pread. Settings are environment variables:
 *
 *   SLOW_READ_PATH   part of the path of the files that are meant; nothing happens without it
 *   SLOW_READ_ONLY   "direct": only reads with O_DIRECT, which are those of experts and streamed layers with
 *                    store.direct=on and none of those at start
 *   SLOW_READ_SKIP   N: the first N such reads go through and are not counted below
 *   SLOW_READ_FAIL   N: the N-th fails with EIO; N+: all from the N-th on
 *   SLOW_READ_SHORT  BYTES: a read brings no more than this
 *   SLOW_READ_RATE   bytes per second of all these reads together
 *   SLOW_READ_LOG    a file to which the number of reads is written at the end */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t count, free_ns; /* reads so far; when the drive is through with them */

static uint64_t number(const char *name)
{
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : 0;
}

static bool meant(int fd)
{
    const char *part = getenv("SLOW_READ_PATH"), *only = getenv("SLOW_READ_ONLY");
    if (!part || !*part)
        return false;
    if (only && !strcmp(only, "direct") && !(fcntl(fd, F_GETFL) & O_DIRECT))
        return false;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return false;
    path[n] = 0;
    return strstr(path, part) != NULL;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Drives read one thing after the other: every read waits for those that came before it. */
static void wait_for_drive(size_t bytes)
{
    const uint64_t rate = number("SLOW_READ_RATE");
    if (!rate)
        return;
    pthread_mutex_lock(&lock);
    const uint64_t now = now_ns();
    free_ns = (free_ns > now ? free_ns : now) + (uint64_t)bytes * 1000000000u / rate;
    const uint64_t until = free_ns;
    pthread_mutex_unlock(&lock);
    const struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static ssize_t read_slowly(int fd, void *to, size_t n, off_t at)
{
    if (!meant(fd))
        return (ssize_t)syscall(SYS_pread64, fd, to, n, at);
    pthread_mutex_lock(&lock);
    const uint64_t nth = ++count, skip = number("SLOW_READ_SKIP");
    pthread_mutex_unlock(&lock);
    if (nth > skip) {
        const char *fail = getenv("SLOW_READ_FAIL");
        char *end = NULL;
        const uint64_t which = fail ? strtoull(fail, &end, 10) : 0;
        if (which && (nth - skip == which || (*end == '+' && nth - skip > which))) {
            errno = EIO;
            return -1;
        }
        const uint64_t most = number("SLOW_READ_SHORT");
        if (most && n > most)
            n = (size_t)most;
        wait_for_drive(n);
    }
    return (ssize_t)syscall(SYS_pread64, fd, to, n, at);
}

PUBLIC ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    return read_slowly(fd, to, n, at);
}

PUBLIC ssize_t pread64(int fd, void *to, size_t n, off64_t at)
{
    return read_slowly(fd, to, n, (off_t)at);
}

static void __attribute__((destructor)) report(void)
{
    const char *path = getenv("SLOW_READ_LOG");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f)
        return;
    fprintf(f, "%llu\n", (unsigned long long)count);
    fclose(f);
}
