#include "model/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/arch.h"

#define KEY_MAX 128

static const char *key_of(const clb_arch *arch, const char *suffix, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", arch->name, suffix);
    return out;
}

int clb_arch_u32_or(const clb_gguf *g, const clb_arch *arch, const char *suffix, uint32_t def, uint32_t *out,
                    clb_error *err)
{
    char key[KEY_MAX];
    return clb_gguf_get_u32_or(g, key_of(arch, suffix, key), def, out, err);
}

int clb_arch_f32_or(const clb_gguf *g, const clb_arch *arch, const char *suffix, float def, float *out, clb_error *err)
{
    char key[KEY_MAX];
    return clb_gguf_get_f32_or(g, key_of(arch, suffix, key), def, out, err);
}

int clb_arch_bool_or(const clb_gguf *g, const clb_arch *arch, const char *suffix, bool def, bool *out, clb_error *err)
{
    char key[KEY_MAX];
    return clb_gguf_get_bool_or(g, key_of(arch, suffix, key), def, out, err);
}

/* A count that may be stored once or per layer; this build wants one value for all layers. */
static int uniform_u32(const clb_gguf *g, const clb_arch *arch, const char *suffix, bool required, uint32_t def,
                       uint32_t *out, clb_error *err)
{
    char key[KEY_MAX];
    key_of(arch, suffix, key);
    const clb_gguf_value *v = clb_gguf_find(g, key);
    *out = def;
    if (!v && required)
        return clb_fail(err, COLIBRI_E_FORMAT, "the model file lacks the key %s", key);
    if (!v)
        return COLIBRI_OK;
    if (v->type != CLB_GGUF_ARRAY)
        return clb_gguf_get_u32(g, key, out, err);
    int64_t first = -1;
    for (uint64_t i = 0; i < v->as.arr.n; i++) {
        int64_t item;
        CLB_TRY(clb_gguf_item_i64(v, i, &item, err));
        if (i == 0)
            first = item;
        if (item != first)
            return clb_fail(err, COLIBRI_E_UNSUPPORTED, "key %s differs between layers (%lld and %lld)", key,
                            (long long)first, (long long)item);
    }
    if (first < 0 || first > UINT32_MAX)
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s has no usable value", key);
    *out = (uint32_t)first;
    return COLIBRI_OK;
}

static int check_range(const clb_arch *arch, const char *suffix, uint32_t value, uint32_t max, clb_error *err)
{
    if (value == 0 || value > max)
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.%s is %u: must be between 1 and %u", arch->name, suffix, value,
                        max);
    return COLIBRI_OK;
}

static int read_rope(const clb_gguf *g, const clb_arch *arch, clb_hparams *hp, clb_error *err)
{
    char key[KEY_MAX];
    hp->rope = true;
    hp->rope_neox = arch->rope_neox;
    hp->rope_scale = 1.0f;
    CLB_TRY(clb_arch_u32_or(g, arch, "rope.dimension_count", hp->k_dim, &hp->n_rot, err));
    if (hp->n_rot == 0 || hp->n_rot % 2 || hp->n_rot > hp->k_dim)
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.rope.dimension_count is %u: must be even and at most %u",
                        arch->name, hp->n_rot, hp->k_dim);
    CLB_TRY(clb_arch_f32_or(g, arch, "rope.freq_base", 10000.0f, &hp->rope_base, err));
    if (!(hp->rope_base > 1.0f) || isinf(hp->rope_base))
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.rope.freq_base is %g: must be above 1", arch->name,
                        (double)hp->rope_base);
    CLB_TRY(clb_arch_f32_or(g, arch, "rope.scale_linear", 1.0f, &hp->rope_scale, err));
    key_of(arch, "rope.scaling.type", key);
    if (clb_gguf_find(g, key)) {
        clb_str type;
        CLB_TRY(clb_gguf_get_str(g, key, &type, err));
        const bool linear = type.n == 6 && memcmp(type.p, "linear", 6) == 0;
        if (!linear && !(type.n == 4 && memcmp(type.p, "none", 4) == 0))
            return clb_fail(err, COLIBRI_E_UNSUPPORTED, "rope scaling \"%.*s\" (key %s) is not computed by this build",
                            (int)(type.n < 32 ? type.n : 32), type.p, key);
        if (linear)
            CLB_TRY(clb_arch_f32_or(g, arch, "rope.scaling.factor", hp->rope_scale, &hp->rope_scale, err));
    }
    if (hp->rope_scale == 0.0f)
        hp->rope_scale = 1.0f;
    if (!(hp->rope_scale > 0.0f) || isinf(hp->rope_scale))
        return clb_fail(err, COLIBRI_E_FORMAT, "the rope scaling factor is %g", (double)hp->rope_scale);
    return COLIBRI_OK;
}

static int read_experts(const clb_gguf *g, const clb_arch *arch, clb_hparams *hp, clb_error *err)
{
    uint32_t gating, n_shared;
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_count", 0, &hp->n_experts, err));
    if (hp->n_experts == 0) {
        if (arch->moe_required)
            return clb_fail(err, COLIBRI_E_FORMAT, "the model file lacks the key %s.expert_count", arch->name);
        return COLIBRI_OK;
    }
    CLB_TRY(check_range(arch, "expert_count", hp->n_experts, 65535, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_used_count", 0, &hp->top_k, err));
    CLB_TRY(check_range(arch, "expert_used_count", hp->top_k, hp->n_experts, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_feed_forward_length", hp->n_ff, &hp->n_ff_expert, err));
    CLB_TRY(check_range(arch, "expert_feed_forward_length", hp->n_ff_expert, 1u << 24, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_shared_count", 0, &n_shared, err));
    const uint64_t shared = (uint64_t)n_shared * hp->n_ff_expert;
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_shared_feed_forward_length",
                            shared < UINT32_MAX ? (uint32_t)shared : UINT32_MAX, &hp->n_ff_shared, err));
    if (hp->n_ff_shared > 1u << 24)
        return clb_fail(err, COLIBRI_E_FORMAT, "the shared experts of %s are %u wide, at most %u are possible",
                        arch->name, hp->n_ff_shared, 1u << 24);
    CLB_TRY(clb_arch_u32_or(g, arch, "leading_dense_block_count", 0, &hp->n_dense_lead, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_gating_func", CLB_GATING_SOFTMAX, &gating, err));
    if (gating < CLB_GATING_SOFTMAX || gating > CLB_GATING_SOFTMAX_TOPK)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "expert gating function %u (key %s.expert_gating_func) is not computed by this build", gating,
                        arch->name);
    hp->gating = (enum clb_gating)gating;
    CLB_TRY(clb_arch_bool_or(g, arch, "expert_weights_norm", arch->norm_topk, &hp->norm_topk, err));
    CLB_TRY(clb_arch_f32_or(g, arch, "expert_weights_scale", 1.0f, &hp->expert_scale, err));
    if (hp->expert_scale == 0.0f)
        hp->expert_scale = 1.0f;
    uint32_t groups;
    CLB_TRY(clb_arch_u32_or(g, arch, "expert_group_count", 1, &groups, err));
    if (groups > 1)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "expert groups (key %s.expert_group_count = %u) are not computed by this build", arch->name,
                        groups);
    return COLIBRI_OK;
}

int clb_hparams_read(const clb_gguf *g, const clb_arch *arch, clb_hparams *hp, clb_error *err)
{
    *hp = (clb_hparams){.qk_norm = arch->qk_norm,
                        .embedding_scale = 1.0f,
                        .residual_scale = 1.0f,
                        .logit_scale = 1.0f,
                        .expert_scale = 1.0f};
    CLB_TRY(uniform_u32(g, arch, "block_count", true, 0, &hp->n_layers, err));
    CLB_TRY(check_range(arch, "block_count", hp->n_layers, 4096, err));
    CLB_TRY(uniform_u32(g, arch, "embedding_length", true, 0, &hp->n_embd, err));
    CLB_TRY(check_range(arch, "embedding_length", hp->n_embd, 1u << 20, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "context_length", 4096, &hp->n_ctx_train, err));
    CLB_TRY(check_range(arch, "context_length", hp->n_ctx_train, 1u << 30, err));
    CLB_TRY(uniform_u32(g, arch, "attention.head_count", true, 0, &hp->n_heads, err));
    CLB_TRY(check_range(arch, "attention.head_count", hp->n_heads, 4096, err));
    CLB_TRY(uniform_u32(g, arch, "attention.head_count_kv", false, hp->n_heads, &hp->n_kv_heads, err));
    CLB_TRY(check_range(arch, "attention.head_count_kv", hp->n_kv_heads, hp->n_heads, err));
    if (hp->n_heads % hp->n_kv_heads)
        return clb_fail(err, COLIBRI_E_FORMAT, "%u query heads cannot share %u KV heads evenly", hp->n_heads,
                        hp->n_kv_heads);
    CLB_TRY(clb_arch_u32_or(g, arch, "attention.key_length", hp->n_embd / hp->n_heads, &hp->k_dim, err));
    CLB_TRY(check_range(arch, "attention.key_length", hp->k_dim, 65536, err));
    CLB_TRY(clb_arch_u32_or(g, arch, "attention.value_length", hp->k_dim, &hp->v_dim, err));
    CLB_TRY(check_range(arch, "attention.value_length", hp->v_dim, 65536, err));
    CLB_TRY(uniform_u32(g, arch, "feed_forward_length", false, 0, &hp->n_ff, err));
    if (hp->n_ff > 1u << 24)
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.feed_forward_length is %u", arch->name, hp->n_ff);
    CLB_TRY(clb_arch_f32_or(g, arch, "attention.layer_norm_rms_epsilon", 1e-5f, &hp->rms_eps, err));
    if (!(hp->rms_eps >= 0.0f) || hp->rms_eps > 1.0f)
        return clb_fail(err, COLIBRI_E_FORMAT, "key %s.attention.layer_norm_rms_epsilon is %g", arch->name,
                        (double)hp->rms_eps);
    uint32_t window;
    CLB_TRY(clb_arch_u32_or(g, arch, "attention.sliding_window", 0, &window, err));
    if (window && window < hp->n_ctx_train)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "sliding-window attention (key %s.attention.sliding_window = %u) is not computed by this build",
                        arch->name, window);
    hp->attention_scale = 1.0f / sqrtf((float)hp->k_dim);
    CLB_TRY(read_rope(g, arch, hp, err));
    CLB_TRY(read_experts(g, arch, hp, err));
    return arch->configure ? arch->configure(g, arch, hp, err) : COLIBRI_OK;
}
