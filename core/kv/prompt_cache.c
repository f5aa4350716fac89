#include "kv/prompt_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "kv/prompt_folder.h"

struct clb_prompt_cache {
    int dir; /* -1: nothing is there, and nothing is kept */
    char *path;
    const clb_log *log;
    uint64_t max_bytes;
    uint64_t since_scan; /* bytes written since the folder was last looked at: others write, too */
    bool read_only;      /* writing failed once */
    bool warned_refused; /* once per run */
    bool told_too_large;
    bool shrunk; /* the drive was full once: max_bytes is what the folder had then */
    clb_prompt_cache_stats stats;
};

/* Of the limit: room that is made at once, so that the folder is not listed for every block; and what may be written
 * before it is, since other processes write as well. */
#define SLACK(max) ((max) / 16)

/* ---- opening ---- */

static int open_folder(clb_prompt_cache *c, const char *dir, clb_error *err)
{
    char *inside = NULL;
    if (asprintf(&inside, "%s/", dir) < 0)
        return CLB_NOMEM(err, "the prompt cache");
    clb_file_make_folders(inside); /* 0700 */
    free(inside);
    struct stat st;
    c->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir < 0)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open it");
    if (fstat(c->dir, &st))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot open it");
    if (st.st_uid != geteuid())
        return clb_fail(err, COLIBRI_E_IO, "the folder belongs to another user");
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return clb_fail(err, COLIBRI_E_IO, "other users may write to it (chmod 700)");
    return clb_prompt_folder_scan(c->dir, true, c->max_bytes, c->max_bytes - SLACK(c->max_bytes), &c->stats.bytes,
                                  &c->stats.removed, err);
}

int clb_prompt_cache_open(const char *dir, uint64_t max_bytes, const clb_log *log, clb_prompt_cache **out,
                          clb_error *err)
{
    *out = NULL;
    clb_prompt_cache *c = calloc(1, sizeof *c);
    if (!c)
        return CLB_NOMEM(err, "the prompt cache");
    *c = (clb_prompt_cache){.dir = -1, .path = strdup(dir), .log = log, .max_bytes = max_bytes};
    if (!c->path) {
        clb_prompt_cache_close(c);
        return CLB_NOMEM(err, "the prompt cache");
    }
    clb_error why;
    const int rc = open_folder(c, dir, &why);
    if (rc == COLIBRI_E_NOMEM) {
        clb_prompt_cache_close(c);
        return clb_fail(err, rc, "%s", why.msg);
    }
    if (rc) {
        clb_logf(log, COLIBRI_LOG_WARN, "prompt cache %s: %s; going on without it", dir, why.msg);
        if (c->dir >= 0)
            close(c->dir);
        c->dir = -1;
    }
    *out = c;
    return COLIBRI_OK;
}

void clb_prompt_cache_close(clb_prompt_cache *c)
{
    if (!c)
        return;
    if (c->dir >= 0)
        close(c->dir);
    free(c->path);
    free(c);
}

/* ---- reading ---- */

static const struct timespec used_now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};

static void refused(clb_prompt_cache *c, const char *name, int rc, const clb_error *why)
{
    c->stats.refused++;
    const bool ours = rc == COLIBRI_E_FORMAT;
    if (ours)
        (void)unlinkat(c->dir, name, 0);
    clb_logf(c->log, c->warned_refused ? COLIBRI_LOG_DEBUG : COLIBRI_LOG_WARN,
             "prompt cache %s: %s is %s: %s; its tokens are computed%s", c->path, name,
             ours ? "damaged" : "passed over", why->msg, c->warned_refused ? "" : " (said once)");
    c->warned_refused = true;
}

static bool read_file(clb_prompt_cache *c, const char *name, const clb_prompt_block *block, void *const *pages)
{
    struct stat st;
    clb_error why = {0};
    const int fd = openat(c->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return false;
    int rc = fd < 0 || fstat(fd, &st) ? clb_fail_errno(&why, COLIBRI_E_IO, errno, "cannot open it") : COLIBRI_OK;
    if (!rc && st.st_uid != geteuid())
        rc = clb_fail(&why, COLIBRI_E_UNSUPPORTED, "it belongs to another user");
    if (!rc)
        rc = clb_prompt_block_read(fd, block, pages, &why);
    if (rc)
        refused(c, name, rc, &why);
    else
        (void)futimens(fd, used_now);
    if (fd >= 0)
        close(fd);
    return rc == COLIBRI_OK;
}

bool clb_prompt_cache_load(clb_prompt_cache *c, const clb_prompt_block *block, void *const *pages)
{
    char name[CLB_PROMPT_NAME];
    if (c->dir < 0)
        return false;
    clb_prompt_name(block->hash, name);
    const bool read = read_file(c, name, block, pages);
    c->stats.read += read;
    return read;
}

void clb_prompt_cache_touch(clb_prompt_cache *c, const clb_prompt_block *block)
{
    char name[CLB_PROMPT_NAME];
    if (c->dir < 0)
        return;
    clb_prompt_name(block->hash, name);
    (void)utimensat(c->dir, name, used_now, AT_SYMLINK_NOFOLLOW);
}

/* ---- writing ---- */

/* A limit on file sizes then is an error of write, and not the end of the process, whoever has embedded this. */
static int write_quietly(int fd, const clb_prompt_block *block, const void *const *pages, clb_error *err)
{
    sigset_t xfsz, old, pending;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &xfsz, &old);
    const int rc = clb_prompt_block_write(fd, block, pages, err);
    if (rc && !sigismember(&pending, SIGXFSZ))
        while (sigtimedwait(&xfsz, NULL, &(struct timespec){0}) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

/* Beside its name until it is whole; the lock tells others that it is not a leftover. No fsync: what a power cut
 * damages the checksum finds. */
static int write_file(clb_prompt_cache *c, const char *name, const clb_prompt_block *block, const void *const *pages,
                      clb_error *err)
{
    char temp[CLB_PROMPT_NAME + sizeof CLB_PROMPT_TEMP + 16];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != (ssize_t)sizeof random)
        random = clb_now_ns() ^ (uint64_t)getpid() << 40;
    snprintf(temp, sizeof temp, "%s" CLB_PROMPT_TEMP "%016" PRIx64, name, random);
    const int fd = openat(c->dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return clb_fail_errno(err, CLB_PROMPT_WRITE_CODE(errno), errno, "cannot write");
    (void)flock(fd, LOCK_EX | LOCK_NB);
    int rc = write_quietly(fd, block, pages, err);
    if (!rc && renameat(c->dir, temp, c->dir, name) && errno != ENOENT) /* taken for a leftover: not kept, no more */
        rc = clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write");
    if (rc)
        (void)unlinkat(c->dir, temp, 0);
    close(fd);
    return rc;
}

/* A sound file stays, and counts as used: whoever wrote it wrote the same. A block is rarely computed though it is
 * there: if one before it was not, or could not be used; then it may be damaged as well, and reading it costs little
 * beside computing. */
static bool is_there(clb_prompt_cache *c, const char *name, const clb_prompt_block *block)
{
    struct stat st;
    if (fstatat(c->dir, name, &st, AT_SYMLINK_NOFOLLOW))
        return errno != ENOENT;
    void *page = malloc(block->page_bytes);
    const size_t n = block->split ? 2 * (size_t)block->n_pages : block->n_pages;
    void **pages = malloc(n * sizeof *pages);
    for (size_t i = 0; page && pages && i < n; i++)
        pages[i] = page; /* nobody wants them */
    if (page && pages)
        (void)read_file(c, name, block, pages);
    free(page);
    free(pages);
    return faccessat(c->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int make_room(clb_prompt_cache *c, uint64_t bytes, clb_error *err)
{
    const uint64_t max = c->max_bytes;
    if (c->stats.bytes + bytes <= max && c->since_scan + bytes <= SLACK(max))
        return COLIBRI_OK;
    const uint64_t keep = max - bytes < max - SLACK(max) ? max - bytes : max - SLACK(max);
    c->since_scan = 0;
    return clb_prompt_folder_scan(c->dir, false, max - bytes, keep, &c->stats.bytes, &c->stats.removed, err);
}

/* The drive is full, and others fill it as well: from here on the folder keeps to what it has, as at a limit. */
static int shrink(clb_prompt_cache *c, uint64_t bytes, clb_error *err)
{
    char has[24];
    clb_error why = *err;
    CLB_TRY(clb_prompt_folder_scan(c->dir, false, UINT64_MAX, 0, &c->stats.bytes, &c->stats.removed, err));
    if (c->stats.bytes < bytes || c->shrunk) {
        *err = why;
        return COLIBRI_E_LIMIT;
    }
    c->shrunk = true;
    c->max_bytes = c->stats.bytes;
    clb_logf(c->log, COLIBRI_LOG_WARN, "prompt cache %s: %s; it keeps to the %s that it has, and old blocks make room",
             c->path, why.msg, clb_human_bytes(c->max_bytes, has));
    return make_room(c, bytes, err);
}

void clb_prompt_cache_store(clb_prompt_cache *c, const clb_prompt_block *block, const void *const *pages)
{
    char name[CLB_PROMPT_NAME];
    clb_error why = {0};
    const uint64_t bytes = clb_prompt_folder_room(clb_prompt_block_bytes(block));
    if (c->dir < 0 || c->read_only)
        return;
    if (bytes > c->max_bytes) {
        char a[24], b[24];
        if (!c->told_too_large)
            clb_logf(c->log, COLIBRI_LOG_WARN,
                     "prompt cache %s: nothing is kept, as a block has %s, and the limit is %s", c->path,
                     clb_human_bytes(bytes, a), clb_human_bytes(c->max_bytes, b));
        c->told_too_large = true;
        return;
    }
    clb_prompt_name(block->hash, name);
    if (is_there(c, name, block))
        return;
    int rc = make_room(c, bytes, &why);
    if (!rc && c->stats.bytes + bytes > c->max_bytes)
        rc = clb_fail(&why, COLIBRI_E_LIMIT, "no room can be made in it");
    if (!rc) {
        rc = write_file(c, name, block, pages, &why);
        if (rc == COLIBRI_E_LIMIT) {
            rc = shrink(c, bytes, &why);
            if (!rc)
                rc = write_file(c, name, block, pages, &why);
        }
    }
    if (rc) {
        c->read_only = true; /* with a full drive, each further try would cost as much as the block */
        clb_logf(c->log, COLIBRI_LOG_WARN, "prompt cache %s: %s; nothing more is kept", c->path, why.msg);
        return;
    }
    c->stats.written++;
    c->stats.bytes += bytes;
    c->since_scan += bytes;
}

clb_prompt_cache_stats clb_prompt_cache_get_stats(const clb_prompt_cache *c)
{
    return c->stats;
}
