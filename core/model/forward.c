#include "model/forward.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward_internal.h"
#include "ops/ops.h"
#include "ops/sincos.h"

#define MANY_ROWS 128u /* of a pass: its layers take so long that it is looked at in between whether it is still wanted */

static uint32_t widest_ffn(const clb_hparams *hp)
{
    return hp->n_ff > hp->n_ff_shared ? hp->n_ff : hp->n_ff_shared;
}

uint64_t clb_forward_bytes(const clb_hparams *hp, uint32_t max_rows, uint32_t n_kv, uint32_t n_workers)
{
    const uint64_t nq = (uint64_t)hp->n_heads * hp->k_dim, no = (uint64_t)hp->n_heads * hp->v_dim;
    const uint64_t nkv = (uint64_t)hp->n_kv_heads * (hp->k_dim + hp->v_dim);
    uint64_t per_row = (hp->n_ff_shared ? 4ull : 3ull) * hp->n_embd + nq + nkv + no + hp->n_rot + widest_ffn(hp);
    /* Quantized activations: at most 5 bytes for 4 elements, in two forms. */
    per_row += (hp->n_embd + no + widest_ffn(hp)) * 5 / 8;
    if (hp->n_experts)
        per_row +=
            hp->n_experts + (uint64_t)hp->top_k * ((uint64_t)hp->n_ff_expert + hp->n_embd + hp->n_ff_expert * 5ull / 8 + 4);
    const uint64_t per_worker = clb_attention_floats(hp, max_rows, n_kv) + clb_compute_tile_floats(max_rows);
    return (per_row * max_rows + n_workers * per_worker) * sizeof(float);
}

static float *floats(uint64_t n, bool *failed)
{
    if (n == 0)
        return NULL;
    const size_t bytes = ((size_t)n * sizeof(float) + 63) & ~(size_t)63;
    float *p = n > SIZE_MAX / 8 ? NULL : aligned_alloc(64, bytes);
    if (!p)
        *failed = true;
    return p;
}

static void *zeroed(uint64_t n, size_t size, bool *failed)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        *failed = true;
    return p;
}

static bool allocate(clb_forward *f)
{
    const clb_hparams *hp = f->hp;
    const uint64_t rows = f->max_rows, embd = hp->n_embd;
    bool failed = false;
    f->inv_freq = floats(hp->n_rot / 2, &failed);
    f->x = floats(rows * embd, &failed);
    f->h = floats(rows * embd, &failed);
    f->branch = floats(rows * embd, &failed);
    f->shared = floats(hp->n_ff_shared ? rows * embd : 0, &failed);
    f->q = floats(rows * hp->n_heads * hp->k_dim, &failed);
    f->k = floats(rows * hp->n_kv_heads * hp->k_dim, &failed);
    f->v = floats(rows * hp->n_kv_heads * hp->v_dim, &failed);
    f->att = floats(rows * hp->n_heads * hp->v_dim, &failed);
    f->cs = floats(rows * hp->n_rot, &failed);
    f->gate = floats(rows * widest_ffn(hp), &failed);
    f->row_scratch_floats = (clb_matrix_row_scratch(&f->model->token_embd.m) / sizeof(float) + 31) & ~(size_t)15;
    f->row_scratch = floats(f->row_scratch_floats * clb_pool_workers(f->options.pool), &failed);
    f->rows = zeroed(rows, sizeof *f->rows, &failed);
    failed = clb_attention_create(f) != COLIBRI_OK || failed;
    if (!hp->n_experts)
        return !failed;
    const uint64_t pairs = rows * hp->top_k, n = hp->n_experts;
    f->router_probs = floats(rows * n, &failed);
    f->row_sequence = zeroed(rows, sizeof *f->row_sequence, &failed);
    f->ids = zeroed(pairs, sizeof *f->ids, &failed);
    f->gates = floats(pairs, &failed);
    f->pair_at = zeroed(pairs, sizeof *f->pair_at, &failed);
    f->place_row = zeroed(pairs, sizeof *f->place_row, &failed);
    f->expert_act = floats(pairs * hp->n_ff_expert, &failed);
    f->expert_out = floats(pairs * embd, &failed);
    f->union_ids = zeroed(n, sizeof *f->union_ids, &failed);
    f->union_rows = zeroed(n, sizeof *f->union_rows, &failed);
    f->union_first = zeroed(n, sizeof *f->union_first, &failed);
    f->union_gates = floats(n, &failed);
    f->expert_count = zeroed(n, sizeof *f->expert_count, &failed);
    f->pending = zeroed(n, sizeof *f->pending, &failed);
    f->want_ids = zeroed(n, sizeof *f->want_ids, &failed);
    f->want_rows = zeroed(n, sizeof *f->want_rows, &failed);
    f->want_gates = floats(n, &failed);
    f->leases = zeroed(n, sizeof *f->leases, &failed);
    f->glu_jobs = zeroed(n, sizeof *f->glu_jobs, &failed);
    f->jobs = zeroed(n, sizeof *f->jobs, &failed);
    return !failed;
}

static int prepare_kernels(clb_forward *f, clb_error *err)
{
    const clb_model *model = f->model;
    CLB_TRY(clb_compute_prepare(&f->compute, &model->token_embd.m, err));
    CLB_TRY(clb_compute_prepare(&f->compute, &model->output.m, err));
    for (uint32_t il = 0; il < f->hp->n_layers; il++) {
        const clb_layer *l = &model->layers[il];
        const clb_weight *const weights[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->router};
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
            CLB_TRY(clb_compute_prepare(&f->compute, &weights[i]->m, err));
    }
    for (uint32_t l = 0; l < model->n_moe_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            CLB_TRY(clb_compute_prepare(&f->compute, &model->expert_layers[l].part[p], err));
    return COLIBRI_OK;
}

void clb_forward_profile(clb_forward *f, clb_profile *profile)
{
    f->compute.profile = profile;
}

void clb_forward_cancel_by(clb_forward *f, bool (*cancelled)(void *ctx), void *ctx)
{
    f->options.cancelled = cancelled;
    f->options.cancelled_ctx = ctx;
}

void clb_forward_pause_by(clb_forward *f, void (*pause)(void *ctx), void *ctx)
{
    f->options.pause = pause;
    f->options.pause_ctx = ctx;
}

static int look_up(const clb_forward *f, clb_error *err)
{
    const clb_forward_options *const o = &f->options;
    if (o->pause)
        o->pause(o->pause_ctx);
    return o->cancelled && o->cancelled(o->cancelled_ctx) ? clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request")
                                                         : COLIBRI_OK;
}

int clb_forward_wanted(const clb_forward *f, clb_error *err)
{
    return f->n_rows >= MANY_ROWS ? look_up(f, err) : COLIBRI_OK;
}

void clb_forward_set_lora(clb_forward *f, const clb_lora_set *set)
{
    f->default_lora = set;
}

int clb_forward_create(const clb_forward_options *options, clb_forward **out, clb_error *err)
{
    *out = NULL;
    clb_forward *f = calloc(1, sizeof *f);
    if (!f)
        return CLB_NOMEM(err, "forward pass");
    f->options = *options;
    f->model = options->model;
    f->hp = &options->model->hp;
    f->max_rows = options->max_rows;
    int rc = clb_compute_init(&f->compute, options->pool, clb_registry_vecops(options->model->registry), err);
    if (!rc)
        rc = prepare_kernels(f, err);
    if (!rc)
        rc = clb_compute_reserve_tiles(&f->compute, clb_compute_tile_floats(f->max_rows), err);
    if (!rc && !allocate(f))
        rc = CLB_NOMEM(err, "buffers of the forward pass (a smaller --batch needs less)");
    if (!rc)
        rc = clb_forward_ahead_create(f, err);
    if (rc) {
        clb_forward_destroy(f);
        return rc;
    }
    clb_model_inv_freq(f->model, f->inv_freq);
    *out = f;
    return COLIBRI_OK;
}

void clb_model_inv_freq(const clb_model *model, float *out)
{
    const clb_hparams *const hp = &model->hp;
    const float *const factors = model->rope_factors.v;
    clb_rope_inv_freq(out, hp->n_rot / 2, (double)hp->rope_base);
    for (uint32_t i = 0; i < hp->n_rot / 2; i++)
        out[i] = out[i] / hp->rope_scale / (factors ? factors[i] : 1.0f);
}

void clb_forward_destroy(clb_forward *f)
{
    if (!f)
        return;
    clb_attention_destroy(f);
    void *const all[] = {
        f->inv_freq,   f->x,           f->h,           f->branch,       f->q,           f->k,          f->shared,
        f->v,          f->att,         f->cs,          f->gate,         f->row_scratch, f->rows,       f->router_probs,
        f->ids,        f->gates,       f->pair_at,     f->place_row,    f->expert_act,  f->expert_out, f->union_ids,
        f->union_rows, f->union_first, f->union_gates, f->expert_count, f->pending,     f->want_ids,   f->want_rows,
        f->want_gates, f->leases,      f->glu_jobs,    f->jobs,         f->row_sequence, f->ahead_h,  f->ahead_logits,
        f->moe_layers};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    clb_forward_lora_free(&f->lora);
    clb_acts_free(&f->acts_h);
    clb_acts_free(&f->acts_att);
    clb_acts_free(&f->acts_ff);
    clb_acts_free(&f->acts_pairs);
    clb_acts_free(&f->acts_ahead);
    clb_compute_free(&f->compute);
    free(f);
}

/* ---- one pass ---- */

static int lay_out_rows(clb_forward *f, const clb_span *spans, uint32_t n_spans, clb_error *err)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < n_spans; s++) {
        const uint32_t position = clb_kv_seq_position(spans[s].kv);
        assert(spans[s].n && spans[s].n_logits <= spans[s].n);
        if (spans[s].n > f->max_rows - n)
            return clb_fail(err, COLIBRI_E_LIMIT, "a batch of more than %u rows", f->max_rows);
        for (uint32_t i = 0; i < spans[s].n; i++) {
            if (spans[s].tokens[i] >= f->hp->n_vocab)
                return clb_fail(err, COLIBRI_E_USAGE, "token %u is outside the vocabulary of %u", spans[s].tokens[i],
                                f->hp->n_vocab);
            if (f->row_sequence)
                f->row_sequence[n] = clb_kv_seq_number(spans[s].kv);
            f->rows[n++] = (struct row){s, i, position + i};
        }
    }
    f->spans = spans;
    f->n_spans = n_spans;
    f->n_rows = n;
    return COLIBRI_OK;
}

static void embed_row(void *ctx, uint32_t row, uint32_t worker)
{
    clb_forward *f = ctx;
    const clb_hparams *hp = f->hp;
    const struct row *r = &f->rows[row];
    float *x = f->x + (size_t)row * hp->n_embd;
    clb_matrix_get_row(&f->model->token_embd.m, f->spans[r->span].tokens[r->index], x,
                       f->row_scratch + worker * f->row_scratch_floats);
    if (hp->embedding_scale != 1.0f)
        f->compute.ops->scale(x, hp->embedding_scale, hp->n_embd);
    float *cs = f->cs + (size_t)row * hp->n_rot;
    for (uint32_t i = 0; i < hp->n_rot / 2; i++)
        clb_sincos((double)r->position * (double)f->inv_freq[i], &cs[2 * i], &cs[2 * i + 1]);
}

/* Everything between two products that goes row by row, in one loop. */
struct between {
    clb_forward *f;
    const float *bias;  /* of the branch, or NULL */
    const float *extra; /* [n_rows][n_embd] added to the branch, or NULL */
    const float *norm;  /* weights of the norm that makes h of x; NULL: nobody wants h */
    bool join;          /* add the branch to x first */
    bool mix;           /* the branch is still to be summed from the experts' products */
    int form[CLB_MAX_ACT_FORMS];
    uint32_t n_forms; /* quantized forms of h that the next products want */
};

static void between_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const struct between *b = ctx;
    clb_forward *f = b->f;
    const clb_hparams *hp = f->hp;
    const struct colibri_vecops *ops = f->compute.ops;
    const size_t at = (size_t)row * hp->n_embd;
    if (b->mix)
        clb_forward_mix_row(f, row, f->branch + at);
    if (b->bias)
        ops->add(f->branch + at, b->bias, hp->n_embd);
    if (b->extra)
        ops->add(f->branch + at, b->extra + at, hp->n_embd);
    if (b->join && hp->residual_scale != 1.0f)
        ops->axpy(f->x + at, f->branch + at, hp->residual_scale, hp->n_embd);
    else if (b->join)
        ops->add(f->x + at, f->branch + at, hp->n_embd);
    if (!b->norm)
        return;
    ops->rms_norm(f->h + at, f->x + at, b->norm, hp->n_embd, hp->rms_eps);
    for (uint32_t i = 0; i < b->n_forms; i++)
        clb_acts_quantize(&f->acts_h, b->form[i], ops, row, 0, hp->n_embd, f->h + at);
}

/* h is about to be multiplied by m (NULL: by nothing). */
static int will_multiply(struct between *b, const clb_matrix *m, clb_error *err)
{
    if (!m)
        return COLIBRI_OK;
    bool missing;
    int form;
    CLB_TRY(clb_acts_reserve(&b->f->acts_h, m->format, &form, &missing, err));
    if (!missing)
        return COLIBRI_OK;
    CLB_TRY(clb_acts_promise(&b->f->acts_h, m->format, &form, err));
    b->form[b->n_forms++] = form;
    return COLIBRI_OK;
}

static void run_between(struct between *b)
{
    clb_compute_phase(&b->f->compute, CLB_PHASE_ROWS);
    clb_compute_rows(&b->f->compute, b->f->n_rows, 4, between_row, b);
}

static int before_attention(struct between *b, const clb_layer *l, clb_error *err)
{
    b->norm = l->attn_norm.v;
    clb_acts_set(&b->f->acts_h, b->f->h, b->f->hp->n_embd, b->f->n_rows, b->f->hp->n_embd);
    CLB_TRY(will_multiply(b, &l->q.m, err));
    CLB_TRY(will_multiply(b, &l->k.m, err));
    CLB_TRY(will_multiply(b, &l->v.m, err));
    run_between(b);
    return COLIBRI_OK;
}

static int before_ffn(struct between *b, const clb_layer *l, clb_error *err)
{
    const clb_expert_layer *x = l->moe < 0 ? NULL : &b->f->model->expert_layers[l->moe];
    b->norm = l->ffn_norm.v;
    clb_acts_set(&b->f->acts_h, b->f->h, b->f->hp->n_embd, b->f->n_rows, b->f->hp->n_embd);
    CLB_TRY(will_multiply(b, x ? &x->part[CLB_PART_GATE] : NULL, err));
    CLB_TRY(will_multiply(b, x ? &x->part[CLB_PART_UP] : NULL, err));
    CLB_TRY(will_multiply(b, l->gate.tensor ? &l->gate.m : NULL, err));
    CLB_TRY(will_multiply(b, l->up.tensor ? &l->up.m : NULL, err));
    CLB_TRY(will_multiply(b, l->router.tensor ? &l->router.m : NULL, err));
    run_between(b);
    return COLIBRI_OK;
}

/* Attention and feed-forward, which to_next is to add. */
static int run_branches(clb_forward *f, uint32_t il, struct between *to_next, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    const clb_layer *l = &f->model->layers[il];
    CLB_TRY(clb_forward_attention(f, il, err));
    struct between to_ffn = {.f = f, .join = true, .bias = l->o_bias.v};
    CLB_TRY(before_ffn(&to_ffn, l, err));
    CLB_TRY(clb_forward_wanted(f, err));
    if (l->moe < 0)
        return clb_forward_dense_ffn(f, il, hp->n_ff, f->branch, err);
    CLB_TRY(clb_forward_moe(f, il, f->branch, &to_next->mix, err));
    if (l->gate.tensor) { /* shared expert: its own branch, added to the routed ones */
        CLB_TRY(clb_forward_dense_ffn(f, il, hp->n_ff_shared, f->shared, err));
        to_next->extra = f->shared;
    }
    return COLIBRI_OK;
}

/* Expects h to be the normed input of layer il's attention, and leaves that of the next layer. */
static int run_layer(clb_forward *f, uint32_t il, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    struct between to_next = {.f = f, .join = true};
    CLB_TRY(clb_store_layer_begin(f->model->store, il, err));
    const int rc = run_branches(f, il, &to_next, err);
    clb_store_layer_end(f->model->store, il);
    if (rc)
        return rc;
    if (il + 1 < hp->n_layers)
        return before_attention(&to_next, &f->model->layers[il + 1], err);
    run_between(&to_next);
    return COLIBRI_OK;
}

/* The final norm's output of the spans that ask for it. */
static void run_hidden(clb_forward *f, const clb_logits_sink *sink)
{
    const clb_hparams *hp = f->hp;
    uint32_t row = 0;
    for (uint32_t s = 0; s < f->n_spans; row += f->spans[s++].n)
        for (uint32_t i = 0; f->spans[s].hidden && i < f->spans[s].n; i++) {
            f->compute.ops->rms_norm(f->branch, f->x + (size_t)(row + i) * hp->n_embd, f->model->output_norm.v, hp->n_embd,
                                     hp->rms_eps);
            sink->hidden(sink->ctx, s, i, f->branch);
        }
}

static int run_output(clb_forward *f, const clb_logits_sink *sink, clb_error *err)
{
    const clb_hparams *hp = f->hp;
    uint32_t n = 0, row = 0;
    clb_compute_phase(&f->compute, CLB_PHASE_OUTPUT);
    for (uint32_t s = 0; s < f->n_spans; s++) { /* wanted rows move to the front of h, normed */
        const clb_span *span = &f->spans[s];
        for (uint32_t i = span->n - span->n_logits; i < span->n; i++, n++)
            f->compute.ops->rms_norm(f->h + (size_t)n * hp->n_embd, f->x + (size_t)(row + i) * hp->n_embd,
                                     f->model->output_norm.v, hp->n_embd, hp->rms_eps);
        row += span->n;
    }
    const clb_matrix *m = f->model->output.tensor ? &f->model->output.m : &f->model->token_embd.m;
    for (uint32_t first = 0; first < n; first += sink->rows) {
        const uint32_t part = n - first < sink->rows ? n - first : sink->rows;
        clb_acts_set(&f->acts_h, f->h + (size_t)first * hp->n_embd, hp->n_embd, part, hp->n_embd);
        const clb_job job = {m, m->data, &f->acts_h, NULL, 0, part, sink->buffer, hp->n_vocab};
        CLB_TRY(clb_compute_run(&f->compute, &job, 1, err));
        if (hp->logit_scale != 1.0f)
            for (uint32_t i = 0; i < part; i++)
                f->compute.ops->scale(sink->buffer + (size_t)i * hp->n_vocab, hp->logit_scale, hp->n_vocab);
        if (sink->take)
            sink->take(sink->ctx, first, part, sink->buffer);
        if (n - first == part)
            break;
    }
    run_hidden(f, sink); /* nothing fails after it: whoever sums rows up gets each of them once */
    return COLIBRI_OK;
}

static int run_layers(clb_forward *f, clb_error *err)
{
    uint32_t most = 0;
    enum colibri_phase phase = COLIBRI_PHASE_DECODE;
    for (uint32_t s = 0; s < f->n_spans; s++) {
        if (f->spans[s].phase != COLIBRI_PHASE_DECODE)
            phase = f->spans[s].phase;
        for (uint32_t il = 0; il < f->hp->n_layers; il++)
            for (uint32_t h = 0; h < f->hp->n_kv_heads; h++) {
                const uint32_t n = clb_kv_view_of(f->spans[s].kv, il, h).n_before + f->spans[s].n;
                most = n > most ? n : most;
            }
    }
    CLB_TRY(clb_attention_reserve(f, most, err));
    CLB_TRY(clb_forward_lora_begin(f, err));
    if (f->model->n_moe_layers)
        clb_store_step(f->model->store, phase, f->n_rows, f->n_spans);
    clb_compute_rows(&f->compute, f->n_rows, 4, embed_row, f);
    struct between first = {.f = f};
    CLB_TRY(before_attention(&first, &f->model->layers[0], err));
    for (uint32_t il = 0; il < f->hp->n_layers; il++) {
        CLB_TRY(look_up(f, err));
        CLB_TRY(run_layer(f, il, err));
    }
    if (f->model->n_moe_layers)
        clb_store_step_end(f->model->store);
    return COLIBRI_OK;
}

int clb_forward_run_to(clb_forward *f, const clb_span *spans, uint32_t n_spans, const clb_logits_sink *sink,
                       clb_error *err)
{
    CLB_TRY(lay_out_rows(f, spans, n_spans, err));
    uint32_t begun = 0;
    int rc = COLIBRI_OK;
    while (begun < n_spans && rc == COLIBRI_OK) {
        rc = clb_kv_begin(spans[begun].kv, spans[begun].n, err);
        begun += rc == COLIBRI_OK;
    }
    clb_compute_profile_begin(&f->compute, CLB_PHASE_EMBED);
    if (rc == COLIBRI_OK)
        rc = run_layers(f, err);
    if (rc == COLIBRI_OK)
        rc = run_output(f, sink, err);
    clb_compute_profile_end(&f->compute);
    for (uint32_t s = 0; s < begun; s++) {
        if (rc == COLIBRI_OK)
            clb_kv_end(spans[s].kv, spans[s].n, spans[s].phase, spans[s].prefill_done);
        else
            clb_kv_abort(spans[s].kv);
    }
    return rc;
}

int clb_forward_run(clb_forward *f, const clb_span *spans, uint32_t n_spans, float *logits, clb_error *err)
{
    const clb_logits_sink all = {.buffer = logits, .rows = UINT32_MAX};
    return clb_forward_run_to(f, spans, n_spans, &all, err);
}
