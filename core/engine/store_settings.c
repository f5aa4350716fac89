#include "engine/store_settings.h"

#include <stdlib.h>
#include <string.h>

/* Bytes per expert of a policy that does not say. */
#define ASSUMED_STATE 48u

static bool is(const clb_config *config, enum clb_setting id, const char *value)
{
    return strcmp(clb_config_str(config, id), value) == 0;
}

/* A policy in a settings file is meant for the models that have experts; one on the command line is meant for this. */
static int refuse_for_dense(const clb_config *config, clb_error *err)
{
    static const struct {
        enum clb_setting id;
        const char *flag;
    } only_experts[] = {{CLB_SET_store_expert_policy, "--expert-policy"},
                        {CLB_SET_store_predictor, "--predictor"},
                        {CLB_SET_store_expert_pool, "--expert-pool"},
                        {CLB_SET_store_expert_profile, "--expert-profile"}};
    for (size_t i = 0; i < sizeof only_experts / sizeof *only_experts; i++)
        if (strncmp(clb_config_origin(config, only_experts[i].id), "--", 2) == 0)
            return clb_fail(err, COLIBRI_E_USAGE, "%s does not apply: the model has no experts", only_experts[i].flag);
    return COLIBRI_OK;
}

static int read_experts(const clb_config *config, clb_registry *reg, clb_store_settings *owned,
                        clb_model_load_options *out, clb_error *err)
{
    out->layer_pools = is(config, CLB_SET_store_expert_pool, "layer");
    out->policy = clb_registry_expert_policy(reg, clb_config_str(config, CLB_SET_store_expert_policy), err);
    if (!out->policy)
        return err->code;
    if (out->policy->flags & COLIBRI_POLICY_ORACLE)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "expert policy %s needs to know the future: it is for `colibri simulate`, not for running",
                        out->policy->name);
    CLB_TRY(clb_config_params_new(config, "expert-policy", out->policy->name, out->policy->params,
                                  out->policy->n_params, &owned->policy_params, err));
    out->policy_params = owned->policy_params;
    const char *predictor = clb_config_str(config, CLB_SET_store_predictor);
    if (strcmp(predictor, "none") == 0)
        return COLIBRI_OK;
    out->predictor = clb_registry_predictor(reg, predictor, err);
    if (!out->predictor)
        return err->code;
    if (out->predictor->flags & COLIBRI_POLICY_ORACLE)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "predictor %s needs to know the future: it is for `colibri simulate`, not for running",
                        out->predictor->name);
    CLB_TRY(clb_config_params_new(config, "predictor", out->predictor->name, out->predictor->params,
                                  out->predictor->n_params, &owned->predictor_params, err));
    out->predictor_params = owned->predictor_params;
    return COLIBRI_OK;
}

/* Whether anything is read while running depends on the memory that there is, so a flag that is of no use this time is
 * no mistake; but nobody shall measure what it does without knowing that it does nothing. */
static void tell_idle(const clb_config *config, const clb_model *model, const clb_model_load_options *o)
{
    static const struct {
        enum clb_setting id;
        const char *flag;
        bool of_experts;
    } of_reading[] = {{CLB_SET_store_predictor, "--predictor", true},
                      {CLB_SET_store_io, "--io", false},
                      {CLB_SET_store_direct, "--direct", false},
                      {CLB_SET_store_mirror, "--mirror", false}};
    const bool experts = model->n_moe_layers && !o->preload;
    for (size_t i = 0; i < sizeof of_reading / sizeof *of_reading; i++)
        if (!experts && (of_reading[i].of_experts || !o->n_streamed_layers) &&
            strncmp(clb_config_origin(config, of_reading[i].id), "--", 2) == 0)
            clb_logf(o->log, COLIBRI_LOG_WARN,
                     "%s does nothing in this run: all %s fit in memory and are read at start", of_reading[i].flag,
                     of_reading[i].of_experts ? "experts" : "weights");
}

int clb_store_settings_read(const clb_config *config, const clb_model *model, clb_store_settings *owned,
                            clb_model_load_options *out, clb_error *err)
{
    out->mode = is(config, CLB_SET_store_mode, "mmap") ? CLB_STORE_MMAP : CLB_STORE_READ;
    out->io = is(config, CLB_SET_store_io, "uring")   ? CLB_IO_URING
              : is(config, CLB_SET_store_io, "pread") ? CLB_IO_PREAD
                                                      : CLB_IO_AUTO;
    out->direct = is(config, CLB_SET_store_direct, "on")    ? CLB_IO_DIRECT_ON
                  : is(config, CLB_SET_store_direct, "off") ? CLB_IO_DIRECT_OFF
                                                            : CLB_IO_DIRECT_AUTO;
    out->verify = is(config, CLB_SET_store_verify, "never")    ? CLB_VERIFY_NEVER
                  : is(config, CLB_SET_store_verify, "always") ? CLB_VERIFY_ALWAYS
                                                               : CLB_VERIFY_FIRST;
    out->n_mirror_dirs = clb_config_list(config, CLB_SET_store_mirror, &out->mirror_dirs);
    out->prefetch_depth = (uint32_t)clb_config_u64(config, CLB_SET_store_prefetch_depth);
    CLB_TRY(model->n_moe_layers ? read_experts(config, model->registry, owned, out, err)
                                : refuse_for_dense(config, err));
    tell_idle(config, model, out);
    return COLIBRI_OK;
}

int clb_store_settings_state_bytes(const clb_config *config, const clb_model *model, uint64_t *out, clb_error *err)
{
    *out = 0;
    if (!model->n_moe_layers)
        return COLIBRI_OK;
    clb_model_load_options o = {0};
    clb_store_settings owned = {0};
    const int rc = read_experts(config, model->registry, &owned, &o, err);
    if (!rc) {
        struct colibri_policy_config of = {
            .struct_size = sizeof of,
            .n_layers = model->n_moe_layers,
            .n_experts = model->hp.n_experts,
            .top_k = model->hp.top_k,
            .params = owned.predictor_params,
        };
        if (o.predictor && COLIBRI_HAS(o.predictor, state_bytes) && o.predictor->state_bytes)
            *out += o.predictor->state_bytes(&of);
        const uint32_t pools = o.layer_pools ? of.n_layers : 1;
        of.n_layers /= pools;
        of.params = owned.policy_params;
        *out += pools * (COLIBRI_HAS(o.policy, state_bytes) && o.policy->state_bytes
                             ? o.policy->state_bytes(&of)
                             : (uint64_t)of.n_layers * of.n_experts * ASSUMED_STATE);
    }
    clb_store_settings_free(&owned);
    return rc;
}

void clb_store_settings_free(clb_store_settings *owned)
{
    free(owned->policy_params);
    free(owned->predictor_params);
    *owned = (clb_store_settings){0};
}
