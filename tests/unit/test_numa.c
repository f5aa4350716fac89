/* Memory nodes: which one is chosen, that binding happens and is taken back. The machine with two nodes is hwloc's
 * synthetic one; binding to its first node is real. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/numa.h"
#include "support.h"
#include "support/engine.h"

#define GIB (UINT64_C(1) << 30)

static void the_node_with_most_room(void **state)
{
    (void)state;
    clb_numa_node n[3] = {{0, 4, 3 * GIB, 8 * GIB}, {1, 4, 6 * GIB, 8 * GIB}, {2, 8, 2 * GIB, 8 * GIB}};
    assert_int_equal(clb_numa_choose(n, 3), 1);
    n[1].threads = 0; /* memory without cores, as CXL memory is */
    assert_int_equal(clb_numa_choose(n, 3), 0);
    n[2].free_bytes = 3 * GIB - GIB / 8; /* as good: then the one with more cores */
    assert_int_equal(clb_numa_choose(n, 3), 2);
    n[2].threads = 4;
    assert_int_equal(clb_numa_choose(n, 3), 0);
    n[0].free_bytes = n[2].free_bytes = 0; /* unknown */
    assert_int_equal(clb_numa_choose(n, 3), 0);
    n[0].threads = n[2].threads = 0;
    assert_int_equal(clb_numa_choose(n, 3), 3);
    assert_int_equal(clb_numa_choose(n, 0), 0);
}

struct lines {
    char text[2000];
};

static void collect(void *ctx, int level, const char *line)
{
    struct lines *l = ctx;
    if (level <= COLIBRI_LOG_INFO && strlen(l->text) + strlen(line) + 2 < sizeof l->text)
        strcat(strcat(l->text, line), "\n");
}

static void two_node_machine(bool on)
{
    if (on) {
        setenv("HWLOC_SYNTHETIC", "pack:2 [numa(memory=4294967296)] core:1 pu:1", 1);
        setenv("HWLOC_THISSYSTEM", "1", 1); /* bind in earnest */
    } else {
        unsetenv("HWLOC_SYNTHETIC");
        unsetenv("HWLOC_THISSYSTEM");
    }
}

/* Of the calling thread, as the kernel has it: MPOL_DEFAULT 0, PREFERRED 1, BIND 2, INTERLEAVE 3. -1: not told. */
static int kernel_policy(void)
{
    int mode = -1;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL) ? -1 : mode;
}

static void this_machine(void **state)
{
    (void)state;
    clb_numa_node nodes[64];
    const uint32_t n = clb_numa_nodes(nodes, 64);
    assert_true(n >= 1);
    assert_true(nodes[0].threads >= 1);
    if (n > 1) {
        print_message("this machine has %u memory nodes\n", n);
        return;
    }
    struct lines l = {{0}};
    const clb_log log = {.level = COLIBRI_LOG_INFO, .write = collect, .ctx = &l};
    clb_error err;
    clb_numa numa;
    const int before = kernel_policy();
    assert_ok(clb_numa_set(&numa, CLB_NUMA_BIND, &log, &err), &err);
    assert_int_equal(numa.mode, CLB_NUMA_OFF);
    assert_non_null(strstr(l.text, "--numa bind changes nothing"));
    assert_ok(clb_numa_set(&numa, CLB_NUMA_INTERLEAVE, &log, &err), &err);
    assert_non_null(strstr(l.text, "--numa interleave changes nothing"));
    assert_int_equal(kernel_policy(), before);
    clb_numa_release(&numa);
    l.text[0] = '\0';
    assert_ok(clb_numa_set(&numa, CLB_NUMA_OFF, &log, &err), &err);
    assert_string_equal(l.text, "");
    clb_numa_release(&numa);
}

static void two_nodes(void **state)
{
    (void)state;
    clb_error err;
    cpu_set_t before, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (!CPU_ISSET(0, &before) || !CPU_ISSET(1, &before)) {
        print_message("skipped: CPUs 0 and 1 are not both usable\n");
        skip();
    }
    two_node_machine(true);
    clb_numa_node nodes[4];
    assert_int_equal(clb_numa_nodes(nodes, 4), 2);
    struct lines l = {{0}};
    const clb_log log = {.level = COLIBRI_LOG_INFO, .write = collect, .ctx = &l};
    const int policy = kernel_policy();
    clb_numa numa;
    const int rc = clb_numa_set(&numa, CLB_NUMA_BIND, &log, &err);
    if (rc) { /* containers may forbid it; then it is refused in words, and nothing is left behind */
        assert_int_equal(rc, COLIBRI_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "--numa bind: "));
    } else {
        assert_int_equal(numa.mode, CLB_NUMA_BIND);
        assert_int_equal(numa.node, 0); /* the only one of which the real system knows free memory */
        assert_non_null(strstr(l.text, "bound to memory node 0 of 2"));
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_int_equal(CPU_COUNT(&now), 1);
        assert_true(CPU_ISSET(0, &now));
        assert_true(kernel_policy() == 1 || kernel_policy() == 5); /* PREFERRED, PREFERRED_MANY */
    }
    clb_numa_release(&numa);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, &before));
    assert_int_equal(kernel_policy(), policy);
    if (clb_numa_set(&numa, CLB_NUMA_INTERLEAVE, &log, &err) == COLIBRI_OK) {
        assert_int_equal(kernel_policy(), 3);
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_true(CPU_EQUAL(&now, &before));
    }
    clb_numa_release(&numa);
    clb_numa_release(&numa);
    assert_int_equal(kernel_policy(), policy);
    two_node_machine(false);
}

/* The engine takes one worker per core of the node, and gives the caller's thread back as it was. */
static void engines(void **state)
{
    (void)state;
    clb_error err;
    cpu_set_t before, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (!CPU_ISSET(0, &before) || !CPU_ISSET(1, &before))
        skip();
    static const char *const modes[] = {"numa=bind", "numa=interleave", "numa=off"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        two_node_machine(true);
        const char *const settings[] = {modes[i], "ctx=256", "batch=32", NULL};
        test_engine e;
        const int rc = test_engine_open(&e, TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf"), settings, NULL, &err);
        if (rc)
            assert_int_equal(rc, COLIBRI_E_UNSUPPORTED);
        else
            assert_int_equal(clb_pool_workers(e.engine->pool), i == 0 ? 1 : 2);
        test_engine_close(&e);
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_true(CPU_EQUAL(&now, &before));
        assert_true(kernel_policy() <= 0);
        two_node_machine(false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_node_with_most_room),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(two_nodes),
        cmocka_unit_test(engines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
