/* Attention that later queries of a text give, recorded in an earlier run over it: for strategies that serve as a bound. */
#ifndef CLB_KV_FUTURE_H
#define CLB_KV_FUTURE_H

#include <stdint.h>

typedef struct clb_kv_future clb_kv_future;

/* Per position of the text: attention that the queries from `next_position` on give it, summed over the query heads of the KV
 * head; NULL if that is unknown. Valid until the next call. */
const float *clb_kv_future_of(const clb_kv_future *f, uint32_t layer, uint32_t kv_head, uint64_t next_position);

#endif
