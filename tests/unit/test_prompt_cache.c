/* The prompt cache: what is stored is loaded, by another handle, too; every damaged byte and every length is noticed;
 * files of others stay; the limit holds, a prefix's last blocks go first; a drive that takes nothing ends nothing. */
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kv/prompt_folder.h"

enum { TOKENS = 16, PAGES = 3, PAGE = 1024 };
#define SPACE 8192u /* a block of these on the drive */

typedef struct world {
    char dir[64];
    uint32_t tokens[TOKENS];
    uint8_t bytes[PAGES][PAGE];
    void *pages[PAGES];
    clb_prompt_block block;
    int warnings;
    clb_log log;
} world;

static void count(void *ctx, int level, const char *line)
{
    (void)line;
    ((world *)ctx)->warnings += level == COLIBRI_LOG_WARN;
}

/* Block `depth` of chain `chain`. */
static void make(world *w, uint8_t chain, uint32_t depth)
{
    for (uint32_t i = 0; i < TOKENS; i++)
        w->tokens[i] = chain * 1000u + depth * TOKENS + i;
    for (uint32_t i = 0; i < PAGES; i++) {
        for (uint32_t j = 0; j < PAGE; j++)
            w->bytes[i][j] = (uint8_t)(chain * 7u + depth * 31u + i * 13u + j);
        w->pages[i] = w->bytes[i];
    }
    w->block = (clb_prompt_block){
        .depth = depth, .n_tokens = TOKENS, .n_pages = PAGES, .tokens = w->tokens, .page_bytes = PAGE};
    memset(w->block.key, 0x5a, sizeof w->block.key);
    memset(w->block.parent, chain, sizeof w->block.parent);
    w->block.parent[1] = (uint8_t)depth;
    memset(w->block.hash, chain, sizeof w->block.hash);
    w->block.hash[1] = (uint8_t)(depth + 1);
}

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    strcpy(w->dir, "/tmp/clb-prompt-XXXXXX");
    if (!w || !mkdtemp(w->dir))
        return -1;
    w->log = (clb_log){.level = COLIBRI_LOG_WARN, .write = count, .ctx = w};
    make(w, 1, 0);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", w->dir);
    const int rc = system(command);
    free(w);
    return rc;
}

static clb_prompt_cache *open_cache(world *w, uint64_t max)
{
    clb_prompt_cache *c;
    clb_error err;
    assert_ok(clb_prompt_cache_open(w->dir, max, &w->log, &c, &err), &err);
    return c;
}

static const char *path_of(const world *w)
{
    static char path[160];
    char name[CLB_PROMPT_NAME];
    clb_prompt_name(w->block.hash, name);
    snprintf(path, sizeof path, "%s/%s", w->dir, name);
    return path;
}

static bool exists(const world *w)
{
    return access(path_of(w), F_OK) == 0;
}

static void store(world *w, clb_prompt_cache *c)
{
    clb_prompt_cache_store(c, &w->block, (const void *const *)w->pages);
}

/* Loads into other pages and compares. */
static bool load(world *w, clb_prompt_cache *c)
{
    static uint8_t got[PAGES][PAGE];
    void *pages[PAGES];
    memset(got, 0xee, sizeof got);
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = got[i];
    if (!clb_prompt_cache_load(c, &w->block, pages))
        return false;
    assert_memory_equal(got, w->bytes, sizeof got);
    return true;
}

static void test_round_trip(void **state)
{
    world *w = *state;
    struct stat st;
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    assert_false(load(w, c));
    store(w, c);
    store(w, c);
    assert_int_equal(clb_prompt_cache_get_stats(c).written, 1);
    clb_prompt_cache_close(c);
    assert_int_equal(stat(path_of(w), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal((uint64_t)st.st_size, clb_prompt_block_bytes(&w->block));
    c = open_cache(w, 1 << 20);
    assert_true(load(w, c));
    make(w, 2, 0);
    assert_false(load(w, c));
    assert_int_equal(w->warnings, 0);
    clb_prompt_cache_close(c);
}

/* Each byte wrong, each length: never loaded, removed, one warning a run; and written again. */
static void test_damage(void **state)
{
    world *w = *state;
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    const off_t size = (off_t)clb_prompt_block_bytes(&w->block);
    for (off_t i = 0; i < 2 * size; i++) {
        if (i > 300 && i % 37 && i != size - 1)
            continue;
        store(w, c);
        const int fd = open(path_of(w), O_RDWR);
        assert_true(fd >= 0);
        uint8_t byte;
        if (i < size) {
            assert_int_equal(pread(fd, &byte, 1, i), 1);
            byte ^= (uint8_t)(1u << (i % 8));
            assert_int_equal(pwrite(fd, &byte, 1, i), 1);
        } else {
            assert_int_equal(ftruncate(fd, i - size), 0);
        }
        close(fd);
        if (load(w, c))
            fail_msg("damage %ld was not noticed", (long)i);
        if (exists(w))
            fail_msg("damage %ld: the file stays", (long)i);
    }
    assert_int_equal(w->warnings, 1);
    store(w, c);
    assert_true(load(w, c));
    assert_int_equal(truncate(path_of(w), 1000), 0);
    store(w, c); /* never read, since one before it was not there */
    assert_true(load(w, c));
    clb_prompt_cache_close(c);
}

/* A sound block of another key under this name, something else, a link, a pipe: passed over, and they stay. */
static void test_foreign(void **state)
{
    world *w = *state;
    clb_error err;
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    int fd = open(path_of(w), O_RDWR | O_CREAT, 0600);
    w->block.key[0] ^= 1;
    assert_ok(clb_prompt_block_write(fd, &w->block, (const void *const *)w->pages, &err), &err);
    w->block.key[0] ^= 1;
    assert_false(load(w, c));
    assert_true(exists(w));
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, "a letter to somebody", 20, 0), 20);
    close(fd);
    assert_false(load(w, c));
    store(w, c);
    assert_false(load(w, c));
    assert_true(exists(w));
    assert_int_equal(unlink(path_of(w)), 0);
    assert_int_equal(symlink("/dev/zero", path_of(w)), 0);
    assert_false(load(w, c));
    assert_int_equal(unlink(path_of(w)), 0);
    assert_int_equal(mkfifo(path_of(w), 0600), 0);
    assert_false(load(w, c));
    assert_true(exists(w));
    assert_int_equal(w->warnings, 1);
    clb_prompt_cache_close(c);
}

static void test_limit(void **state)
{
    world *w = *state;
    clb_prompt_cache *c = open_cache(w, 8 * SPACE);
    assert_true(clb_prompt_block_bytes(&w->block) <= SPACE && clb_prompt_block_bytes(&w->block) > SPACE / 2 - 1024);
    const uint64_t each = clb_prompt_folder_room(clb_prompt_block_bytes(&w->block));
    const uint32_t most = (uint32_t)(8 * SPACE / each);
    /* An old chain whose first block was used longest ago, though its last one is newer than all others. */
    for (uint32_t i = 0; i < most + 3; i++) {
        make(w, 1, i);
        store(w, c);
        assert_true(clb_prompt_cache_get_stats(c).bytes <= 8 * SPACE);
    }
    make(w, 1, 0);
    assert_true(exists(w)); /* what follows it was used later */
    make(w, 1, most + 2);
    assert_true(exists(w));
    assert_true(clb_prompt_cache_get_stats(c).removed >= 3);
    clb_prompt_cache_close(c);
    c = open_cache(w, 2 * SPACE); /* a smaller limit holds at once */
    assert_true(clb_prompt_cache_get_stats(c).bytes <= 2 * SPACE);
    clb_prompt_cache_close(c);
    c = open_cache(w, 100); /* nothing fits: one warning */
    make(w, 3, 0);
    store(w, c);
    store(w, c);
    assert_false(exists(w));
    assert_int_equal(w->warnings, 1);
    clb_prompt_cache_close(c);
}

static void test_leaf_first(void **state)
{
    world *w = *state;
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}}, older[2] = {{.tv_sec = 500}, {.tv_sec = 500}};
    for (uint32_t i = 0; i < 4; i++) { /* all of chain 2 is equally old, of chain 1 only the first block is older */
        make(w, 2, i);
        store(w, c);
        assert_int_equal(utimensat(AT_FDCWD, path_of(w), old, 0), 0);
        make(w, 1, i);
        store(w, c);
        if (i == 0)
            assert_int_equal(utimensat(AT_FDCWD, path_of(w), older, 0), 0);
    }
    const uint64_t each = clb_prompt_cache_get_stats(c).bytes / 8;
    clb_prompt_cache_close(c);
    uint64_t bytes, removed = 0;
    clb_error err;
    const int dir = open(w->dir, O_RDONLY | O_DIRECTORY);
    assert_ok(clb_prompt_folder_scan(dir, false, 6 * each, 6 * each, &bytes, &removed, &err), &err);
    close(dir);
    assert_int_equal(removed, 2);
    for (uint32_t i = 0; i < 4; i++) {
        make(w, 2, i);
        assert_int_equal(exists(w), i < 2);
        make(w, 1, i);
        assert_true(exists(w));
    }
}

/* What a killed writer left is removed, what a living one writes stays, and so does everything else. */
static void test_leftovers(void **state)
{
    world *w = *state;
    char dead[200], living[200], other[200];
    snprintf(dead, sizeof dead, "%s" CLB_PROMPT_TEMP "0001", path_of(w));
    snprintf(living, sizeof living, "%s" CLB_PROMPT_TEMP "0002", path_of(w));
    snprintf(other, sizeof other, "%s/notes.txt", w->dir);
    close(open(dead, O_CREAT | O_WRONLY, 0600));
    close(open(other, O_CREAT | O_WRONLY, 0600));
    const int fd = open(living, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    clb_prompt_cache_close(open_cache(w, 1 << 20));
    assert_int_not_equal(access(dead, F_OK), 0);
    assert_int_equal(access(living, F_OK), 0);
    assert_int_equal(access(other, F_OK), 0);
    close(fd);
}

/* A limit on file sizes stands for a full drive; the signal that comes with it must not end an embedder. */
static void test_full(void **state)
{
    world *w = *state;
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 1000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    store(w, c);
    make(w, 2, 0);
    store(w, c);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(w->warnings, 1);
    assert_int_equal(clb_prompt_cache_get_stats(c).written, 0);
    clb_prompt_cache_close(c);
    uint32_t n = 0;
    DIR *d = opendir(w->dir);
    for (struct dirent *f; (f = readdir(d)) != NULL;)
        n += *f->d_name != '.';
    closedir(d);
    assert_int_equal(n, 0);
}

/* A drive that has room for `drive_blocks` files of the folder and says so when it is full, as write(2) and quotas do. */
static int drive_blocks = -1, drive_error = ENOSPC;
static const char *drive_dir;

static int files_in(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d)) != NULL;)
        n += *f->d_name != '.';
    closedir(d);
    return n;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (drive_blocks >= 0 && fd > 2 && files_in(drive_dir) > drive_blocks) {
        errno = drive_error;
        return -1;
    }
    return (ssize_t)syscall(SYS_write, fd, data, n);
}

/* A drive smaller than the limit: what is new takes the place of what was unused for longest, as at the limit, and one
 * warning says so. Without anything of its own to give up the cache keeps nothing more. */
static void test_small_drive(void **state)
{
    world *w = *state;
    const int errors[] = {ENOSPC, EDQUOT};
    for (uint8_t k = 0; k < 2; k++) {
        drive_error = errors[k];
        w->warnings = 0;
        clb_prompt_cache *c = open_cache(w, 1 << 20);
        const uint64_t removed = clb_prompt_cache_get_stats(c).removed;
        drive_dir = w->dir;
        drive_blocks = 4;
        for (uint32_t i = 0; i < 4; i++) {
            make(w, (uint8_t)(10 * k + 1), i);
            store(w, c);
        }
        assert_int_equal(w->warnings, k); /* the second time it is full of the first one's */
        for (uint32_t i = 0; i < 3; i++) {
            const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
            make(w, (uint8_t)(10 * k + 1), i + 1);
            assert_int_equal(utimensat(AT_FDCWD, path_of(w), old, 0), 0);
        }
        make(w, (uint8_t)(10 * k + 1), 0);
        clb_prompt_cache_touch(c, &w->block);
        for (uint32_t i = 0; i < 3; i++) {
            make(w, (uint8_t)(10 * k + 2), i);
            store(w, c);
            assert_true(exists(w));
        }
        assert_int_equal(w->warnings, 1);
        assert_int_equal(files_in(w->dir), 4);
        assert_true(clb_prompt_cache_get_stats(c).removed >= removed + 3);
        make(w, (uint8_t)(10 * k + 1), 0);
        assert_true(exists(w));
        clb_prompt_cache_close(c);
        drive_blocks = -1;
    }
    for (uint32_t i = 0; i < 3; i++) {
        make(w, 12, i);
        assert_int_equal(unlink(path_of(w)), 0);
    }
    make(w, 11, 0);
    assert_int_equal(unlink(path_of(w)), 0);
    w->warnings = 0;
    drive_blocks = 0; /* full of something else */
    clb_prompt_cache *c = open_cache(w, 1 << 20);
    for (uint32_t i = 0; i < 3; i++) {
        make(w, 30, i);
        store(w, c);
    }
    drive_blocks = -1;
    assert_int_equal(w->warnings, 1);
    assert_int_equal(files_in(w->dir), 0);
    clb_prompt_cache_close(c);
}

static void test_folders(void **state)
{
    world *w = *state;
    clb_prompt_cache *c;
    clb_error err;
    struct stat st;
    char path[160];
    assert_int_equal(chmod(w->dir, 0777), 0); /* others could put anything there */
    c = open_cache(w, 1 << 20);
    store(w, c);
    assert_false(exists(w));
    assert_false(load(w, c));
    assert_int_equal(w->warnings, 1);
    clb_prompt_cache_close(c);
    assert_int_equal(chmod(w->dir, 0700), 0);
    assert_ok(clb_prompt_cache_open("/proc/nothing/here", 1 << 20, &w->log, &c, &err), &err);
    store(w, c);
    assert_int_equal(w->warnings, 2);
    clb_prompt_cache_close(c);
    snprintf(path, sizeof path, "%s/a/b", w->dir);
    assert_ok(clb_prompt_cache_open(path, 1 << 20, &w->log, &c, &err), &err);
    clb_prompt_cache_close(c);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leaf_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leftovers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_drive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
