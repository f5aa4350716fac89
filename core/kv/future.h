/* Attention that later queries of a text give, recorded in an earlier run over it: for strategies that serve as a
 * bound.
 *
 * The first run keeps everything under the recorder, a strategy that sees attention and is never over its budget; after
 * each pass the sums so far are noted. What is still to come at a note is the sum at the end without the sum then.
 *
 * [engine-thread] */
#ifndef CLB_KV_FUTURE_H
#define CLB_KV_FUTURE_H

#include <stdint.h>

#include "kv/kv.h"

typedef struct clb_kv_future clb_kv_future;

/* For a text of n_positions tokens. NOMEM. */
int clb_kv_future_create(const clb_kv_layout *layout, uint32_t n_positions, clb_kv_future **out, clb_error *err);
void clb_kv_future_destroy(clb_kv_future *f); /* NULL: nothing */
/* The strategy of the first run; its budget must hold the whole text. */
const struct colibri_kv_strategy *clb_kv_future_recorder(void);
/* After a pass of the first run. USAGE if the sequence is longer than the text or has dropped something; NOMEM. */
int clb_kv_future_note(clb_kv_future *f, const clb_kv_seq *seq, clb_error *err);
/* Once, after the last pass was noted: now it can be asked. */
void clb_kv_future_finish(clb_kv_future *f);

/* Per position of the text: attention that the queries from `next_position` on give it, summed over the query heads of
 * the KV head (from the last note before, if there is none just there); NULL if that is unknown. Valid while f lives.
 */
const float *clb_kv_future_of(const clb_kv_future *f, uint32_t layer, uint32_t kv_head, uint64_t next_position);

#endif
