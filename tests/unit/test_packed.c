/* Packed files: every byte of the source comes back, whatever the format and the number of rows; files are the same for
 * any number of threads and pieces; checksums find every damage. */
#include "support/packed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf/internal.h"

static test_dir dir;
static char in_path[PATH_MAX], out_path[PATH_MAX];

static int begin(void **state)
{
    (void)state;
    test_dir_create(&dir);
    test_dir_file(&dir, "in.gguf", in_path);
    test_dir_file(&dir, "out.colibri", out_path);
    return 0;
}

static int end(void **state)
{
    (void)state;
    test_dir_remove(&dir);
    return 0;
}

static clb_gguf *open_source(void)
{
    test_source s;
    test_source_begin(&s);
    test_source_fill(&s);
    return test_source_open(&s, in_path);
}

static clb_gguf *open_packed(const char *path)
{
    clb_error err;
    clb_gguf *g;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    return g;
}

static size_t files_in(const char *path)
{
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* n_rows of a packed tensor's file bytes, as rows. Missing rows of the last group must be zero. */
static void check_rows(const clb_gguf_tensor *t, const uint8_t *file, uint64_t n_rows, const uint8_t *want)
{
    const struct colibri_format *f = test_packed_format(NULL, t->type);
    const size_t row = (size_t)(t->n_bytes / (t->n_elems / t->ne[0]));
    if (!t->packed) {
        assert_memory_equal(file, want, n_rows * row);
        return;
    }
    assert_int_equal(f->layout, COLIBRI_LAYOUT_X16);
    assert_int_equal(t->file_bytes, (n_rows + 15) / 16 * 16 * row);
    uint8_t *rows = malloc(16 * row);
    assert_non_null(rows);
    for (uint64_t g = 0; g < n_rows; g += 16) {
        const uint64_t n = n_rows - g < 16 ? n_rows - g : 16;
        f->unpack(file + g * row, 16, (uint32_t)t->ne[0], rows, row);
        assert_memory_equal(rows, want + g * row, n * row);
        for (uint64_t i = n * row; i < 16 * row; i++)
            assert_int_equal(rows[i], 0);
    }
    free(rows);
}

static uint8_t *read_source(const clb_gguf *g, const char *name, uint64_t offset, uint64_t n)
{
    clb_error err;
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, name);
    uint8_t *bytes = malloc((size_t)n);
    assert_true(t && bytes);
    assert_ok(clb_gguf_read(g, t, offset, bytes, (size_t)n, &err), &err);
    return bytes;
}

/* Where the source has expert e of a packed tensor: stacked, fused, or in a tensor of its own. */
static uint8_t *source_expert(const clb_gguf *g, const clb_gguf_tensor *t, uint64_t e)
{
    const uint64_t n = t->n_bytes / t->ne[2];
    char name[100];
    if (clb_gguf_find_tensor(g, t->name.p))
        return read_source(g, t->name.p, e * n, n);
    if (strstr(t->name.p, "blk.1."))
        return read_source(g, "blk.1.ffn_gate_up_exps.weight", (2 * e + (strstr(t->name.p, "up_exps") != NULL)) * n, n);
    snprintf(name, sizeof name, "%.*s.%u.weight", (int)(strstr(t->name.p, "_exps") - t->name.p), t->name.p,
             (unsigned)e);
    return read_source(g, name, 0, n);
}

static void check_expert_tensor(const clb_gguf *g, const clb_gguf *p, const clb_gguf_tensor *t)
{
    clb_error err;
    uint8_t *file = malloc((size_t)t->file_bytes), *block = malloc((size_t)t->block_bytes);
    assert_true(file && block);
    assert_int_equal(t->block_bytes % 4096, 0);
    assert_int_equal(t->block_offset % 4096, 0);
    assert_int_equal(t->expert_stride, t->block_bytes);
    assert_int_equal((t->offset - t->block_offset) % 64, 0);
    for (uint64_t e = 0; e < t->ne[2]; e++) {
        uint8_t *want = source_expert(g, t, e);
        assert_ok(clb_gguf_read(p, t, e * t->expert_stride, file, (size_t)t->file_bytes, &err), &err);
        check_rows(t, file, t->ne[1], want);
        assert_ok(clb_gguf_read_block(p, t, e, block, &err), &err);
        assert_memory_equal(block + (t->offset - t->block_offset), file, t->file_bytes);
        assert_ok(clb_gguf_verify_block(p, t, e, block, t->block_bytes, &err), &err);
        block[t->block_bytes - 1] ^= 1; /* padding counts */
        assert_fails(clb_gguf_verify_block(p, t, e, block, t->block_bytes, &err), &err, COLIBRI_E_FORMAT, "expert");
        free(want);
    }
    assert_fails(clb_gguf_read(p, t, t->ne[2] * t->expert_stride, file, 1, &err), &err, COLIBRI_E_INTERNAL,
                 "per expert");
    assert_fails(clb_gguf_read(p, t, 1, file, (size_t)t->file_bytes, &err), &err, COLIBRI_E_INTERNAL, "per expert");
    assert_fails(clb_gguf_verify_block(p, t, t->ne[2], block, t->block_bytes, &err), &err, COLIBRI_E_INTERNAL,
                 "blocks");
    free(file);
    free(block);
}

static void check_plain_tensor(const clb_gguf *g, const clb_gguf *p, const clb_gguf_tensor *t)
{
    clb_error err;
    const clb_gguf_tensor *s = clb_gguf_find_tensor(g, t->name.p);
    assert_non_null(s);
    assert_true(s->type == t->type && s->n_dims == t->n_dims && memcmp(s->ne, t->ne, sizeof s->ne) == 0);
    assert_int_equal(s->n_bytes, t->n_bytes);
    uint8_t *want = read_source(g, t->name.p, 0, t->n_bytes), *file = malloc((size_t)t->file_bytes);
    assert_non_null(file);
    assert_ok(clb_gguf_read(p, t, 0, file, (size_t)t->file_bytes, &err), &err);
    check_rows(t, file, t->n_elems / t->ne[0], want);
    assert_ok(clb_gguf_verify_block(p, t, 99, file, t->file_bytes, &err), &err);
    for (uint64_t at = 0; at < t->file_bytes; at += 50000) {
        file[at] ^= 0x10;
        assert_fails(clb_gguf_verify_block(p, t, 0, file, t->file_bytes, &err), &err, COLIBRI_E_FORMAT, t->name.p);
        file[at] ^= 0x10;
    }
    const uint64_t unit = clb_gguf_verify_unit(p, t), last = (t->file_bytes - 1) / unit * unit;
    assert_ok(clb_gguf_verify_piece(p, t, last, file + last, t->file_bytes - last, &err), &err);
    assert_fails(clb_gguf_verify_piece(p, t, 1, file, 1, &err), &err, COLIBRI_E_INTERNAL, "whole blocks");
    assert_fails(clb_gguf_verify_block(p, t, 0, file, t->file_bytes - 1, &err), &err, COLIBRI_E_INTERNAL, "blocks");
    free(want);
    free(file);
}

static void check_model(const clb_gguf *g, const clb_gguf *p)
{
    uint64_t x16 = 0, experts = 0;
    assert_true(clb_gguf_is_packed(p) && clb_gguf_has_checksums(p) && !clb_gguf_is_packed(g));
    for (uint64_t i = 0; i < clb_gguf_n_tensors(p); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(p, i);
        x16 += t->packed;
        experts += t->expert_stride != 0;
        assert_int_equal((t->expert_stride ? t->block_offset : t->offset) % 4096, 0);
        if (t->expert_stride)
            check_expert_tensor(g, p, t);
        else
            check_plain_tensor(g, p, t);
    }
    assert_int_equal(experts, 9);
    assert_int_equal(x16, 13 * 7 + 2 + 8); /* 13 formats x 7 numbers of rows above 1, large and wide, experts but one */
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const char *key = clb_gguf_key(g, i).p;
        assert_non_null(clb_gguf_find(p, key));
    }
    assert_int_equal(clb_gguf_find(p, CLB_PACKED_KEY_SOURCE)->as.u, 64);
    assert_false(clb_gguf_find_tensor(p, "blk.0.attn_qkv.weight")->packed);
}

static void everything_comes_back(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    test_pack(g, out_path, 2, 0);
    clb_gguf *p = open_packed(out_path);
    check_model(g, p);
    assert_int_equal(files_in(dir.path), 2);
    clb_gguf_close(p);
    clb_gguf_close(g);
}

static void threads_write_the_same_bytes(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    size_t n, m;
    test_pack(g, out_path, 1, 0);
    char *one = test_read_file(out_path, &n);
    for (uint32_t threads = 2; threads <= 5; threads++) {
        test_pack(g, out_path, threads, 0); /* over the last one */
        char *more = test_read_file(out_path, &m);
        assert_int_equal(n, m);
        assert_memory_equal(one, more, n);
        free(more);
    }
    assert_int_equal(n % 4096, 0);
    free(one);
    clb_gguf_close(g);
}

static void pieces_hold_the_same(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    char first[PATH_MAX], last[PATH_MAX];
    clb_error err;
    test_pack(g, out_path, 2, 12u << 20);
    test_dir_file(&dir, "out-00001-of-00002.colibri", first);
    test_dir_file(&dir, "out-00002-of-00002.colibri", last);
    assert_int_equal(files_in(dir.path), 3);
    clb_gguf *p = open_packed(first);
    assert_int_equal(clb_gguf_n_shards(p), 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_in_range(clb_gguf_shard_size(p, i), 1, 12u << 20);
    check_model(g, p);
    clb_gguf_close(p);
    assert_fails(clb_gguf_open(last, NULL, NULL, &p, &err), &err, COLIBRI_E_USAGE, "out-00001-of-00002.colibri");
    /* Packing again is refused while one of them is there; none may be left changed. */
    assert_int_equal(unlink(first), 0);
    clb_pack *pack;
    clb_pack_options o = test_pack_options(2);
    o.split = 12u << 20;
    assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
    assert_fails(clb_pack_write(pack, out_path, 0, &err), &err, COLIBRI_E_USAGE, "exists already");
    assert_int_equal(files_in(dir.path), 2);
    assert_fails(clb_gguf_open(last, NULL, NULL, &p, &err), &err, COLIBRI_E_USAGE, "open the first one");
    clb_pack_free(pack);
    /* A layer's experts stay together, and the message says how much that is. */
    o.split = 5u << 20;
    assert_fails(clb_pack_create(g, &o, &pack, &err), &err, COLIBRI_E_USAGE, "too small: ");
    assert_null(pack);
    test_pack_close(&o);
    clb_gguf_close(g);
}

static void piece_of_another_kind(void **state)
{
    (void)state;
    clb_gguf *g = open_source(), *p;
    char path[PATH_MAX];
    clb_error err;
    test_pack(g, out_path, 2, 12u << 20);
    test_dir_file(&dir, "out-00002-of-00002.colibri", path);
    size_t n;
    char *plain = test_read_file(in_path, &n);
    test_write_file(path, plain, n);
    test_dir_file(&dir, "out-00001-of-00002.colibri", out_path);
    assert_fails(clb_gguf_open(out_path, NULL, NULL, &p, &err), &err, COLIBRI_E_FORMAT, "of one kind");
    assert_int_equal(unlink(path), 0);
    assert_fails(clb_gguf_open(out_path, NULL, NULL, &p, &err), &err, COLIBRI_E_NOT_FOUND, "file 2 of 2");
    free(plain);
    clb_gguf_close(g);
}

struct finding {
    size_t n;
    char what[8][400];
};

static void found(void *ctx, const char *file, const char *what)
{
    struct finding *f = ctx;
    assert_true(test_contains(file, "out.colibri"));
    if (f->n < 8)
        snprintf(f->what[f->n], sizeof f->what[0], "%s", what);
    f->n++;
}

static void flip(const char *path, uint64_t at)
{
    unsigned char b = 0;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, (off_t)at) == 1);
    b ^= 0x40;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    close(fd);
}

static void verification_names_bad_blocks(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    clb_error err;
    clb_pack *pack;
    uint64_t bad;
    clb_pack_options o = test_pack_options(3);
    assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
    assert_ok(clb_pack_write(pack, out_path, 0, &err), &err);
    struct finding f = {0};
    assert_ok(clb_pack_compare(pack, out_path, found, &f, &bad, &err), &err);
    assert_int_equal(bad, 0);
    clb_gguf *p = open_packed(out_path);
    assert_ok(clb_pack_verify(p, &o, found, &f, &bad, &err), &err);
    assert_true(bad == 0 && f.n == 0);
    const clb_gguf_tensor *x = clb_gguf_find_tensor(p, "blk.2.ffn_up_exps.weight");
    const clb_gguf_tensor *large = clb_gguf_find_tensor(p, "large");
    const uint64_t unit = clb_gguf_verify_unit(p, large);
    assert_in_range(unit, 1, large->file_bytes / 2);
    flip(out_path, x->offset + 2 * x->expert_stride + 100);
    flip(out_path, large->offset + large->file_bytes - 1); /* the zeros of the last group */
    flip(out_path, large->offset + unit);
    for (int both = 0; both < 2; both++) {
        f = (struct finding){0};
        if (both)
            assert_ok(clb_pack_compare(pack, out_path, found, &f, &bad, &err), &err);
        else
            assert_ok(clb_pack_verify(p, &o, found, &f, &bad, &err), &err);
        assert_int_equal(bad, 3);
        assert_int_equal(f.n, 3);
        size_t expert = 0, plain = 0;
        for (size_t i = 0; i < f.n; i++) {
            expert += test_contains(f.what[i], "blk.2.ffn_") && test_contains(f.what[i], "expert 2");
            plain += test_contains(f.what[i], "large, block");
        }
        assert_true(expert == 1 && plain == 2);
    }
    clb_gguf_close(p);
    /* The header: nothing of it is believed. */
    flip(out_path, 4000);
    assert_fails(clb_gguf_open(out_path, NULL, NULL, &p, &err), &err, COLIBRI_E_FORMAT, "");
    assert_fails(clb_pack_verify(g, &o, found, &f, &bad, &err), &err, COLIBRI_E_USAGE, "not a packed file");
    clb_pack_free(pack);
    test_pack_close(&o);
    clb_gguf_close(g);
}

/* A packed file whose checksums are right, but whose bytes are another model's. */
static void comparing_looks_at_the_source(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    clb_error err;
    test_pack(g, out_path, 1, 0);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, "large");
    flip(in_path, t->offset + 70000);
    clb_pack *pack;
    uint64_t bad;
    struct finding f = {0};
    clb_pack_options o = test_pack_options(2);
    assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
    assert_ok(clb_pack_compare(pack, out_path, found, &f, &bad, &err), &err);
    assert_int_equal(bad, 1);
    assert_true(test_contains(f.what[0], "large") && test_contains(f.what[0], "differs from the source"));
    clb_pack_free(pack);
    test_pack_close(&o);
    clb_gguf_close(g);
}

static bool stop_at(void *ctx)
{
    atomic_int *left = ctx;
    return atomic_fetch_sub(left, 1) <= 0;
}

/* Whatever stops it, the folder is as before. */
static void nothing_half_written(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    clb_error err;
    clb_pack *pack;
    clb_pack_options o = test_pack_options(2);
    test_write_text(out_path, "old");
    for (int at = 0; at < 60; at += 7) {
        atomic_int left = at;
        o.cancelled = stop_at;
        o.cancelled_ctx = &left;
        o.split = at % 2 ? 12u << 20 : 0;
        assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
        assert_fails(clb_pack_write(pack, out_path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_CANCELLED,
                     "interrupted");
        assert_int_equal(files_in(dir.path), 2);
        clb_pack_free(pack);
    }
    o.cancelled = NULL;
    o.split = 0;
    assert_ok(clb_pack_create(g, &o, &pack, &err), &err);
    assert_fails(clb_pack_write(pack, out_path, 0, &err), &err, COLIBRI_E_USAGE, "exists already");
    assert_fails(clb_pack_write(pack, in_path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_USAGE, "to be packed");
    char link_path[PATH_MAX];
    assert_int_equal(symlink("in.gguf", test_dir_file(&dir, "link", link_path)), 0);
    assert_fails(clb_pack_write(pack, link_path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_USAGE, "to be packed");
    assert_fails(clb_pack_write(pack, "/nonexistent/x.colibri", 0, &err), &err, COLIBRI_E_NOT_FOUND, "beside");
    /* A limit on file sizes stands for a full disk. */
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){1u << 20, old.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int rc = clb_pack_write(pack, out_path, CLB_GGUF_OVERWRITE, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_fails(rc, &err, COLIBRI_E_IO, "cannot write");
    size_t n;
    char *text = test_read_file(out_path, &n);
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(files_in(dir.path), 3); /* and the link */
    clb_pack_free(pack);
    test_pack_close(&o);
    clb_gguf_close(g);
}

static void expect_no_plan(test_source *s, int status, const char *part)
{
    clb_error err;
    clb_pack *pack;
    clb_pack_options o = test_pack_options(1);
    clb_gguf *g = test_source_open(s, in_path);
    assert_fails(clb_pack_create(g, &o, &pack, &err), &err, status, part);
    assert_null(pack);
    clb_gguf_close(g);
    test_pack_close(&o);
}

static void experts_that_do_not_fit(void **state)
{
    (void)state;
    test_source s;
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate.0.weight", 2, 32, 16, 0);
    test_source_add(&s, "blk.3.ffn_gate.2.weight", 2, 32, 16, 0);
    expect_no_plan(&s, COLIBRI_E_FORMAT, "lacks this tensor of another expert");
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate.1.weight", 2, 32, 16, 0);
    expect_no_plan(&s, COLIBRI_E_FORMAT, "lacks expert 0");
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate.0.weight", 2, 32, 16, 0);
    test_source_add(&s, "blk.3.ffn_gate.1.weight", 8, 32, 16, 0);
    expect_no_plan(&s, COLIBRI_E_UNSUPPORTED, "differs from expert 0's");
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate.0.weight", 2, 32, 16, 0);
    test_source_add(&s, "blk.3.ffn_gate_exps.weight", 2, 32, 16, 1);
    expect_no_plan(&s, COLIBRI_E_FORMAT, "one tensor per expert");
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate_exps.weight", 2, 32, 16, 4);
    test_source_add(&s, "blk.3.ffn_down_exps.weight", 2, 32, 16, 5);
    expect_no_plan(&s, COLIBRI_E_FORMAT, "different numbers of experts");
    test_source_begin(&s);
    test_source_add(&s, "blk.3.ffn_gate_up_exps.weight", 2, 32, 15, 4);
    expect_no_plan(&s, COLIBRI_E_FORMAT, "neither one tensor nor two");
}

static void packed_input_is_refused(void **state)
{
    (void)state;
    clb_gguf *g = open_source();
    test_pack(g, out_path, 1, 0);
    clb_gguf *p = open_packed(out_path);
    clb_error err;
    clb_pack *pack;
    clb_pack_options o = test_pack_options(1);
    assert_fails(clb_pack_create(p, &o, &pack, &err), &err, COLIBRI_E_USAGE, "packed already");
    test_pack_close(&o);
    clb_gguf_close(p);
    clb_gguf_close(g);
}

/* Without tensors: a vocabulary. */
static void empty_model(void **state)
{
    (void)state;
    test_source s;
    test_source_begin(&s);
    clb_gguf *g = test_source_open(&s, in_path);
    test_pack(g, out_path, 2, 0);
    clb_gguf *p = open_packed(out_path);
    assert_int_equal(clb_gguf_n_tensors(p), 0);
    clb_gguf_close(p);
    clb_gguf_close(g);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(everything_comes_back), TEST(threads_write_the_same_bytes),  TEST(pieces_hold_the_same),
        TEST(piece_of_another_kind), TEST(verification_names_bad_blocks), TEST(comparing_looks_at_the_source),
        TEST(nothing_half_written),  TEST(experts_that_do_not_fit),       TEST(packed_input_is_refused),
        TEST(empty_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
