/* Helpers of the tests of asynchronous reads: a file of known bytes, readers of every kind over it, requests with
 * guarded destinations. */
#ifndef CLB_TEST_IO_UTIL_H
#define CLB_TEST_IO_UTIL_H

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/io.h"
#include "support.h"

/* Not a multiple of any block size. */
#define FILE_BYTES ((uint64_t)(5 << 20) + 777)
#define GUARD      64u
#define MOST_READS 512u

typedef struct io_rig {
    test_dir dir;
    char path[PATH_MAX];
    uint8_t *content;
    int fd;
    clb_io *io;
    clb_log log;
    char lines[8][512]; /* the last ones logged */
    uint32_t n_lines;
    struct {
        clb_io_read read;
        uint8_t *memory; /* guard, room, guard */
        uint64_t room;
        bool pending;
    } reads[MOST_READS]; /* by tag */
} io_rig;

static inline void rig_log(void *ctx, int level, const char *line)
{
    io_rig *rig = ctx;
    (void)level;
    snprintf(rig->lines[rig->n_lines++ % 8], sizeof rig->lines[0], "%s", line);
}

static inline bool rig_logged(const io_rig *rig, const char *part)
{
    for (uint32_t i = 0; i < 8 && i < rig->n_lines; i++)
        if (test_contains(rig->lines[i], part))
            return true;
    return false;
}

static inline void rig_create(io_rig *rig)
{
    *rig = (io_rig){.fd = -1};
    rig->log = (clb_log){.level = COLIBRI_LOG_DEBUG, .write = rig_log, .ctx = rig};
    test_dir_create(&rig->dir);
    test_dir_file(&rig->dir, "file", rig->path);
    rig->content = malloc(FILE_BYTES);
    assert_non_null(rig->content);
    test_rand rng = {7};
    test_rand_bytes(&rng, rig->content, FILE_BYTES);
    test_write_file(rig->path, rig->content, FILE_BYTES);
    rig->fd = open(rig->path, O_RDONLY | O_CLOEXEC);
    assert_true(rig->fd >= 0);
}

static inline void rig_destroy(io_rig *rig)
{
    clb_io_close(rig->io);
    for (uint32_t i = 0; i < MOST_READS; i++)
        free(rig->reads[i].memory);
    close(rig->fd);
    free(rig->content);
    test_dir_remove(&rig->dir);
}

/* Sets rig->io, or skips the test if this machine has no such reader. `options`: what differs from the defaults; may be
 * NULL. */
static inline void rig_open(io_rig *rig, enum clb_io_engine engine, enum clb_io_direct direct,
                            const clb_io_options *options)
{
    const clb_io_file file = {.path = rig->path, .fd = rig->fd};
    clb_io_options o = options ? *options : (clb_io_options){0};
    o.engine = engine;
    o.direct = direct;
    o.log = &rig->log;
    if (!o.files) {
        o.files = &file;
        o.n_files = 1;
    }
    clb_error err;
    const int rc = clb_io_open(&o, &rig->io, &err);
    if (rc == COLIBRI_E_UNSUPPORTED) {
        print_message("%s\n", err.msg);
        rig_destroy(rig);
        skip();
    }
    assert_ok(rc, &err);
}

/* Memory for a read with this tag; submit it with rig_submit. */
static inline const clb_io_read *rig_read(io_rig *rig, uint32_t tag, uint64_t offset, uint64_t size, int priority)
{
    assert_true(tag < MOST_READS && !rig->reads[tag].pending);
    const uint64_t align = clb_io_align(rig->io), front = align > GUARD ? align : GUARD;
    rig->reads[tag].room = clb_io_room(rig->io, offset, size);
    free(rig->reads[tag].memory);
    void *memory = NULL;
    const int rc = posix_memalign(&memory, front, (size_t)(front + rig->reads[tag].room + GUARD));
    assert_int_equal(rc, 0);
    memset(memory, 0xa5, (size_t)(front + rig->reads[tag].room + GUARD));
    rig->reads[tag].memory = memory;
    rig->reads[tag].pending = true;
    rig->reads[tag].read = (clb_io_read){
        .offset = offset, .size = size, .dst = (uint8_t *)memory + front, .tag = tag, .priority = (uint8_t)priority};
    return &rig->reads[tag].read;
}

static inline void rig_submit(io_rig *rig, uint32_t tag, uint64_t offset, uint64_t size, int priority)
{
    clb_error err;
    assert_ok(clb_io_submit(rig->io, rig_read(rig, tag, offset, size, priority), 1, &err), &err);
}

static inline void rig_check_guards(const io_rig *rig, uint32_t tag)
{
    const uint8_t *dst = rig->reads[tag].read.dst;
    for (uint32_t i = 1; i <= GUARD; i++)
        assert_int_equal(dst[-(ptrdiff_t)i], 0xa5);
    for (uint32_t i = 0; i < GUARD; i++)
        assert_int_equal(dst[rig->reads[tag].room + i], 0xa5);
}

static inline void rig_check_content(const io_rig *rig, uint32_t tag)
{
    const clb_io_read *r = &rig->reads[tag].read;
    const uint8_t *first = (const uint8_t *)r->dst + clb_io_lead(rig->io, r->offset);
    assert_memory_equal(first, rig->content + r->offset, (size_t)r->size);
    rig_check_guards(rig, tag);
}

/* Waits for one; what was read is compared with the file. */
static inline clb_io_done rig_collect(io_rig *rig)
{
    clb_io_done done = {0};
    assert_int_equal(clb_io_collect(rig->io, &done, 1, true), 1);
    assert_true(done.tag < MOST_READS && rig->reads[done.tag].pending);
    rig->reads[done.tag].pending = false;
    if (done.status == COLIBRI_OK)
        rig_check_content(rig, done.tag);
    else
        rig_check_guards(rig, done.tag);
    return done;
}

static inline void rig_collect_all(io_rig *rig)
{
    while (clb_io_outstanding(rig->io))
        assert_int_equal(rig_collect(rig).status, COLIBRI_OK);
}

/* Threads of this process. */
static inline uint32_t count_threads(void)
{
    size_t n;
    char *status = test_read_file("/proc/self/status", &n);
    const char *at = strstr(status, "Threads:");
    assert_non_null(at);
    const uint32_t threads = (uint32_t)strtoul(at + 8, NULL, 10);
    free(status);
    return threads;
}

/* Open descriptors of this process. */
static inline uint32_t count_files(void)
{
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Those that the kernel started for a ring end a moment after it. */
static inline void wait_for_threads(uint32_t n)
{
    for (int ms = 0; count_threads() != n; ms++) {
        assert_true(ms < 20000);
        usleep(1000);
    }
}

#endif
