/* A model bound to its weights: hyper-parameters, layers, the store that holds the bytes.
 *
 * Opening has three steps, so that the planner can refuse before a weight is read:
 *   clb_model_bind   reads keys, checks every tensor's presence, type and shape, fixes formats and kernels
 *   (the planner looks at clb_model_sizes)
 *   clb_model_load   reads the resident weights and opens the expert slots
 * After loading the model is immutable but for the store's slots. */
#ifndef CLB_MODEL_MODEL_H
#define CLB_MODEL_MODEL_H

#include "model/arch.h"
#include "model/hparams.h"
#include "store/store.h"

/* A resident matrix and where it comes from. Absent: tensor == NULL. */
typedef struct clb_weight {
    clb_matrix m;
    const clb_gguf_tensor *tensor;
    uint64_t offset; /* of its first row inside the tensor */
} clb_weight;

/* A resident vector. Absent: tensor == NULL and v == NULL. */
typedef struct clb_vector {
    const float *v;
    const clb_gguf_tensor *tensor;
} clb_vector;

typedef struct clb_layer {
    clb_vector attn_norm, q_norm, k_norm, ffn_norm;
    clb_weight q, k, v, o;
    clb_vector q_bias, k_bias, v_bias, o_bias;
    /* dense feed-forward, or the shared expert of a MoE layer */
    clb_weight gate, up, down;
    /* MoE: index among the MoE layers, -1 for a dense layer */
    int32_t moe;
    clb_weight router;
    clb_vector router_select_bias; /* added to the probabilities for the selection only */
} clb_layer;

typedef struct clb_model_sizes {
    uint64_t embedding_bytes; /* token_embd and output */
    uint64_t dense_bytes;     /* every other resident matrix and vector */
    uint64_t expert_bytes;    /* all experts */
    uint64_t widest_group;    /* largest group of 16 rows that passes through a read buffer */
    uint64_t kernel_scratch;  /* of each worker: the most that a kernel wants, and a group of the embedding */
} clb_model_sizes;

typedef struct clb_model {
    const clb_gguf *gguf;
    const clb_arch *arch;
    clb_hparams hp;
    clb_registry *registry;
    clb_weight token_embd, output; /* output.tensor == NULL: tied, use token_embd */
    clb_vector output_norm;
    clb_vector rope_factors; /* [n_rot / 2]: frequencies are divided by them */
    clb_layer *layers;
    clb_expert_layer *expert_layers;
    uint32_t n_moe_layers;
    clb_gguf_tensor const **expert_tensors; /* backing of clb_expert_source.tensors */
    uint8_t *used;                          /* [n_tensors of the file]: bound by somebody */
    clb_store *store;
} clb_model;

int clb_model_bind(const clb_gguf *g, clb_registry *reg, const clb_log *log, clb_model **out, clb_error *err);
clb_model_sizes clb_model_get_sizes(const clb_model *model);

typedef struct clb_model_load_options {
    clb_pool *pool;
    const clb_log *log;
    enum clb_store_mode mode;
    bool mlock;
    const struct colibri_expert_policy *policy; /* MoE models only */
    const double *policy_params;
    const struct colibri_predictor *predictor; /* NULL: none */
    const double *predictor_params;
    uint32_t prefetch_depth;
    bool layer_pools;
    enum clb_io_engine io;
    enum clb_io_direct direct;
    const cpu_set_t *io_cpus;     /* where reading threads may run; NULL: anywhere */
    bool (*cancelled)(void *ctx); /* as in clb_store_options */
    void *cancelled_ctx;
    const char *const *mirror_dirs; /* [n_mirror_dirs] */
    size_t n_mirror_dirs;
    uint32_t n_streamed_layers; /* layers whose dense matrices are streamed, see clb_model_streams */
    uint32_t n_stream_slots;
    uint64_t seed;
    const uint32_t *class_slots; /* NULL: room for all */
    bool preload;
    bool drop_cache; /* take what was loaded out of the page cache */
    enum clb_store_verify verify;
} clb_model_load_options;

/* Whether the dense matrices of a layer are streamed if those of n_streamed layers are: streamed and resident layers
 * alternate as evenly as possible, so that the drive goes on while resident ones are computed. */
static inline bool clb_model_streams(uint32_t layer, uint32_t n_layers, uint32_t n_streamed)
{
    return (layer + UINT64_C(1)) * n_streamed / n_layers != (uint64_t)layer * n_streamed / n_layers;
}

int clb_model_load(clb_model *model, const clb_model_load_options *options, clb_error *err);
void clb_model_free(clb_model *model);
/* Rotation speeds of a loaded model: [n_rot / 2]. (forward.c) */
void clb_model_inv_freq(const clb_model *model, float *out);

#endif
