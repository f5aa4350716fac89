/* A foreign score() as a KV strategy: one call per kept position, the highest scores stay. What the host must compute
 * for it follows from the arguments that its signature asks for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "plugin/foreign_private.h"

#define DEFAULT_WINDOW 32u /* queries behind prob_last */
/* More than what the host lets a strategy take for one answer (kv.h): it will not ask again, whatever the rest would be. */
#define LONG_ENOUGH_NS UINT64_C(2100000000)

typedef struct strategy {
    clb_foreign *f;
    uint32_t n_layers, n_kv_heads, head_dim, v_dim, budget, instance;
    float row[]; /* [max(head_dim, v_dim)] */
} strategy;

static float norm(const float *row, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)row[i] * (double)row[i];
    return (float)sqrt(sum);
}

/* view NULL: a reset, which asks for nothing about a position. */
static clb_foreign_value value(strategy *s, const struct colibri_kv_view *view, uint32_t i,
                               enum clb_foreign_argument what)
{
#define INTEGER(v) ((clb_foreign_value){.u64 = (v)})
#define FLOAT(v)   ((clb_foreign_value){.is_float = true, .f64 = (double)(v)})
    switch (what) {
    case CLB_ARG_layer:
        return INTEGER(view->layer);
    case CLB_ARG_kv_head:
        return INTEGER(view->kv_head);
    case CLB_ARG_position:
        return INTEGER(view->positions[i]);
    case CLB_ARG_rank:
        return INTEGER(i);
    case CLB_ARG_age:
        return INTEGER(view->next_position - view->positions[i]);
    case CLB_ARG_n_kept:
        return INTEGER(view->n);
    case CLB_ARG_n_keep:
        return INTEGER(view->n_keep);
    case CLB_ARG_n_prompt:
        return INTEGER(view->n_prompt);
    case CLB_ARG_n_system:
        return INTEGER(view->n_system);
    case CLB_ARG_next_position:
        return INTEGER(view->next_position);
    case CLB_ARG_prob_sum:
        return FLOAT(view->prob_sum[i]);
    case CLB_ARG_prob_max:
        return FLOAT(view->prob_max[i]);
    case CLB_ARG_prob_last:
        return FLOAT(view->prob_last[i]);
    case CLB_ARG_n_last:
        return INTEGER(view->n_last);
    case CLB_ARG_key_norm:
        view->read_k(view, i, s->row);
        return FLOAT(norm(s->row, s->head_dim));
    case CLB_ARG_value_norm:
        view->read_v(view, i, s->row);
        return FLOAT(norm(s->row, s->v_dim));
    case CLB_ARG_budget:
        return INTEGER(s->budget);
    case CLB_ARG_n_layers:
        return INTEGER(s->n_layers);
    case CLB_ARG_n_kv_heads:
        return INTEGER(s->n_kv_heads);
    case CLB_ARG_instance:
        return INTEGER(s->instance);
    default:
        return INTEGER(0);
    }
#undef INTEGER
#undef FLOAT
}

static bool call(strategy *s, clb_foreign_call *c, const struct colibri_kv_view *view, uint32_t i,
                 clb_foreign_result *result)
{
    clb_foreign_value values[CLB_FOREIGN_MAX_ARGS];
    for (unsigned a = 0; a < c->signature.n; a++)
        values[a] = value(s, view, i, c->signature.arg[a].what);
    return clb_foreign_run(s->f, c, values, result);
}

static void reset(void *self)
{
    strategy *const s = self;
    if (s->f->kv.reset.fn && !call(s, &s->f->kv.reset, NULL, 0, NULL))
        clb_foreign_complain(s->f, s->f->spec.reset);
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    strategy *const s = self;
    const bool single = s->f->kv.score.signature.result == CLB_FT_F32;
    const uint64_t began = clb_now_ns();
    bool late = false;
    for (uint32_t i = 0; i < view->n; i++) {
        clb_foreign_result r = {0};
        late = late || clb_now_ns() - began > LONG_ENOUGH_NS;
        if (late) {
            out[i] = 0;
            continue;
        }
        if (!call(s, &s->f->kv.score, view, i, &r)) {
            clb_foreign_complain(s->f, s->f->spec.symbol);
            out[i] = NAN; /* a bad answer: the host counts it and keeps the first and the newest */
            return;
        }
        out[i] = single ? r.f32 : (float)r.f64;
    }
}

static void destroy(void *self)
{
    strategy *const s = self;
    clb_foreign_give_number(s->f, s->instance);
    free(s);
}

static strategy *create(clb_foreign *f, const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const bool alone = f->kv.reset.fn && !clb_foreign_asks(&f->kv.reset.signature, CLB_ARG_instance);
    const uint32_t number = clb_foreign_take_number(f, alone,
                                                    "its library has a reset, so it can serve one sequence at a time; "
                                                    "for more, 'u32 instance' must be among the arguments "
                                                    "of reset",
                                                    why, why_size);
    if (number == UINT32_MAX)
        return NULL;
    const uint32_t dim = config->head_dim > config->v_dim ? config->head_dim : config->v_dim;
    strategy *const s = calloc(1, sizeof *s + dim * sizeof s->row[0]);
    if (!s) {
        clb_foreign_give_number(f, number);
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    s->f = f;
    s->n_layers = config->n_layers;
    s->n_kv_heads = config->n_kv_heads;
    s->head_dim = config->head_dim;
    s->v_dim = config->v_dim;
    s->budget = config->budget;
    s->instance = number;
    reset(s);
    return s;
}

static void create_closure(ffi_cif *cif, void *result, void **args, void *ctx)
{
    (void)cif;
    *(void **)result = create(ctx, *(const struct colibri_kv_config *const *)args[0], *(char *const *)args[1],
                              *(const size_t *)args[2]);
}

static uint32_t needs(const clb_foreign_signature *s)
{
    static const struct {
        enum clb_foreign_argument what;
        uint32_t need;
    } of[] = {{CLB_ARG_prob_sum, COLIBRI_KV_NEED_PROB_COLSUM},
              {CLB_ARG_prob_max, COLIBRI_KV_NEED_PROB_MAX},
              {CLB_ARG_prob_last, COLIBRI_KV_NEED_PROB_LAST_W},
              {CLB_ARG_key_norm, COLIBRI_KV_NEED_K_POST_ROPE},
              {CLB_ARG_value_norm, COLIBRI_KV_NEED_V}};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        n |= clb_foreign_asks(s, of[i].what) ? of[i].need : 0;
    return n;
}

int clb_foreign_kv_load(clb_foreign *f, clb_error *err)
{
    static ffi_type *of_create[] = {&ffi_type_pointer, &ffi_type_pointer, &ffi_type_uint64};
    CLB_TRY(clb_foreign_bind(f, f->spec.symbol, &f->kv.score, err));
    if (f->spec.reset)
        CLB_TRY(clb_foreign_bind(f, f->spec.reset, &f->kv.reset, err));
    void *code = NULL;
    CLB_TRY(clb_foreign_closure(f, &ffi_type_pointer, of_create, 3, create_closure, &code, err));
    const clb_foreign_signature *const asks = &f->kv.score.signature;
    struct colibri_kv_strategy *const t = &f->kv.table;
    *t = (struct colibri_kv_strategy){
        .struct_size = sizeof *t,
        .needs = needs(asks),
        .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_CHUNK | COLIBRI_KV_AT_OVER_BUDGET,
        .positions = COLIBRI_KV_POS_ORIGINAL,
        .name = f->spec.name,
        .summary = f->spec.summary,
        .source = f->source,
        .destroy = destroy,
        .reset = reset,
        .score = score,
    };
    if (t->needs & COLIBRI_KV_NEED_PROB_LAST_W)
        t->window_w = f->spec.window ? f->spec.window : DEFAULT_WINDOW;
    if (t->needs & (COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V) || clb_foreign_asks(asks, CLB_ARG_kv_head))
        t->flags |= COLIBRI_KV_FLAG_PER_HEAD;
    if (f->spec.deterministic)
        t->flags |= COLIBRI_KV_FLAG_DETERMINISTIC;
    memcpy(&t->create, &code, sizeof code);
    return COLIBRI_OK;
}
