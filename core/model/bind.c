/* Binding: tensor names of the GGUF to the weights of the graph, with every shape checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

#define NAME_MAX_LEN 96
#define MAX_CHECKED  16u /* formats; more are checked again for each tensor */

typedef struct binder {
    clb_model *model;
    clb_error *err;
    size_t n_expert_tensors;                           /* of model->expert_tensors in use */
    const struct colibri_format *checked[MAX_CHECKED]; /* whose packed layout is the file's */
    uint32_t n_checked;
    char name[NAME_MAX_LEN];
} binder;

static const clb_gguf_tensor *find(binder *b, const char *name)
{
    const clb_gguf_tensor *t = clb_gguf_find_tensor(b->model->gguf, name);
    if (t)
        b->model->used[t - clb_gguf_tensor_at(b->model->gguf, 0)] = 1;
    return t;
}

static const char *layer_name(binder *b, uint32_t layer, const char *what)
{
    snprintf(b->name, sizeof b->name, "blk.%u.%s", layer, what);
    return b->name;
}

static int missing(binder *b, const char *name)
{
    return clb_fail(b->err, COLIBRI_E_FORMAT, "the model file lacks the tensor %s", name);
}

static int wrong_shape(binder *b, const clb_gguf_tensor *t, uint64_t want0, uint64_t want1, uint64_t want2)
{
    return clb_fail(b->err, COLIBRI_E_FORMAT,
                    "tensor %s has shape %llu x %llu x %llu, the model's keys ask for %llu x %llu x %llu", t->name.p,
                    (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                    (unsigned long long)want0, (unsigned long long)want1, (unsigned long long)want2);
}

static int check_shape(binder *b, const clb_gguf_tensor *t, uint64_t ne0, uint64_t ne1, uint64_t ne2)
{
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1)
        return wrong_shape(b, t, ne0, ne1, ne2);
    return COLIBRI_OK;
}

/* n values in the tensor `name`; a tensor of another length is an error, absence only if required. */
static int bind_vector(binder *b, const char *name, enum clb_presence presence, uint64_t n, clb_vector *out)
{
    const clb_gguf_tensor *t = presence == CLB_ABSENT ? NULL : find(b, name);
    if (!t)
        return presence == CLB_REQUIRED ? missing(b, name) : COLIBRI_OK;
    CLB_TRY(check_shape(b, t, n, 1, 1));
    if (t->packed || t->expert_stride)
        return clb_fail(b->err, COLIBRI_E_FORMAT, "tensor %s is packed as a matrix, expected a vector", name);
    if (!clb_registry_format(b->model->registry, t->type, b->err))
        return clb_context(b->err, "tensor %s", name);
    out->tensor = t;
    return COLIBRI_OK;
}

/* A packed tensor, of which rows [first, first + m->n_rows) become a matrix: the layout must be the format's, and the
 * rows whole groups. */
static int check_packed(binder *b, const clb_gguf_tensor *t, uint64_t first, const clb_matrix *m)
{
    if (!t->packed)
        return COLIBRI_OK;
    if (m->format->layout != COLIBRI_LAYOUT_X16)
        return clb_fail(b->err, COLIBRI_E_FORMAT, "tensor %s is packed in groups of 16 rows, which %s does not have",
                        t->name.p, m->format->name);
    if (first % COLIBRI_GROUP_ROWS || first * m->row_bytes + m->bytes > t->file_bytes)
        return clb_fail(
            b->err, COLIBRI_E_UNSUPPORTED,
            "tensor %s is packed as a whole, but the model uses parts of it that are not whole groups of 16 "
            "rows",
            t->name.p);
    for (uint32_t i = 0; i < b->n_checked; i++)
        if (b->checked[i] == m->format)
            return COLIBRI_OK;
    CLB_TRY(clb_gguf_check_layout(b->model->gguf, m->format, b->err));
    if (b->n_checked < MAX_CHECKED)
        b->checked[b->n_checked++] = m->format;
    return COLIBRI_OK;
}

/* Rows [first, first + n_rows) of tensor t as a matrix. */
static int bind_rows(binder *b, const clb_gguf_tensor *t, uint64_t first, uint64_t n_rows, clb_weight *out)
{
    if (t->ne[0] > UINT32_MAX || n_rows > UINT32_MAX)
        return clb_fail(b->err, COLIBRI_E_LIMIT, "tensor %s is too large", t->name.p);
    if (t->expert_stride)
        return clb_fail(b->err, COLIBRI_E_FORMAT, "tensor %s is packed as experts, expected one matrix", t->name.p);
    CLB_TRY(
        clb_matrix_bind(b->model->registry, t->type, (uint32_t)n_rows, (uint32_t)t->ne[0], t->name.p, &out->m, b->err));
    CLB_TRY(check_packed(b, t, first, &out->m));
    out->tensor = t;
    out->offset = first * out->m.row_bytes;
    return COLIBRI_OK;
}

static int bind_matrix(binder *b, const char *name, uint64_t n_cols, uint64_t n_rows, clb_weight *out)
{
    const clb_gguf_tensor *t = find(b, name);
    if (!t)
        return missing(b, name);
    CLB_TRY(check_shape(b, t, n_cols, n_rows, 1));
    return bind_rows(b, t, 0, n_rows, out);
}

static int bind_layer_matrix(binder *b, uint32_t layer, const char *what, uint64_t n_cols, uint64_t n_rows,
                             clb_weight *out)
{
    return bind_matrix(b, layer_name(b, layer, what), n_cols, n_rows, out);
}

static int bind_attention(binder *b, uint32_t il, clb_layer *l)
{
    const clb_hparams *hp = &b->model->hp;
    const clb_arch *arch = b->model->arch;
    const uint64_t nq = (uint64_t)hp->n_heads * hp->k_dim, nk = (uint64_t)hp->n_kv_heads * hp->k_dim;
    const uint64_t nv = (uint64_t)hp->n_kv_heads * hp->v_dim, no = (uint64_t)hp->n_heads * hp->v_dim;
    CLB_TRY(bind_vector(b, layer_name(b, il, "attn_norm.weight"), CLB_REQUIRED, hp->n_embd, &l->attn_norm));
    const clb_gguf_tensor *fused = find(b, layer_name(b, il, "attn_qkv.weight"));
    if (fused) {
        CLB_TRY(check_shape(b, fused, hp->n_embd, nq + nk + nv, 1));
        CLB_TRY(bind_rows(b, fused, 0, nq, &l->q));
        CLB_TRY(bind_rows(b, fused, nq, nk, &l->k));
        CLB_TRY(bind_rows(b, fused, nq + nk, nv, &l->v));
    } else {
        CLB_TRY(bind_layer_matrix(b, il, "attn_q.weight", hp->n_embd, nq, &l->q));
        CLB_TRY(bind_layer_matrix(b, il, "attn_k.weight", hp->n_embd, nk, &l->k));
        CLB_TRY(bind_layer_matrix(b, il, "attn_v.weight", hp->n_embd, nv, &l->v));
    }
    CLB_TRY(bind_layer_matrix(b, il, "attn_output.weight", no, hp->n_embd, &l->o));
    CLB_TRY(bind_vector(b, layer_name(b, il, "attn_q.bias"), arch->qkv_bias, nq, &l->q_bias));
    CLB_TRY(bind_vector(b, layer_name(b, il, "attn_k.bias"), arch->qkv_bias, nk, &l->k_bias));
    CLB_TRY(bind_vector(b, layer_name(b, il, "attn_v.bias"), arch->qkv_bias, nv, &l->v_bias));
    CLB_TRY(bind_vector(b, layer_name(b, il, "attn_output.bias"), arch->out_bias, hp->n_embd, &l->o_bias));
    if (hp->qk_norm != CLB_QK_NORM_NONE) {
        const bool full = hp->qk_norm == CLB_QK_NORM_FULL;
        CLB_TRY(
            bind_vector(b, layer_name(b, il, "attn_q_norm.weight"), CLB_REQUIRED, full ? nq : hp->k_dim, &l->q_norm));
        CLB_TRY(
            bind_vector(b, layer_name(b, il, "attn_k_norm.weight"), CLB_REQUIRED, full ? nk : hp->k_dim, &l->k_norm));
    }
    return COLIBRI_OK;
}

static int bind_dense_ffn(binder *b, uint32_t il, const char *suffix, uint64_t n_ff, clb_layer *l)
{
    char what[48];
    const uint64_t n_embd = b->model->hp.n_embd;
    snprintf(what, sizeof what, "ffn_gate%s.weight", suffix);
    CLB_TRY(bind_layer_matrix(b, il, what, n_embd, n_ff, &l->gate));
    snprintf(what, sizeof what, "ffn_up%s.weight", suffix);
    CLB_TRY(bind_layer_matrix(b, il, what, n_embd, n_ff, &l->up));
    snprintf(what, sizeof what, "ffn_down%s.weight", suffix);
    return bind_layer_matrix(b, il, what, n_ff, n_embd, &l->down);
}

/* One part of a layer's experts, from a stacked tensor (rows_first .. of each expert's rows_total rows) or, in old
 * files, from one tensor per expert. */
static int bind_expert_part(binder *b, uint32_t il, clb_expert_layer *x, int part, const char *stacked,
                            const char *single, uint64_t n_cols, uint64_t n_rows, uint64_t rows_total,
                            uint64_t rows_first)
{
    const clb_hparams *hp = &b->model->hp;
    clb_expert_source *s = &x->source[part];
    const clb_gguf_tensor **slots = b->model->expert_tensors + b->n_expert_tensors;
    s->tensors = slots;
    const clb_gguf_tensor *t = find(b, layer_name(b, il, stacked));
    if (t) {
        CLB_TRY(check_shape(b, t, n_cols, rows_total, hp->n_experts));
        slots[0] = t;
        b->n_expert_tensors++;
    } else {
        char what[64];
        for (uint32_t e = 0; e < hp->n_experts; e++) {
            snprintf(what, sizeof what, "%s.%u.weight", single, e);
            const clb_gguf_tensor *one = find(b, layer_name(b, il, what));
            if (!one)
                return missing(b, layer_name(b, il, stacked));
            slots[e] = one;
            b->n_expert_tensors++;
            CLB_TRY(check_shape(b, slots[e], n_cols, n_rows, 1));
            if (slots[e]->packed || slots[e]->expert_stride)
                return clb_fail(b->err, COLIBRI_E_FORMAT, "tensor %s is packed, expected the experts in one tensor",
                                slots[e]->name.p);
            if (slots[e]->type != slots[0]->type)
                return clb_fail(b->err, COLIBRI_E_UNSUPPORTED, "tensor %s has another type than expert 0's",
                                slots[e]->name.p);
        }
        s->per_expert = true;
        t = slots[0];
    }
    if (n_cols > UINT32_MAX || n_rows > UINT32_MAX)
        return clb_fail(b->err, COLIBRI_E_LIMIT, "tensor %s is too large", t->name.p);
    clb_matrix *m = &x->part[part];
    CLB_TRY(clb_matrix_bind(b->model->registry, t->type, (uint32_t)n_rows, (uint32_t)n_cols, t->name.p, m, b->err));
    CLB_TRY(check_packed(b, t, rows_first, m));
    s->offset = rows_first * m->row_bytes;
    s->stride = t->expert_stride ? t->expert_stride : rows_total * m->row_bytes;
    if (t->packed && !t->expert_stride)
        return clb_fail(b->err, COLIBRI_E_FORMAT, "tensor %s is packed as one matrix, expected experts", t->name.p);
    return COLIBRI_OK;
}

/* Packed files: all three parts of an expert lie in one block. */
static int bind_blocks(binder *b, clb_expert_layer *x)
{
    const clb_gguf_tensor *first = x->source[0].tensors[0];
    for (int p = 0; p < CLB_PARTS; p++) {
        const clb_gguf_tensor *t = x->source[p].tensors[0];
        if (t->block_bytes != first->block_bytes || t->block_offset != first->block_offset || t->shard != first->shard)
            return clb_fail(b->err, COLIBRI_E_FORMAT, "the experts of %s and %s do not lie in the same blocks",
                            first->name.p, t->name.p);
        x->part_at[p] = t->block_bytes ? t->offset - t->block_offset + x->source[p].offset : 0;
    }
    x->block_bytes = first->block_bytes;
    x->block_offset = first->block_offset;
    x->block_shard = first->shard;
    return COLIBRI_OK;
}

static int bind_moe(binder *b, uint32_t il, clb_layer *l)
{
    clb_model *model = b->model;
    const clb_hparams *hp = &model->hp;
    clb_expert_layer *x = &model->expert_layers[model->n_moe_layers];
    l->moe = (int32_t)model->n_moe_layers;
    const uint64_t ff = hp->n_ff_expert, embd = hp->n_embd;
    CLB_TRY(bind_layer_matrix(b, il, "ffn_gate_inp.weight", embd, hp->n_experts, &l->router));
    CLB_TRY(bind_vector(b, layer_name(b, il, "exp_probs_b.bias"), CLB_OPTIONAL, hp->n_experts, &l->router_select_bias));
    if (clb_gguf_find_tensor(model->gguf, layer_name(b, il, "ffn_gate_up_exps.weight"))) {
        CLB_TRY(bind_expert_part(b, il, x, CLB_PART_GATE, "ffn_gate_up_exps.weight", "", embd, ff, 2 * ff, 0));
        CLB_TRY(bind_expert_part(b, il, x, CLB_PART_UP, "ffn_gate_up_exps.weight", "", embd, ff, 2 * ff, ff));
    } else {
        CLB_TRY(bind_expert_part(b, il, x, CLB_PART_GATE, "ffn_gate_exps.weight", "ffn_gate", embd, ff, ff, 0));
        CLB_TRY(bind_expert_part(b, il, x, CLB_PART_UP, "ffn_up_exps.weight", "ffn_up", embd, ff, ff, 0));
    }
    CLB_TRY(bind_expert_part(b, il, x, CLB_PART_DOWN, "ffn_down_exps.weight", "ffn_down", ff, embd, embd, 0));
    CLB_TRY(bind_blocks(b, x));
    model->n_moe_layers++;
    if (hp->n_ff_shared) /* declared by the keys: without its tensors the result would be plausible and wrong */
        CLB_TRY(bind_dense_ffn(b, il, "_shexp", hp->n_ff_shared, l));
    return COLIBRI_OK;
}

static int bind_all(binder *b)
{
    clb_model *model = b->model;
    clb_hparams *hp = &model->hp;
    const clb_gguf_tensor *embd = find(b, "token_embd.weight");
    if (!embd)
        return missing(b, "token_embd.weight");
    if (embd->ne[1] == 0 || embd->ne[1] > (1u << 28))
        return wrong_shape(b, embd, hp->n_embd, 1, 1);
    hp->n_vocab = (uint32_t)embd->ne[1];
    CLB_TRY(bind_matrix(b, "token_embd.weight", hp->n_embd, hp->n_vocab, &model->token_embd));
    CLB_TRY(bind_vector(b, "output_norm.weight", CLB_REQUIRED, hp->n_embd, &model->output_norm));
    if (clb_gguf_find_tensor(model->gguf, "output.weight"))
        CLB_TRY(bind_matrix(b, "output.weight", hp->n_embd, hp->n_vocab, &model->output));
    else if (model->arch->output_required)
        return missing(b, "output.weight");
    CLB_TRY(bind_vector(b, "rope_freqs.weight", CLB_OPTIONAL, hp->n_rot / 2, &model->rope_factors));
    for (uint32_t il = 0; il < hp->n_layers; il++) {
        clb_layer *l = &model->layers[il];
        l->moe = -1;
        CLB_TRY(bind_attention(b, il, l));
        CLB_TRY(bind_vector(b, layer_name(b, il, "ffn_norm.weight"), CLB_REQUIRED, hp->n_embd, &l->ffn_norm));
        if (hp->n_experts && il >= hp->n_dense_lead) {
            CLB_TRY(bind_moe(b, il, l));
        } else {
            if (hp->n_ff == 0)
                return clb_fail(b->err, COLIBRI_E_FORMAT, "the model file lacks the key %s.feed_forward_length",
                                model->arch->name);
            CLB_TRY(bind_dense_ffn(b, il, "", hp->n_ff, l));
        }
    }
    return COLIBRI_OK;
}

/* A tensor that the graph does not use may mean a wrong graph: say so, once. */
static void warn_unused(const clb_model *model, const clb_log *log)
{
    uint64_t n = 0;
    const clb_gguf_tensor *first = NULL;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(model->gguf); i++)
        if (!model->used[i]) {
            first = first ? first : clb_gguf_tensor_at(model->gguf, i);
            n++;
        }
    if (n)
        clb_logf(log, COLIBRI_LOG_WARN, "%llu tensors of the file are not part of the %s graph and stay unused (%s%s)",
                 (unsigned long long)n, model->arch->name, first->name.p, n > 1 ? ", ..." : "");
}

int clb_model_bind(const clb_gguf *g, clb_registry *reg, const clb_log *log, clb_model **out, clb_error *err)
{
    *out = NULL;
    clb_str arch_name;
    int rc = clb_gguf_get_str(g, "general.architecture", &arch_name, err);
    if (rc == COLIBRI_E_NOT_FOUND)
        return clb_fail(err, COLIBRI_E_FORMAT, "the model file lacks the key general.architecture");
    CLB_TRY(rc);
    clb_model *model = calloc(1, sizeof *model);
    if (!model)
        return CLB_NOMEM(err, "model");
    model->gguf = g;
    model->registry = reg;
    CLB_GO(clb_arch_find(arch_name, &model->arch, err));
    CLB_GO(clb_hparams_read(g, model->arch, &model->hp, err));
    if (clb_gguf_n_tensors(g) == 0)
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "the model file has no tensors (a vocabulary only?)"));
    if (model->hp.n_layers > clb_gguf_n_tensors(g))
        CLB_GO(clb_fail(err, COLIBRI_E_FORMAT, "key %s.block_count is %u, but the file has only %llu tensors",
                        model->arch->name, model->hp.n_layers, (unsigned long long)clb_gguf_n_tensors(g)));
    model->layers = calloc(model->hp.n_layers, sizeof *model->layers);
    model->used = calloc(clb_gguf_n_tensors(g), 1);
    if (model->hp.n_experts) {
        /* The file's size bounds this, not its keys: a tensor serves one place, or two where gate and up are fused. */
        model->expert_layers = calloc(model->hp.n_layers, sizeof *model->expert_layers);
        model->expert_tensors = calloc((size_t)clb_gguf_n_tensors(g), 2 * sizeof *model->expert_tensors);
    }
    if (!model->layers || !model->used || (model->hp.n_experts && (!model->expert_layers || !model->expert_tensors)))
        CLB_GO(CLB_NOMEM(err, "model"));
    binder b = {.model = model, .err = err};
    CLB_GO(bind_all(&b));
    warn_unused(model, log);
    *out = model;
done:
    if (rc)
        clb_model_free(model);
    return rc;
}
