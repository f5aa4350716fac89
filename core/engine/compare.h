/* Two settings of one engine against each other: what one run of one prompt is and costs, and what all runs together
 * say.
 *
 * A is the baseline, B what is judged. A prompt is the sampling unit: everything inside one hangs together. Runs take
 * turns, so that whatever slows the machine down slows both sides. */
#ifndef CLB_ENGINE_COMPARE_H
#define CLB_ENGINE_COMPARE_H

#include "engine/session.h"
#include "replay/stats.h"

enum { CLB_SIDE_A = 0, CLB_SIDE_B = 1, CLB_SIDES = 2 };

/* What the expert store did in one part of a run. */
typedef struct clb_compare_counters {
    uint64_t hits, late, misses; /* late: was on its way */
    uint64_t bytes_read;
    uint64_t stall_ns; /* the computation waited for reads */
    uint64_t prefetches, prefetch_useful, prefetch_wasted;
} clb_compare_counters;

/* One prompt, read and continued. Step s is the pass that takes token s of the continuation; hash[s] is of the logits
 * that chose it, hash[n] of the last ones. Sampling and hashing are outside the times. */
typedef struct clb_compare_run {
    uint32_t prompt, round, side;
    bool second;       /* the other side ran this prompt of this round before */
    uint32_t n_prompt; /* tokens */
    clb_tokens tokens; /* of the continuation */
    uint64_t prompt_ns;
    uint64_t *step_ns; /* [tokens.n] */
    uint64_t *hash;    /* [tokens.n + 1] */
    bool ended;        /* by an end-of-generation token, which is not among the tokens */
    clb_compare_counters in_prompt, in_steps;
    uint64_t peak_rss; /* of the process during the run; 0: unknown */
    /* Against the other side's logits for the same tokens; n_compared 0: not compared. */
    uint32_t n_compared, n_same_top;
    double kl_sum, kl_max; /* nats, Kullback-Leibler divergence of this run from the reference */
} clb_compare_run;
void clb_compare_run_free(clb_compare_run *run);

typedef struct clb_compare_input {
    const uint32_t *prompt;
    uint32_t n_prompt, n_tokens;
    bool ignore_eog;
    clb_sampler_params sampling;
    const uint32_t *forced; /* [n_tokens] tokens to take instead of sampled ones; NULL: sampled */
    /* Sees the logits that choose each token and the last ones: step 0 .. n. May be NULL. */
    int (*on_logits)(void *ctx, uint32_t step, const float *logits, clb_error *err);
    void *ctx;
} clb_compare_input;

/* Runs the session from empty and fills what a run measures (not: prompt, round, side, second). LIMIT if the context is
 * too small. The store's counters start at zero; its contents are left as they are. [engine-thread] */
int clb_compare_measure(clb_session *session, const clb_compare_input *in, clb_compare_run *out, clb_error *err);

/* A cold start: expert slots empty, the policy as new, and the model's files out of the page cache (but for pages that
 * another process has mapped, or that are locked). [engine-thread] */
void clb_compare_make_cold(clb_engine *engine, const clb_config *config);

/* Kullback-Leibler divergence in nats of softmax(x) from softmax(ref), and whether the largest logit is the same one.
 */
double clb_compare_kl(const float *ref, const float *x, uint32_t n, bool *same_top);
uint64_t clb_compare_hash(const float *x, uint32_t n);

/* Why these settings may change logits ("KV strategy NAME evicts", ...), into out; NULL: they cannot, or name what does
 * not exist (opening the engine says so). */
const char *clb_compare_lossy(clb_registry *registry, const clb_config *config, char *out, size_t size);

/* ---- what all runs say ----------------------------------------------------------------------------------------- */

/* X(NAME, "json_name", "text", "unit", ratio, larger is better)
 * Ratio metrics are compared by the mean of logarithms over prompts, so by the geometric mean of B / A. */
#define CLB_COMPARE_METRICS(X)                                                                                         \
    X(DECODE, "decode_tokens_per_second", "generation", "tok/s", true, true)                                           \
    X(PREFILL, "prompt_tokens_per_second", "prompt", "tok/s", true, true)                                              \
    X(TTFT, "first_token_ms", "time to first token", "ms", true, false)                                                \
    X(P50, "latency_p50_ms", "median latency", "ms", true, false)                                                      \
    X(P99, "latency_p99_ms", "99 % latency", "ms", true, false)                                                        \
    X(HIT_ALL, "hit_rate", "hit rate", "%", false, true)                                                               \
    X(HIT_DECODE, "hit_rate_generation", "hit rate in generation", "%", false, true)                                   \
    X(BYTES, "mib_read_per_token", "read per token", "MiB", false, false)                                              \
    X(STALL, "stall_ms_per_token", "waiting for reads", "ms/token", false, false)

enum clb_compare_metric {
#define CLB_COMPARE_ENUM(name, ...) CLB_COMPARE_##name,
    CLB_COMPARE_METRICS(CLB_COMPARE_ENUM)
#undef CLB_COMPARE_ENUM
        CLB_COMPARE_METRIC_COUNT
};

typedef struct clb_compare_metric_info {
    const char *json_name, *text, *unit;
    bool ratio, larger_is_better;
} clb_compare_metric_info;
clb_compare_metric_info clb_compare_metric_get(enum clb_compare_metric metric);

/* Value of one run; NAN where it has none (no look-ups, no tokens). Times in ms, rates per second, hit rates in %. */
double clb_compare_value(const clb_compare_run *run, enum clb_compare_metric metric);

typedef struct clb_compare_result {
    bool present;           /* at least one prompt has the value on both sides */
    double mean[CLB_SIDES]; /* over prompts: geometric for ratios */
    /* Of B against A. Ratios: B / A; others: B - A in the unit. detectable: the smallest true change that would have
     * shown: for ratios as a share (0.02: 2 %), else in the unit; INFINITY for one prompt. */
    double change, low, high, detectable;
    double p, p_holm;              /* of no change; p_holm: corrected for the number of metrics looked at */
    uint32_t n;                    /* prompts */
    enum clb_verdict_word verdict; /* WIN: B is better */
} clb_compare_result;

/* Of n prompts that all differ the same way by chance there are 2 in 2^n: under 5 % from here on. With fewer, intervals
 * are too narrow, verdicts are hints, and no gate is passed. */
#define CLB_COMPARE_ENOUGH 6u

/* What --gate demands, besides a win in DECODE over enough prompts. */
#define CLB_GATE_GAIN 1.03 /* median speed of generation, B / A, over prompts: in all runs and in each order alone */
#define CLB_GATE_SLOW 1.20 /* time to first token and 99 % latency: median of B / A at most */
typedef struct clb_compare_gate {
    double gain, gain_a_first, gain_b_first, ttft, p99; /* medians over prompts of B / A; NAN: no such runs */
    uint32_t n;                                         /* prompts */
    bool too_few;                                       /* they are not enough: never passed, whatever the figures */
    bool passed;
} clb_compare_gate;

typedef struct clb_compare_summary {
    clb_compare_result result[CLB_COMPARE_METRIC_COUNT];
    clb_compare_gate gate;
    uint32_t n_pairs; /* complete ones */
    /* Equality of all runs of a prompt: tokens and logits bit by bit. */
    uint32_t n_equal_pairs;
    bool differs;
    uint32_t prompt, round, step; /* of the first difference */
    bool tokens_differ;           /* there; else logits alone */
    /* Of B's logits against A's for the same tokens, over runs that were compared. */
    uint64_t n_compared, n_same_top;
    double kl_mean, kl_max;
} clb_compare_summary;

/* Runs may come in any order; those without a partner of the same prompt and round are left out. NOMEM. */
int clb_compare_summarize(const clb_compare_run *runs, size_t n, uint32_t n_prompts, uint64_t seed,
                          clb_compare_summary *out, clb_error *err);

#endif
