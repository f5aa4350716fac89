/* For tests of the scheduler, whatever listens to the events: requests of random tokens, and what a session alone makes
 * of one. */
#ifndef CLB_TESTS_SCHEDULER_REQUESTS_H
#define CLB_TESTS_SCHEDULER_REQUESTS_H

#include <string.h>

#include "engine/scheduler.h"
#include "support/engine.h"

#define SMALL    TEST_DATA("arch/qwen3moe.gguf")
#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")

static inline void random_ids(const clb_engine *e, uint32_t *ids, size_t n, uint64_t seed)
{
    test_rand rng = {seed};
    for (size_t i = 0; i < n; i++)
        ids[i] = test_rand_below(&rng, clb_vocab_size(e->vocab));
}

/* One choice, and nobody listens. */
static inline clb_request_options request_of(const uint32_t *ids, size_t n, uint32_t max_tokens, uint64_t seed)
{
    return (clb_request_options){
        .prompt = ids,
        .n_prompt = n,
        .n_choices = 1,
        .sampling = {.temperature = 1.0, .top_p = 1.0, .repeat_penalty = 1.0, .seed = seed},
        .max_tokens = max_tokens,
        .special = true,
        .n_logprobs = -1,
    };
}

static inline clb_request *submit_to(clb_scheduler *s, const clb_request_options *o)
{
    clb_error err;
    clb_request *r;
    assert_ok(clb_scheduler_submit(s, o, &r, &err), &err);
    return r;
}

/* This text and end of choice i are what a session alone generates; so many tokens it has. */
static inline size_t check_lone_text(clb_engine *engine, const clb_request_options *o, uint32_t i,
                                     enum clb_finish finish, const char *text, size_t n)
{
    clb_error err;
    clb_session *lone;
    clb_generation g;
    clb_generate_options options = {.sampling = o->sampling,
                                    .max_tokens = o->max_tokens,
                                    .stops = o->stops,
                                    .n_stops = o->n_stops,
                                    .ignore_eog = o->ignore_eog,
                                    .special = o->special};
    options.sampling.seed += i;
    assert_ok(clb_session_create(engine, &lone, &err), &err);
    if (o->n_protected)
        assert_ok(clb_session_protect(lone, o->n_protected, &err), &err);
    assert_ok(clb_session_generate(lone, o->prompt, o->n_prompt, &options, &g, &err), &err);
    assert_int_equal(finish, g.finish);
    assert_int_equal(n, g.text.n);
    assert_memory_equal(text, g.text.n ? g.text.data : "", g.text.n);
    const size_t n_tokens = g.tokens.n;
    clb_generation_free(&g);
    clb_session_destroy(lone);
    return n_tokens;
}

#endif
