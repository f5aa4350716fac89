/* Every table but one of each interface breaks a rule. TEST_AS_Q4: a newer edition, of lower rank, of the linked-in
 * plugin for Q4_0 and Q4_1, whose Q4_0 is broken. */
#include "common.h"

#define WILD(type) ((type)(uintptr_t)16)

static const struct colibri_matmul matmuls[] = {
    TEST_MATMUL(NULL, 1, 0, 1),
    TEST_MATMUL("has space", 1, 0, 1),
    TEST_MATMUL(WILD(const char *), 1, 0, 1),
    TEST_MATMUL("min-x-zero", 1, 0, 0),
    {.struct_size = 8, .name = "short"},
    {.struct_size = 1u << 30, .name = "long"},
    {.struct_size = sizeof(struct colibri_matmul), .min_x = 1, .name = "no-run", .act = COLIBRI_ACT_Q8X32},
    {.struct_size = sizeof(struct colibri_matmul), .min_x = 1, .name = "no-act", .run = test_run},
    {.struct_size = sizeof(struct colibri_matmul),
     .min_x = 1,
     .name = "wild-run",
     .act = COLIBRI_ACT_Q8X32,
     .run = WILD(void (*)(const struct colibri_matmul_args *))},
    {.struct_size = sizeof(struct colibri_matmul),
     .min_x = 1,
     .name = "layout",
     .act = COLIBRI_ACT_Q8X32,
     .layout = 9,
     .run = test_run},
    {.struct_size = sizeof(struct colibri_matmul),
     .min_x = 1,
     .name = "unknown-cpu",
     .act = COLIBRI_ACT_Q8X32,
     .cpu = {UINT64_C(1) << 63, 0},
     .run = test_run},
    TEST_MATMUL("sound", 7, 0, 1),
    TEST_MATMUL("sound", 8, 0, 1), /* twice the same name */
};

static void dequantize(const void *blocks, float *out, size_t n)
{
    (void)blocks;
    memset(out, 0, n * sizeof *out);
}

static int quantize(const float *in, void *blocks, size_t n, const float *importance)
{
    (void)in;
    (void)blocks;
    (void)n;
    (void)importance;
    return COLIBRI_E_UNSUPPORTED;
}

static void pack(const void *rows, size_t row_stride, uint32_t n_rows, uint32_t n_cols, void *group)
{
    (void)rows;
    (void)row_stride;
    (void)n_rows;
    (void)n_cols;
    (void)group;
}

static void unpack(const void *group, uint32_t n_rows, uint32_t n_cols, void *rows, size_t row_stride)
{
    (void)rows;
    (void)row_stride;
    (void)n_rows;
    (void)n_cols;
    (void)group;
}

static void quantize_act(const float *x, void *act, size_t n)
{
    (void)x;
    (void)act;
    (void)n;
}

static float dot(const void *row, const void *act, size_t n_cols)
{
    (void)row;
    (void)act;
    return (float)n_cols;
}

#define FORMAT(type, format_name, elems, bytes, act_elems, act_bytes, dot_function)                                    \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_format), .gguf_type = (type), .name = (format_name),                      \
        .block_elems = (elems), .block_bytes = (bytes), .layout = COLIBRI_LAYOUT_X16, .act_block_elems = (act_elems),  \
        .act_block_bytes = (act_bytes), .act = COLIBRI_ACT_Q8X32, .dequantize = dequantize, .quantize = quantize,      \
        .pack = pack, .unpack = unpack, .quantize_act = quantize_act, .dot = (dot_function), .matmul = test_run        \
    }

static const struct colibri_format formats[] = {
    FORMAT(COLIBRI_TYPE_Q4_0, "no-dot", 32, 18, 32, 40, NULL),
    FORMAT(COLIBRI_TYPE_Q4_0, "wrong-bytes", 32, 19, 32, 40, dot),
    FORMAT(COLIBRI_TYPE_Q4_0, "wrong-act", 32, 18, 32, 44, dot),
    FORMAT(200, "no-elems", 0, 18, 32, 40, dot),
    FORMAT(200, "act-wider", 32, 18, 64, 40, dot),
    FORMAT(200, "Q_TEST", 32, 21, 32, 40, dot), /* sound */
};

static const struct colibri_vecops vecops[] = {
    {.struct_size = sizeof(struct colibri_vecops), .name = "offers-nothing"},
    {.struct_size = sizeof(struct colibri_vecops),
     .name = "wild",
     .add = WILD(void (*)(float *, const float *, size_t))},
    {.struct_size = sizeof(struct colibri_vecops), .name = "sound-vec", .add = test_add},
};

static int pick(void *self, const struct colibri_expert_ref *candidates, uint32_t n_candidates, uint32_t n,
                uint32_t *out_index)
{
    (void)self;
    (void)candidates;
    (void)n_candidates;
    for (uint32_t i = 0; i < n; i++)
        out_index[i] = i;
    return COLIBRI_OK;
}

static const struct colibri_param bad_default[] = {{"decay", 0, 1, 2, 0, "a default outside of its limits"}};
static const struct colibri_param twice[] = {{"n", 0, 9, 1, 1, "a"}, {"n", 0, 9, 1, 1, "b"}};

#define POLICY(policy_name, ...)                                                                                       \
    {                                                                                                                  \
        .struct_size = sizeof(struct colibri_expert_policy), .name = (policy_name), .summary = "s", .source = "none",  \
        .create = test_create, .destroy = test_nothing, .reset = test_nothing, __VA_ARGS__                             \
    }

static const struct colibri_expert_policy policies[] = {
    POLICY("decides-nothing", .score = NULL),
    POLICY("decides-twice", .score = test_score, .pick_victims = pick),
    POLICY("bad-default", .score = test_score, .params = bad_default, .n_params = 1),
    POLICY("param-twice", .score = test_score, .params = twice, .n_params = 2),
    POLICY("no-params", .score = test_score, .n_params = 3),
    POLICY("sound-policy", .score = test_score),
};

#ifdef TEST_AS_Q4
static const struct colibri_format q4[] = {FORMAT(COLIBRI_TYPE_Q4_0, "Q4_0", 32, 18, 32, 40, NULL),
                                           FORMAT(COLIBRI_TYPE_Q4_1, "Q4_1", 32, 20, 32, 40, dot)};
#endif

static const void *get(const char *iface, uint32_t index)
{
#define LIST(name, table)                                                                                              \
    if (!strcmp(iface, name))                                                                                          \
    return index < sizeof table / sizeof *table ? &table[index] : NULL
#ifdef TEST_AS_Q4
    LIST(COLIBRI_IFACE_FORMAT, q4);
#endif
    LIST(COLIBRI_IFACE_MATMUL, matmuls);
    LIST(COLIBRI_IFACE_FORMAT, formats);
    LIST(COLIBRI_IFACE_VECOPS, vecops);
    LIST(COLIBRI_IFACE_EXPERT_POLICY, policies);
    return NULL;
}

#ifdef TEST_AS_Q4
COLIBRI_PLUGIN_DEFINE(colibri_format_q4, NULL, get, .id = "colibri.format.q4", .version = "9.0.0", .rank = -7,
                      .kinds = COLIBRI_KIND_FORMAT, .summary = "Q4_0 is broken", .license = "MIT");
#else
COLIBRI_PLUGIN_DEFINE(test_bad_tables, NULL, get, .id = "test.bad-tables", .version = "1.0.0",
                      .kinds = COLIBRI_KIND_KERNEL | COLIBRI_KIND_FORMAT | COLIBRI_KIND_EXPERT_POLICY,
                      .summary = "tables that break the rules", .license = "MIT");
#endif
