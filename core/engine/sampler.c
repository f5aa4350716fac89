#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "colibri/numerics.h"
#include "engine/sampler_select.h"

/* See block_tops. */
#define LANES 16u
#define DEPTH 16u

struct clb_sampler {
    clb_sampler_params params;
    uint32_t n_vocab;
    uint64_t rng[4];
    uint32_t *window; /* ring of the last repeat_last_n tokens */
    uint32_t n_window, next;
    uint32_t *count; /* [n_vocab] occurrences in the window */
    struct clb_candidate *candidates;
    double *weights;
    float *tops; /* [n_vocab / 16] */
    float *bias; /* [n_vocab]; NULL: none */
};

/* xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64. */
static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

static double uniform(clb_sampler *s)
{
    uint64_t *r = s->rng;
    const uint64_t result = rotl(r[1] * 5, 7) * 9;
    const uint64_t t = r[1] << 17;
    r[2] ^= r[0];
    r[3] ^= r[1];
    r[1] ^= r[2];
    r[0] ^= r[3];
    r[2] ^= t;
    r[3] = rotl(r[3], 45);
    return (double)(result >> 11) * 0x1.0p-53;
}

int clb_sampler_create(const clb_sampler_params *params, uint32_t n_vocab, clb_sampler **out, clb_error *err)
{
    *out = NULL;
    clb_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return CLB_NOMEM(err, "sampler");
    s->params = *params;
    s->n_vocab = n_vocab;
    uint64_t seed = params->seed;
    for (int i = 0; i < 4; i++)
        s->rng[i] = splitmix(&seed);
    s->window = calloc(params->repeat_last_n + (size_t)1, sizeof *s->window);
    s->count = calloc(n_vocab, sizeof *s->count);
    s->candidates = calloc(n_vocab, sizeof *s->candidates);
    s->weights = calloc(n_vocab, sizeof *s->weights);
    s->tops = calloc(n_vocab / LANES + 1u, sizeof *s->tops);
    if (!s->window || !s->count || !s->candidates || !s->weights || !s->tops) {
        clb_sampler_destroy(s);
        return CLB_NOMEM(err, "sampler");
    }
    *out = s;
    return COLIBRI_OK;
}

void clb_sampler_destroy(clb_sampler *s)
{
    if (!s)
        return;
    free(s->window);
    free(s->count);
    free(s->candidates);
    free(s->weights);
    free(s->tops);
    free(s->bias);
    free(s);
}

int clb_sampler_add_bias(clb_sampler *s, uint32_t token, float bias, clb_error *err)
{
    if (!s->bias)
        s->bias = calloc(s->n_vocab, sizeof *s->bias);
    if (!s->bias)
        return CLB_NOMEM(err, "sampler");
    if (token < s->n_vocab)
        s->bias[token] += bias;
    return COLIBRI_OK;
}

void clb_sampler_accept(clb_sampler *s, uint32_t token)
{
    const uint32_t n = s->params.repeat_last_n;
    if (n == 0 || token >= s->n_vocab)
        return;
    if (s->n_window == n)
        s->count[s->window[s->next]]--;
    else
        s->n_window++;
    s->window[s->next] = token;
    s->next = s->next + 1 == n ? 0 : s->next + 1;
    s->count[token]++;
}

/* Repetition: divide positive logits, multiply negative ones (Keskar et al., CTRL, 2019). Presence and frequency as in
 * the OpenAI API. */
static float penalised(const clb_sampler *s, uint32_t id, float logit)
{
    const uint32_t count = s->count[id];
    if (!count)
        return logit;
    const float repeat = (float)s->params.repeat_penalty;
    if (repeat != 1.0f)
        logit = logit > 0.0f ? logit / repeat : logit * repeat;
    return logit - (float)count * (float)s->params.frequency_penalty - (float)s->params.presence_penalty;
}

/* Moves the k best candidates to the front, sorted: a heap of the k best so far, then one sort. */
static void sift_down(struct clb_candidate *heap, size_t n, size_t i)
{
    for (;;) {
        size_t worst = i;
        const size_t l = 2 * i + 1, r = l + 1;
        if (l < n && clb_by_logit(&heap[l], &heap[worst]) > 0)
            worst = l;
        if (r < n && clb_by_logit(&heap[r], &heap[worst]) > 0)
            worst = r;
        if (worst == i)
            return;
        const struct clb_candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

static size_t keep_best(struct clb_candidate *c, size_t n, size_t k)
{
    if (k < n) {
        for (size_t i = k / 2; i-- > 0;)
            sift_down(c, k, i);
        for (size_t i = k; i < n; i++)
            if (c[i].logit >= c[0].logit && clb_by_logit(&c[i], &c[0]) < 0) {
                c[0] = c[i];
                sift_down(c, k, 0);
            }
        n = k;
    }
    qsort(c, n, sizeof *c, clb_by_logit);
    return n;
}

/* All tokens that may be chosen, with what is sampled from; *best is the place of the largest. */
static size_t gather(clb_sampler *s, const float *logits, const uint64_t *allowed, size_t *best)
{
    struct clb_candidate *c = s->candidates;
    size_t n = 0;
    *best = 0;
    for (uint32_t id = 0; id < s->n_vocab; id++) {
        if (allowed && !(allowed[id / 64] >> id % 64 & 1))
            continue;
        float logit = penalised(s, id, logits[id]);
        if (s->bias)
            logit += s->bias[id];
        if (!(logit == logit) || logit == -INFINITY)
            continue;
        c[n] = (struct clb_candidate){logit, id};
        if (logit > c[*best].logit)
            *best = n;
        n++;
    }
    return n;
}

/* Nothing but the logits counts: no mask, no bias, no penalty that does anything. */
static bool is_plain(const clb_sampler *s, const uint64_t *allowed)
{
    const clb_sampler_params *p = &s->params;
    return !allowed && !s->bias && p->repeat_penalty == 1.0 && p->presence_penalty == 0.0 && p->frequency_penalty == 0.0;
}

/* Blocks of 16 logits, every 16th of a stretch of 256: their largest ones are found without looking across lanes. */

static void block_tops(const float *logits, uint32_t n_stretches, float *tops)
{
    for (uint32_t i = 0; i < n_stretches; i++, logits += LANES * DEPTH, tops += LANES) {
        float top[LANES];
        for (uint32_t k = 0; k < LANES; k++)
            top[k] = -INFINITY;
        for (uint32_t r = 0; r < DEPTH; r++)
            for (uint32_t k = 0; k < LANES; k++)
                top[k] = logits[r * LANES + k] > top[k] ? logits[r * LANES + k] : top[k]; /* not a number: no */
        memcpy(tops, top, sizeof top);
    }
}

static size_t add_best(struct clb_candidate *c, size_t n, const float *logits, uint32_t id, float least, size_t *best)
{
    const float logit = logits[id];
    if (!(logit >= least) || logit == -INFINITY)
        return n;
    c[n] = (struct clb_candidate){logit, id};
    if (n && clb_by_logit(&c[n], &c[*best]) < 0)
        *best = n;
    return n + 1;
}

/* As gather, with the k best of them at least: all that are not below the k-th largest of the blocks' largest ones. */
static size_t gather_best(clb_sampler *s, const float *logits, size_t k, size_t *best)
{
    struct clb_candidate *const c = s->candidates;
    const uint32_t n_stretches = s->n_vocab / (LANES * DEPTH);
    const uint32_t n_tops = n_stretches * LANES;
    float least = -INFINITY;
    size_t n = 0;
    *best = 0;
    block_tops(logits, n_stretches, s->tops);
    if (k <= n_tops) {
        for (uint32_t i = 0; i < n_tops; i++)
            c[i] = (struct clb_candidate){s->tops[i], i};
        keep_best(c, n_tops, k);
        least = c[k - 1].logit;
    }
    for (uint32_t i = 0; i < n_tops; i++)
        for (uint32_t r = 0; r < DEPTH && s->tops[i] >= least; r++)
            n = add_best(c, n, logits, (i / LANES * DEPTH + r) * LANES + i % LANES, least, best);
    for (uint32_t id = n_stretches * LANES * DEPTH; id < s->n_vocab; id++)
        n = add_best(c, n, logits, id, least, best);
    return n;
}

static bool any_number(const clb_sampler *s, const float *logits)
{
    for (uint32_t id = 0; id < s->n_vocab; id++)
        if (logits[id] == logits[id] && logits[id] != -INFINITY)
            return true;
    return false;
}

int clb_sampler_sample(clb_sampler *s, const float *logits, uint32_t *token, clb_error *err)
{
    return clb_sampler_sample_masked(s, logits, NULL, token, err);
}

int clb_sampler_sample_masked(clb_sampler *s, const float *logits, const uint64_t *allowed, uint32_t *token, clb_error *err)
{
    struct clb_candidate *c = s->candidates;
    const size_t k = s->params.temperature <= 0.0 ? 1 : s->params.top_k;
    const bool quick = k && k < s->n_vocab / 2 && is_plain(s, allowed);
    size_t best, n = quick ? gather_best(s, logits, k, &best) : gather(s, logits, allowed, &best);
    if (n == 0 && any_number(s, logits))
        return clb_fail(err, COLIBRI_E_LIMIT, "no token is left: the grammar or the logit biases forbid all of them");
    if (n == 0)
        return clb_fail(err, COLIBRI_E_INTERNAL, "no logit is a number: the weights or the model's keys are broken");
    if (s->params.temperature <= 0.0) {
        *token = c[best].id;
        return COLIBRI_OK;
    }
    if (quick || (k && k < n))
        n = clb_candidates_cut(c, keep_best(c, n, k < n ? k : n), s->params.top_p, s->params.min_p, s->weights);
    else
        n = clb_candidates_select(c, n, best, s->params.top_p, s->params.min_p, s->weights);
    const float inv_t = (float)(1.0 / s->params.temperature);
    double total = 0.0;
    for (size_t i = 0; i < n; i++) {
        s->weights[i] = (double)colibri_expf((c[i].logit - c[0].logit) * inv_t);
        total += s->weights[i];
    }
    double point = uniform(s) * total;
    size_t choice = 0;
    while (choice + 1 < n && point >= s->weights[choice])
        point -= s->weights[choice++];
    *token = c[choice].id;
    return COLIBRI_OK;
}
