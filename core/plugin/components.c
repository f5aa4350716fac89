#include "plugin/components.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "colibri/expert_policy.h"
#include "colibri/format.h"
#include "colibri/kv_strategy.h"
#include "colibri/predictor.h"
#include "plugin/mapped.h"
#include "plugin/note.h"

const clb_iface_info *clb_iface_get(enum clb_iface iface)
{
    static const clb_iface_info info[CLB_IFACE_COUNT] = {
        [CLB_IFACE_FORMAT] = {COLIBRI_IFACE_FORMAT, "format", COLIBRI_KIND_FORMAT},
        [CLB_IFACE_MATMUL] = {COLIBRI_IFACE_MATMUL, "matmul", COLIBRI_KIND_KERNEL},
        [CLB_IFACE_VECOPS] = {COLIBRI_IFACE_VECOPS, "vecops", COLIBRI_KIND_KERNEL},
        [CLB_IFACE_EXPERT_POLICY] = {COLIBRI_IFACE_EXPERT_POLICY, "expert-policy", COLIBRI_KIND_EXPERT_POLICY},
        [CLB_IFACE_PREDICTOR] = {COLIBRI_IFACE_PREDICTOR, "predictor", COLIBRI_KIND_PREDICTOR},
        [CLB_IFACE_KV_STRATEGY] = {COLIBRI_IFACE_KV_STRATEGY, "kv-strategy", COLIBRI_KIND_KV_STRATEGY},
    };
    return &info[iface];
}

#define MEMBER(m)                                                                                                      \
    {                                                                                                                  \
#m, offsetof(struct colibri_vecops, m)                                                                         \
    }
const clb_vecop_member clb_vecop_members[] = {
    MEMBER(rms_norm),  MEMBER(rope),     MEMBER(softmax),    MEMBER(swiglu),     MEMBER(add),
    MEMBER(axpy),      MEMBER(scale),    MEMBER(act_q8x32),  MEMBER(act_q8x256), MEMBER(f32_to_f16),
    MEMBER(attention), MEMBER(axpy_x16), MEMBER(f16_to_f32),
};
#undef MEMBER
const size_t clb_n_vecop_members = sizeof clb_vecop_members / sizeof *clb_vecop_members;

const void *clb_vecop_code(const struct colibri_vecops *table, const clb_vecop_member *member)
{
    const void *code = NULL;
    if (table->struct_size >= member->offset + sizeof code) /* else it was appended after this plugin was built */
        memcpy(&code, (const char *)table + member->offset, sizeof code);
    return code;
}

/* Types whose blocks the GGUF format fixes. */
static const struct {
    uint32_t type;
    const char *name;
    uint32_t elems, bytes;
} types[] = {
    {COLIBRI_TYPE_F32, "F32", 1, 4},
    {COLIBRI_TYPE_F16, "F16", 1, 2},
    {COLIBRI_TYPE_BF16, "BF16", 1, 2},
    {COLIBRI_TYPE_Q4_0, "Q4_0", 32, sizeof(struct colibri_q4_0)},
    {COLIBRI_TYPE_Q4_1, "Q4_1", 32, sizeof(struct colibri_q4_1)},
    {COLIBRI_TYPE_Q5_0, "Q5_0", 32, sizeof(struct colibri_q5_0)},
    {COLIBRI_TYPE_Q5_1, "Q5_1", 32, sizeof(struct colibri_q5_1)},
    {COLIBRI_TYPE_Q8_0, "Q8_0", 32, sizeof(struct colibri_q8_0)},
    {COLIBRI_TYPE_Q2_K, "Q2_K", 256, sizeof(struct colibri_q2_k)},
    {COLIBRI_TYPE_Q3_K, "Q3_K", 256, sizeof(struct colibri_q3_k)},
    {COLIBRI_TYPE_Q4_K, "Q4_K", 256, sizeof(struct colibri_q4_k)},
    {COLIBRI_TYPE_Q5_K, "Q5_K", 256, sizeof(struct colibri_q5_k)},
    {COLIBRI_TYPE_Q6_K, "Q6_K", 256, sizeof(struct colibri_q6_k)},
    {COLIBRI_TYPE_IQ4_NL, "IQ4_NL", 32, sizeof(struct colibri_iq4_nl)},
    {COLIBRI_TYPE_IQ4_XS, "IQ4_XS", 256, sizeof(struct colibri_iq4_xs)},
    {COLIBRI_TYPE_MXFP4, "MXFP4", 32, sizeof(struct colibri_mxfp4)},
};

static const struct {
    const char *name;
    uint32_t elems, bytes;
} acts[] = {
    {COLIBRI_ACT_F32, 1, 4},
    {COLIBRI_ACT_Q8X32, 32, sizeof(struct colibri_act_q8x32)},
    {COLIBRI_ACT_Q8X256, 256, sizeof(struct colibri_act_q8x256)},
};

const char *clb_type_name(uint32_t gguf_type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == gguf_type)
            return types[i].name;
    return NULL;
}

/* ---- checks common to all --------------------------------------------------------------------------------- */

#define BAD(...) clb_fail(err, COLIBRI_E_PLUGIN, __VA_ARGS__)

static int check_size(const void *table, size_t v1_size, clb_error *err)
{
    const size_t mapped = clb_mapped_size(table, false);
    if (mapped < sizeof(uint32_t))
        return BAD("the table lies outside of every loaded object");
    if ((uintptr_t)table % _Alignof(void *))
        return BAD("the table is not aligned");
    const uint32_t size = *(const uint32_t *)table;
    if (size < v1_size || size > 65536 || size % 4)
        return BAD("struct_size %u: at least %zu are needed", size, v1_size);
    if (size > mapped)
        return BAD("struct_size %u reaches over the end of its object", size);
    return COLIBRI_OK;
}

static int check_name(const char *name, clb_error *err)
{
    if (!clb_mapped_string(name, COLIBRI_ID_MAX) || !clb_component_name_valid(name))
        return BAD("the name is missing or not 1..%d characters of [A-Za-z0-9._+-]", COLIBRI_ID_MAX - 1);
    return COLIBRI_OK;
}

static int check_text(const char *text, const char *member, clb_error *err)
{
    if (!clb_mapped_string(text, 1024))
        return BAD("%s is not a string of at most 1023 bytes", member);
    return clb_text_printable(text) ? COLIBRI_OK : BAD("%s is not printable UTF-8", member);
}

static bool is_code(const void *p)
{
    return clb_mapped_size(p, true) > 0;
}

/* A required, or an optional, function pointer. */
#define CODE(t, member)                                                                                                \
    do {                                                                                                               \
        if (!(t)->member)                                                                                              \
            return BAD(#member " is NULL");                                                                            \
        OPTIONAL_CODE(t, member);                                                                                      \
    } while (0)
#define OPTIONAL_CODE(t, member)                                                                                       \
    do {                                                                                                               \
        if ((t)->member && !is_code((const void *)(uintptr_t)(t)->member))                                             \
            return BAD(#member " points to no code");                                                                  \
    } while (0)

static int check_cpu(const uint64_t cpu[COLIBRI_CPU_WORDS], clb_error *err)
{
    static const uint64_t known[COLIBRI_CPU_WORDS] = {
#define WORD(word, bit)        ((bit) / 64 == (word) ? UINT64_C(1) << ((bit) % 64) : 0)
#define WORD0(name, bit, text) | WORD(0, bit)
#define WORD1(name, bit, text) | WORD(1, bit)
        0 COLIBRI_CPU_MAP(WORD0), 0 COLIBRI_CPU_MAP(WORD1)
#undef WORD0
#undef WORD1
#undef WORD
    };
    for (size_t i = 0; i < COLIBRI_CPU_WORDS; i++)
        if (cpu[i] & ~known[i])
            return BAD("it needs CPU features that this Colibri does not know (word %zu: 0x%llx)", i,
                       (unsigned long long)(cpu[i] & ~known[i]));
    return COLIBRI_OK;
}

static int check_params(const struct colibri_param *p, uint32_t n, clb_error *err)
{
    if (!n)
        return COLIBRI_OK;
    if (n > 256)
        return BAD("%u parameters: at most 256", n);
    if ((uintptr_t)p % _Alignof(struct colibri_param) || clb_mapped_size(p, false) < n * sizeof *p)
        return BAD("its parameter table lies outside of every loaded object");
    for (uint32_t i = 0; i < n; i++) {
        if (check_name(p[i].name, err))
            return clb_context(err, "parameter %u", i);
        if (check_text(p[i].summary, "summary", err))
            return clb_context(err, "parameter %s", p[i].name);
        if (!isfinite(p[i].min) || !isfinite(p[i].max) || !(p[i].min <= p[i].value && p[i].value <= p[i].max))
            return BAD("parameter %s: the default %g is not within its limits %g..%g", p[i].name, p[i].value, p[i].min,
                       p[i].max);
        if (p[i].integer && floor(p[i].value) != p[i].value)
            return BAD("parameter %s: the default %g is not a whole number", p[i].name, p[i].value);
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(p[i].name, p[j].name))
                return BAD("two parameters are called %s", p[i].name);
    }
    return COLIBRI_OK;
}

static int check_act(const char *act, clb_error *err)
{
    if (!clb_mapped_string(act, COLIBRI_ID_MAX) || !clb_component_name_valid(act))
        return BAD("the activation format is missing or misspelt");
    return COLIBRI_OK;
}

/* ---- formats ---------------------------------------------------------------------------------------------- */

static int check_geometry(const struct colibri_format *f, clb_error *err)
{
    if (!f->block_elems || f->block_elems > 65536 || !f->block_bytes || f->block_bytes > (1u << 20))
        return BAD("blocks of %u elements in %u bytes", f->block_elems, f->block_bytes);
    if (!f->act_block_elems || f->block_elems % f->act_block_elems || !f->act_block_bytes ||
        f->act_block_bytes > (1u << 20) || f->act_block_bytes % 4)
        return BAD(
            "activation blocks of %u elements in %u bytes: the elements must divide %u, the bytes be a multiple of 4",
            f->act_block_elems, f->act_block_bytes, f->block_elems);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == f->gguf_type && (types[i].elems != f->block_elems || types[i].bytes != f->block_bytes))
            return BAD("GGUF type %u (%s) has blocks of %u elements in %u bytes, not of %u in %u", f->gguf_type,
                       types[i].name, types[i].elems, types[i].bytes, f->block_elems, f->block_bytes);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i].name, f->act) &&
            (acts[i].elems != f->act_block_elems || acts[i].bytes != f->act_block_bytes))
            return BAD("activation format %s has blocks of %u elements in %u bytes, not of %u in %u", f->act,
                       acts[i].elems, acts[i].bytes, f->act_block_elems, f->act_block_bytes);
    return COLIBRI_OK;
}

static int check_format(const struct colibri_format *f, clb_error *err)
{
    CLB_TRY(check_act(f->act, err));
    CLB_TRY(check_geometry(f, err));
    if (f->layout != COLIBRI_LAYOUT_ROWS && f->layout != COLIBRI_LAYOUT_X16)
        return BAD("layout %u does not exist", f->layout);
    CODE(f, dequantize);
    CODE(f, quantize);
    CODE(f, quantize_act);
    CODE(f, dot);
    CODE(f, matmul);
    if (f->layout == COLIBRI_LAYOUT_X16) {
        CODE(f, pack);
        CODE(f, unpack);
    } else {
        OPTIONAL_CODE(f, pack);
        OPTIONAL_CODE(f, unpack);
    }
    return COLIBRI_OK;
}

/* ---- kernels ---------------------------------------------------------------------------------------------- */

static int check_matmul(const struct colibri_matmul *m, clb_error *err)
{
    CLB_TRY(check_act(m->act, err));
    CLB_TRY(check_cpu(m->cpu, err));
    if (m->layout != COLIBRI_LAYOUT_ROWS && m->layout != COLIBRI_LAYOUT_X16)
        return BAD("layout %u does not exist", m->layout);
    if (!m->min_x)
        return BAD("min_x is 0: the smallest number of activation rows is 1");
    if (m->scratch_bytes > (64u << 20))
        return BAD("scratch of %zu bytes: at most 64 MiB per thread", m->scratch_bytes);
    CODE(m, run);
    return COLIBRI_OK;
}

static int check_vecops(const struct colibri_vecops *v, clb_error *err)
{
    CLB_TRY(check_cpu(v->cpu, err));
    size_t offered = 0;
    for (size_t i = 0; i < clb_n_vecop_members; i++) {
        const void *const code = clb_vecop_code(v, &clb_vecop_members[i]);
        if (code && !is_code(code))
            return BAD("%s points to no code", clb_vecop_members[i].name);
        offered += code != NULL;
    }
    if (v->attention_takes && !v->attention)
        return BAD("attention_takes is 0x%x, but it has no attention", v->attention_takes);
    return offered ? COLIBRI_OK : BAD("it offers no operation");
}

/* ---- policies, predictors, strategies --------------------------------------------------------------------- */

static int check_expert_policy(const struct colibri_expert_policy *p, clb_error *err)
{
    CLB_TRY(check_text(p->summary, "summary", err));
    CLB_TRY(check_text(p->source, "source", err));
    CLB_TRY(check_params(p->params, p->n_params, err));
    CODE(p, create);
    CODE(p, destroy);
    CODE(p, reset);
    OPTIONAL_CODE(p, on_step);
    OPTIONAL_CODE(p, on_route);
    OPTIONAL_CODE(p, on_access);
    OPTIONAL_CODE(p, on_insert);
    OPTIONAL_CODE(p, on_evict);
    OPTIONAL_CODE(p, admit);
    OPTIONAL_CODE(p, score);
    OPTIONAL_CODE(p, pick_victims);
    OPTIONAL_CODE(p, rebudget);
    OPTIONAL_CODE(p, save);
    OPTIONAL_CODE(p, load);
    OPTIONAL_CODE(p, explain);
    if (COLIBRI_HAS(p, state_bytes))
        OPTIONAL_CODE(p, state_bytes);
    if (!p->score == !p->pick_victims)
        return BAD("exactly one of score and pick_victims is needed, it has %s", p->score ? "both" : "neither");
    return COLIBRI_OK;
}

static int check_predictor(const struct colibri_predictor *p, clb_error *err)
{
    CLB_TRY(check_text(p->summary, "summary", err));
    CLB_TRY(check_text(p->source, "source", err));
    CLB_TRY(check_params(p->params, p->n_params, err));
    CODE(p, create);
    CODE(p, destroy);
    CODE(p, reset);
    OPTIONAL_CODE(p, on_step);
    OPTIONAL_CODE(p, on_route);
    CODE(p, predict);
    OPTIONAL_CODE(p, on_result);
    if (COLIBRI_HAS(p, state_bytes))
        OPTIONAL_CODE(p, state_bytes);
    return COLIBRI_OK;
}

#define KV_NEEDS_ALL    0xfffu
#define KV_NEEDS_ROWS   (COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_K_PRE_ROPE | COLIBRI_KV_NEED_V)
#define KV_NEEDS_WINDOW (COLIBRI_KV_NEED_PROB_LAST_W | COLIBRI_KV_NEED_Q_LAST_W | COLIBRI_KV_NEED_Q_STATS)
#define KV_TRIGGERS_ALL 0xfu
#define KV_FLAGS_ALL    0xfu

/* What ABI 1.1 appended. A wrapper may get from its child what it lacks itself; the host looks at the whole chain. */
static int check_kv_appended(const struct colibri_kv_strategy *s, clb_error *err)
{
    const bool allots = COLIBRI_HAS(s, allot) && s->allot, merges = COLIBRI_HAS(s, merge) && s->merge;
    const bool picks = COLIBRI_HAS(s, pick_pages) && s->pick_pages;
    const bool wraps = s->flags & COLIBRI_KV_FLAG_WRAPPER, keeps = s->flags & COLIBRI_KV_FLAG_KEEPS_ALL;
    if (COLIBRI_HAS(s, allot))
        OPTIONAL_CODE(s, allot);
    if (COLIBRI_HAS(s, merge))
        OPTIONAL_CODE(s, merge);
    if (COLIBRI_HAS(s, pick_pages))
        OPTIONAL_CODE(s, pick_pages);
    if (COLIBRI_HAS(s, state_bytes))
        OPTIONAL_CODE(s, state_bytes);
    if (wraps && keeps)
        return BAD("a wrapper cannot declare KEEPS_ALL: whether anything is dropped is up to its child");
    if (allots && (s->select || !s->score))
        return BAD("allot divides a budget by scores: it needs score, and no select");
    if ((allots || merges || s->needs & KV_NEEDS_ROWS) && !keeps && !wraps && !(s->flags & COLIBRI_KV_FLAG_PER_HEAD))
        return BAD("it %s, which is about single heads, but does not declare PER_HEAD", allots ? "has allot"
                                                                                        : merges
                                                                                            ? "has merge"
                                                                                            : "needs keys or values");
    if (picks && !keeps)
        return BAD("pick_pages drops nothing, so it must declare KEEPS_ALL");
    if (picks && s->positions == COLIBRI_KV_POS_COMPACT)
        return BAD("pick_pages drops nothing, so positions have no gaps to compact");
    if (s->needs & COLIBRI_KV_NEED_PAGE_MINMAX && !picks)
        return BAD("PAGE_MINMAX is for strategies with pick_pages");
    return COLIBRI_OK;
}

static int check_kv_strategy(const struct colibri_kv_strategy *s, clb_error *err)
{
    CLB_TRY(check_text(s->summary, "summary", err));
    CLB_TRY(check_text(s->source, "source", err));
    CLB_TRY(check_params(s->params, s->n_params, err));
    CODE(s, create);
    CODE(s, destroy);
    CODE(s, reset);
    OPTIONAL_CODE(s, budget);
    OPTIONAL_CODE(s, select);
    OPTIONAL_CODE(s, score);
    OPTIONAL_CODE(s, on_append);
    OPTIONAL_CODE(s, on_evict);
    OPTIONAL_CODE(s, fork);
    if (s->needs & ~KV_NEEDS_ALL || s->triggers & ~KV_TRIGGERS_ALL)
        return BAD("it asks for needs 0x%x and triggers 0x%x, some of which do not exist", s->needs, s->triggers);
    if (s->flags & ~KV_FLAGS_ALL) /* what they mean to a later host this one would not do */
        return BAD("it declares flags 0x%x, some of which do not exist", s->flags);
    if (s->positions != COLIBRI_KV_POS_ORIGINAL && s->positions != COLIBRI_KV_POS_COMPACT)
        return BAD("positions %u does not exist", s->positions);
    CLB_TRY(check_kv_appended(s, err));
    if (s->needs & KV_NEEDS_WINDOW && !s->window_w)
        return BAD("it needs the last w queries, but window_w is 0");
    if (s->triggers & COLIBRI_KV_AT_STEPS && !s->every_steps)
        return BAD("it wants to be called every 0 steps");
    if (s->flags & COLIBRI_KV_FLAG_KEEPS_ALL)
        return COLIBRI_OK;
    if (!s->select && !s->score)
        return BAD("select and score are both NULL, and it does not declare that it keeps everything");
    if (!s->triggers && !(s->flags & COLIBRI_KV_FLAG_WRAPPER))
        return BAD("it evicts but has no trigger");
    return COLIBRI_OK;
}

/* ---- dispatch --------------------------------------------------------------------------------------------- */

/* Sizes of the tables in ABI 1.0: later minors only append. */
#define V1_SIZE(type, last) (offsetof(struct type, last) + sizeof(((struct type *)0)->last))

int clb_component_check(enum clb_iface iface, const void *table, clb_error *err)
{
    static const size_t v1[CLB_IFACE_COUNT] = {
        [CLB_IFACE_FORMAT] = V1_SIZE(colibri_format, matmul),
        [CLB_IFACE_MATMUL] = V1_SIZE(colibri_matmul, run),
        [CLB_IFACE_VECOPS] = V1_SIZE(colibri_vecops, attention),
        [CLB_IFACE_EXPERT_POLICY] = V1_SIZE(colibri_expert_policy, explain),
        [CLB_IFACE_PREDICTOR] = V1_SIZE(colibri_predictor, on_result),
        [CLB_IFACE_KV_STRATEGY] = V1_SIZE(colibri_kv_strategy, fork),
    };
    CLB_TRY(check_size(table, v1[iface], err));
    CLB_TRY(check_name(clb_component_name(iface, table), err));
    switch (iface) {
    case CLB_IFACE_FORMAT:
        return check_format(table, err);
    case CLB_IFACE_MATMUL:
        return check_matmul(table, err);
    case CLB_IFACE_VECOPS:
        return check_vecops(table, err);
    case CLB_IFACE_EXPERT_POLICY:
        return check_expert_policy(table, err);
    case CLB_IFACE_PREDICTOR:
        return check_predictor(table, err);
    case CLB_IFACE_KV_STRATEGY:
        return check_kv_strategy(table, err);
    case CLB_IFACE_COUNT:
        break;
    }
    return clb_fail(err, COLIBRI_E_INTERNAL, "interface %d", (int)iface);
}

const char *clb_component_name(enum clb_iface iface, const void *table)
{
    switch (iface) {
    case CLB_IFACE_FORMAT:
        return ((const struct colibri_format *)table)->name;
    case CLB_IFACE_MATMUL:
        return ((const struct colibri_matmul *)table)->name;
    case CLB_IFACE_VECOPS:
        return ((const struct colibri_vecops *)table)->name;
    case CLB_IFACE_EXPERT_POLICY:
        return ((const struct colibri_expert_policy *)table)->name;
    case CLB_IFACE_PREDICTOR:
        return ((const struct colibri_predictor *)table)->name;
    case CLB_IFACE_KV_STRATEGY:
        return ((const struct colibri_kv_strategy *)table)->name;
    case CLB_IFACE_COUNT:
        break;
    }
    return "";
}
