/* Vector operations against core/ops: random lengths, contents and in-place use, at guard pages. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/ops.h"

/* A float buffer at a guard page and a copy of it for the reference. */
struct pair {
    struct guarded mem;
    float *got, *want;
    size_t n;
};

static struct pair pair_make(struct rng *r, size_t n, bool specials)
{
    struct pair p = {.mem = guarded_alloc(n * sizeof(float), 4, rng_below(r, 4) == 0), .n = n};
    p.got = p.mem.p;
    p.want = malloc(n * sizeof(float) + 1);
    if (!p.want)
        abort();
    rng_floats(r, p.got, n, specials);
    memcpy(p.want, p.got, n * sizeof(float));
    return p;
}

static void pair_free(struct pair *p)
{
    guarded_free(&p->mem);
    free(p->want);
}

static void pair_compare(struct report *rep, const char *what, const struct pair *p)
{
    compare_f32(rep, what, p->got, p->want, p->n);
}

static size_t random_length(struct rng *r)
{
    return rng_below(r, 2) ? rng_range(r, 1, 70) : rng_range(r, 1, 3000);
}

/* A limit of exp, or the number just below or above it. */
static float near_exp_limit(struct rng *r)
{
    const float limit = rng_below(r, 2) ? COLIBRI_EXP_MIN : COLIBRI_EXP_MAX;
    return colibri_bits_f32(colibri_f32_bits(limit) + rng_below(r, 3) - 1);
}

/* ---- one function per member --------------------------------------------------------------------------------- */

typedef void check_fn(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                      uint32_t number);

static void check_rms_norm(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                           uint32_t number)
{
    const size_t n = random_length(r);
    const bool in_place = rng_below(r, 2), weighted = rng_below(r, 4);
    const float eps = rng_below(r, 4) ? 1e-5f : 0.0f;
    case_begin(rep, name, number, "%zu elements%s%s", n, in_place ? ", in place" : "", weighted ? "" : ", no weights");
    struct pair x = pair_make(r, n, rng_below(r, 4) == 0), w = pair_make(r, n, false), y = pair_make(r, n, false);
    v->rms_norm(in_place ? x.got : y.got, x.got, weighted ? w.got : NULL, n, eps);
    clb_ref_rms_norm(in_place ? x.want : y.want, x.want, weighted ? w.want : NULL, n, eps);
    pair_compare(rep, "x", &x);
    pair_compare(rep, "y", &y);
    pair_compare(rep, "w", &w);
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}

static void check_rope(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                       uint32_t number)
{
    const size_t half = rng_range(r, 1, 130);
    const int neox = (int)rng_below(r, 2);
    case_begin(rep, name, number, "n_rot %zu, %s", 2 * half, neox ? "neox" : "norm");
    struct pair x = pair_make(r, 2 * half, rng_below(r, 4) == 0), cs = pair_make(r, 2 * half, false);
    v->rope(x.got, cs.got, 2 * half, neox);
    clb_ref_rope(x.want, cs.want, 2 * half, neox);
    pair_compare(rep, "x", &x);
    pair_compare(rep, "cs", &cs);
    pair_free(&x);
    pair_free(&cs);
}

static void check_softmax(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                          uint32_t number)
{
    const size_t n = random_length(r);
    case_begin(rep, name, number, "%zu elements", n);
    struct pair x = pair_make(r, n, rng_below(r, 4) == 0);
    if (rng_below(r, 4) == 0) { /* the largest is 0, so that the others reach exp as they are */
        for (size_t i = 0; i < n; i++)
            x.got[i] = x.want[i] = rng_below(r, 2) ? -fabsf(near_exp_limit(r)) : -100.0f * fabsf(rng_unit(r));
        x.got[n / 2] = x.want[n / 2] = 0.0f;
    }
    v->softmax(x.got, n);
    clb_ref_softmax(x.want, n);
    pair_compare(rep, "x", &x);
    pair_free(&x);
}

static void check_swiglu(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                         uint32_t number)
{
    const size_t n = random_length(r);
    const uint32_t where = rng_below(r, 3);
    case_begin(rep, name, number, "%zu elements, y is %s", n, where == 0 ? "y" : where == 1 ? "g" : "u");
    struct pair g = pair_make(r, n, rng_below(r, 4) == 0), u = pair_make(r, n, rng_below(r, 4) == 0),
                y = pair_make(r, n, false);
    for (size_t i = 0; i < n; i++) /* every range of exp, and its limits to the bit */
        if (rng_below(r, 4) == 0) {
            const float edge = -near_exp_limit(r);
            g.got[i] = g.want[i] = rng_below(r, 8) ? rng_unit(r) * 100.0f : edge;
        }
    v->swiglu(where == 0 ? y.got : where == 1 ? g.got : u.got, g.got, u.got, n);
    clb_ref_swiglu(where == 0 ? y.want : where == 1 ? g.want : u.want, g.want, u.want, n);
    pair_compare(rep, "y", &y);
    pair_compare(rep, "g", &g);
    pair_compare(rep, "u", &u);
    pair_free(&g);
    pair_free(&u);
    pair_free(&y);
}

static void check_elementwise(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                              uint32_t number)
{
    const size_t n = random_length(r);
    const float s = rng_unit(r) * 4.0f;
    const uint32_t which = number % 3;
    case_begin(rep, name, number, "%s, %zu elements", which == 0 ? "add" : which == 1 ? "axpy" : "scale", n);
    struct pair x = pair_make(r, n, rng_below(r, 4) == 0), y = pair_make(r, n, rng_below(r, 4) == 0);
    if (which == 0 && v->add) {
        v->add(y.got, x.got, n);
        clb_ref_add(y.want, x.want, n);
    } else if (which == 1 && v->axpy) {
        v->axpy(y.got, x.got, s, n);
        clb_ref_axpy(y.want, x.want, s, n);
    } else if (which == 2 && v->scale) {
        v->scale(y.got, s, n);
        clb_ref_scale(y.want, s, n);
    }
    pair_compare(rep, "y", &y);
    pair_compare(rep, "x", &x);
    pair_free(&x);
    pair_free(&y);
}

static void check_axpy_x16(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                           uint32_t number)
{
    const size_t n = rng_below(r, 2) ? rng_range(r, 1, 200) : rng_range(r, 1, 1200), groups = (n + 15) / 16;
    const uint32_t n_s = rng_range(r, 1, 40), more = rng_below(r, 3) * 16;
    case_begin(rep, name, number, "%zu elements, %u at once", n, n_s);
    const size_t stride = 16 * (size_t)n_s + more; /* nothing lies behind the last group */
    struct pair x = pair_make(r, (groups - 1) * stride + 16 * (size_t)n_s, rng_below(r, 4) == 0);
    struct pair y = pair_make(r, n, rng_below(r, 4) == 0), s = pair_make(r, n_s, false);
    v->axpy_x16(y.got, x.got, stride, s.got, n_s, n);
    clb_ref_axpy_x16(y.want, x.want, stride, s.want, n_s, n);
    pair_compare(rep, "y", &y);
    pair_compare(rep, "x", &x);
    pair_compare(rep, "s", &s);
    pair_free(&x);
    pair_free(&y);
    pair_free(&s);
}

/* NaN scales are compared as numbers, everything else as bytes. */
static void check_act_q8x32(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                            uint32_t number)
{
    const size_t blocks = rng_range(r, 1, 40), bytes = blocks * sizeof(struct colibri_act_q8x32);
    case_begin(rep, name, number, "%zu blocks", blocks);
    struct pair x = pair_make(r, 32 * blocks, rng_below(r, 3) == 0);
    struct guarded out = guarded_alloc(bytes, 4, false);
    struct colibri_act_q8x32 *const got = out.p, *const want = malloc(bytes);
    if (!want)
        abort();
    v->act_q8x32(x.got, got, 32 * blocks);
    clb_ref_act_q8x32(x.want, want, 32 * blocks);
    for (size_t b = 0; b < blocks; b++)
        if (!same_f32(got[b].d, want[b].d)) {
            case_fail(rep, "block %zu: d is %a, reference %a", b, (double)got[b].d, (double)want[b].d);
            break;
        } else if (!compare_bytes(rep, "sum", &got[b].sum, &want[b].sum, sizeof(got[b].sum)) ||
                   !compare_bytes(rep, "q", got[b].q, want[b].q, sizeof(got[b].q))) {
            break;
        }
    free(want);
    guarded_free(&out);
    pair_free(&x);
}

static void check_act_q8x256(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                             uint32_t number)
{
    const size_t blocks = rng_range(r, 1, 8), bytes = blocks * sizeof(struct colibri_act_q8x256);
    case_begin(rep, name, number, "%zu blocks", blocks);
    struct pair x = pair_make(r, 256 * blocks, rng_below(r, 3) == 0);
    struct guarded out = guarded_alloc(bytes, 4, false);
    struct colibri_act_q8x256 *const got = out.p, *const want = malloc(bytes);
    if (!want)
        abort();
    v->act_q8x256(x.got, got, 256 * blocks);
    clb_ref_act_q8x256(x.want, want, 256 * blocks);
    for (size_t b = 0; b < blocks; b++)
        if (!same_f32(got[b].d, want[b].d)) {
            case_fail(rep, "block %zu: d is %a, reference %a", b, (double)got[b].d, (double)want[b].d);
            break;
        } else if (!compare_bytes(rep, "reserved", &got[b].reserved, &want[b].reserved, 4) ||
                   !compare_bytes(rep, "bsum", got[b].bsum, want[b].bsum, sizeof(got[b].bsum)) ||
                   !compare_bytes(rep, "q", got[b].q, want[b].q, sizeof(got[b].q))) {
            break;
        }
    free(want);
    guarded_free(&out);
    pair_free(&x);
}

static void check_f32_to_f16(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                             uint32_t number)
{
    const size_t n = random_length(r);
    case_begin(rep, name, number, "%zu elements", n);
    struct pair x = pair_make(r, n, rng_below(r, 3) == 0);
    struct guarded out = guarded_alloc(2 * n, 2, rng_below(r, 4) == 0);
    for (size_t i = 0; i < n; i++) /* ties, and values just beside them */
        if (rng_below(r, 4) == 0) {
            const uint32_t u = colibri_f32_bits(x.got[i]) & ~0x1fffu;
            x.got[i] = colibri_bits_f32((u | 0x1000u) + rng_below(r, 3) - 1);
        }
    v->f32_to_f16(x.got, out.p, n);
    for (size_t i = 0; i < n; i++) {
        const colibri_f16 got = ((const colibri_f16 *)out.p)[i], want = colibri_f32_f16(x.got[i]);
        if (got != want && !((got & 0x7fff) > 0x7c00 && (want & 0x7fff) > 0x7c00)) {
            case_fail(rep, "out[%zu] of %a is %04x, reference %04x", i, (double)x.got[i], got, want);
            break;
        }
    }
    guarded_free(&out);
    pair_free(&x);
}

/* Any bits. */
static void check_f16_to_f32(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                             uint32_t number)
{
    const size_t n = random_length(r);
    case_begin(rep, name, number, "%zu elements", n);
    struct guarded in = guarded_alloc(2 * n, 2, rng_below(r, 4) == 0),
                   out = guarded_alloc(4 * n, 4, rng_below(r, 4) == 0);
    for (size_t i = 0; i < n; i++)
        ((colibri_f16 *)in.p)[i] = (colibri_f16)rng_below(r, 1u << 16);
    v->f16_to_f32(in.p, out.p, n);
    for (size_t i = 0; i < n; i++) {
        const float got = ((const float *)out.p)[i], want = colibri_f16_f32(((const colibri_f16 *)in.p)[i]);
        if (colibri_f32_bits(got) != colibri_f32_bits(want) && !(isnan(got) && isnan(want))) {
            case_fail(rep, "out[%zu] of %04x is %a, reference %a", i, ((const colibri_f16 *)in.p)[i], (double)got,
                      (double)want);
            break;
        }
    }
    guarded_free(&in);
    guarded_free(&out);
}

void check_attention(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                     uint32_t number);
void check_attention_edges(struct report *rep, const struct colibri_vecops *v, struct rng *r, const char *name,
                           uint32_t number);

void check_vecops(struct report *rep, const struct colibri_vecops *v)
{
    const struct {
        const char *member;
        bool offered;
        check_fn *fn;
    } checks[] = {
        {"rms_norm", v->rms_norm != NULL, check_rms_norm},
        {"rope", v->rope != NULL, check_rope},
        {"softmax", v->softmax != NULL, check_softmax},
        {"swiglu", v->swiglu != NULL, check_swiglu},
        {"elementwise", v->add || v->axpy || v->scale, check_elementwise},
        {"axpy_x16", v->axpy_x16 != NULL, check_axpy_x16},
        {"act_q8x32", v->act_q8x32 != NULL, check_act_q8x32},
        {"act_q8x256", v->act_q8x256 != NULL, check_act_q8x256},
        {"f32_to_f16", v->f32_to_f16 != NULL, check_f32_to_f16},
        {"f16_to_f32", v->f16_to_f32 != NULL, check_f16_to_f32},
        {"attention", v->attention != NULL, check_attention},
        {"attention-edges", v->attention != NULL, check_attention_edges},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s.%s", v->name, checks[i].member);
        if (!checks[i].offered || (rep->o->filter && !strstr(name, rep->o->filter)))
            continue;
        for (uint32_t c = 0; c < rep->o->cases; c++) {
            if (rep->o->only_case >= 0 && rep->o->only_case != c)
                continue;
            struct rng r = rng_case(rep->o, name, c);
            const uint64_t control = fp_control();
            checks[i].fn(rep, v, &r, name, c);
            if (fp_control() != control)
                case_fail(rep, "the floating-point control register was changed");
        }
    }
}
