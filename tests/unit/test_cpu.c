/* CPU bits: claims that must not be believed, masks, cgroup quotas, the topology of this machine. */
#include "support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cpu/cpu.h"
#include "cpu/topology.h"

static struct colibri_cpu_bits bits_of(const char *names)
{
    struct colibri_cpu_bits b = {{0}};
    clb_error err;
    assert_ok(clb_cpu_parse(names, &b, &err), &err);
    return b;
}

static void assert_bits(struct colibri_cpu_bits bits, const char *names)
{
    char have[CLB_CPU_TEXT_MAX], want[CLB_CPU_TEXT_MAX];
    assert_string_equal(clb_cpu_format(bits, have), clb_cpu_format(bits_of(names), want));
}

#define V3  "sse3,ssse3,sse4_1,sse4_2,avx,f16c,fma,avx2,bmi2"
#define V4  V3 ",avx512f,avx512bw,avx512dq,avx512vl"
#define SPR V4 ",avx512vnni,avx512vbmi,avx512bf16,avx512fp16,avxvnni,amx_tile,amx_int8,amx_bf16"

/* A Sapphire Rapids server on which everything works. */
static clb_cpu_x86_claims spr(void)
{
    return (clb_cpu_x86_claims){
        .cpuid = bits_of(SPR), .osxsave = true, .xcr0 = 0x602e7, .amx_palettes = 1, .amx_permitted = true};
}

static void test_everything_usable(void **state)
{
    (void)state;
    const clb_cpu_x86_claims c = spr();
    assert_bits(clb_cpu_usable_x86(&c), SPR);
}

static void test_xcr0_without_zmm(void **state)
{
    (void)state;
    /* CPUID says AVX-512, but the kernel saves only YMM: every 512-bit instruction would fault. */
    static const uint64_t xcr0[] = {0x7, 0x7 | 1u << 5, 0x7 | 3u << 5, 0x7 | 3u << 6, 0x7 | 1u << 7};
    for (size_t i = 0; i < sizeof xcr0 / sizeof *xcr0; i++) {
        clb_cpu_x86_claims c = spr();
        c.xcr0 = xcr0[i];
        assert_bits(clb_cpu_usable_x86(&c), V3 ",avxvnni");
    }
}

static void test_xcr0_without_ymm(void **state)
{
    (void)state;
    /* F16C and FMA go too, although detection libraries list F16C without looking at XCR0. */
    static const uint64_t xcr0[] = {0, 1, 3, 5, 0xe3};
    for (size_t i = 0; i < sizeof xcr0 / sizeof *xcr0; i++) {
        clb_cpu_x86_claims c = spr();
        c.xcr0 = xcr0[i];
        assert_bits(clb_cpu_usable_x86(&c), "sse3,ssse3,sse4_1,sse4_2,bmi2");
    }
    clb_cpu_x86_claims c = spr();
    c.osxsave = false; /* then the value of xcr0 means nothing */
    assert_bits(clb_cpu_usable_x86(&c), "sse3,ssse3,sse4_1,sse4_2,bmi2");
}

/* AVX-VNNI without AVX-512, as on client CPUs: its state is YMM's. */
static void test_avx_vnni(void **state)
{
    (void)state;
    static const struct {
        uint32_t max_subleaf, edx0, eax1;
        const char *names;
    } leaves[] = {
        {1, 0, 1u << 4, "avxvnni"},
        {2, 0, UINT32_MAX, "avxvnni"},
        {1, 0, ~(1u << 4), ""},
        {0, 0, UINT32_MAX, ""}, /* no subleaf 1: what CPUID returns for it means nothing */
        {0, 1u << 23, UINT32_MAX, "avx512fp16"},
        {1, ~(1u << 23), 0, ""},
    };
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) {
        struct colibri_cpu_bits b = bits_of(V3);
        clb_cpu_claim_leaf7(&b, leaves[i].max_subleaf, leaves[i].edx0, leaves[i].eax1);
        assert_bits(clb_cpu_minus(b, bits_of(V3)), leaves[i].names);
        clb_cpu_claim_leaf7(&b, 1, 0, 0); /* says no as well as yes */
        assert_bits(b, V3);
    }
    clb_cpu_x86_claims c = {.cpuid = bits_of(V3 ",avxvnni"), .osxsave = true, .xcr0 = 0x7};
    assert_bits(clb_cpu_usable_x86(&c), V3 ",avxvnni");
    c.xcr0 = 0x3; /* the kernel does not save YMM */
    assert_bits(clb_cpu_usable_x86(&c), "sse3,ssse3,sse4_1,sse4_2,bmi2");
    c.xcr0 = 0x7;
    c.osxsave = false;
    assert_bits(clb_cpu_usable_x86(&c), "sse3,ssse3,sse4_1,sse4_2,bmi2");
}

static void test_amx_needs_all_three(void **state)
{
    (void)state;
    const char *const without = V4 ",avx512vnni,avx512vbmi,avx512bf16,avx512fp16,avxvnni";
    clb_cpu_x86_claims c = spr();
    c.amx_permitted = false;
    assert_bits(clb_cpu_usable_x86(&c), without);
    c = spr();
    c.amx_palettes = 0; /* seen on virtual machines: the bit is there, the tiles are not */
    assert_bits(clb_cpu_usable_x86(&c), without);
    c = spr();
    c.xcr0 &= ~(UINT64_C(1) << 18);
    assert_bits(clb_cpu_usable_x86(&c), without);
    c = spr();
    c.xcr0 &= ~(UINT64_C(1) << 17);
    assert_bits(clb_cpu_usable_x86(&c), without);
}

static void test_hypervisor_hides_a_prerequisite(void **state)
{
    (void)state;
    clb_cpu_x86_claims c = spr();
    clb_cpu_set(&c.cpuid, COLIBRI_CPU_BIT_AVX2, false);
    assert_bits(clb_cpu_usable_x86(&c), "sse3,ssse3,sse4_1,sse4_2,avx,f16c,fma,bmi2");
    c = spr();
    clb_cpu_set(&c.cpuid, COLIBRI_CPU_BIT_NEON, true); /* an ARM bit can never be usable here */
    assert_bits(clb_cpu_usable_x86(&c), SPR);
}

static void test_masks_close_downward(void **state)
{
    (void)state;
    static const struct {
        const char *have, *mask, *left;
    } cases[] = {
        {SPR, "avx2", "sse3,ssse3,sse4_1,sse4_2,avx,f16c,fma,bmi2"},
        {SPR, "avx", "sse3,ssse3,sse4_1,sse4_2,bmi2"},
        {SPR, "avx512f", V3 ",avxvnni"},
        {SPR, "fma", "sse3,ssse3,sse4_1,sse4_2,avx,f16c,avx2,bmi2,avxvnni"},
        {SPR, "avx512bw", V3 ",avx512f,avx512dq,avx512vl,avx512vnni,avxvnni,amx_tile,amx_int8,amx_bf16"},
        {SPR, "amx_tile", V4 ",avx512vnni,avx512vbmi,avx512bf16,avx512fp16,avxvnni"},
        {SPR, "avx512vnni", V4 ",avx512vbmi,avx512bf16,avx512fp16,avxvnni,amx_tile,amx_int8,amx_bf16"},
        {SPR, "all", ""},
        {SPR, "", SPR},
        {SPR, "sse3", "bmi2"},
        {V3, "avx512f,i8mm", V3},
        {"neon,asimdhp,dotprod,i8mm,sve,sve2,bf16", "asimdhp", "neon,dotprod,i8mm,bf16"},
        {"neon,asimdhp,dotprod,i8mm,sve,sve2,bf16", "neon", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_bits(clb_cpu_mask(bits_of(cases[i].have), bits_of(cases[i].mask)), cases[i].left);
}

static void test_parse(void **state)
{
    (void)state;
    assert_bits(bits_of(" avx2 , fma,,"), "fma,avx2");
    struct colibri_cpu_bits b = {{0}};
    clb_error err;
    assert_fails(clb_cpu_parse("avx2,avx512g", &b, &err), &err, COLIBRI_E_USAGE, "did you mean 'avx512f'");
    assert_fails(clb_cpu_parse("AVX2", &b, &err), &err, COLIBRI_E_USAGE, "'avx2'");
    assert_fails(clb_cpu_parse("quantum-entanglement-of-hummingbirds", &b, &err), &err, COLIBRI_E_USAGE, "lists them");
    char huge[3000];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_fails(clb_cpu_parse(huge, &b, &err), &err, COLIBRI_E_USAGE, "unknown CPU feature");
    char text[CLB_CPU_TEXT_MAX];
    assert_string_equal(clb_cpu_format((struct colibri_cpu_bits){{0}}, text), "none");
    assert_string_equal(clb_cpu_format((struct colibri_cpu_bits){{UINT64_C(1) << 63, 0}}, text), "bit 63");
    /* All names fit. */
    assert_true(strlen(clb_cpu_format(clb_cpu_known(), text)) < CLB_CPU_TEXT_MAX - 1);
    assert_true(test_contains(text, "bf16"));
    /* ... and where they do not, no name is cut. */
    clb_cpu_format((struct colibri_cpu_bits){{UINT64_MAX, UINT64_MAX}}, text);
    assert_true(strlen(text) < CLB_CPU_TEXT_MAX);
}

static void test_detect(void **state)
{
    (void)state;
    struct colibri_cpu_bits a, b;
    clb_cpu_detect(&a);
    clb_cpu_detect(&b); /* the second time AMX permission is already there */
    assert_memory_equal(&a, &b, sizeof a);
    const struct colibri_cpu_bits closed = clb_cpu_close(a);
    assert_memory_equal(&a, &closed, sizeof a);
#if defined(__x86_64__)
    assert_int_equal(a.w[1], 0);
    assert_int_equal(clb_cpu_has(&a, COLIBRI_CPU_BIT_AVX2), __builtin_cpu_supports("avx2") != 0);
    assert_int_equal(clb_cpu_has(&a, COLIBRI_CPU_BIT_AVX512F), __builtin_cpu_supports("avx512f") != 0);
    assert_int_equal(clb_cpu_has(&a, COLIBRI_CPU_BIT_AVX512VNNI), __builtin_cpu_supports("avx512vnni") != 0);
#else
    assert_int_equal(a.w[0], 0);
#endif
}

/* ---- cgroup quotas ---------------------------------------------------------------------------------------- */

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

static void assert_quota(const tree *t, double quota)
{
    assert_float_equal(clb_cgroup_cpu_quota(t->dir.path, t->proc), quota, 1e-9);
}

static void test_cgroup_v2(void **state)
{
    (void)state;
    tree t;
    plant(&t, "0::/user/work\n");
    assert_quota(&t, 0);
    put(&t, "user/work/cpu.max", "max 100000\n");
    assert_quota(&t, 0);
    put(&t, "user/cpu.max", "350000 100000\n");
    assert_quota(&t, 3.5);
    put(&t, "user/work/cpu.max", "150000 100000\n");
    assert_quota(&t, 1.5);
    put(&t, "user/cpu.max", "50000 100000\n"); /* an ancestor may grant less */
    assert_quota(&t, 0.5);
    put(&t, "user/cpu.max", "-1 0\n");
    put(&t, "user/work/cpu.max", "nonsense");
    assert_quota(&t, 0);
    test_dir_remove(&t.dir);

    /* In a container the path is often the host's and does not exist here: the limit is at the root. */
    plant(&t, "0::/../../docker/0123\n0::/kubepods/pod1/c2\n");
    put(&t, "cpu.max", "200000 100000\n");
    assert_quota(&t, 2);
    test_dir_remove(&t.dir);

    plant(&t, "0::/\n");
    put(&t, "cpu.max", "400000 100000\n");
    assert_quota(&t, 4);
    test_dir_remove(&t.dir);
}

static void test_cgroup_v1(void **state)
{
    (void)state;
    tree t;
    plant(&t, "5:memory:/x\n4:cpu,cpuacct:/docker/77\n0::/\n");
    put(&t, "cpu,cpuacct/docker/77/cpu.cfs_quota_us", "-1\n");
    put(&t, "cpu,cpuacct/docker/77/cpu.cfs_period_us", "100000\n");
    assert_quota(&t, 0);
    put(&t, "cpu,cpuacct/docker/77/cpu.cfs_quota_us", "250000\n");
    assert_quota(&t, 2.5);
    test_dir_remove(&t.dir);

    plant(&t, "4:cpuacct,cpu:/a\n3:cpuset:/b\n");
    put(&t, "cpu/a/cpu.cfs_quota_us", "100000\n");
    put(&t, "cpu/a/cpu.cfs_period_us", "50000\n");
    assert_quota(&t, 2);
    test_dir_remove(&t.dir);

    assert_float_equal(clb_cgroup_cpu_quota("/nowhere", "/nowhere/cgroup"), 0, 0);
}

static void test_default_threads(void **state)
{
    (void)state;
    static const struct {
        uint32_t cores;
        double quota;
        uint32_t threads;
    } cases[] = {{8, 0, 8}, {8, 1.5, 2}, {8, 0.2, 1}, {8, 8, 8}, {8, 64, 8}, {8, 2, 2}, {0, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const clb_topology t = {.cores = cases[i].cores, .quota = cases[i].quota};
        assert_int_equal(clb_topology_default_threads(&t), cases[i].threads);
    }
    const clb_topology hybrid = {.cores = 14, .fast_cores = 6};
    assert_int_equal(clb_topology_default_threads(&hybrid), 6);
    const clb_topology limited = {.cores = 14, .fast_cores = 6, .quota = 3.2};
    assert_int_equal(clb_topology_default_threads(&limited), 4);
}

/* Which kinds of cores get a thread by default. */
static void test_fast_kinds(void **state)
{
    (void)state;
    static const struct {
        clb_core_kind kinds[3];
        uint32_t n, cores;
        bool fast[3];
    } cases[] = {
        {{{8, "IntelAtom", 0}, {6, "IntelCore", 0}}, 2, 6, {false, true}},
        /* low-power cores are Atoms, too, and favoured P-cores a kind of their own */
        {{{2, "IntelAtom", 0}, {4, "IntelCore", 0}, {2, "IntelCore", 0}}, 3, 6, {false, true, true}},
        /* a phone: little, big, prime */
        {{{4, NULL, 250}, {3, NULL, 870}, {1, NULL, 1024}}, 3, 4, {false, true, true}},
        {{{4, NULL, 512}, {4, NULL, 1024}}, 2, 8, {true, true}},
        {{{4, NULL, 511}, {4, NULL, 1024}}, 2, 4, {false, true}},
        /* kinds that differ in their clock only, a machine of Atoms, and no kinds at all */
        {{{14, NULL, 0}, {2, NULL, 0}}, 2, 16, {true, true}},
        {{{8, "IntelAtom", 0}}, 1, 8, {true}},
        {{{0}}, 0, 0, {false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool fast[3] = {false};
        assert_int_equal(clb_fast_kinds(cases[i].kinds, cases[i].n, fast), cases[i].cores);
        for (uint32_t k = 0; k < cases[i].n; k++)
            assert_int_equal(fast[k], cases[i].fast[k]);
    }
}

struct bindings {
    cpu_set_t set[64];
};

static void note_binding(void *ctx, uint32_t worker, uint32_t n_workers)
{
    struct bindings *b = ctx;
    (void)n_workers;
    if (sched_getaffinity(0, sizeof b->set[worker], &b->set[worker]))
        CPU_ZERO(&b->set[worker]);
}

/* Bound workers share no CPU; the caller is bound only if asked, and released again. */
static void test_pins(void **state)
{
    (void)state;
    clb_topology t;
    clb_topology_read(&t);
    cpu_set_t before, after;
    if (t.cores < 2 || t.cores > 64 || sched_getaffinity(0, sizeof before, &before))
        skip();
    for (int caller = 0; caller < 2; caller++) {
        clb_pool *pool;
        clb_pins pins;
        clb_error err;
        struct bindings b;
        assert_ok(clb_pool_create(t.cores, &pool, &err), &err);
        assert_null(clb_pins_set(&pins, pool, true, caller));
        clb_pool_run(pool, note_binding, &b);
        for (uint32_t w = caller ? 0 : 1; w < t.cores; w++) {
            assert_true(CPU_COUNT(&b.set[w]) >= 1);
            for (uint32_t v = w + 1; v < t.cores; v++) {
                cpu_set_t both;
                CPU_AND(&both, &b.set[w], &b.set[v]);
                assert_int_equal(CPU_COUNT(&both), 0);
            }
        }
        assert_true(caller || CPU_EQUAL(&b.set[0], &before));
        clb_pool_destroy(pool);
        clb_pins_release(&pins);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));

        assert_ok(clb_pool_create(t.cores + 1, &pool, &err), &err);
        assert_non_null(clb_pins_set(&pins, pool, true, caller));
        clb_pool_run(pool, note_binding, &b);
        assert_true(CPU_EQUAL(&b.set[0], &before) && CPU_EQUAL(&b.set[1], &before));
        clb_pins_release(&pins);
        clb_pool_destroy(pool);
    }
    /* A process that somebody has placed is left alone, unless told otherwise. */
    if (t.cores < 3)
        return;
    cpu_set_t fewer = before;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &fewer)) {
            CPU_CLR(i, &fewer);
            break;
        }
    clb_pool *pool;
    clb_pins pins;
    clb_error err;
    assert_int_equal(sched_setaffinity(0, sizeof fewer, &fewer), 0);
    clb_topology_read(&t);
    assert_true(t.narrowed);
    assert_ok(clb_pool_create(t.cores, &pool, &err), &err);
    assert_non_null(clb_pins_set(&pins, pool, false, true));
    clb_pool_destroy(pool);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_topology(void **state)
{
    (void)state;
    clb_topology t;
    clb_topology_read(&t);
    assert_in_range(t.cores, 1, t.threads);
    assert_in_range(t.numa, 1, 1024);
    assert_true(*t.model);
    assert_in_range(clb_cpu_default_threads(), 1, t.cores);

    /* One hardware thread: one core, whatever the machine has. */
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    clb_topology_read(&t);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(t.threads, 1);
    assert_int_equal(t.cores, 1);
    assert_int_equal(clb_topology_default_threads(&t), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_usable),
        cmocka_unit_test(test_xcr0_without_zmm),
        cmocka_unit_test(test_xcr0_without_ymm),
        cmocka_unit_test(test_avx_vnni),
        cmocka_unit_test(test_amx_needs_all_three),
        cmocka_unit_test(test_hypervisor_hides_a_prerequisite),
        cmocka_unit_test(test_masks_close_downward),
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_cgroup_v2),
        cmocka_unit_test(test_cgroup_v1),
        cmocka_unit_test(test_default_threads),
        cmocka_unit_test(test_topology),
        cmocka_unit_test(test_fast_kinds),
        cmocka_unit_test(test_pins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
