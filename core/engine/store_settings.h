/* What the settings say about the store: policy, predictor, how experts are read. */
#ifndef CLB_ENGINE_STORE_SETTINGS_H
#define CLB_ENGINE_STORE_SETTINGS_H

#include "config/config.h"
#include "model/model.h"

/* Memory that load options point to. */
typedef struct clb_store_settings {
    double *policy_params, *predictor_params;
} clb_store_settings;

/* Fills the store's part of *out. NOT_FOUND, USAGE. */
int clb_store_settings_read(const clb_config *config, const clb_model *model, clb_store_settings *owned,
                            clb_model_load_options *out, clb_error *err);
/* Bytes that the configured expert policy and predictor will keep for the model; 0 for a dense one. NOT_FOUND, USAGE. */
int clb_store_settings_state_bytes(const clb_config *config, const clb_model *model, uint64_t *out, clb_error *err);
void clb_store_settings_free(clb_store_settings *owned);

#endif
