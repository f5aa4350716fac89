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

static struct report *current_report; /* of the case that runs now */

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
    struct rng r = {o->seed, number};
    for (const char *c = name; *c; c++)
        r.state = rng_next(&r) ^ (unsigned char)*c;
    r.state = rng_next(&r) ^ number;
    return r;
}

/* ---- guarded memory ----------------------------------------------------------------------------------------- */

#define SLACK 0xa5 /* between the memory and its guard pages, where the alignment leaves room */

static struct guarded live[4096]; /* for messages; those that do not fit get none */

struct guarded guarded_alloc(size_t n, size_t align, bool front)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (n + align + page - 1) / page * page;
    struct guarded g = {.map_size = inner + 2 * page, .n = n, .name = "a buffer"};
    g.map = mmap(NULL, g.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + page, inner, PROT_READ | PROT_WRITE)) {
        perror("colibri-kernelcheck: mmap");
        exit(1);
    }
    const size_t at = front ? 0 : (inner - n) / align * align;
    g.p = g.map + page + at;
    memset(g.map + page, SLACK, at);
    memset(g.map + page + at + n, SLACK, inner - at - n);
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        if (!live[i].map) {
            live[i] = g;
            break;
        }
    return g;
}

static struct guarded *find_live(const char *map)
{
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        if (live[i].map == map)
            return &live[i];
    return NULL;
}

void guarded_name(struct guarded *g, const char *name)
{
    g->name = name;
    struct guarded *const l = find_live(g->map);
    if (l)
        l->name = name;
}

void guarded_read_only(struct guarded *g, bool on)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (mprotect(g->map + page, g->map_size - 2 * page, on ? PROT_READ : PROT_READ | PROT_WRITE)) {
        perror("colibri-kernelcheck: mprotect");
        exit(1);
    }
}

void guarded_check(struct report *r, const struct guarded *g)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const unsigned char *const begin = (void *)(g->map + page), *const end = (void *)(g->map + g->map_size - page);
    const unsigned char *const p = g->p;
    for (const unsigned char *c = p; c-- > begin;)
        if (*c != SLACK) {
            case_fail(r, "wrote in front of %s, %zu bytes before its start", g->name, (size_t)(p - c));
            break;
        }
    for (const unsigned char *c = p + g->n; c < end; c++)
        if (*c != SLACK) {
            case_fail(r, "wrote behind %s (%zu bytes), %zu bytes from its end", g->name, g->n, (size_t)(c - p) - g->n);
            break;
        }
}

void guarded_free(struct guarded *g)
{
    if (current_report)
        guarded_check(current_report, g);
    struct guarded *const l = find_live(g->map);
    if (l)
        l->map = NULL;
    munmap(g->map, g->map_size);
    g->map = NULL;
    g->p = NULL;
}

void guarded_describe(int sig, const void *addr, char *out, size_t size)
{
    const char *const at = addr;
    for (size_t i = 0; (sig == SIGSEGV || sig == SIGBUS) && i < sizeof(live) / sizeof(live[0]); i++) {
        const struct guarded *const g = &live[i];
        const char *const p = g->p;
        if (!g->map || at < g->map || at >= g->map + g->map_size)
            continue;
        if (at < p)
            snprintf(out, size, "touched %s %zu bytes before its start", g->name, (size_t)(p - at));
        else if (at >= p + g->n)
            snprintf(out, size, "touched %s (%zu bytes) %zu bytes behind its end", g->name, g->n,
                     (size_t)(at - p) - g->n);
        else
            snprintf(out, size, "wrote to %s, which is input (byte %zu)", g->name, (size_t)(at - p));
        return;
    }
    snprintf(out, size, "signal %d at address %p, which is none of the arguments'", sig, addr);
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
    current_report = r;
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
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (r->expect && !strstr(text, r->expect)) {
        if (!r->unexpected++)
            snprintf(r->other, sizeof(r->other), "%.199s", text);
    }
    if (!current_failed)
        r->failures++;
    if (!current_failed && !r->quiet)
        printf("FAIL %s\n     %s\n", current, text);
    current_failed = true;
}

void case_crashed(void)
{
    static const char head[] = "CRASH in ";
    ssize_t n = write(STDERR_FILENO, head, sizeof(head) - 1);
    n += write(STDERR_FILENO, current, strnlen(current, sizeof(current)));
    n += write(STDERR_FILENO, "\n", 1);
    (void)n;
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

void fp_control_set(uint64_t control)
{
#if defined(__x86_64__)
    _mm_setcsr((uint32_t)control);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
    (void)control;
#endif
}
