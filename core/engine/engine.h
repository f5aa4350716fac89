/* The engine: everything that one model needs to produce tokens, opened from one configuration. */
#ifndef CLB_ENGINE_ENGINE_H
#define CLB_ENGINE_ENGINE_H

#include "base/log.h"
#include "config/config.h"
#include "cpu/numa.h"
#include "cpu/topology.h"
#include "engine/adapters.h"
#include "engine/kv_strategy_settings.h"
#include "engine/load_report.h"
#include "engine/sampler.h"
#include "gguf/gguf.h"
#include "kv/kv.h"
#include "model/forward.h"
#include "model/model.h"
#include "plan/plan.h"
#include "plugin/registry.h"
#include "text/vocab.h"

typedef struct clb_engine_options {
    const clb_config *config;       /* borrowed while opening */
    const char *builtin_plugin_dir; /* NULL: the compiled-in one */
    const clb_log *log;             /* borrowed while the engine lives */
    uint32_t n_sequences;           /* sequences that may be alive at once, >= 1 */
    uint32_t min_ctx;               /* if no context length is configured, it is at least this; 0: the default */
    bool interruptible;             /* passes of many rows can be interrupted by small ones: `aside`, if memory has room */
    bool (*cancelled)(void *ctx); /* polled while loading, between layers and while waiting for a drive; may be NULL */
    void *cancelled_ctx;
    void (*on_route)(void *ctx, const struct colibri_route *route); /* may be NULL */
    void *on_route_ctx;
    uint32_t ahead; /* as in clb_forward_options */
    /* As in clb_forward_options; may be NULL. */
    void (*adjust_route)(void *ctx, uint32_t layer, uint32_t n_rows, const float *probs, uint32_t *ids, float *gates);
    void *adjust_route_ctx;
    /* Opened, used and closed by the thread that this process is about (a command): `cpu.pin` may bind it, too. An
     * embedder's thread is never bound. */
    bool pin_caller;
    /* What the plan counts for the process itself; 0: all that is resident now. For a process that holds several
     * engines, each with a budget of its own: what was resident when the first one was planned. */
    uint64_t resident;
    /* Sees the plan before a weight is read; a status other than OK ends the opening with it. May be NULL. */
    int (*planned)(void *ctx, const clb_plan *plan, clb_error *err);
    void *planned_ctx;
    /* Sequences under other strategies than the configured one will come (clb_engine_new_sequence_with): room for what any
     * of them may ask for beside its pages. */
    bool any_strategy;
    /* Stop before planning: the engine has its model bound, its threads and `plan_input`, but no weights, no KV cache
     * and no forward pass; it can be looked at and closed. */
    bool plan_only;
} clb_engine_options;

typedef struct clb_engine {
    const clb_log *log;
    clb_registry *registry;
    clb_gguf *gguf;
    clb_vocab *vocab;
    clb_model *model;
    clb_pool *pool;
    clb_numa numa;
    cpu_set_t cpus; /* the process's binding before anybody was pinned, for threads that read */
    bool any_cpus;  /* it is unknown */
    clb_pins pins;
    clb_kv_cache *kv;
    clb_kv_layout kv_layout;
    float *inv_freq; /* of the model's rotation, for the layout */
    clb_forward *forward;
    clb_forward *aside;  /* a second set of buffers, for small passes that interrupt one of `forward`; NULL: none */
    uint32_t aside_rows; /* its rows */
    clb_adapters adapters;
    clb_plan_input plan_input;
    clb_plan plan;
    clb_kv_choice kv_choice; /* the configured strategy */
    uint32_t ctx;       /* tokens of a sequence whose strategy keeps all */
    uint32_t kv_budget; /* positions kept, or looked at, per layer and head */
    bool context_shift; /* a full context drops its older half instead of ending the text */
    uint32_t batch;     /* rows per pass */
    uint64_t seed;      /* as configured, for policies and strategies */
    char *profile;      /* where the expert policy's profile is kept; NULL: nowhere */
    uint64_t load_ns;
    clb_load_report load;
} clb_engine;

int clb_engine_open(const clb_engine_options *options, clb_engine **out, clb_error *err);
void clb_engine_close(clb_engine *engine);

/* Sampler parameters from the configuration; a seed of 0 is replaced by a fresh one. */
clb_sampler_params clb_engine_sampler_params(const clb_config *config);

/* A new, empty sequence under the engine's strategy. */
int clb_engine_new_sequence(clb_engine *engine, clb_kv_seq **out, clb_error *err);
/* Under another one, which must live as long as the sequence. budget: positions per (layer, head); 0: the choice's. The plan
 * has room for n_sequences of the configured strategy: another kind may end with NOMEM. */
int clb_engine_new_sequence_with(clb_engine *engine, const clb_kv_choice *choice, uint32_t budget, clb_kv_seq **out,
                                 clb_error *err);

#endif
