/* Random numbers, guarded memory, comparisons and failure reports. */
#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

uint64_t rng_next(struct rng *r) /* splitmix64 */
{
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)(((rng_next(r) >> 32) * n) >> 32);
}

uint32_t rng_range(struct rng *r, uint32_t lo, uint32_t hi)
{
    return lo + rng_below(r, hi - lo + 1);
}

float rng_unit(struct rng *r)
{
    return (float)((int32_t)(rng_next(r) >> 40) - (1 << 23)) * 0x1p-23f;
}

void rng_bytes(struct rng *r, void *p, size_t n)
{
    unsigned char *c = p;
    for (; n >= 8; n -= 8, c += 8) {
        const uint64_t v = rng_next(r);
        memcpy(c, &v, 8);
    }
    const uint64_t v = rng_next(r);
    memcpy(c, &v, n);
}

void rng_floats(struct rng *r, float *x, size_t n, bool specials)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-45f, 3.4e38f, -3.4e38f};
    const uint32_t kind = rng_below(r, 6);
    const float level = ldexpf(1.0f, (int)rng_range(r, 0, 12) - 6);
    for (size_t i = 0; i < n; i++) {
        const float u = rng_unit(r);
        switch (kind) {
        case 0: /* every magnitude */
            x[i] = ldexpf(u, (int)rng_range(r, 0, 80) - 40);
            break;
        case 1: /* subnormals and what becomes subnormal */
            x[i] = ldexpf(u, (int)rng_range(r, 0, 30) - 145);
            break;
        case 2: /* long runs of the same */
            x[i] = i && rng_below(r, 8) ? x[i - 1] : u * level;
            break;
        default:
            x[i] = u * level;
            break;
        }
        if (specials && rng_below(r, 64) == 0)
            x[i] = special[rng_below(r, sizeof(special) / sizeof(special[0]))];
    }
}

struct rng rng_case(const struct options *o, const char *name, uint32_t number)
{
    struct rng r = {o->seed};
    for (const char *c = name; *c; c++)
        r.state = rng_next(&r) ^ (unsigned char)*c;
    r.state = rng_next(&r) ^ number;
    return r;
}

/* ---- guarded memory ----------------------------------------------------------------------------------------- */

struct guarded guarded_alloc(size_t n, size_t align, bool front)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (n + align + page - 1) / page * page;
    struct guarded g = {.map_size = inner + 2 * page, .n = n};
    g.map = mmap(NULL, g.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + page, inner, PROT_READ | PROT_WRITE)) {
        perror("kernelcheck: mmap");
        exit(1);
    }
    g.p = front ? g.map + page : g.map + page + (inner - n) / align * align;
    return g;
}

void guarded_free(struct guarded *g)
{
    munmap(g->map, g->map_size);
    g->map = NULL;
    g->p = NULL;
}

/* ---- reports ------------------------------------------------------------------------------------------------- */

static char current[512]; /* the case that runs now */
static bool current_failed;

void case_begin(struct report *r, const char *component, uint32_t number, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    snprintf(current, sizeof(current), "%s: %s (--filter %s --seed %llu --case %u)", component, what, component,
             (unsigned long long)r->o->seed, number);
    current_failed = false;
    r->cases++;
    if (r->o->verbose && !r->quiet)
        printf("%s\n", current);
}

bool case_failed(void)
{
    return current_failed;
}

void case_fail(struct report *r, const char *fmt, ...)
{
    if (!current_failed)
        r->failures++;
    if (!current_failed && !r->quiet) {
        printf("FAIL %s\n     ", current);
        va_list ap;
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf("\n");
    }
    current_failed = true;
}

static void on_crash(int sig, siginfo_t *info, void *context)
{
    static const char head[] = "CRASH (memory outside the arguments?) in ";
    (void)info;
    (void)context;
    ssize_t n = write(STDERR_FILENO, head, sizeof(head) - 1);
    n += write(STDERR_FILENO, current, strnlen(current, sizeof(current)));
    n += write(STDERR_FILENO, "\n", 1);
    (void)n;
    (void)sig; /* SA_RESETHAND: returning runs into the fault again, which now ends the process */
}

void crash_handler_install(void)
{
    struct sigaction sa = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | (int)SA_RESETHAND};
    sigaction(SIGSEGV, &sa, NULL);
    sigaction(SIGBUS, &sa, NULL);
    sigaction(SIGILL, &sa, NULL);
}

bool same_f32(float a, float b)
{
    return colibri_f32_bits(a) == colibri_f32_bits(b) || (a != a && b != b);
}

bool compare_f32(struct report *r, const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_f32(got[i], want[i])) {
            case_fail(r, "%s[%zu of %zu] is %a (%08x), reference %a (%08x)", what, i, n, (double)got[i],
                      colibri_f32_bits(got[i]), (double)want[i], colibri_f32_bits(want[i]));
            return false;
        }
    return true;
}

bool compare_bytes(struct report *r, const char *what, const void *got, const void *want, size_t n)
{
    const unsigned char *const a = got, *const b = want;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            case_fail(r, "%s: byte %zu of %zu is %02x, reference %02x", what, i, n, a[i], b[i]);
            return false;
        }
    return true;
}

uint64_t fp_control(void)
{
#if defined(__x86_64__)
    return _mm_getcsr() & 0xffc0u; /* without the sticky exception flags */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr;
#else
    return 0;
#endif
}
