/* The GGUF reader on damaged, truncated, shrinking and odd files: an error or a consistent model, nothing else. */
#include "gguf_image.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "colibri/blocks.h"
#include "gguf/internal.h"

static image im;

/* What every model that opens must satisfy, whatever the file was. Reads all that can be reached. */
static uint64_t walk_value(const clb_gguf_value *v)
{
    uint64_t sum = 0;
    clb_error err;
    if (v->type == CLB_GGUF_BOOL)
        assert_true(v->as.u <= 1);
    if (v->type == CLB_GGUF_STRING) {
        for (size_t i = 0; i < v->as.str.n; i++)
            sum += (unsigned char)v->as.str.p[i];
    }
    if (v->type != CLB_GGUF_ARRAY)
        return sum;
    for (uint64_t i = 0; i < v->as.arr.n; i++) {
        clb_str s;
        double f;
        int64_t n;
        if (v->as.arr.elem == CLB_GGUF_ARRAY) {
            sum += walk_value((const clb_gguf_value *)v->as.arr.items + i);
        } else if (v->as.arr.elem == CLB_GGUF_STRING) {
            assert_int_equal(clb_gguf_item_str(v, i, &s, &err), COLIBRI_OK);
            for (size_t k = 0; k < s.n; k++)
                sum += (unsigned char)s.p[k];
        } else if (v->as.arr.elem == CLB_GGUF_F32 || v->as.arr.elem == CLB_GGUF_F64) {
            assert_int_equal(clb_gguf_item_f64(v, i, &f, &err), COLIBRI_OK);
        } else if (clb_gguf_item_i64(v, i, &n, &err) == COLIBRI_OK) {
            sum += (uint64_t)n;
        } else {
            assert_int_equal(v->as.arr.elem, CLB_GGUF_U64);
        }
    }
    return sum;
}

static void walk(const clb_gguf *g, uint64_t size)
{
    clb_error err = {0};
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_str key = clb_gguf_key(g, i);
        assert_true(key.n > 0 && strlen(key.p) == key.n);
        assert_ptr_equal(clb_gguf_find(g, key.p), clb_gguf_value_at(g, i)); /* unique, therefore */
        walk_value(clb_gguf_value_at(g, i));
    }
    const uint64_t n = clb_gguf_n_tensors(g);
    for (uint64_t i = 0; i < n; i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        assert_true(t->name.n > 0 && strlen(t->name.p) == t->name.n);
        assert_ptr_equal(clb_gguf_find_tensor(g, t->name.p), t);
        assert_in_range(t->n_dims, 1, 4);
        uint64_t elems = 1;
        for (unsigned d = 0; d < 4; d++) {
            assert_true(t->ne[d] >= 1 && (d < t->n_dims || t->ne[d] == 1));
            assert_false(__builtin_mul_overflow(elems, t->ne[d], &elems));
        }
        assert_true(elems == t->n_elems);
        assert_true(t->offset % (t->expert_stride ? 64 : clb_gguf_alignment(g)) == 0);
        assert_true(t->offset < size && t->room == size - t->offset && t->n_bytes <= t->room);
        /* of packed experts: the part of the first one */
        const size_t len = (size_t)(t->packed || t->expert_stride ? t->file_bytes : t->n_bytes ? t->n_bytes : t->room);
        char *bytes = malloc(len);
        assert_ok(clb_gguf_read(g, t, 0, bytes, len, &err), &err);
        free(bytes);
        for (uint64_t k = 0; k < i; k++) {
            const clb_gguf_tensor *o = clb_gguf_tensor_at(g, k);
            if (t->expert_stride && o->expert_stride && t->run == o->run)
                continue; /* they lie in the same blocks */
            assert_true(o->offset + (o->n_bytes ? o->n_bytes : 1) <= t->offset ||
                        t->offset + (t->n_bytes ? t->n_bytes : 1) <= o->offset);
        }
    }
}

static bool is_refusal(int rc)
{
    return rc == COLIBRI_E_FORMAT || rc == COLIBRI_E_UNSUPPORTED || rc == COLIBRI_E_LIMIT;
}

/* The smallest cut of all.gguf that still has all of its data: its last tensor lies at 2176 and has 136 bytes. */
#define COMPLETE 2312u

static void truncated_anywhere(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_read_file(TEST_DATA("gguf/all.gguf"), &n);
    assert_true(n > COMPLETE);
    for (size_t cut = 0; cut <= n; cut++) {
        opened o = open_bytes(bytes, cut);
        if (cut >= COMPLETE) {
            assert_ok(o.rc, &o.err);
            walk(o.g, cut);
        } else {
            assert_int_equal(o.rc, COLIBRI_E_FORMAT);
            if (!test_contains(o.err.msg, "the file ends") &&
                !test_contains(o.err.msg, "do not fit into the remaining") &&
                !test_contains(o.err.msg, "does not fit into the remaining") && !test_contains(o.err.msg, "is empty"))
                fail_msg("cut at %zu: \"%s\" does not say that the file is too short", cut, o.err.msg);
        }
        close_opened(&o);
    }
    free(bytes);
}

static void truncated_on_disk(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_read_file(TEST_DATA("gguf/all.gguf"), &n), path[PATH_MAX];
    test_dir dir;
    test_dir_create(&dir);
    test_write_file(test_dir_file(&dir, "cut.gguf", path), bytes, n);
    clb_error err = {0};
    clb_gguf *g;
    for (size_t cut = n;; cut -= cut < 13 ? 1 : 13) {
        assert_int_equal(truncate(path, (off_t)cut), 0);
        const int rc = clb_gguf_open(path, NULL, NULL, &g, &err);
        if (cut >= COMPLETE) {
            assert_ok(rc, &err);
        } else {
            assert_int_equal(rc, COLIBRI_E_FORMAT);
            assert_null(g);
            assert_true(test_contains(err.msg, "cut.gguf"));
        }
        clb_gguf_close(g);
        if (cut == 0)
            break;
    }
    test_dir_remove(&dir);
    free(bytes);
}

static void corrupted_at_random(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_read_file(TEST_DATA("gguf/all.gguf"), &n);
    char *copy = malloc(n);
    test_rand rng = {20240607};
    unsigned opened_anyway = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(copy, bytes, n);
        const unsigned n_hits = 1 + test_rand_below(&rng, round % 2 ? 1 : 8);
        for (unsigned i = 0; i < n_hits; i++) {
            const size_t at = test_rand_below(&rng, 1856); /* the header */
            switch (test_rand_below(&rng, 3)) {
            case 0:
                copy[at] = (char)test_rand_below(&rng, 256);
                break;
            case 1:
                copy[at] ^= (char)(1 << test_rand_below(&rng, 8));
                break;
            default:
                copy[at] = (char)(test_rand_below(&rng, 2) ? 0xff : 0);
            }
        }
        opened o = open_bytes(copy, n);
        if (o.rc == COLIBRI_OK) {
            walk(o.g, n);
            opened_anyway++;
        } else if (!is_refusal(o.rc)) {
            fail_msg("round %d: %s: %s", round, clb_status_name(o.rc), o.err.msg);
        }
        close_opened(&o);
    }
    /* Values and names may change unnoticed; lengths, types and counts may not. */
    assert_in_range(opened_anyway, 200, 3000);
    free(copy);
    free(bytes);
}

/* What the fuzzer found worth keeping: inputs that reach every branch it knows. */
static void survives_the_fuzzing_corpus(void **state)
{
    (void)state;
    static const char folder[] = COLIBRI_TEST_DATA "/../fuzz/corpus/gguf";
    DIR *d = opendir(folder);
    assert_non_null(d);
    unsigned n_files = 0, n_opened = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        char path[PATH_MAX];
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        char *bytes = test_read_file(path, &n);
        opened o = open_bytes(bytes, n);
        if (o.rc == COLIBRI_OK)
            walk(o.g, n);
        else
            assert_true(is_refusal(o.rc));
        n_files++;
        n_opened += o.rc == COLIBRI_OK;
        close_opened(&o);
        free(bytes);
    }
    closedir(d);
    assert_true(n_files > 100 && n_opened > 5 && n_opened < n_files);
}

/* A header larger than one read, so that its block grows and moves while it is parsed. */
static void reads_large_headers_from_disk(void **state)
{
    (void)state;
    char text[32], path[PATH_MAX];
    const unsigned n = 9000;
    put_head(&im, 3, 1, 2);
    put_key(&im, "tokenizer.ggml.tokens", CLB_GGUF_ARRAY);
    put_array_head(&im, CLB_GGUF_STRING, n);
    for (unsigned i = 0; i < n; i++) {
        snprintf(text, sizeof text, "token %u", i);
        put_text(&im, text);
    }
    put_key_text(&im, "last", "key");
    put_tensor_1d(&im, "t", 8, COLIBRI_TYPE_F32, 0);
    put_padding(&im, 32);
    put_data(&im, 32);
    assert_true(im.n > 160000);
    test_dir dir;
    test_dir_create(&dir);
    test_write_file(test_dir_file(&dir, "large.gguf", path), im.b, im.n);
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    const clb_gguf_value *tokens = clb_gguf_find(g, "tokenizer.ggml.tokens");
    for (unsigned i = 0; i < n; i++) {
        clb_str s;
        assert_ok(clb_gguf_item_str(tokens, i, &s, &err), &err);
        snprintf(text, sizeof text, "token %u", i);
        assert_int_equal(s.n, strlen(text));
        assert_memory_equal(s.p, text, s.n);
    }
    assert_int_equal(clb_gguf_find(g, "last")->as.str.n, 3);
    walk(g, im.n);
    clb_gguf_close(g);
    test_dir_remove(&dir);
}

/* Sparse files: gigabytes of header that cost their author nothing. */
static void bounds_the_header(void **state)
{
    (void)state;
    static const struct {
        uint32_t elem; /* of an array; or STRING: one string */
        uint64_t n;
        const char *refused;
    } cases[] = {{CLB_GGUF_STRING, (uint64_t)3 << 30, "the header exceeds 128 MiB"},
                 {CLB_GGUF_U64, (uint64_t)1 << 28, "the header exceeds 128 MiB"},
                 {CLB_GGUF_F32, CLB_GGUF_MAX_HEADER / 4, "the header exceeds 128 MiB"}};
    char path[PATH_MAX];
    test_dir dir;
    test_dir_create(&dir);
    test_dir_file(&dir, "sparse.gguf", path);
    clb_error err = {0};
    clb_gguf *g;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_head(&im, 3, 0, 1);
        put_key(&im, "k", cases[i].elem == CLB_GGUF_STRING ? CLB_GGUF_STRING : CLB_GGUF_ARRAY);
        if (cases[i].elem != CLB_GGUF_STRING)
            put_int(&im, cases[i].elem, 4);
        put_int(&im, cases[i].n, 8);
        test_write_file(path, im.b, im.n);
        assert_int_equal(truncate(path, (off_t)4 << 30), 0);
        assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_LIMIT, cases[i].refused);
    }
    /* Counts that fit into the file, but that no model has. */
    put_head(&im, 3, CLB_GGUF_MAX_TENSORS + 1, 0);
    test_write_file(path, im.b, im.n);
    assert_int_equal(truncate(path, (off_t)4 << 30), 0);
    assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_LIMIT, "1048577 tensors");
    put_head(&im, 3, 0, CLB_GGUF_MAX_KEYS + 1);
    test_write_file(path, im.b, im.n);
    assert_int_equal(truncate(path, (off_t)4 << 30), 0);
    assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_LIMIT, "65537 keys");
    test_dir_remove(&dir);
}

static void notices_that_the_file_shrinks(void **state)
{
    (void)state;
    size_t n;
    char *bytes = test_read_file(TEST_DATA("gguf/all.gguf"), &n), path[PATH_MAX];
    test_dir dir;
    test_dir_create(&dir);
    test_write_file(test_dir_file(&dir, "shrinks.gguf", path), bytes, n);
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, "q8.weight");
    char data[136];
    assert_ok(clb_gguf_read(g, t, 0, data, sizeof data, &err), &err);
    assert_memory_equal(data, bytes + t->offset, sizeof data);
    assert_int_equal(truncate(path, (off_t)t->offset + 100), 0);
    assert_ok(clb_gguf_read(g, t, 0, data, 100, &err), &err);
    assert_fails(clb_gguf_read(g, t, 0, data, 101, &err), &err, COLIBRI_E_IO, "shrinks.gguf: ends at byte 2276");
    assert_int_equal(truncate(path, 0), 0);
    assert_fails(clb_gguf_read(g, t, 0, data, 1, &err), &err, COLIBRI_E_IO, "was truncated");
    /* Metadata is ours. */
    uint32_t u = 0;
    assert_ok(clb_gguf_get_u32(g, "scalar.u32.0", &u, &err), &err);
    assert_int_equal(u, 2);
    clb_gguf_close(g);
    test_dir_remove(&dir);
    free(bytes);
}

static void refuses_what_is_not_a_regular_file(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX];
    clb_error err = {0};
    clb_gguf *g = (clb_gguf *)&dir;
    test_dir_create(&dir);
    assert_fails(clb_gguf_open(dir.path, NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT, "is a directory");
    assert_null(g);
    assert_int_equal(mkfifo(test_dir_file(&dir, "pipe.gguf", path), 0600), 0);
    alarm(20); /* opening a FIFO that nobody writes to must not wait */
    assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT, "is a pipe");
    alarm(0);
    assert_fails(clb_gguf_open("/dev/zero", NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT, "is a device");
    assert_fails(clb_gguf_open(test_dir_file(&dir, "none", path), NULL, NULL, &g, &err), &err, COLIBRI_E_NOT_FOUND,
                 "No such file");
    assert_fails(clb_gguf_open("/dev/null/x", NULL, NULL, &g, &err), &err, COLIBRI_E_NOT_FOUND, "/dev/null/x");
    test_write_file(test_dir_file(&dir, "empty.gguf", path), "", 0);
    assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_FORMAT,
                 "empty.gguf: byte 0: the file is empty");
    clb_gguf_close(NULL);
    test_dir_remove(&dir);
}

/* A reason must not fall off the end of the message, however long the path is. */
static void keeps_the_reason_behind_long_paths(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX], name[256];
    clb_error err = {0};
    clb_gguf *g;
    test_dir_create(&dir);
    memset(name, 'd', 240);
    name[240] = '\0';
    snprintf(path, sizeof path, "%s", dir.path);
    for (int i = 0; i < 6; i++) {
        snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", name);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path + strlen(path), sizeof path - strlen(path), "/model.gguf");
    test_write_file(path, "GGUFxxxxyyyyyyyyzzzzzzzz", 24);
    assert_fails(clb_gguf_open(path, NULL, NULL, &g, &err), &err, COLIBRI_E_UNSUPPORTED,
                 "ddd/model.gguf: byte 4: GGUF version");
    test_dir_remove(&dir);
}

static void leaves_the_descriptor_blocking(void **state)
{
    (void)state;
    clb_error err = {0};
    clb_gguf *g;
    assert_ok(clb_gguf_open(TEST_DATA("gguf/all.gguf"), NULL, NULL, &g, &err), &err);
    const int fd = clb_gguf_shard_fd(g, 0);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    clb_gguf_close(g);
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* closed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_anywhere),
        cmocka_unit_test(truncated_on_disk),
        cmocka_unit_test(corrupted_at_random),
        cmocka_unit_test(survives_the_fuzzing_corpus),
        cmocka_unit_test(reads_large_headers_from_disk),
        cmocka_unit_test(bounds_the_header),
        cmocka_unit_test(notices_that_the_file_shrinks),
        cmocka_unit_test(refuses_what_is_not_a_regular_file),
        cmocka_unit_test(keeps_the_reason_behind_long_paths),
        cmocka_unit_test(leaves_the_descriptor_blocking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
