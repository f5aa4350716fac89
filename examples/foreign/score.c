/* An expert policy that knows nothing of Colibri: one function, compiled on its own.
 *
 *     cc -O2 -shared -fPIC score.c -o score.so
 *
 * The section [foreign.aged-frequency] of colibri.ini names it and says which of the host's counters it wants, in this
 * order: score(age, uses, n_layers). The expert with the lowest score leaves memory first. */
#include <stdint.h>

/* Uses per token, as if 32 more tokens had gone by since the last one: often used and not for long, worth keeping.
 * (Time has one tick per token and layer.) */
double score(uint64_t age, uint64_t uses, uint32_t n_layers)
{
    const double tokens = (double)age / n_layers;
    return ((double)uses + 1) / (tokens + 32);
}
