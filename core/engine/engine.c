#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "engine/expert_profile.h"
#include "engine/kv_settings.h"
#include "engine/kv_share_settings.h"
#include "engine/prompt_cache_settings.h"
#include "engine/store_settings.h"
#include "gguf/identity.h"
#include "plan/memory.h"
#include "plugin/open.h"

#define DEFAULT_CTX 4096u

static bool format_geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    const struct colibri_format *format = clb_registry_format(ctx, type, NULL);
    if (!format)
        return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
    *block_elems = format->block_elems;
    *block_bytes = format->block_bytes;
    return true;
}

static void strategy_misbehaved(void *ctx, const char *strategy, const char *what)
{
    clb_registry_misbehaved(ctx, strategy, what);
}

static int open_kv(clb_engine *e, const clb_config *config, uint32_t min_ctx, clb_error *err)
{
    const clb_hparams *hp = &e->model->hp;
    e->seed = clb_config_u64(config, CLB_SET_sampling_seed);
    e->batch = (uint32_t)clb_config_u64(config, CLB_SET_model_batch);
    e->ctx = (uint32_t)clb_config_u64(config, CLB_SET_model_ctx);
    if (e->ctx == 0)
        e->ctx = hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    if (e->ctx < min_ctx && !clb_config_u64(config, CLB_SET_model_ctx))
        e->ctx = min_ctx;
    if (e->ctx > hp->n_ctx_train)
        clb_logf(e->log, COLIBRI_LOG_WARN, "context of %u tokens: the model was trained for %u", e->ctx,
                 hp->n_ctx_train);
    if (e->batch > e->ctx)
        e->batch = e->ctx;
    CLB_TRY(clb_kv_choice_parse(e->registry, config, NULL, &e->kv_choice, err));
    e->context_shift = clb_config_bool(config, CLB_SET_kv_context_shift);
    if (e->kv_choice.budget.n > e->ctx)
        clb_logf(e->log, COLIBRI_LOG_WARN, "kv-budget of %llu positions: the context of %u limits it (--ctx)",
                 (unsigned long long)e->kv_choice.budget.n, e->ctx);
    e->kv_budget = clb_kv_choice_budget(&e->kv_choice, e->ctx);
    e->kv_layout = (clb_kv_layout){
        .n_layers = hp->n_layers,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .k_dim = hp->k_dim,
        .v_dim = hp->v_dim,
        .n_rot = hp->rope ? hp->n_rot : 0,
        .rope_neox = hp->rope_neox,
        .attention_scale = hp->attention_scale,
    };
    CLB_TRY(clb_kv_settings_read(config, &e->kv_layout, err));
    CLB_TRY(clb_prompt_cache_wanted(config, &(bool){false}, err));
    e->kv_layout.ops = clb_registry_attention_for(e->registry, clb_kv_layout_takes(&e->kv_layout));
    return COLIBRI_OK;
}

static clb_kv_seq_options sequence_options(const clb_engine *e, const clb_kv_choice *choice, uint32_t budget)
{
    return (clb_kv_seq_options){
        .strategy = choice->strategy,
        .params = choice->params,
        .child = choice->child,
        .positions = choice->positions,
        .n_protected = choice->n_protected,
        .future = choice->future,
        .host = clb_registry_host(e->registry),
        .ctx = e->ctx,
        .budget = budget && budget < e->ctx ? budget : clb_kv_choice_budget(choice, e->ctx),
        .seed = e->seed,
        .max_rows = e->batch,
        .misbehaved = strategy_misbehaved,
        .misbehaved_ctx = e->registry,
    };
}

/* Most positions that one (layer, head) can hold at once. */
static uint32_t most_positions(const clb_engine *e)
{
    return (uint32_t)clb_kv_most_positions(&e->kv_layout, &e->kv_choice.traits, e->ctx, e->kv_budget, e->batch);
}

/* A piece of one prompt and a token of each of the other sequences. */
static uint32_t pass_rows(const clb_engine *e, const clb_engine_options *options)
{
    return e->batch + options->n_sequences - 1;
}

#define ASIDE_ROWS 128u

/* Prompts in pieces of at most ASIDE_ROWS, and a token of each of the other sequences. */
static uint32_t aside_rows(const clb_engine *e, const clb_engine_options *options)
{
    return options->interruptible && e->batch > ASIDE_ROWS ? ASIDE_ROWS + options->n_sequences - 1 : 0;
}

static uint64_t file_bytes(const clb_gguf *g)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        sum += clb_gguf_shard_size(g, i);
    return sum;
}

static int fill_plan_input(clb_engine *e, const clb_engine_options *options, clb_error *err)
{
    const clb_config *config = options->config;
    const bool moe = e->model->n_moe_layers > 0;
    e->plan_input = (clb_plan_input){
        .model = e->model,
        .kv = e->kv_layout,
        .kv_shared_bytes = clb_kv_share_memory(config),
        .kv_positions = most_positions(e),
        .ctx = e->ctx,
        .kv_shares = clb_config_bool(config, CLB_SET_kv_kv_share),
        .kv_follows_ctx = e->kv_choice.budget.part > 0 ? e->kv_choice.budget.part : most_positions(e) >= e->ctx,
        .n_sequences = options->n_sequences,
        .max_rows = pass_rows(e, options),
        .aside_rows = aside_rows(e, options),
        .n_workers = clb_pool_workers(e->pool),
        .budget = clb_config_u64(config, CLB_SET_memory_max_memory),
        .share = (uint32_t)clb_config_u64(config, CLB_SET_memory_memory_share),
        .expert_slots = (uint32_t)clb_config_u64(config, CLB_SET_store_expert_slots),
        .resident = options->resident,
        .layer_pools = strcmp(clb_config_str(config, CLB_SET_store_expert_pool), "layer") == 0,
        .mapped = strcmp(clb_config_str(config, CLB_SET_store_mode), "mmap") == 0,
        .resident_layers = (uint32_t)clb_config_u64(config, CLB_SET_store_resident_layers),
        .prefetch_depth = (uint32_t)clb_config_u64(config, CLB_SET_store_prefetch_depth),
        .lora_bytes = e->adapters.max_bytes,
    };
    const clb_kv_seq_options sequence = sequence_options(e, &e->kv_choice, e->kv_budget);
    CLB_TRY(clb_kv_demand_make(&e->kv_layout, &sequence, &e->plan_input.kv_demand, err));
    if (options->any_strategy)
        e->plan_input.kv_demand = clb_kv_demand_any(&e->kv_layout, e->ctx, e->batch);
    if (e->plan_input.expert_slots && !moe)
        return clb_fail(err, COLIBRI_E_USAGE, "--expert-slots does not apply: the model has no experts");
    return clb_store_settings_state_bytes(config, e->model, &e->plan_input.policy_bytes, err);
}

static int load(clb_engine *e, const clb_engine_options *options, clb_error *err)
{
    const clb_config *config = options->config;
    const bool mapped = e->plan_input.mapped, moe = e->model->n_moe_layers > 0;
    CLB_TRY(clb_plan_make(&e->plan_input, &e->plan, err));
    clb_plan_log(&e->plan, e->log);
    if (options->planned)
        CLB_TRY(options->planned(options->planned_ctx, &e->plan, err));
    CLB_TRY(clb_adapters_read(&e->adapters, options->cancelled, options->cancelled_ctx, err));
    clb_store_settings owned = {0};
    int rc = COLIBRI_OK;
    clb_model_load_options load_options = {
        .pool = e->pool,
        .log = e->log,
        .mlock = clb_config_bool(config, CLB_SET_memory_mlock),
        .seed = e->seed,
        .class_slots = e->plan.class_slots,
        .n_streamed_layers = e->plan.n_layers - e->plan.resident_layers,
        .n_stream_slots = e->plan.n_stream_slots,
        .preload = moe && e->plan.all_experts,
    };
    load_options.io_cpus = e->any_cpus ? NULL : &e->cpus;
    load_options.cancelled = options->cancelled;
    load_options.cancelled_ctx = options->cancelled_ctx;
    CLB_GO(clb_store_settings_read(config, e->model, &owned, &load_options, err));
    /* Everything is read once and never again, and there is no room for the page cache's copy beside ours: given back
     * as loading goes on, it cannot push out other things. */
    load_options.drop_cache =
        !mapped && (!moe || e->plan.all_experts) && file_bytes(e->gguf) + e->plan.total_bytes > clb_memory_available();
    CLB_GO(clb_model_load(e->model, &load_options, err));
done:
    clb_store_settings_free(&owned);
    return rc;
}

static void report_load(clb_engine *e)
{
    clb_store_stats s;
    clb_store_get_stats(e->model->store, &s);
    e->load = clb_load_report_make(&s);
    char a[24], b[24], c[24];
    clb_logf(e->log, COLIBRI_LOG_INFO,
             "loaded %s in %.2f s: %.2f GB/s, %.0f %% of the work reading, the rest packing; huge pages %.0f %%, "
             "resident weights %s, peak RSS %s",
             clb_human_bytes(e->load.bytes, a), (double)e->load.ns / 1e9, e->load.bytes_per_second / 1e9,
             100 * e->load.read_share, 100 * clb_load_report_huge_share(&e->load),
             clb_human_bytes(s.resident_bytes + s.slot_bytes, b), clb_human_bytes(e->load.peak_rss, c));
}

static void bind_to_cores(clb_engine *e, const clb_engine_options *options)
{
    const char *pin = clb_config_str(options->config, CLB_SET_cpu_pin);
    const bool always = strcmp(pin, "on") == 0;
    if (strcmp(pin, "off") == 0 || (!always && !options->pin_caller))
        return;
    const char *why_not = clb_pins_set(&e->pins, e->pool, always, options->pin_caller);
    if (why_not)
        clb_logf(e->log, always ? COLIBRI_LOG_WARN : COLIBRI_LOG_DEBUG, "threads are not bound to cores: %s", why_not);
}

/* The threads that were asked for, no more and no fewer, on the memory node that was asked for. */
static int start_workers(clb_engine *e, const clb_engine_options *options, clb_error *err)
{
    const char *numa = clb_config_str(options->config, CLB_SET_cpu_numa);
    e->any_cpus = sched_getaffinity(0, sizeof e->cpus, &e->cpus) != 0;
    CLB_TRY(clb_numa_set(&e->numa,
                         strcmp(numa, "bind") == 0         ? CLB_NUMA_BIND
                         : strcmp(numa, "interleave") == 0 ? CLB_NUMA_INTERLEAVE
                                                           : CLB_NUMA_OFF,
                         e->log, err));
    clb_topology t; /* of the node, if bound to one */
    clb_topology_read(&t);
    const uint64_t asked = clb_config_u64(options->config, CLB_SET_cpu_threads);
    const uint32_t n = asked ? (uint32_t)asked : clb_topology_default_threads(&t);
    CLB_TRY(clb_pool_create(n, &e->pool, err));
    if (n > t.threads || (t.quota > 0 && n > (uint32_t)ceil(t.quota))) {
        clb_pool_never_spin(e->pool);
        if (n > t.threads)
            clb_logf(e->log, COLIBRI_LOG_WARN, "%u threads on %u CPUs: they will wait for each other (--threads)", n,
                     t.threads);
        else
            clb_logf(
                e->log, COLIBRI_LOG_WARN,
                "%u threads, but a cgroup limits the process to %.1f CPUs: they will wait for each other (--threads)",
                n, t.quota);
    }
    bind_to_cores(e, options);
    if (!options->pin_caller)
        clb_numa_release(&e->numa); /* an embedder's thread stays as it was; the workers have inherited it */
    return COLIBRI_OK;
}

/* What experiments with the routing compute is not for other runs. */
static int open_sharing(clb_engine *e, const clb_engine_options *options, clb_error *err)
{
    uint8_t model[CLB_GGUF_IDENTITY];
    bool on_disk;
    CLB_TRY(clb_prompt_cache_wanted(options->config, &on_disk, err));
    if (!on_disk || options->adjust_route)
        return clb_kv_share_open(e, options->config, NULL, 0, err);
    CLB_TRY(clb_gguf_identity(e->gguf, model, err));
    CLB_TRY(clb_kv_share_open(e, options->config, model, sizeof model, err));
    return clb_prompt_cache_attach(options->config, &e->kv_choice, e->log, e->kv, err);
}

static int open_engine(clb_engine *e, const clb_engine_options *options, clb_error *err)
{
    const clb_config *config = options->config;
    const char *path = clb_config_str(config, CLB_SET_model_model);
    if (!*path)
        return clb_fail(err, COLIBRI_E_USAGE, "no model given: use -m FILE");
    const uint64_t t0 = clb_now_ns();
    CLB_TRY(clb_registry_from_config(config, options->builtin_plugin_dir, options->log, &e->registry, err));
    CLB_TRY(clb_registry_foreign_ready(e->registry, err));
    CLB_TRY(clb_gguf_open(path, format_geometry, e->registry, &e->gguf, err));
    if (clb_model_bind(e->gguf, e->registry, e->log, &e->model, err))
        return clb_context(err, "%s", path);
    if (clb_vocab_load(e->gguf, &e->vocab, err))
        return clb_context(err, "%s", path);
    if (clb_vocab_size(e->vocab) > e->model->hp.n_vocab)
        return clb_fail(err, COLIBRI_E_FORMAT, "%s: %u tokens in the vocabulary, but embeddings for %u", path,
                        clb_vocab_size(e->vocab), e->model->hp.n_vocab);
    CLB_TRY(start_workers(e, options, err));
    CLB_TRY(open_kv(e, config, options->min_ctx, err));
    CLB_TRY(clb_adapters_open(&e->adapters, e->model, pass_rows(e, options) + aside_rows(e, options), config, err));
    CLB_TRY(fill_plan_input(e, options, err));
    if (options->plan_only)
        return COLIBRI_OK;
    CLB_TRY(load(e, options, err));
    if (e->model->n_moe_layers)
        CLB_TRY(clb_expert_profile_open(config, e->model, path, e->log, &e->profile, err));
    if (e->kv_layout.n_rot) {
        e->inv_freq = malloc(e->kv_layout.n_rot / 2 * sizeof *e->inv_freq);
        if (!e->inv_freq)
            return CLB_NOMEM(err, "rotation speeds");
        clb_model_inv_freq(e->model, e->inv_freq);
        e->kv_layout.inv_freq = e->inv_freq;
    }
    e->kv_layout.recent_bytes = clb_kv_recent_bytes(&e->kv_layout, most_positions(e), e->batch) * options->n_sequences;
    CLB_TRY(clb_kv_cache_create(&e->kv_layout,
                                clb_kv_bytes(&e->kv_layout, most_positions(e)) * options->n_sequences +
                                    e->plan_input.kv_shared_bytes,
                                e->log, &e->kv, err));
    clb_forward_options forward = {
        .model = e->model,
        .pool = e->pool,
        .kv_layout = e->kv_layout,
        .max_rows = pass_rows(e, options),
        .on_route = options->on_route,
        .on_route_ctx = options->on_route_ctx,
        .ahead = options->ahead,
        .adjust_route = options->adjust_route,
        .adjust_route_ctx = options->adjust_route_ctx,
        .cancelled = options->cancelled,
        .cancelled_ctx = options->cancelled_ctx,
    };
    CLB_TRY(clb_forward_create(&forward, &e->forward, err));
    clb_forward_set_lora(e->forward, &e->adapters.defaults);
    if (e->plan.aside_rows) {
        forward.max_rows = e->aside_rows = e->plan.aside_rows;
        CLB_TRY(clb_forward_create(&forward, &e->aside, err));
        clb_forward_set_lora(e->aside, &e->adapters.defaults);
    }
    CLB_TRY(open_sharing(e, options, err));
    e->load_ns = clb_now_ns() - t0;
    report_load(e);
    return COLIBRI_OK;
}

int clb_engine_open(const clb_engine_options *options, clb_engine **out, clb_error *err)
{
    clb_error local;
    err = err ? err : &local;
    *out = NULL;
    clb_engine *e = calloc(1, sizeof *e);
    if (!e)
        return CLB_NOMEM(err, "engine");
    e->log = options->log;
    const int rc = open_engine(e, options, err);
    if (rc) {
        clb_engine_close(e);
        return rc;
    }
    *out = e;
    return COLIBRI_OK;
}

void clb_engine_close(clb_engine *e)
{
    if (!e)
        return;
    if (e->profile && e->forward) /* a half-open engine has learned nothing */
        clb_expert_profile_save(e->model, e->profile, e->log);
    free(e->profile);
    clb_forward_destroy(e->forward);
    clb_forward_destroy(e->aside);
    clb_adapters_close(&e->adapters);
    if (e->kv)
        clb_kv_cache_destroy(e->kv);
    clb_model_free(e->model);
    clb_plan_free(&e->plan);
    clb_pool_destroy(e->pool);
    clb_pins_release(&e->pins);
    clb_numa_release(&e->numa);
    clb_vocab_free(e->vocab);
    clb_gguf_close(e->gguf);
    clb_registry_close(e->registry);
    clb_kv_choice_free(&e->kv_choice);
    free(e->inv_freq);
    free(e);
}

clb_sampler_params clb_engine_sampler_params(const clb_config *config)
{
    clb_sampler_params p = {
        .temperature = clb_config_f64(config, CLB_SET_sampling_temperature),
        .top_k = (uint32_t)clb_config_u64(config, CLB_SET_sampling_top_k),
        .top_p = clb_config_f64(config, CLB_SET_sampling_top_p),
        .min_p = clb_config_f64(config, CLB_SET_sampling_min_p),
        .repeat_penalty = clb_config_f64(config, CLB_SET_sampling_repeat_penalty),
        .presence_penalty = clb_config_f64(config, CLB_SET_sampling_presence_penalty),
        .frequency_penalty = clb_config_f64(config, CLB_SET_sampling_frequency_penalty),
        .repeat_last_n = (uint32_t)clb_config_u64(config, CLB_SET_sampling_repeat_last_n),
        .seed = clb_config_u64(config, CLB_SET_sampling_seed),
    };
    while (p.seed == 0) {
        uint32_t fresh; /* 32 bits: short enough to type again */
        if (getrandom(&fresh, sizeof fresh, 0) != (ssize_t)sizeof fresh)
            fresh = (uint32_t)clb_now_ns();
        p.seed = fresh;
    }
    return p;
}

int clb_engine_new_sequence(clb_engine *e, clb_kv_seq **out, clb_error *err)
{
    return clb_engine_new_sequence_with(e, &e->kv_choice, e->kv_budget, out, err);
}

int clb_engine_new_sequence_with(clb_engine *e, const clb_kv_choice *choice, uint32_t budget, clb_kv_seq **out,
                                 clb_error *err)
{
    const clb_kv_seq_options options = sequence_options(e, choice, budget);
    return clb_kv_seq_create(e->kv, &options, out, err);
}
