/* What the commands that run a model share: opening the engine, prompts, figures. */
#ifndef CLB_TOOLS_MODEL_RUN_H
#define CLB_TOOLS_MODEL_RUN_H

#include <jansson.h>

#include "command.h"
#include "engine/session.h"
#include "json_out.h"
#include "text/chat.h"

/* Settings of every command that opens a model; to be put into its list. */
#define CLB_ENGINE_SETTINGS                                                                                            \
    CLB_SET_model_model, CLB_SET_model_ctx, CLB_SET_model_batch, CLB_SET_memory_max_memory, CLB_SET_memory_memory_share, CLB_SET_model_lora, CLB_SET_memory_lora_memory, CLB_SET_memory_mlock,      \
        CLB_SET_cpu_threads, CLB_SET_cpu_pin, CLB_SET_cpu_mask, CLB_SET_store_mode, CLB_SET_store_expert_slots,        \
        CLB_SET_store_expert_policy, CLB_SET_store_expert_pool, CLB_SET_store_expert_profile, CLB_SET_store_predictor, \
        CLB_SET_store_prefetch_depth, CLB_SET_store_resident_layers, CLB_SET_store_io, CLB_SET_store_direct,           \
        CLB_SET_store_mirror, CLB_SET_store_verify, CLB_SET_cpu_numa, CLB_SET_kv_kv_strategy, CLB_SET_kv_kv_budget, CLB_SET_kv_kv_block_size,           \
        CLB_SET_kv_kv_type, CLB_SET_kv_kv_type_k, CLB_SET_kv_kv_type_v, CLB_SET_kv_kv_turn, CLB_SET_kv_kv_recent,      \
        CLB_SET_kv_kv_positions, CLB_SET_kv_kv_protect, CLB_SET_kv_kv_share, CLB_SET_kv_kv_share_memory,               \
        CLB_SET_kv_prompt_cache, CLB_SET_kv_prompt_cache_size, CLB_SET_kv_context_shift, CLB_SET_plugins_path, CLB_SET_plugins_prefer, CLB_SET_plugins_deny,                        \
        CLB_SET_kernels_allow_inexact, CLB_SET_kernels_select, CLB_SET_kernels_cache_file
#define CLB_SAMPLING_SETTINGS                                                                                          \
    CLB_SET_sampling_temperature, CLB_SET_sampling_top_k, CLB_SET_sampling_top_p, CLB_SET_sampling_min_p,              \
        CLB_SET_sampling_repeat_penalty, CLB_SET_sampling_presence_penalty, CLB_SET_sampling_frequency_penalty,        \
        CLB_SET_sampling_repeat_last_n, CLB_SET_sampling_seed

/* Opens the configured model for one sequence; Ctrl-C stops a running pass. */
int clb_open_engine(clb_args *args, clb_engine **out, clb_error *err);
/* The same; if no context length is configured, it is at least min_ctx. */
int clb_open_engine_for(clb_args *args, uint32_t min_ctx, uint32_t n_sequences, clb_engine **out, clb_error *err);

/* The model's chat format; NULL if [run] raw is set or the model has no template. A template that cannot be understood
 * is an error. */
int clb_open_chat(clb_args *args, const clb_engine *engine, const clb_chat_format **out, clb_error *err);
/* The same without [run] raw: [model] chat_template, or else the model's own template; NULL if there is none. */
int clb_open_chat_format(const clb_config *config, const clb_log *log, const clb_engine *engine, const clb_chat_format **out,
                         clb_error *err);

/* For clb_generate_options: Ctrl-C (ctx: the clb_args), and text to standard output as it comes. */
bool clb_run_interrupted(void *args);
int clb_print_text(void *ctx, const char *text, size_t n, clb_error *err);

/* A whole file, "-" for standard input; size limit 256 MiB. */
int clb_read_input(const char *path, clb_buf *out, clb_error *err);

/* LIMIT if `n` bytes of text cannot fit the context even with the vocabulary's longest token all along: a huge file is
 * refused before tokenizing it takes time and memory. */
int clb_check_prompt_size(const clb_engine *engine, size_t n, clb_error *err);

/* The system prompt stays whatever the strategy or a context shift drops: the tokens that ids, a prompt of the chat format,
 * begins with before the user's text. LIMIT if they leave nothing of the KV budget. */
int clb_protect_system(const clb_engine *engine, clb_session *session, const clb_chat_format *chat, const char *system,
                       const clb_tokens *ids, clb_error *err);

/* Figures of a finished generation and of the engine. */
void clb_print_stats(FILE *f, const clb_engine *engine, const clb_session *session, const clb_generation *g,
                     uint64_t seed);
json_t *clb_stats_json(const clb_engine *engine, const clb_session *session, const clb_generation *g, uint64_t seed);

#endif
