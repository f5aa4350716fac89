#include "engine/logprobs.h"

#include <math.h>

#include "colibri/numerics.h"

static float number(float x)
{
    return x == x ? x : -INFINITY;
}

/* Sorted in place: the list is short. */
static void offer(clb_logprob *top, uint32_t *n, uint32_t n_top, uint32_t token, float logit)
{
    uint32_t i = *n < n_top ? (*n)++ : n_top - 1;
    for (; i > 0 && top[i - 1].logprob < logit; i--)
        top[i] = top[i - 1];
    top[i] = (clb_logprob){token, logit};
}

void clb_logprobs(const float *logits, uint32_t n_vocab, uint32_t token, clb_logprob *self, uint32_t n_top,
                  clb_logprob *top)
{
    float most = -INFINITY;
    uint32_t n = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        const float x = number(logits[id]);
        most = x > most ? x : most;
        if (n_top && (n < n_top || x > top[n_top - 1].logprob))
            offer(top, &n, n_top, id, x);
    }
    double sum = 0.0;
    for (uint32_t id = 0; id < n_vocab && most > -INFINITY; id++)
        if (logits[id] == logits[id])
            sum += (double)colibri_expf(logits[id] - most);
    const double log_sum = sum > 0.0 ? (double)most + log(sum) : 0.0;
    for (uint32_t i = 0; i < n_top; i++)
        top[i].logprob = (float)((double)top[i].logprob - log_sum);
    *self = (clb_logprob){token, token < n_vocab ? (float)((double)number(logits[token]) - log_sum) : -INFINITY};
}
