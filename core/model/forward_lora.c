#include "model/forward_lora.h"

#include <stdlib.h>
#include <string.h>

#include "model/compute_internal.h"
#include "model/forward_internal.h"

/* Rows, or pairs of a row and an expert. */
static size_t n_places(const clb_hparams *hp, uint32_t max_rows)
{
    return (size_t)max_rows * (hp->n_experts ? hp->top_k : 1);
}

uint64_t clb_forward_lora_bytes(const clb_hparams *hp, uint32_t max_rows)
{
    return 2 * n_places(hp, max_rows) * sizeof(float); /* two products: gate and up */
}

void clb_forward_lora_free(clb_forward_lora *l)
{
    free(l->active);
    free(l->scale);
    free(l->t[0]);
    free(l->jobs);
    free(l->first);
    free(l->deltas);
    *l = (clb_forward_lora){0};
}

static int reserve(void *pointer, size_t *cap, size_t n, size_t size, clb_error *err)
{
    void **const p = pointer;
    if (n <= *cap)
        return COLIBRI_OK;
    free(*p);
    *cap = 0;
    *p = calloc(n, size);
    if (!*p)
        return CLB_NOMEM(err, "adapters");
    *cap = n;
    return COLIBRI_OK;
}

static const clb_lora_set *set_of(const clb_forward *f, uint32_t span)
{
    return f->spans[span].lora ? f->spans[span].lora : f->default_lora;
}

/* Place of the adapter in the pass's list. */
static uint32_t place_of(const clb_forward_lora *l, const clb_lora *lora)
{
    uint32_t i = 0;
    while (i < l->n && l->active[i] != lora)
        i++;
    return i;
}

/* The list is in order of id: what a row adds must not depend on other rows' adapters. */
static void enlist(clb_forward_lora *l, const clb_lora *lora)
{
    if (place_of(l, lora) < l->n)
        return;
    uint32_t i = l->n++;
    for (; i > 0 && l->active[i - 1]->id > lora->id; i--)
        l->active[i] = l->active[i - 1];
    l->active[i] = lora;
    l->rank += lora->rank;
}

static float strength(const clb_lora *lora, uint32_t rank, float user)
{
    return lora->alpha != 0.0f ? user * lora->alpha / (float)rank : user;
}

int clb_forward_lora_begin(clb_forward *f, clb_error *err)
{
    clb_forward_lora *l = &f->lora;
    size_t most = 0;
    l->n = l->rank = 0;
    for (uint32_t s = 0; s < f->n_spans; s++)
        most += set_of(f, s) ? set_of(f, s)->n : 0;
    if (!most)
        return COLIBRI_OK;
    CLB_TRY(reserve(&l->active, &l->cap_active, most, sizeof *l->active, err));
    CLB_TRY(reserve(&l->scale, &l->cap_scale, most * f->max_rows, sizeof *l->scale, err));
    memset(l->scale, 0, most * f->max_rows * sizeof *l->scale);
    for (uint32_t s = 0; s < f->n_spans; s++)
        for (uint32_t i = 0; set_of(f, s) && i < set_of(f, s)->n; i++)
            if (set_of(f, s)->use[i].scale != 0.0f)
                enlist(l, set_of(f, s)->use[i].lora);
    for (uint32_t row = 0; row < f->n_rows; row++) {
        const clb_lora_set *set = set_of(f, f->rows[row].span);
        for (uint32_t i = 0; set && i < set->n; i++)
            if (set->use[i].scale != 0.0f)
                l->scale[(size_t)place_of(l, set->use[i].lora) * f->max_rows + row] += set->use[i].scale;
    }
    const size_t places = n_places(f->hp, f->max_rows);
    CLB_TRY(reserve(&l->t[0], &l->cap_t, 2 * places * l->rank, sizeof(float), err));
    l->t[1] = l->t[0] + places * l->rank;
    const size_t unions = f->hp->n_experts ? f->hp->n_experts : 1;
    CLB_TRY(reserve(&l->first, &l->cap_first, unions + 1, sizeof *l->first, err));
    CLB_TRY(reserve(&l->jobs, &l->cap_jobs, 2 * l->n * unions, sizeof *l->jobs, err));
    return reserve(&l->deltas, &l->cap_deltas, 2 * l->n * unions, sizeof *l->deltas, err);
}

bool clb_forward_lora_changes(const clb_forward *f, uint32_t il, enum clb_lora_target target)
{
    for (uint32_t i = 0; i < f->lora.n; i++)
        if (clb_lora_part_of(f->lora.active[i], il, target))
            return true;
    return false;
}

/* Row t of a job is place first + t; its adapter parts are computed to t[which] at columns of their own. */
struct step {
    clb_forward *f;
    uint32_t n_jobs, n_deltas, column[2];
};

/* One adapter's A x as a job, and what B adds as a delta. */
static void add_part(struct step *s, uint32_t adapter, const clb_lora_part *part, uint32_t expert, const clb_job *of,
                     uint32_t first, int which, uint32_t column)
{
    clb_forward_lora *l = &s->f->lora;
    float *const t = l->t[which] + (size_t)first * l->rank + column;
    l->jobs[s->n_jobs++] = (clb_job){.m = &part->a,
                                     .w = (const float *)part->a.data + expert * part->a_stride,
                                     .acts = of->acts,
                                     .x_index = of->x_index,
                                     .x_first = of->x_first,
                                     .n_x = of->n_x,
                                     .y = t,
                                     .y_stride = l->rank};
    l->deltas[s->n_deltas++] = (clb_delta){.t = t,
                                           .t_stride = l->rank,
                                           .b = part->b + expert * clb_lora_b_floats(part),
                                           .rank = part->rank,
                                           .n_out = part->n_out,
                                           .row_scale = l->scale + (size_t)adapter * s->f->max_rows,
                                           .strength = strength(l->active[adapter], part->rank, 1.0f)};
}

/* All adapters' parts of one weight; returns how many. */
static uint32_t add_parts(struct step *s, uint32_t il, enum clb_lora_target target, uint32_t expert, const clb_job *of,
                          uint32_t first, int which)
{
    const clb_forward_lora *l = &s->f->lora;
    const uint32_t before = s->n_deltas;
    uint32_t column = 0;
    for (uint32_t i = 0; i < l->n; column += l->active[i++]->rank) {
        const clb_lora_part *part = clb_lora_part_of(l->active[i], il, target);
        if (part)
            add_part(s, i, part, expert, of, first, which, column);
    }
    return s->n_deltas - before;
}

static int run(struct step *s, clb_error *err)
{
    clb_forward *f = s->f;
    for (uint32_t i = 0; i < s->n_jobs; i++)
        CLB_TRY(clb_compute_prepare(&f->compute, f->lora.jobs[i].m, err));
    return s->n_jobs ? clb_compute_run(&f->compute, f->lora.jobs, s->n_jobs, err) : COLIBRI_OK;
}

/* B of a strip of columns is read once for a part of the rows, and stays in the cache meanwhile. One row, as in
 * generating, is shared by columns. */
#define STRIP 256u
#define PART  64u

static uint32_t pieces(uint32_t n, uint32_t size)
{
    return (n + size - 1) / size;
}

struct adding {
    clb_forward *f;
    const clb_delta *deltas; /* [jobs][n] */
    uint32_t n;
    const clb_job *jobs;   /* rows: their n_x, to their y */
    const uint32_t *first; /* unit of each job: parts of its rows by strips */
    uint32_t n_jobs;
    const uint32_t *place_row; /* row of each place, counted from x_first; NULL: the place itself */
};

static void add_unit(void *ctx, uint32_t unit, uint32_t worker)
{
    const struct adding *a = ctx;
    (void)worker;
    const uint32_t i = clb_job_of(a->first, a->n_jobs, unit);
    const clb_job *j = &a->jobs[i];
    const clb_delta *deltas = a->deltas + (size_t)i * a->n;
    const uint32_t n_out = deltas[0].n_out, strips = pieces(n_out, STRIP), at = unit - a->first[i];
    const uint32_t col = at % strips * STRIP, n = n_out - col < STRIP ? n_out - col : STRIP;
    const uint32_t begin = at / strips * PART, end = j->n_x - begin < PART ? j->n_x : begin + PART;
    for (uint32_t t = begin; t < end; t++)
        clb_delta_add(a->f->compute.ops, deltas, a->n, t, a->place_row ? a->place_row[j->x_first + t] : t, col, n,
                      j->y + t * j->y_stride + col);
}

/* Each job has n of the step's deltas. */
static void add_all(clb_forward *f, const clb_job *jobs, uint32_t n_jobs, uint32_t n, const uint32_t *place_row)
{
    clb_forward_lora *l = &f->lora;
    uint32_t units = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        l->first[i] = units;
        units += pieces(jobs[i].n_x, PART) * pieces(l->deltas[(size_t)i * n].n_out, STRIP);
    }
    l->first[n_jobs] = units;
    struct adding a = {f, l->deltas, n, jobs, l->first, n_jobs, place_row};
    clb_compute_units(&f->compute, units, add_unit, &a);
}

int clb_forward_lora_add(clb_forward *f, uint32_t il, enum clb_lora_target target, clb_acts *acts, float *y,
                         size_t stride, clb_error *err)
{
    if (!clb_forward_lora_changes(f, il, target))
        return COLIBRI_OK;
    struct step s = {.f = f};
    const clb_job of = {.acts = acts, .n_x = f->n_rows, .y = y, .y_stride = stride};
    const uint32_t n = add_parts(&s, il, target, 0, &of, 0, 0);
    CLB_TRY(run(&s, err));
    add_all(f, &of, 1, n, NULL);
    return COLIBRI_OK;
}

static void add_glu(struct step *s, uint32_t il, enum clb_lora_target gate, enum clb_lora_target up, uint32_t expert,
                    clb_glu_job *job)
{
    const clb_job of = {.acts = job->acts, .x_index = job->x_index, .x_first = job->x_first, .n_x = job->n_x};
    job->gate_deltas = s->f->lora.deltas + s->n_deltas;
    job->n_gate_deltas = add_parts(s, il, gate, expert, &of, job->out_first, 0);
    job->up_deltas = s->f->lora.deltas + s->n_deltas;
    job->n_up_deltas = add_parts(s, il, up, expert, &of, job->out_first, 1);
}

int clb_forward_lora_glu(clb_forward *f, uint32_t il, clb_glu_job *job, clb_error *err)
{
    if (!f->lora.n)
        return COLIBRI_OK;
    struct step s = {.f = f};
    add_glu(&s, il, CLB_LORA_GATE, CLB_LORA_UP, 0, job);
    return run(&s, err);
}

int clb_forward_lora_experts(clb_forward *f, uint32_t il, clb_glu_job *jobs, const uint32_t *experts, uint32_t n,
                             clb_error *err)
{
    if (!f->lora.n)
        return COLIBRI_OK;
    struct step s = {.f = f};
    for (uint32_t i = 0; i < n; i++)
        add_glu(&s, il, CLB_LORA_EXPERT_GATE, CLB_LORA_EXPERT_UP, experts[i], &jobs[i]);
    return run(&s, err);
}

int clb_forward_lora_down(clb_forward *f, uint32_t il, const clb_job *jobs, const uint32_t *experts, uint32_t n,
                          clb_error *err)
{
    if (!clb_forward_lora_changes(f, il, CLB_LORA_EXPERT_DOWN))
        return COLIBRI_OK;
    struct step s = {.f = f};
    const uint32_t each = add_parts(&s, il, CLB_LORA_EXPERT_DOWN, experts[0], &jobs[0], jobs[0].x_first, 0);
    for (uint32_t i = 1; i < n; i++)
        add_parts(&s, il, CLB_LORA_EXPERT_DOWN, experts[i], &jobs[i], jobs[i].x_first, 0);
    CLB_TRY(run(&s, err));
    add_all(f, jobs, n, each, f->place_row);
    return COLIBRI_OK;
}
