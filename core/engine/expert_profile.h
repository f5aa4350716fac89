/* What an expert policy learned, kept from run to run in a file beside the model.
 *
 * The file: "CLBPROF1", u32 n_layers, u32 n_experts, u64 bytes of the model's files, u32 length and bytes of the
 * policy's name, then what clb_cache_save gives; little-endian. A profile of another model or policy, or a damaged one,
 * is left alone with a warning and not used. */
#ifndef CLB_ENGINE_EXPERT_PROFILE_H
#define CLB_ENGINE_EXPERT_PROFILE_H

#include "base/log.h"
#include "config/config.h"
#include "model/model.h"

/* Loads it if the policy keeps one and there is one. *path: where it will be saved, to be freed; NULL: nowhere. A
 * policy without a profile is an error if --expert-profile names a file. */
int clb_expert_profile_open(const clb_config *config, const clb_model *model, const char *model_path,
                            const clb_log *log, char **path, clb_error *err);
/* Replaces the file; a failure is a warning. */
void clb_expert_profile_save(const clb_model *model, const char *path, const clb_log *log);

#endif
