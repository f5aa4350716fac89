#include "kv/prompt_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct entry {
    uint8_t hash[CLB_PROMPT_HASH], parent[CLB_PROMPT_HASH];
    uint64_t used; /* ns; of itself or of what follows it */
    uint64_t bytes;
    uint32_t depth;
} entry;

typedef struct entries {
    entry *at;
    size_t n, cap;
    uint64_t bytes;
} entries;

void clb_prompt_name(const uint8_t hash[CLB_PROMPT_HASH], char out[CLB_PROMPT_NAME])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < CLB_PROMPT_HASH; i++) {
        out[2 * i] = digits[hash[i] >> 4];
        out[2 * i + 1] = digits[hash[i] & 15];
    }
    memcpy(out + 2 * (size_t)CLB_PROMPT_HASH, CLB_PROMPT_BLOCK_SUFFIX, sizeof CLB_PROMPT_BLOCK_SUFFIX);
}

static bool is_digits(const char *name, size_t n)
{
    return strspn(name, "0123456789abcdef") >= n;
}

static bool is_block(const char *name)
{
    return strlen(name) == CLB_PROMPT_NAME - 1 && is_digits(name, 2 * (size_t)CLB_PROMPT_HASH) &&
           strcmp(name + 2 * (size_t)CLB_PROMPT_HASH, CLB_PROMPT_BLOCK_SUFFIX) == 0;
}

static bool is_temp(const char *name)
{
    return strlen(name) > CLB_PROMPT_NAME - 1 + sizeof CLB_PROMPT_TEMP - 1 &&
           is_digits(name, 2 * (size_t)CLB_PROMPT_HASH) &&
           memcmp(name + 2 * (size_t)CLB_PROMPT_HASH, CLB_PROMPT_BLOCK_SUFFIX, sizeof CLB_PROMPT_BLOCK_SUFFIX - 1) ==
               0 &&
           strncmp(name + CLB_PROMPT_NAME - 1, CLB_PROMPT_TEMP, sizeof CLB_PROMPT_TEMP - 1) == 0;
}

/* A regular file of this user, opened for reading; else -1. */
static int open_own(int dir, const char *name, struct stat *st)
{
    const int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid())
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Whoever writes it holds its lock: then it stays. */
static void remove_stale(int dir, const char *name)
{
    struct stat st;
    const int fd = open_own(dir, name, &st);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)unlinkat(dir, name, 0);
    close(fd);
}

static int add(entries *e, int dir, const char *name, clb_error *err)
{
    struct stat st;
    struct clb_prompt_block_head h = {0};
    const int fd = open_own(dir, name, &st);
    if (fd < 0)
        return COLIBRI_OK;
    const bool head =
        pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h && memcmp(h.magic, CLB_PROMPT_BLOCK_MAGIC, sizeof h.magic) == 0;
    close(fd);
    if (!head)
        return COLIBRI_OK; /* not ours, or not for certain: neither counted nor removed */
    if (e->n == e->cap) {
        const size_t cap = 2 * e->cap + 256;
        entry *more = realloc(e->at, cap * sizeof *more);
        if (!more)
            return CLB_NOMEM(err, "the list of a prompt cache's files");
        e->at = more;
        e->cap = cap;
    }
    entry *x = &e->at[e->n++];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (st.st_mtim.tv_sec > now.tv_sec) /* a clock that was wrong does not keep it for ever */
        st.st_mtim = now;
    *x = (entry){.bytes = clb_prompt_folder_room((uint64_t)st.st_size), .depth = h.depth};
    x->used = st.st_mtim.tv_sec < 0 ? 0 : (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    for (size_t i = 0; i < CLB_PROMPT_HASH; i++) { /* the name counts: that is what is looked up and removed */
        const char two[3] = {name[2 * i], name[2 * i + 1], '\0'};
        x->hash[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    memcpy(x->parent, h.parent, sizeof x->parent);
    e->bytes += x->bytes;
    return COLIBRI_OK;
}

static int by_hash(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return memcmp(x->hash, y->hash, sizeof x->hash);
}

static int deepest_first(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    return ((*x)->depth < (*y)->depth) - ((*x)->depth > (*y)->depth);
}

/* Oldest first, of equally old ones the deepest. */
static int by_use(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    const int order = ((*x)->used > (*y)->used) - ((*x)->used < (*y)->used);
    return order ? order : deepest_first(a, b);
}

static int shrink(int dir, entries *e, uint64_t keep, uint64_t *removed, clb_error *err)
{
    entry **order = malloc(e->n * sizeof *order);
    if (!order)
        return CLB_NOMEM(err, "the list of a prompt cache's files");
    qsort(e->at, e->n, sizeof *e->at, by_hash);
    for (size_t i = 0; i < e->n; i++)
        order[i] = &e->at[i];
    qsort(order, e->n, sizeof *order, deepest_first);
    for (size_t i = 0; i < e->n; i++) {
        entry key = {0};
        memcpy(key.hash, order[i]->parent, sizeof key.hash);
        entry *parent = bsearch(&key, e->at, e->n, sizeof key, by_hash);
        if (parent && parent->depth < order[i]->depth && parent->used < order[i]->used)
            parent->used = order[i]->used;
    }
    qsort(order, e->n, sizeof *order, by_use);
    for (size_t i = 0; i < e->n && e->bytes > keep; i++) {
        char name[CLB_PROMPT_NAME];
        clb_prompt_name(order[i]->hash, name);
        if (unlinkat(dir, name, 0) == 0)
            ++*removed;
        else if (errno != ENOENT) /* another process may have been faster */
            continue;
        e->bytes -= order[i]->bytes;
    }
    free(order);
    return COLIBRI_OK;
}

int clb_prompt_folder_scan(int dir, bool stale, uint64_t most, uint64_t keep, uint64_t *bytes, uint64_t *removed,
                           clb_error *err)
{
    const int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    if (!d) {
        const int rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot list it");
        if (again >= 0)
            close(again);
        return rc;
    }
    entries e = {0};
    int rc = COLIBRI_OK;
    for (struct dirent *f; !rc && (f = readdir(d)) != NULL;) {
        if (is_block(f->d_name))
            rc = add(&e, dir, f->d_name, err);
        else if (stale && is_temp(f->d_name))
            remove_stale(dir, f->d_name);
    }
    closedir(d);
    if (!rc && e.bytes > most)
        rc = shrink(dir, &e, keep, removed, err);
    *bytes = e.bytes;
    free(e.at);
    return rc;
}
