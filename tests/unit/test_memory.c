/* What memory there is: cgroup limits, and a system without /proc. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/memory.h"
#include "support.h"

typedef struct tree {
    test_dir dir;
    char proc[PATH_MAX];
} tree;

static void put(const tree *t, const char *file, const char *text)
{
    char path[PATH_MAX];
    test_dir_file(&t->dir, file, path);
    for (char *p = path + strlen(t->dir.path) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
    test_write_text(path, text);
}

static void plant(tree *t, const char *proc_cgroup)
{
    test_dir_create(&t->dir);
    put(t, "proc_cgroup", proc_cgroup);
    test_dir_file(&t->dir, "proc_cgroup", t->proc);
}

static void assert_room(const tree *t, uint64_t room)
{
    assert_int_equal(clb_memory_cgroup_room(t->dir.path, t->proc), room);
}

static void version_2(void **state)
{
    (void)state;
    tree t;
    plant(&t, "0::/user/work\n");
    assert_room(&t, UINT64_MAX);
    put(&t, "user/work/memory.max", "max\n");
    assert_room(&t, UINT64_MAX);
    put(&t, "user/memory.max", "1000000\n");
    assert_room(&t, 1000000);
    put(&t, "user/memory.current", "300000\n");
    assert_room(&t, 700000);
    put(&t, "user/memory.stat", "anon 1\ninactive_file 100000\n"); /* can be reclaimed */
    assert_room(&t, 800000);
    put(&t, "user/memory.stat", "anon 1\ninactive_file 100000\nactive_file 50000\n");
    assert_room(&t, 850000);
    put(&t, "user/memory.high", "900000\n"); /* beyond it the process is slowed down */
    assert_room(&t, 750000);
    put(&t, "user/memory.high", "max\n");
    put(&t, "user/memory.stat", "anon 1\ninactive_file 100000\n");
    assert_room(&t, 800000);
    put(&t, "user/work/memory.max", "5000\n");
    assert_room(&t, 5000);
    put(&t, "user/memory.current", "2000000\n"); /* over the limit already */
    assert_room(&t, 0);
    put(&t, "user/memory.max", "nonsense");
    assert_room(&t, 5000);
    test_dir_remove(&t.dir);
    assert_int_equal(clb_memory_cgroup_room("/nowhere", "/nowhere/cgroup"), UINT64_MAX);
}

/* Names of groups may have colons: some container runtimes make "/PARENT:cri-containerd:ID". */
static void colons_in_the_path(void **state)
{
    (void)state;
    tree t;
    plant(&t, "0::/pods.slice:cri-containerd:77\n");
    put(&t, "pods.slice:cri-containerd:77/memory.max", "4096\n");
    assert_room(&t, 4096);
    test_dir_remove(&t.dir);
    plant(&t, "9:cpu:/other\n5:memory:/pods:cri:77/x\n");
    put(&t, "memory/pods:cri:77/memory.limit_in_bytes", "8192\n");
    assert_room(&t, 8192);
    test_dir_remove(&t.dir);
}

static void this_process(void **state)
{
    (void)state;
    assert_true(clb_memory_resident() > 100000);
    assert_true(clb_memory_available() > 0);
}

/* In a chroot without /proc the numbers come from the kernel itself. */
static void without_proc(void **state)
{
    (void)state;
    test_dir dir;
    if (geteuid() != 0) {
        skip();
        return;
    }
    test_dir_create(&dir);
    assert_int_equal(chdir("/"), 0);
    if (chroot(dir.path)) {
        test_dir_remove(&dir);
        skip();
        return;
    }
    assert_true(clb_memory_available() > 1000000);
    assert_true(clb_memory_resident() > 100000);
    assert_int_equal(chroot("."), 0); /* the working folder is still outside */
    test_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_2),
        cmocka_unit_test(colons_in_the_path),
        cmocka_unit_test(this_process),
        cmocka_unit_test(without_proc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
