/* A cold start: nothing of the model's file is left in the page cache, whether it was read or is mapped. */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "engine/compare.h"
#include "support/engine.h"

#define MODEL TEST_DATA("arch/qwen3moe.gguf")

static test_dir dir;
static char file[PATH_MAX];

/* A file of our own, for the kernel tells only its owner what is cached, and on the drive, for dirty pages stay. */
static int make_file(void **state)
{
    (void)state;
    clb_error err;
    clb_buf data = {0};
    test_dir_create(&dir);
    test_dir_file(&dir, "model.gguf", file);
    int fd = open(MODEL, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_ok(clb_buf_read(&data, fd, MODEL, 16u << 20, &err), &err);
    close(fd);
    fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, data.data, data.n) == (ssize_t)data.n && fsync(fd) == 0);
    close(fd);
    clb_buf_free(&data);
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    test_dir_remove(&dir);
    return 0;
}

/* Pages of the file in the page cache, and how many it has; mapped for the question only, nothing is touched. */
static size_t cached(size_t *n_pages)
{
    struct stat st;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    *n_pages = ((size_t)st.st_size + page - 1) / page;
    void *const map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *const there = malloc(*n_pages);
    assert_true(map != MAP_FAILED && there && mincore(map, (size_t)st.st_size, there) == 0);
    size_t n = 0;
    for (size_t i = 0; i < *n_pages; i++)
        n += there[i] & 1;
    free(there);
    munmap(map, (size_t)st.st_size);
    close(fd);
    return n;
}

static void check(const char *mode)
{
    const char *const settings[] = {mode, "threads=2", "store.direct=off", NULL};
    static const uint32_t ids[] = {3, 5, 8, 13, 21, 34, 55, 89};
    clb_error err;
    test_engine e;
    size_t n_pages;
    assert_ok(test_engine_open(&e, file, settings, NULL, &err), &err);
    float *const want = test_engine_logits(e.engine, ids, 8, 0);
    /* what is mapped comes back when it is used; what was read stays in memory */
    const int rounds = strcmp(mode, "store.mode=mmap") == 0 ? 2 : 1;
    for (int round = 0; round < rounds; round++) {
        assert_true(cached(&n_pages) * 2 > n_pages);
        clb_compare_make_cold(e.engine, e.config);
        const size_t n = cached(&n_pages);
        if (n)
            fail_msg("%s: %zu of %zu pages are still in the page cache", mode, n, n_pages);
        float *const again = test_engine_logits(e.engine, ids, 8, 0);
        assert_memory_equal(again, want, 8 * e.engine->model->hp.n_vocab * sizeof *want);
        free(again);
    }
    free(want);
    test_engine_close(&e);
}

static void files_that_were_read(void **state)
{
    (void)state;
    check("store.mode=read");
}

static void files_that_are_mapped(void **state)
{
    (void)state;
    check("store.mode=mmap");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_that_were_read, make_file, remove_file),
        cmocka_unit_test_setup_teardown(files_that_are_mapped, make_file, remove_file),
    };
    struct statfs fs;
    const char *const tmp = getenv("TMPDIR");
    if (!statfs(tmp && *tmp ? tmp : "/tmp", &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)) {
        printf("skipped: files of temporary folders are in memory here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
