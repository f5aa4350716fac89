/* The loader: whatever the number of workers, the order of requests and the shapes, each matrix is the packed form of
 * the file's rows and each vector its dequantized elements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gguf/writer.h"
#include "plugin/open.h"
#include "store/store.h"
#include "support.h"

/* Chunks of the loader have 512 KiB: shapes below, at and above one, last groups of 1 to 15 rows, groups wider than a
 * chunk, formats that are packed and that are not. */
static const struct shape {
    uint32_t type, n_rows, n_cols;
} shapes[] = {
    {COLIBRI_TYPE_Q4_0, 1, 32},     {COLIBRI_TYPE_Q4_0, 4097, 256}, {COLIBRI_TYPE_Q8_0, 1023, 1024},
    {COLIBRI_TYPE_Q6_K, 777, 2048}, {COLIBRI_TYPE_F32, 333, 1000},  {COLIBRI_TYPE_F16, 5, 64},
    {COLIBRI_TYPE_Q4_K, 16, 32768}, {COLIBRI_TYPE_Q8_0, 20, 65536}, {COLIBRI_TYPE_BF16, 1000, 512},
    {COLIBRI_TYPE_MXFP4, 1999, 64}, {COLIBRI_TYPE_Q5_0, 130, 4096}, {COLIBRI_TYPE_Q2_K, 31, 256},
    {COLIBRI_TYPE_Q5_1, 48, 96},    {COLIBRI_TYPE_Q3_K, 15, 512},   {COLIBRI_TYPE_IQ4_XS, 17, 1024},
};
#define N_MATRICES (sizeof shapes / sizeof *shapes)
static const uint64_t lengths[] = {1, 7, 4096, 300000};
#define N_VECTORS (sizeof lengths / sizeof *lengths)

struct fixture {
    test_dir dir;
    char path[PATH_MAX];
    clb_registry *registry;
    clb_gguf *gguf;
};

static void name_of(size_t i, char out[32])
{
    snprintf(out, 32, "t%zu", i);
}

static int set_up(void **state)
{
    static struct fixture f;
    clb_error err;
    clb_config *config;
    assert_ok(clb_config_create(&config, &err), &err);
    assert_ok(clb_registry_from_config(config, COLIBRI_TEST_PLUGIN_DIR, NULL, &f.registry, &err), &err);
    clb_config_destroy(config);
    test_dir_create(&f.dir);
    test_dir_file(&f.dir, "weights.gguf", f.path);
    clb_gguf_writer *w;
    assert_ok(clb_gguf_writer_create(&w, &err), &err);
    test_rand rng = {1};
    void *data[N_MATRICES + N_VECTORS];
    for (size_t i = 0; i < N_MATRICES + N_VECTORS; i++) {
        char name[32];
        name_of(i, name);
        clb_gguf_new_tensor t = {.name = name, .type = COLIBRI_TYPE_F32, .n_dims = 1, .ne = {0, 1, 1, 1}};
        size_t bytes;
        if (i < N_MATRICES) {
            const struct colibri_format *format = clb_registry_format(f.registry, shapes[i].type, &err);
            assert_non_null(format);
            t.type = shapes[i].type;
            t.n_dims = 2;
            t.ne[0] = shapes[i].n_cols;
            t.ne[1] = shapes[i].n_rows;
            bytes = (size_t)shapes[i].n_rows * shapes[i].n_cols / format->block_elems * format->block_bytes;
        } else {
            t.ne[0] = lengths[i - N_MATRICES];
            bytes = (size_t)t.ne[0] * sizeof(float);
        }
        t.data = data[i] = malloc(bytes);
        assert_non_null(data[i]);
        test_rand_bytes(&rng, data[i], bytes);
        assert_ok(clb_gguf_writer_add_tensor(w, &t, &err), &err);
    }
    assert_ok(clb_gguf_writer_write(w, f.path, 0, &err), &err);
    clb_gguf_writer_free(w);
    for (size_t i = 0; i < N_MATRICES + N_VECTORS; i++)
        free(data[i]);
    assert_ok(clb_gguf_open(f.path, NULL, NULL, &f.gguf, &err), &err);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    clb_gguf_close(f->gguf);
    clb_registry_close(f->registry);
    test_dir_remove(&f->dir);
    return 0;
}

static const clb_gguf_tensor *tensor_of(const clb_gguf *g, size_t i)
{
    char name[32];
    name_of(i, name);
    const clb_gguf_tensor *t = clb_gguf_find_tensor(g, name);
    assert_non_null(t);
    return t;
}

static void bind(const struct fixture *f, size_t i, clb_matrix *m)
{
    clb_error err;
    assert_ok(clb_matrix_bind(f->registry, shapes[i].type, shapes[i].n_rows, shapes[i].n_cols, "t", m, &err), &err);
}

static void check_matrix(const clb_gguf *g, size_t i, const clb_matrix *m)
{
    clb_error err;
    const clb_gguf_tensor *t = tensor_of(g, i);
    uint8_t *rows = malloc((size_t)t->n_bytes), *want = malloc((size_t)m->bytes);
    assert_true(rows && want);
    assert_ok(clb_gguf_read(g, t, 0, rows, (size_t)t->n_bytes, &err), &err);
    clb_matrix_pack_groups(m, rows, want, 0, (m->n_rows + 15) / 16);
    assert_non_null(m->data);
    assert_int_equal((uintptr_t)m->data % 16, 0);
    if (memcmp(m->data, want, (size_t)m->bytes) != 0)
        fail_msg("matrix %zu differs", i);
    free(rows);
    free(want);
}

static void load_all(const struct fixture *f, const clb_gguf *g, uint32_t n_workers, enum clb_store_mode mode,
                     bool drop_cache, bool mlock, uint64_t seed)
{
    clb_error err;
    clb_pool *pool;
    clb_store *store;
    assert_ok(clb_pool_create(n_workers, &pool, &err), &err);
    const clb_store_options options = {
        .gguf = g, .registry = f->registry, .pool = pool, .mode = mode, .mlock = mlock, .drop_cache = drop_cache};
    assert_ok(clb_store_create(&options, &store, &err), &err);
    clb_matrix matrices[N_MATRICES];
    const float *vectors[N_VECTORS];
    size_t order[N_MATRICES + N_VECTORS];
    test_rand rng = {seed};
    for (size_t i = 0; i < N_MATRICES + N_VECTORS; i++) {
        const size_t j = test_rand_below(&rng, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    uint64_t bytes = 0;
    for (size_t k = 0; k < N_MATRICES + N_VECTORS; k++) {
        const size_t i = order[k];
        const clb_gguf_tensor *t = tensor_of(g, i);
        bytes += t->n_bytes;
        if (i < N_MATRICES) {
            bind(f, i, &matrices[i]);
            assert_ok(clb_store_load_matrix(store, t, 0, &matrices[i], &err), &err);
        } else {
            assert_ok(clb_store_load_floats(store, t, &vectors[i - N_MATRICES], &err), &err);
        }
    }
    assert_ok(clb_store_load(store, &err), &err);
    for (size_t i = 0; i < N_MATRICES; i++)
        check_matrix(g, i, &matrices[i]);
    for (size_t i = 0; i < N_VECTORS; i++) {
        float *want = malloc((size_t)lengths[i] * sizeof *want);
        assert_non_null(want);
        assert_ok(clb_gguf_read(g, tensor_of(g, N_MATRICES + i), 0, want, (size_t)lengths[i] * sizeof *want, &err),
                  &err);
        assert_memory_equal(vectors[i], want, (size_t)lengths[i] * sizeof *want);
        free(want);
    }
    clb_store_stats s;
    clb_store_get_stats(store, &s);
    assert_int_equal(s.load_bytes, bytes);
    assert_true(s.load_ns > 0);
    assert_ok(clb_store_load(store, &err), &err); /* nothing is queued any more */
    clb_store_destroy(store);
    clb_pool_destroy(pool);
}

static void every_way_the_same(void **state)
{
    const struct fixture *f = *state;
    for (uint32_t n = 1; n <= 5; n += n == 3 ? 2 : 1)
        for (int mode = CLB_STORE_READ; mode <= CLB_STORE_MMAP; mode++)
            load_all(f, f->gguf, n, (enum clb_store_mode)mode, n % 2, false, n);
}

/* A file in memory has no descriptor to give advice on. */
static void from_memory(void **state)
{
    const struct fixture *f = *state;
    clb_error err;
    size_t n;
    clb_gguf *g;
    char *bytes = test_read_file(f->path, &n);
    assert_ok(clb_gguf_open_memory(bytes, n, "memory", NULL, NULL, &g, &err), &err);
    load_all(f, g, 3, CLB_STORE_READ, true, false, 9);
    clb_gguf_close(g);
    free(bytes);
}

static void locked(void **state)
{
    const struct fixture *f = *state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    if (limit.rlim_cur < (UINT64_C(32) << 20) && geteuid() != 0)
        skip();
    load_all(f, f->gguf, 2, CLB_STORE_READ, false, true, 5);
}

/* A short file: an error that names it, no data, and the store can still be destroyed. */
static void a_short_file_fails(void **state)
{
    const struct fixture *f = *state;
    clb_error err;
    size_t n;
    char *bytes = test_read_file(f->path, &n), path[PATH_MAX];
    test_dir_file(&f->dir, "short.gguf", path);
    test_write_file(path, bytes, n);
    free(bytes);
    clb_gguf *g;
    clb_pool *pool;
    clb_store *store;
    assert_ok(clb_gguf_open(path, NULL, NULL, &g, &err), &err);
    const clb_gguf_tensor *t = tensor_of(g, 2);
    assert_int_equal(truncate(path, (off_t)(t->offset + t->n_bytes / 2)), 0);
    assert_ok(clb_pool_create(3, &pool, &err), &err);
    const clb_store_options options = {.gguf = g, .registry = f->registry, .pool = pool};
    assert_ok(clb_store_create(&options, &store, &err), &err);
    clb_matrix whole, cut;
    bind(f, 1, &whole);
    bind(f, 2, &cut);
    assert_ok(clb_store_load_matrix(store, tensor_of(g, 1), 0, &whole, &err), &err);
    assert_ok(clb_store_load_matrix(store, t, 0, &cut, &err), &err);
    assert_fails(clb_store_load(store, &err), &err, COLIBRI_E_IO, "truncated");
    assert_null(whole.data);
    assert_null(cut.data);
    clb_store_destroy(store);
    clb_pool_destroy(pool);
    clb_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_the_same), cmocka_unit_test(from_memory),
                                       cmocka_unit_test(locked), cmocka_unit_test(a_short_file_fails)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
