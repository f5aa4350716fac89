#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Noreturn void die(const char *what, const char *path)
{
    fprintf(stderr, "test support: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

bool test_contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

void test_dir_create(test_dir *dir)
{
    const char *base = getenv("TMPDIR");
    const int n = snprintf(dir->path, sizeof dir->path, "%s/colibri-test-XXXXXX", base && *base == '/' ? base : "/tmp");
    if (n < 0 || (size_t)n >= sizeof dir->path || !mkdtemp(dir->path))
        die("cannot create folder", dir->path);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void test_dir_remove(const test_dir *dir)
{
    if (nftw(dir->path, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        die("cannot remove", dir->path);
}

char *test_dir_file(const test_dir *dir, const char *name, char out[PATH_MAX])
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", dir->path, name);
    if (n < 0 || n >= PATH_MAX) {
        errno = ENAMETOOLONG;
        die("cannot name", name);
    }
    return out;
}

void test_write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wbe");
    if (!f || (n && fwrite(data, 1, n, f) != n) || fclose(f))
        die("cannot write", path);
    /* Independent of the umask: several readers refuse files that others may write. */
    if (chmod(path, 0644))
        die("cannot chmod", path);
}

void test_write_text(const char *path, const char *text)
{
    test_write_file(path, text, strlen(text));
}

char *test_read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        die("cannot open", path);
    size_t used = 0, cap = 1 << 16;
    char *data = malloc(cap);
    while (data) {
        const size_t got = fread(data + used, 1, cap - used - 1, f);
        used += got;
        if (!got)
            break;
        if (cap - used < 2) {
            char *more = realloc(data, cap *= 2);
            if (!more)
                free(data);
            data = more;
        }
    }
    if (!data || ferror(f))
        die("cannot read", path);
    fclose(f);
    data[used] = '\0';
    if (n)
        *n = used;
    return data;
}

uint64_t test_rand_u64(test_rand *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t test_rand_below(test_rand *rng, uint32_t n)
{
    return (uint32_t)(((test_rand_u64(rng) >> 32) * n) >> 32);
}

double test_rand_f64(test_rand *rng)
{
    return (double)(test_rand_u64(rng) >> 11) * 0x1p-53;
}

float test_rand_f32(test_rand *rng, float min, float max)
{
    const float x = min + (max - min) * ((float)(test_rand_u64(rng) >> 40) * 0x1p-24f);
    return x < max ? x : min;
}

void test_rand_bytes(test_rand *rng, void *out, size_t n)
{
    uint8_t *p = out;
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t v = test_rand_u64(rng);
        memcpy(p + i, &v, n - i < 8 ? n - i : 8);
    }
}

_Noreturn void test_skip(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("skipped: ", stdout);
    vprintf(fmt, args);
    putchar('\n');
    va_end(args);
    exit(77);
}
