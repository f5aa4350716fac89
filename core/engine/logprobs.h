/* Log probabilities of tokens: the logarithm of the softmax of the logits as the model gives them. */
#ifndef CLB_ENGINE_LOGPROBS_H
#define CLB_ENGINE_LOGPROBS_H

#include <stdint.h>

typedef struct clb_logprob {
    uint32_t token;
    float logprob;
} clb_logprob;

/* Of one token and of the n_top likeliest, best first, ties to the lower id; both from one walk. logits: [n_vocab];
 * n_top <= n_vocab. Logits that are no numbers count as -INFINITY. Sums are taken in order, in double: the same values
 * everywhere. */
void clb_logprobs(const float *logits, uint32_t n_vocab, uint32_t token, clb_logprob *self, uint32_t n_top,
                  clb_logprob *top);

#endif
