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
    clb_lora *lora;   /* its id is the adapter's */
    float scale;      /* of who names no adapters; 0: off */
    float next_scale; /* while several are set */
    uint32_t users;
    bool leaving; /* unloaded, but in use */
    bool coming;  /* its memory is promised, its file is being read: nobody sees it, and it is its reader's */
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

/* Looks at the configured ones ("FILE", "FILE=SCALE"), for a bound model and passes of max_rows rows: what they need is
 * known (max_bytes: that, or --lora-memory if it is more), nothing is read. */
int clb_adapters_open(clb_adapters *a, const clb_model *model, uint32_t max_rows, const clb_config *config,
                      clb_error *err);
/* Reads them, once the plan has room for max_bytes. */
int clb_adapters_read(clb_adapters *a, bool (*cancelled)(void *ctx), void *ctx, clb_error *err);
void clb_adapters_close(clb_adapters *a);
uint64_t clb_adapters_room(const clb_adapters *a); /* bytes that more of them may take */

/* In three steps, so that passes go on while a file is read: clb_lora_look by any thread; `expect` keeps memory for it
 * and gives it its id (NOMEM if it does not fit, LIMIT beyond CLB_LORA_MOST that are on by default: it remains the
 * caller's to close); clb_lora_read by any thread; then `admit`, or, if that failed, `forget`. A file that is loaded
 * already is another adapter with another id. */
int clb_adapters_expect(clb_adapters *a, const clb_model *model, clb_lora *lora, float scale, clb_error *err);
void clb_adapters_admit(clb_adapters *a, const clb_lora *lora);
void clb_adapters_forget(clb_adapters *a, const clb_lora *lora); /* remains the caller's to close */
/* All of it. */
int clb_adapters_load(clb_adapters *a, const clb_model *model, const char *path, float scale, uint32_t *id,
                      clb_error *err);
static inline bool clb_adapter_there(const clb_adapter *x)
{
    return !x->leaving && !x->coming;
}
/* NOT_FOUND names the ids that exist. */
int clb_adapters_unload(clb_adapters *a, uint32_t id, clb_error *err);
/* All of them, or none if one does not exist or too many would be on; of an id that is named twice the last one counts.
 */
int clb_adapters_set_scales(clb_adapters *a, const clb_lora_use *uses, size_t n, clb_error *err);
/* The set that a sequence uses: uses[n], or the defaults if `given` is false. Its adapters stay until the set is
 * released. */
int clb_adapters_take(clb_adapters *a, bool given, const clb_lora_use *uses, size_t n, clb_lora_set *out,
                      clb_error *err);
void clb_adapters_release(clb_adapters *a, const clb_lora_set *set);
/* Tells sets apart by what they compute; 0 for an empty one. With the same seed the same from run to run; where clients
 * choose the strengths the seed must be one that they cannot know. */
uint64_t clb_lora_set_hash(const clb_lora_set *set, uint64_t seed);

#endif
