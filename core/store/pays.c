#include "store/pays.h"

#include <stdlib.h>
#include <string.h>

#define STRETCHES 4u
/* Passes that the first winner gets before both are tried again; doubled with each further win. */
#define FIRST_TIME 128u
#define MOST_TIME  4096u
/* At first the cache is cold: passes become faster by themselves. */
#define WARM_UP 32u
/* Reading ahead goes on unless it costs more than this: short of that it is not told from noise. */
#define TOLERANCE 1.01

static void begin_trial(clb_pays *p)
{
    p->holding = false;
    p->stretch = 0;
    p->n = 0;
    p->on = true;
}

void clb_pays_init(clb_pays *p)
{
    *p = (clb_pays){.on = true, .holding = true, .left = WARM_UP};
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void decide(clb_pays *p)
{
    const double with = (double)(p->median[0] + p->median[3]), without = (double)(p->median[1] + p->median[2]);
    const bool pays = with <= TOLERANCE * without, before = p->ratio <= TOLERANCE;
    p->wins = p->ratio > 0 && pays == before ? p->wins + 1 : 1;
    p->ratio = without > 0 ? with / without : 1.0;
    const uint32_t shift = p->wins - 1 < 5 ? p->wins - 1 : 5;
    p->left = FIRST_TIME << shift < MOST_TIME ? FIRST_TIME << shift : MOST_TIME;
    p->holding = true;
    p->on = pays;
}

static void end_stretch(clb_pays *p)
{
    qsort(p->ns, p->n, sizeof *p->ns, by_size);
    p->median[p->stretch] = p->ns[p->n / 2];
    p->n = 0;
    if (++p->stretch == STRETCHES) {
        decide(p);
        return;
    }
    p->on = p->stretch == 3; /* on, off, off, on: a drift hits both */
}

void clb_pays_begin(clb_pays *p, uint64_t now)
{
    if (p->on)
        p->passes_on++;
    else
        p->passes_off++;
    p->began = now;
}

void clb_pays_end(clb_pays *p, uint64_t now)
{
    if (!p->began)
        return;
    const uint64_t ns = now - p->began;
    p->began = 0;
    if (p->holding) {
        if (--p->left == 0)
            begin_trial(p);
        return;
    }
    p->ns[p->n++] = ns;
    if (p->n == CLB_PAYS_PASSES)
        end_stretch(p);
}
