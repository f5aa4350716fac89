/* A machine without memory, for programs that are tested as a whole: loaded with LD_PRELOAD it stands in front of
 * malloc, calloc, realloc, aligned_alloc, posix_memalign and memalign, and with them of all in libc that allocates
 * (strdup, getline, fopen, dlopen, ...).
 *
 *     LD_PRELOAD=alloc_fault.so ALLOC_FAULT=1000 colibri run ...
 *
 * Allocations of all threads are numbered from 1, from the call of main on. Settings are environment variables:
 *
 *   ALLOC_FAULT        N: the N-th fails; N+: all from the N-th on; A-B: those from A to B
 *   ALLOC_FAULT_LEAST  BYTES: smaller ones are neither counted nor failed
 *   ALLOC_FAULT_START  a file: counting begins when it is there (so that a server can be started in peace)
 *   ALLOC_FAULT_TRACE  1: where each one that fails was asked for, on stderr
 *   ALLOC_FAULT_LOG    a file to which the number of allocations is written at the end */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int hwloc_topology_init(void **topology);
int hwloc_topology_load(void *topology);
int hwloc_set_cpubind(void *topology, const void *set, int flags);
void hwloc_topology_destroy(void *topology);
void *memalign(size_t alignment, size_t n);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);

#define PUBLIC __attribute__((visibility("default")))

static void *(*next_malloc)(size_t);
static void *(*next_calloc)(size_t, size_t);
static void *(*next_realloc)(void *, size_t);
static void *(*next_memalign)(size_t, size_t);
static void *(*next_aligned_alloc)(size_t, size_t);
static int (*next_posix_memalign)(void **, size_t, size_t);
static void (*next_free)(void *);

static atomic_bool running;
static bool waits, traces;
static uint64_t first_bad, last_bad, least;
static atomic_uint_fast64_t count;
static const char *start_file;
static _Thread_local bool inside; /* of what nothing is meant */

/* dlsym allocates before there is anything to allocate with. */
static _Alignas(64) char early[16384];
static size_t n_early;

static void *early_alloc(size_t n)
{
    n = (n + 63) & ~(size_t)63;
    if (n > sizeof early - n_early)
        return NULL;
    n_early += n;
    return early + n_early - n;
}

static bool is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *symbol(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static void find_all(void)
{
    static bool finding;
    if (next_memalign || finding)
        return;
    finding = true;
    void *const found[] = {symbol("malloc"),         symbol("calloc"),   symbol("realloc"), symbol("aligned_alloc"),
                           symbol("posix_memalign"), symbol("memalign"), symbol("free")};
    memcpy(&next_malloc, &found[0], sizeof next_malloc);
    memcpy(&next_calloc, &found[1], sizeof next_calloc);
    memcpy(&next_realloc, &found[2], sizeof next_realloc);
    memcpy(&next_aligned_alloc, &found[3], sizeof next_aligned_alloc);
    memcpy(&next_posix_memalign, &found[4], sizeof next_posix_memalign);
    memcpy(&next_free, &found[6], sizeof next_free);
    memcpy(&next_memalign, &found[5], sizeof next_memalign);
    finding = false;
}

static void trace(uint64_t n, size_t bytes)
{
    void *frames[24];
    char line[80];
    inside = true;
    const int length = snprintf(line, sizeof line, "alloc_fault: %llu, %zu bytes\n", (unsigned long long)n, bytes);
    if (write(2, line, (size_t)length) == length)
        backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
    inside = false;
}

static bool fails(size_t bytes)
{
    if (!atomic_load_explicit(&running, memory_order_relaxed) || inside || bytes < least)
        return false;
    if (waits) {
        inside = true;
        const bool there = access(start_file, F_OK) == 0;
        inside = false;
        if (!there)
            return false;
        waits = false;
    }
    const uint64_t n = atomic_fetch_add(&count, 1) + 1;
    if (!first_bad || n < first_bad || n > last_bad)
        return false;
    if (traces)
        trace(n, bytes);
    errno = ENOMEM;
    return true;
}

PUBLIC void *malloc(size_t n)
{
    find_all();
    return !next_malloc ? early_alloc(n) : fails(n) ? NULL : next_malloc(n);
}

PUBLIC void *calloc(size_t n, size_t size)
{
    find_all();
    if (!next_calloc)
        return early_alloc(n * size); /* zeros: nobody has written there */
    return fails(size && n > SIZE_MAX / size ? SIZE_MAX : n * size) ? NULL : next_calloc(n, size);
}

PUBLIC void *realloc(void *p, size_t n)
{
    find_all();
    if (is_early(p)) {
        const size_t most = (size_t)(early + sizeof early - (const char *)p);
        void *const out = malloc(n);
        return out ? memcpy(out, p, n < most ? n : most) : NULL;
    }
    return !next_realloc ? early_alloc(n) : fails(n) ? NULL : next_realloc(p, n);
}

PUBLIC void *aligned_alloc(size_t alignment, size_t n)
{
    find_all();
    return fails(n) ? NULL : next_aligned_alloc(alignment, n);
}

PUBLIC void *memalign(size_t alignment, size_t n)
{
    find_all();
    return fails(n) ? NULL : next_memalign(alignment, n);
}

PUBLIC int posix_memalign(void **out, size_t alignment, size_t n)
{
    find_all();
    return fails(n) ? ENOMEM : next_posix_memalign(out, alignment, n);
}

PUBLIC void free(void *p)
{
    find_all();
    if (p && !is_early(p) && next_free) /* or it is dlsym's, and small */
        next_free(p);
}

static void write_log(void)
{
    char line[32];
    const char *const path = getenv("ALLOC_FAULT_LOG");
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (fd < 0)
        return;
    const int n = snprintf(line, sizeof line, "%llu\n", (unsigned long long)atomic_load(&count));
    if (write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

/* The process may end by any way; what it counted is told by all of them that come by here. */
static void __attribute__((destructor)) at_end(void)
{
    atomic_store(&running, false);
    write_log();
}

static int (*real_main)(int, char **, char **);

static int main_between(int argc, char **argv, char **env)
{
    const char *const which = getenv("ALLOC_FAULT"), *const smallest = getenv("ALLOC_FAULT_LEAST");
    char *end = NULL;
    void *frames[4];
    find_all();
    traces = getenv("ALLOC_FAULT_TRACE") != NULL;
    if (traces)
        backtrace(frames, 4); /* loads what it needs */
    first_bad = which ? strtoull(which, &end, 10) : 0;
    last_bad = end && *end == '+' ? UINT64_MAX : end && *end == '-' ? strtoull(end + 1, NULL, 10) : first_bad;
    least = smallest ? strtoull(smallest, NULL, 10) : 0;
    start_file = getenv("ALLOC_FAULT_START");
    waits = start_file != NULL;
    unsetenv("LD_PRELOAD"); /* of what this process starts, nothing is meant */
    atomic_store(&running, true);
    return real_main(argc, argv, env);
}

/* hwloc does not look whether it got memory; Colibri looks for it before (core/cpu/topology.c), and that may fail. */
#define SPARE(name, parameters, ...)                                                                                   \
    PUBLIC int name parameters                                                                                         \
    {                                                                                                                  \
        int(*next) parameters;                                                                                         \
        void *const found = symbol(#name);                                                                             \
        memcpy(&next, &found, sizeof next);                                                                            \
        inside = true;                                                                                                 \
        const int rc = next(__VA_ARGS__);                                                                              \
        inside = false;                                                                                                \
        return rc;                                                                                                     \
    }
SPARE(hwloc_topology_init, (void **topology), topology)
SPARE(hwloc_topology_load, (void *topology), topology)
SPARE(hwloc_set_cpubind, (void *topology, const void *set, int flags), topology, set, flags)
/* Not ours: AddressSanitizer asks at the start of each thread, and gives up without an answer. */
SPARE(pthread_getattr_np, (pthread_t thread, pthread_attr_t *out), thread, out)

PUBLIC void hwloc_topology_destroy(void *topology)
{
    void (*next)(void *);
    void *const found = symbol("hwloc_topology_destroy");
    memcpy(&next, &found, sizeof next);
    inside = true;
    next(topology);
    inside = false;
}

/* Before main, libc and the loader allocate, and end the process if they cannot: that is nobody's error. */
PUBLIC int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    int (*next)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    void *const found = symbol("__libc_start_main");
    memcpy(&next, &found, sizeof next);
    real_main = main;
    return next(main_between, argc, argv, init, fini, rtld_fini, stack_end);
}
