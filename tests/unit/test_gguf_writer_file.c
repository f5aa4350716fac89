/* The GGUF writer's destinations: a failure leaves nothing behind, and nothing is replaced unasked. */
#include "gguf_image.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "colibri/blocks.h"
#include "gguf/writer.h"

static clb_gguf_writer *new_writer(void)
{
    clb_error err = {0};
    clb_gguf_writer *w;
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    return w;
}

static clb_gguf_new_tensor floats(const char *name, uint64_t n, const void *data)
{
    return (clb_gguf_new_tensor){.name = name, .type = COLIBRI_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = data};
}

static unsigned entries(const test_dir *dir)
{
    DIR *d = opendir(dir->path);
    unsigned n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static clb_gguf_writer *small_writer(const char *name)
{
    static const float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    clb_error err = {0};
    clb_gguf_writer *w = new_writer();
    assert_ok(clb_gguf_writer_set_str(w, "general.name", name, &err), &err);
    const clb_gguf_new_tensor t = floats("t", 8, data);
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
    return w;
}

static void assert_model(const char *path, const char *name)
{
    clb_error err = {0};
    clb_gguf *g;
    clb_str s;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_get_str(g, "general.name", &s, &err), &err);
    assert_int_equal(s.n, strlen(name));
    assert_memory_equal(s.p, name, s.n);
    clb_gguf_close(g);
}

static void replaces_only_on_request(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX], link[PATH_MAX], bad[PATH_MAX];
    struct stat st;
    clb_error err = {0};
    test_dir_create(&dir);
    clb_gguf_writer *one = small_writer("one"), *two = small_writer("two"), *three = small_writer("three");
    test_dir_file(&dir, "m.gguf", path);
    const mode_t mask = umask(027);
    assert_ok(clb_gguf_writer_write(one, path, 0, &err), &err);
    umask(mask);
    assert_model(path, "one");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_fails(clb_gguf_writer_write(two, path, 0, &err), &err, COLIBRI_E_USAGE, "m.gguf exists already");
    assert_model(path, "one");
    assert_int_equal(chmod(path, 0600), 0);
    clb_gguf *g; /* an open reader keeps the old file */
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    assert_ok(clb_gguf_writer_write(two, path, CLB_GGUF_OVERWRITE, &err), &err);
    float first = 0;
    assert_ok(clb_gguf_read(g, clb_gguf_tensor_at(g, 0), 0, &first, sizeof first, &err), &err);
    assert_true(first == 1);
    clb_gguf_close(g);
    assert_model(path, "two");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    /* Through a link: the link stays, the file behind it changes. */
    assert_int_equal(symlink("m.gguf", test_dir_file(&dir, "link.gguf", link)), 0);
    assert_fails(clb_gguf_writer_write(three, link, 0, &err), &err, COLIBRI_E_USAGE, "link.gguf exists already");
    assert_ok(clb_gguf_writer_write(three, link, CLB_GGUF_OVERWRITE, &err), &err);
    assert_model(path, "three");
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(entries(&dir), 2);
    /* What must never be replaced. */
    assert_fails(clb_gguf_writer_write(one, dir.path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_USAGE, "regular file");
    assert_fails(clb_gguf_writer_write(one, "/dev/null", CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_USAGE, "/dev/null");
    assert_fails(clb_gguf_writer_write(one, test_dir_file(&dir, "no/such/m.gguf", bad), 0, &err), &err,
                 COLIBRI_E_NOT_FOUND, "no/such/m.gguf");
    assert_int_equal(symlink("nowhere", test_dir_file(&dir, "dangling", bad)), 0);
    assert_fails(clb_gguf_writer_write(one, bad, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_IO, "dangling");
    assert_int_equal(entries(&dir), 3);
    clb_gguf_writer_free(one);
    clb_gguf_writer_free(two);
    clb_gguf_writer_free(three);
    test_dir_remove(&dir);
}

static void reports_a_full_device(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf_writer *w = small_writer("full");
    const int fd = open("/dev/full", O_WRONLY);
    assert_true(fd >= 0);
    assert_fails(clb_gguf_writer_write_fd(w, fd, "/dev/full", &err), &err, COLIBRI_E_IO,
                 "cannot write /dev/full: No space left on device");
    close(fd);
    clb_gguf_writer_free(w);
}

static int fails_late(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)ctx;
    if (offset)
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped by the test");
    memset(buf, 1, size);
    return COLIBRI_OK;
}

static void leaves_nothing_behind(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    clb_error err = {0};
    test_dir_create(&dir);
    test_dir_file(&dir, "m.gguf", path);
    clb_gguf_writer *old = small_writer("old"), *w = small_writer("new");
    const clb_gguf_new_tensor big = {
        .name = "big", .type = 24, .n_dims = 1, .ne = {(uint64_t)3 << 20}, .produce = fails_late};
    assert_ok(clb_gguf_writer_add_tensor(w, &big, &err), &err);
    assert_fails(clb_gguf_writer_write(w, path, 0, &err), &err, COLIBRI_E_CANCELLED, "stopped by the test");
    assert_int_equal(entries(&dir), 0);
    assert_ok(clb_gguf_writer_write(old, path, 0, &err), &err);
    assert_int_equal(clb_gguf_writer_write(w, path, CLB_GGUF_OVERWRITE, &err), COLIBRI_E_CANCELLED);
    assert_int_equal(entries(&dir), 1);
    assert_model(path, "old");
    /* The file system refuses to let the file grow, as it does when it is full. */
    struct rlimit was, small = {0};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){.rlim_cur = 100, .rlim_max = was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int rc = clb_gguf_writer_write(old, path, CLB_GGUF_OVERWRITE, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    assert_fails(rc, &err, COLIBRI_E_IO, "File too large");
    assert_int_equal(entries(&dir), 1);
    assert_model(path, "old");
    clb_gguf_writer_free(old);
    clb_gguf_writer_free(w);
    test_dir_remove(&dir);
}

static int somebody_else_writes(void *ctx, uint64_t offset, void *buf, size_t size, clb_error *err)
{
    (void)offset;
    (void)err;
    memset(buf, 1, size);
    test_write_text(ctx, "theirs");
    return COLIBRI_OK;
}

/* A file that appears while we write was not there when the caller said that nothing need be replaced. */
static void keeps_a_file_that_appears_meanwhile(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    clb_error err = {0};
    test_dir_create(&dir);
    test_dir_file(&dir, "m.gguf", path);
    clb_gguf_writer *w = small_writer("ours");
    const clb_gguf_new_tensor t = {
        .name = "late", .type = 24, .n_dims = 1, .ne = {8}, .produce = somebody_else_writes, .ctx = path};
    assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
    assert_fails(clb_gguf_writer_write(w, path, 0, &err), &err, COLIBRI_E_IO, "File exists");
    assert_int_equal(entries(&dir), 1);
    char *text = test_read_file(path, NULL);
    assert_string_equal(text, "theirs");
    free(text);
    assert_ok(clb_gguf_writer_write(w, path, CLB_GGUF_OVERWRITE, &err), &err);
    assert_model(path, "ours");
    clb_gguf_writer_free(w);
    test_dir_remove(&dir);
}

static void writes_into_pipes(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf_writer *w = small_writer("pipe");
    int fds[2];
    clb_buf expected = {0};
    char got[4096];
    assert_int_equal(pipe(fds), 0);
    assert_ok(clb_gguf_writer_write_fd(w, fds[1], "pipe", &err), &err);
    close(fds[1]);
    size_t n = 0;
    for (ssize_t r; (r = read(fds[0], got + n, sizeof got - n)) > 0;)
        n += (size_t)r;
    close(fds[0]);
    assert_ok(clb_gguf_writer_write_buf(w, &expected, &err), &err);
    assert_int_equal(n, expected.n);
    assert_memory_equal(got, expected.data, n);
    clb_buf_free(&expected);
    clb_gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaces_only_on_request), cmocka_unit_test(reports_a_full_device),
        cmocka_unit_test(leaves_nothing_behind),    cmocka_unit_test(keeps_a_file_that_appears_meanwhile),
        cmocka_unit_test(writes_into_pipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
