/* Several packed files replace several old ones: all of them or none. */
#include "support/packed.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/internal.h"

#define MOST_FILES 16u

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

static unsigned files_there(void)
{
    unsigned n = 0;
    DIR *d = opendir(dir.path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static bool holds(const char *path, const char *text)
{
    if (access(path, F_OK))
        return false;
    size_t n;
    char *const is = test_read_file(path, &n);
    const bool same = n == strlen(text) && !memcmp(is, text, n);
    free(is);
    return same;
}

/* Called while blocks are written, so after the targets were examined: somebody else touches them. */
struct meddler {
    const char *appear, *vanish; /* NULL: not */
    atomic_bool done;
};

static bool meddle(void *ctx)
{
    struct meddler *const m = ctx;
    if (atomic_exchange(&m->done, true))
        return false;
    if (m->appear)
        test_write_text(m->appear, "intruder");
    if (m->vanish)
        (void)unlink(m->vanish);
    return false;
}

struct rig {
    clb_gguf *source;
    clb_pack_options o;
    clb_pack *pack;
    struct meddler meddler;
    uint32_t n;
    char *path[MOST_FILES];
};

static void open_rig(struct rig *r)
{
    clb_error err;
    test_source s;
    *r = (struct rig){0};
    test_source_begin(&s);
    for (int i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "m.%d", i);
        test_source_add(&s, name, 8, 1024, 1000, 0); /* 1 MiB */
    }
    r->source = test_source_open(&s, in_path);
    r->o = test_pack_options(2);
    r->o.split = 2u << 20;
    r->o.cancelled = meddle;
    r->o.cancelled_ctx = &r->meddler;
    assert_ok(clb_pack_create(r->source, &r->o, &r->pack, &err), &err);
    r->n = clb_pack_n_files(r->pack);
    assert_in_range(r->n, 3, MOST_FILES);
    for (uint32_t i = 0; i < r->n; i++)
        assert_ok(clb_pack_path(r->pack, out_path, i, &r->path[i], &err), &err);
}

static void close_rig(struct rig *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        free(r->path[i]);
    clb_pack_free(r->pack);
    test_pack_close(&r->o);
    clb_gguf_close(r->source);
}

static void write_old(const struct rig *r, uint32_t but)
{
    char text[24];
    for (uint32_t i = 0; i < r->n; i++) {
        snprintf(text, sizeof text, "old %u", i);
        if (i != but)
            test_write_text(r->path[i], text);
    }
}

/* One place is taken by somebody else's file when the new ones are moved there: at every number once. */
static void old_ones_stay(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    for (uint32_t taken = 0; taken < r.n; taken++) {
        clb_error err;
        write_old(&r, taken);
        (void)unlink(r.path[taken]);
        r.meddler.appear = r.path[taken];
        atomic_store(&r.meddler.done, false);
        assert_fails(clb_pack_write(r.pack, out_path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_IO, "cannot rename");
        for (uint32_t i = 0; i < r.n; i++) {
            char text[24];
            snprintf(text, sizeof text, "old %u", i);
            assert_true(holds(r.path[i], i == taken ? "intruder" : text));
        }
        assert_int_equal(files_there(), r.n + 1); /* and the source; neither .tmp- nor .old- */
    }
    close_rig(&r);
}

/* Without old ones nothing but the other's file is left. */
static void new_ones_go(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    clb_error err;
    r.meddler.appear = r.path[0]; /* the last one to be moved */
    assert_fails(clb_pack_write(r.pack, out_path, 0, &err), &err, COLIBRI_E_IO, "cannot rename");
    assert_true(holds(r.path[0], "intruder"));
    assert_int_equal(files_there(), 2);
    close_rig(&r);
}

static void all_are_replaced(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    for (uint32_t gone = 0; gone < 2; gone++) { /* also if an old one is removed meanwhile */
        clb_error err;
        clb_gguf *g;
        write_old(&r, UINT32_MAX);
        r.meddler.vanish = gone ? r.path[1] : NULL;
        atomic_store(&r.meddler.done, false);
        assert_ok(clb_pack_write(r.pack, out_path, CLB_GGUF_OVERWRITE, &err), &err);
        assert_int_equal(files_there(), r.n + 1);
        assert_ok(clb_gguf_open(r.path[0], NULL, NULL, &g, &err), &err);
        assert_int_equal(clb_gguf_n_shards(g), r.n);
        clb_gguf_close(g);
    }
    close_rig(&r);
}

/* Two names of one file: neither is lost when the second cannot be had. */
static void links_to_one_file(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r);
    clb_error err;
    write_old(&r, 1);
    assert_int_equal(symlink(strrchr(r.path[2], '/') + 1, r.path[1]), 0);
    assert_fails(clb_pack_write(r.pack, out_path, CLB_GGUF_OVERWRITE, &err), &err, COLIBRI_E_IO, "cannot rename");
    assert_true(holds(r.path[0], "old 0") && holds(r.path[1], "old 2") && holds(r.path[2], "old 2"));
    assert_int_equal(files_there(), r.n + 1);
    close_rig(&r);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {TEST(old_ones_stay), TEST(new_ones_go), TEST(all_are_replaced),
                                       TEST(links_to_one_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
