/* An expert policy that knows nothing of Colibri: one function, compiled on its own.
 *
 *     cc -O2 -shared -fPIC score.c -o score.so
 *
 * The section [foreign.aged-frequency] of colibri.ini names it and says which of the host's counters it wants, in this
 * order: score(age, uses_here, n_layers). The expert with the lowest score leaves memory first. */
#include <stdint.h>

/* Uses since it came into memory, and four more, per token since the last one: the four let a newcomer live for a while.
 * (Time has one tick per token and layer.) */
double score(uint64_t age, uint64_t uses_here, uint32_t n_layers)
{
    const double tokens = (double)age / n_layers;
    return ((double)uses_here + 4) / (tokens + 2);
}
