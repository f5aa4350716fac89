/* Model hyper-parameters, read from the GGUF's keys and checked against each other. */
#ifndef CLB_MODEL_HPARAMS_H
#define CLB_MODEL_HPARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "gguf/gguf.h"

enum clb_qk_norm {
    CLB_QK_NORM_NONE = 0,
    CLB_QK_NORM_HEAD = 1, /* RMS over each head, before rope */
    CLB_QK_NORM_FULL = 2  /* RMS over the whole projection, before the split into heads */
};

/* Numbers of expert_gating_func in GGUF. */
enum clb_gating { CLB_GATING_SOFTMAX = 1, CLB_GATING_SIGMOID = 2, CLB_GATING_SOFTMAX_TOPK = 3 };

typedef struct clb_hparams {
    uint32_t n_layers, n_embd, n_vocab, n_ctx_train;
    uint32_t n_heads, n_kv_heads; /* per layer, the same in all layers */
    uint32_t k_dim, v_dim;        /* per head */
    uint32_t n_ff;                /* of dense layers, 0 if unused */
    float rms_eps;

    bool rope; /* false: no positional rotation at all (granite with finetuned = false) */
    bool rope_neox;
    uint32_t n_rot;
    float rope_base;
    float rope_scale; /* angles are divided by it (linear scaling), 1 if none */

    enum clb_qk_norm qk_norm;

    uint32_t n_experts, top_k; /* 0: dense model */
    uint32_t n_dense_lead;     /* first layers that are dense in a MoE model */
    uint32_t n_ff_expert, n_ff_shared;
    enum clb_gating gating;
    bool norm_topk;     /* router weights of the chosen experts are made to sum to 1 */
    float expert_scale; /* router weights are multiplied by it, 1 if none */

    float embedding_scale; /* token embeddings are multiplied by it */
    float residual_scale;  /* both branches are multiplied by it before they join the residual */
    float attention_scale; /* scores = q . k * it */
    float logit_scale;     /* logits are multiplied by it */
} clb_hparams;

struct clb_arch;

/* Fills hp from the keys "{arch}.*" and then lets the architecture adjust it. Errors: FORMAT (missing or senseless
 * key, named), UNSUPPORTED (valid, but not computed by this build). */
int clb_hparams_read(const clb_gguf *g, const struct clb_arch *arch, clb_hparams *hp, clb_error *err);

/* "{arch}.{suffix}" lookups for architectures; same results as clb_gguf_get_*_or. */
int clb_arch_u32_or(const clb_gguf *g, const struct clb_arch *arch, const char *suffix, uint32_t def, uint32_t *out,
                    clb_error *err);
int clb_arch_f32_or(const clb_gguf *g, const struct clb_arch *arch, const char *suffix, float def, float *out,
                    clb_error *err);
int clb_arch_bool_or(const clb_gguf *g, const struct clb_arch *arch, const char *suffix, bool def, bool *out,
                     clb_error *err);

#endif
