/* Speed of an opened engine, as llama-bench defines its tests: prompts of random tokens, then single tokens one after
 * another, nothing sampled.
 *
 * [engine-thread] */
#ifndef CLB_ENGINE_BENCH_H
#define CLB_ENGINE_BENCH_H

#include "engine/session.h"

/* Empties the session, feeds `depth` tokens without measuring, then measures: a prompt of n_prompt tokens if n_prompt,
 * else n_gen single tokens, each also in token_ns[n_gen] (may be NULL). *ns: the measured part. Tokens come from a
 * fixed generator, the same for every call. */
int clb_bench_run(clb_session *s, uint32_t depth, uint32_t n_prompt, uint32_t n_gen, uint64_t *ns, uint64_t *token_ns,
                  clb_error *err);
/* n_streams sequences side by side, each with `depth` tokens that are not measured: then n_gen passes with one token of each,
 * which take *ns together and token_ns[n_gen] each (may be NULL), logits included. Every sequence has tokens of its own, the
 * same for every call. The engine was opened for so many sequences beside those that live. */
int clb_bench_streams(clb_engine *engine, uint32_t n_streams, uint32_t depth, uint32_t n_gen, uint64_t *ns,
                      uint64_t *token_ns, clb_error *err);
/* Empties the session, reads ids[n] and generates n_gen tokens, greedily and whatever they are. *prompt_ns: reading;
 * *ttft_ns: until the first token is chosen; token_ns[n_gen]: each token, its choice included. */
int clb_bench_answer(clb_session *s, const uint32_t *ids, uint32_t n, uint32_t n_gen, uint64_t *prompt_ns,
                     uint64_t *ttft_ns, uint64_t *token_ns, clb_error *err);

/* Bytes of weights that one decoded token reads, with all its experts counted once. */
uint64_t clb_bench_weight_bytes(const clb_model *model);
/* Bytes of keys and values that one token after `n_kv` others reads. */
uint64_t clb_bench_kv_bytes(const clb_engine *engine, uint32_t n_kv);

/* A plain reading loop of all workers over 256 MiB, which no cache holds: bytes per second of the best of `passes`. The
 * memory is the caller's only during the call. */
int clb_bandwidth_measure(clb_pool *pool, uint32_t passes, double *out, clb_error *err);

#endif
