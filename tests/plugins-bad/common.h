/* Tiny components for test plugins: they compute nothing, only their tables are looked at. */
#ifndef TEST_PLUGIN_COMMON_H
#define TEST_PLUGIN_COMMON_H

#include <string.h>

#include "colibri/expert_policy.h"
#include "colibri/format.h"
#include "colibri/kernel.h"

static inline void test_run(const struct colibri_matmul_args *args)
{
    (void)args;
}

static inline void test_add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static inline void *test_create(const struct colibri_policy_config *config, char *why, size_t why_size)
{
    static char self; /* nothing is ever stored in it */
    (void)config;
    (void)why;
    (void)why_size;
    return &self;
}

static inline void test_nothing(void *self)
{
    (void)self;
}

static inline double test_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    return (double)layer + (double)expert;
}

/* A Q4_0 product in the layout and activations of that format. */
#define TEST_MATMUL(component_name, component_rank, ulp, smallest_x)                                                   \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_matmul), .gguf_type = COLIBRI_TYPE_Q4_0, .layout = COLIBRI_LAYOUT_X16,    \
        .max_ulp = (ulp), .rank = (component_rank), .min_x = (smallest_x), .name = (component_name),                   \
        .act = COLIBRI_ACT_Q8X32, .run = test_run                                                                      \
    }

#define TEST_POLICY(component_name)                                                                                    \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_expert_policy), .name = (component_name), .summary = "of a test plugin",  \
        .source = "none", .create = test_create, .destroy = test_nothing, .reset = test_nothing, .score = test_score   \
    }

/* The get function of a plugin with one table per interface. */
static inline const void *test_pick(const char *iface, uint32_t index, const char *name, const void *table)
{
    return index == 0 && !strcmp(iface, name) ? table : NULL;
}

#endif
