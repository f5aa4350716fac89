#include "plan/hit_curve.h"

#include <math.h>
#include <stdlib.h>

#define LEAST_USES 1000u

/* ---- independent draws ------------------------------------------------------------------------------------- */

/* Experts that were used within the last t visits, and with which chance the next use is one of them. */
static double expected(const double *p, uint32_t n, double t, double *hit)
{
    double there = 0, hits = 0, all = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double in = p[i] < 1 ? -expm1(t * log1p(-p[i])) : t > 0 ? 1 : 0;
        there += in;
        hits += p[i] * in;
        all += p[i];
    }
    *hit = hits / all;
    return there;
}

/* Chances of being used in a visit: proportional to the weights, at most 1, top_k in sum. */
static void chances(double *p, uint32_t n, uint32_t top_k)
{
    double certain = 0;
    for (int round = 0; round < 64; round++) {
        double sum = 0, over = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += p[i] < 1 ? p[i] : 0;
        if (sum <= 0)
            return;
        const double scale = ((double)top_k - certain) / sum;
        for (uint32_t i = 0; i < n; i++) {
            if (p[i] >= 1)
                continue;
            p[i] *= scale;
            if (p[i] >= 1) {
                p[i] = 1;
                over++;
            }
        }
        certain += over;
        if (over == 0)
            return;
    }
}

double clb_hit_rate_zipf(uint32_t n_experts, uint32_t top_k, double held, double exponent)
{
    if (held >= n_experts || top_k >= n_experts)
        return held >= n_experts ? 1 : held / n_experts;
    if (held <= 0 || top_k == 0)
        return 0;
    double *p = malloc(n_experts * sizeof *p);
    if (!p)
        return held / n_experts; /* equal chances need no table */
    double sum = 0;
    for (uint32_t i = 0; i < n_experts; i++)
        sum += p[i] = pow((double)i + 1, -exponent);
    for (uint32_t i = 0; i < n_experts; i++)
        p[i] *= 1e-9 / sum; /* all below 1: none is certain yet */
    chances(p, n_experts, top_k);
    double low = 0, high = 1, hit = 0;
    while (expected(p, n_experts, high, &hit) < held && high < 1e12)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        const double mid = (low + high) / 2;
        if (expected(p, n_experts, mid, &hit) < held)
            low = mid;
        else
            high = mid;
    }
    free(p);
    return hit;
}

/* ---- a trace ----------------------------------------------------------------------------------------------- */

/* Stack distances: a tree of counts over the times of uses, with a one where a block was used last. */
struct stack {
    uint32_t *tree;
    uint64_t n;     /* times */
    uint64_t *last; /* [n_blocks]: time + 1; 0: never */
};

static void mark(struct stack *s, uint64_t at, int32_t delta)
{
    for (uint64_t i = at + 1; i <= s->n; i += i & (~i + 1))
        s->tree[i] += (uint32_t)delta;
}

static uint64_t count_to(const struct stack *s, uint64_t at) /* of times [0, at] */
{
    uint64_t sum = 0;
    for (uint64_t i = at + 1; i; i -= i & (~i + 1))
        sum += s->tree[i];
    return sum;
}

static int order(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int clb_hit_curve_make(const clb_trace *t, clb_hit_curve *out, clb_error *err)
{
    const uint32_t n_layers = t->info.n_layers, n_experts = t->info.n_experts, top_k = t->info.top_k;
    *out = (clb_hit_curve){.n_blocks = n_layers * n_experts};
    uint64_t most_rows = 1, uses = 0;
    for (uint64_t p = 0; p < t->n_passes; p++) {
        uses += (uint64_t)t->passes[p].n_rows * n_layers * top_k;
        most_rows = t->passes[p].n_rows > most_rows ? t->passes[p].n_rows : most_rows;
    }
    struct stack s = {.n = uses};
    uint32_t *ids = calloc(most_rows * top_k, sizeof *ids);
    s.tree = uses < UINT32_MAX ? calloc(uses + 1, sizeof *s.tree) : NULL;
    s.last = calloc(out->n_blocks, sizeof *s.last);
    out->hits = calloc((size_t)out->n_blocks + 2, sizeof *out->hits);
    int rc = ids && s.tree && s.last && out->hits ? COLIBRI_OK : CLB_NOMEM(err, "the trace's hit rates");
    uint64_t now = 0, there = 0;
    for (uint64_t p = 0; p < t->n_passes && !rc; p++) {
        const clb_trace_pass *pass = &t->passes[p];
        for (uint32_t l = 0; l < n_layers; l++) {
            const size_t n = (size_t)pass->n_rows * top_k;
            const uint32_t *from = t->ids + clb_trace_at(t, p, l);
            for (size_t i = 0; i < n; i++)
                ids[i] = from[i];
            qsort(ids, n, sizeof *ids, order);
            for (size_t i = 0; i < n; i++) {
                if (i && ids[i] == ids[i - 1])
                    continue; /* used by several rows, read once */
                uint64_t *last = &s.last[(uint64_t)l * n_experts + ids[i]];
                if (*last) {
                    const uint64_t distance = there - count_to(&s, *last - 1) + 1; /* blocks since, itself included */
                    if (pass->phase == COLIBRI_PHASE_DECODE) {
                        out->uses++;
                        out->hits[distance]++;
                    }
                    mark(&s, *last - 1, -1);
                    there--;
                }
                mark(&s, now, 1);
                there++;
                *last = ++now;
            }
        }
    }
    for (uint32_t i = 1; i <= out->n_blocks && !rc; i++)
        out->hits[i] += out->hits[i - 1];
    if (!rc && out->uses < LEAST_USES)
        rc =
            clb_fail(err, COLIBRI_E_USAGE, "the trace has %llu uses of experts while decoding, too few to predict from",
                     (unsigned long long)out->uses);
    free(ids);
    free(s.tree);
    free(s.last);
    if (rc)
        clb_hit_curve_free(out);
    return rc;
}

double clb_hit_curve_at(const clb_hit_curve *c, double slots)
{
    if (slots >= c->n_blocks)
        return (double)c->hits[c->n_blocks] / (double)c->uses;
    if (slots <= 0)
        return 0;
    const uint32_t low = (uint32_t)slots;
    const double part = slots - low;
    return ((double)c->hits[low] * (1 - part) + (double)c->hits[low + 1] * part) / (double)c->uses;
}

void clb_hit_curve_free(clb_hit_curve *curve)
{
    free(curve->hits);
    *curve = (clb_hit_curve){0};
}
