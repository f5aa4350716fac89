/* LoRA adapters of an engine: loaded and unloaded while it runs, on by default with a strength, or named by a request.
 *
 * The base weights are not touched. An adapter that is unloaded while sequences use it goes when the last of them ends;
 * until then its number is not given again. What the adapters need is part of the memory budget: those of the settings
 * are counted by the plan, later ones must fit what is left of --lora-memory.
 *
 * [engine-thread] */
#ifndef CLB_ENGINE_ADAPTERS_H
#define CLB_ENGINE_ADAPTERS_H

#include <stdbool.h>

#include "config/config.h"
#include "model/lora.h"

typedef struct clb_adapter {
    clb_lora *lora; /* its id is the adapter's */
    float scale;    /* of who names no adapters; 0: off */
    uint32_t users;
    bool leaving; /* unloaded, but in use */
} clb_adapter;

typedef struct clb_adapters {
    clb_adapter *items;
    size_t n, cap;
    uint32_t next_id;
    uint64_t bytes, max_bytes; /* of all, with the work space of passes that use them at once */
    uint64_t rank_bytes;       /* work space for each rank of an adapter */
    bool limited;              /* max_bytes counts: the plan is made */
    clb_lora_set defaults;
} clb_adapters;

/* One adapter of a request and its strength. */
typedef struct clb_lora_use {
    uint32_t id;
    float scale;
} clb_lora_use;

/* The configured ones ("FILE", "FILE=SCALE"), for a bound model and passes of max_rows rows. max_bytes becomes what they
 * take and --lora-memory, whichever is more. */
int clb_adapters_open(clb_adapters *a, const clb_model *model, uint32_t max_rows, const clb_config *config,
                      clb_error *err);
void clb_adapters_close(clb_adapters *a);
uint64_t clb_adapters_planned(const clb_adapters *a); /* bytes that are promised to them and not taken yet */
uint64_t clb_adapters_room(const clb_adapters *a); /* bytes that more of them may take */

/* A file that is loaded already is another adapter with another id. LIMIT beyond CLB_LORA_MOST that are on by default.
 */
int clb_adapters_load(clb_adapters *a, const clb_model *model, const char *path, float scale, uint32_t *id,
                      clb_error *err);
/* NOT_FOUND names the ids that exist. */
int clb_adapters_unload(clb_adapters *a, uint32_t id, clb_error *err);
bool clb_adapters_has(clb_adapters *a, uint32_t id);
int clb_adapters_set_scale(clb_adapters *a, uint32_t id, float scale, clb_error *err);
/* The set that a sequence uses: uses[n], or the defaults if `given` is false. Its adapters stay until the set is
 * released. */
int clb_adapters_take(clb_adapters *a, bool given, const clb_lora_use *uses, size_t n, clb_lora_set *out,
                      clb_error *err);
void clb_adapters_release(clb_adapters *a, const clb_lora_set *set);
/* Tells sets apart by what they compute; 0 for an empty one. With the same seed the same from run to run; where clients choose the
 * strengths the seed must be one that they cannot know. */
uint64_t clb_lora_set_hash(const clb_lora_set *set, uint64_t seed);

#endif
