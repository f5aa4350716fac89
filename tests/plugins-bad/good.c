/* Nothing is wrong with this one: the yardstick of its neighbours. TEST_VERSION, TEST_RANK: another edition of it. */
#include "common.h"

#ifndef TEST_VERSION
#define TEST_VERSION "1.2.3"
#endif
#ifndef TEST_RANK
#define TEST_RANK 100
#endif

static const struct colibri_matmul matmuls[] = {TEST_MATMUL("good.q4_0", 100, COLIBRI_EXACT, 1),
                                                TEST_MATMUL("good.q4_0.batch", 100, COLIBRI_EXACT, 8)};
static const struct colibri_vecops vecops = {
    .struct_size = sizeof vecops, .rank = 100, .name = "good.vec", .add = test_add};
static const struct colibri_expert_policy policy = TEST_POLICY("good-policy");

static int init(const struct colibri_host *host, char *why, size_t why_size)
{
    (void)why;
    (void)why_size;
    if (host->abi_major != COLIBRI_ABI_MAJOR || host->query(host, "no.such.service/1"))
        return COLIBRI_E_PLUGIN;
    host->log(host, COLIBRI_LOG_DEBUG, "test.good", "hello\nworld");
    return COLIBRI_OK;
}

static const void *get(const char *iface, uint32_t index)
{
    if (!strcmp(iface, COLIBRI_IFACE_MATMUL))
        return index < sizeof matmuls / sizeof *matmuls ? &matmuls[index] : NULL;
    const void *const v = test_pick(iface, index, COLIBRI_IFACE_VECOPS, &vecops);
    return v ? v : test_pick(iface, index, COLIBRI_IFACE_EXPERT_POLICY, &policy);
}

COLIBRI_PLUGIN_DEFINE(test_good, init, get, .id = "test.good",
                      .kinds = COLIBRI_KIND_KERNEL | COLIBRI_KIND_EXPERT_POLICY, .rank = TEST_RANK,
                      .version = TEST_VERSION, .summary = "a plugin without faults", .license = "MIT");
