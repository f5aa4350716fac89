#include "model/lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TYPE_F32 0u

/* NAME of blk.N.NAME for each target, and where its shape comes from. */
struct target {
    const char *name;
    enum clb_lora_target target;
};
static const struct target targets[] = {
    {"attn_q.weight", CLB_LORA_Q},
    {"attn_k.weight", CLB_LORA_K},
    {"attn_v.weight", CLB_LORA_V},
    {"attn_output.weight", CLB_LORA_O},
    {"ffn_gate.weight", CLB_LORA_GATE},
    {"ffn_up.weight", CLB_LORA_UP},
    {"ffn_down.weight", CLB_LORA_DOWN},
    {"ffn_gate_shexp.weight", CLB_LORA_GATE},
    {"ffn_up_shexp.weight", CLB_LORA_UP},
    {"ffn_down_shexp.weight", CLB_LORA_DOWN},
    {"ffn_gate_inp.weight", CLB_LORA_ROUTER},
    {"ffn_gate_exps.weight", CLB_LORA_EXPERT_GATE},
    {"ffn_up_exps.weight", CLB_LORA_EXPERT_UP},
    {"ffn_down_exps.weight", CLB_LORA_EXPERT_DOWN},
};

struct reader {
    const clb_model *model;
    const clb_gguf *g;
    clb_lora *lora;
    uint64_t max_bytes;
    clb_error *err;
};

/* The weight that a part changes; NULL: the model has none there. */
static const clb_matrix *base_of(const clb_model *model, uint32_t il, enum clb_lora_target target)
{
    const clb_layer *l = &model->layers[il];
    const clb_expert_layer *x = l->moe < 0 ? NULL : &model->expert_layers[l->moe];
    const clb_weight *w = NULL;
    switch (target) {
    case CLB_LORA_Q:
        w = &l->q;
        break;
    case CLB_LORA_K:
        w = &l->k;
        break;
    case CLB_LORA_V:
        w = &l->v;
        break;
    case CLB_LORA_O:
        w = &l->o;
        break;
    case CLB_LORA_GATE:
        w = &l->gate;
        break;
    case CLB_LORA_UP:
        w = &l->up;
        break;
    case CLB_LORA_DOWN:
        w = &l->down;
        break;
    case CLB_LORA_ROUTER:
        w = &l->router;
        break;
    case CLB_LORA_EXPERT_GATE:
        return x ? &x->part[CLB_PART_GATE] : NULL;
    case CLB_LORA_EXPERT_UP:
        return x ? &x->part[CLB_PART_UP] : NULL;
    case CLB_LORA_EXPERT_DOWN:
        return x ? &x->part[CLB_PART_DOWN] : NULL;
    case CLB_LORA_TARGETS:
        break;
    }
    return w && w->tensor ? &w->m : NULL;
}

static bool is_expert(enum clb_lora_target target)
{
    return target >= CLB_LORA_EXPERT_GATE;
}

/* All values of a tensor as floats, in the file's order; free() them. */
static int read_floats(const struct reader *r, const clb_gguf_tensor *t, float **out)
{
    const struct colibri_format *format = clb_registry_format(r->model->registry, t->type, r->err);
    if (!format)
        return clb_context(r->err, "tensor %s", t->name.p);
    if (t->packed || t->expert_stride || t->ne[0] % format->block_elems)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "tensor %s does not have plain rows", t->name.p);
    float *const values = malloc((size_t)t->n_elems * sizeof *values);
    void *const bytes = malloc((size_t)t->n_bytes);
    int rc = values && bytes ? COLIBRI_OK : CLB_NOMEM(r->err, "an adapter");
    if (!rc)
        rc = clb_gguf_read(r->g, t, 0, bytes, (size_t)t->n_bytes, r->err);
    if (!rc)
        format->dequantize(bytes, values, (size_t)t->n_elems);
    free(bytes);
    if (rc)
        free(values);
    else
        *out = values;
    return rc;
}

static int wrong(const struct reader *r, const clb_gguf_tensor *t, const char *want)
{
    return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s has shape %llu x %llu x %llu; this model takes %s",
                    t->name.p, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                    want);
}

/* Both halves against the base weight. */
static int check_shapes(const struct reader *r, const clb_gguf_tensor *a, const clb_gguf_tensor *b,
                        const clb_matrix *base, uint64_t n_experts)
{
    char want[96];
    snprintf(want, sizeof want, "%u x RANK x %llu", base->n_cols, (unsigned long long)n_experts);
    if (a->ne[0] != base->n_cols || !a->ne[1] || a->ne[1] > 65536 || a->ne[2] != n_experts || a->ne[3] != 1)
        return wrong(r, a, want);
    snprintf(want, sizeof want, "%llu x %u x %llu", (unsigned long long)a->ne[1], base->n_rows,
             (unsigned long long)n_experts);
    if (b->ne[0] != a->ne[1] || b->ne[1] != base->n_rows || b->ne[2] != n_experts || b->ne[3] != 1)
        return wrong(r, b, want);
    return COLIBRI_OK;
}

/* B is read by rows of outputs, and added by columns: turned once here. */
static void turn(const float *b, float *out, size_t n_out, size_t rank)
{
    for (size_t o = 0; o < n_out; o++)
        for (size_t k = 0; k < rank; k++)
            out[k * n_out + o] = b[o * rank + k];
}

static int read_part(struct reader *r, const clb_gguf_tensor *a, const clb_gguf_tensor *b, uint32_t il,
                     enum clb_lora_target target)
{
    const clb_matrix *base = base_of(r->model, il, target);
    clb_lora_part *part = &r->lora->parts[(size_t)il * CLB_LORA_TARGETS + target];
    const uint64_t n_experts = is_expert(target) ? r->model->hp.n_experts : 1;
    if (!base)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: the model has no such weight", a->name.p);
    if (part->rank)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: this weight is changed twice", a->name.p);
    CLB_TRY(check_shapes(r, a, b, base, n_experts));
    const uint32_t rank = (uint32_t)a->ne[1];
    r->lora->bytes += (a->n_elems + b->n_elems) * sizeof(float);
    if (r->max_bytes && r->lora->bytes > r->max_bytes)
        return clb_fail(r->err, COLIBRI_E_NOMEM,
                        "%s needs more than the %llu bytes that are left for adapters (--lora-memory)", r->lora->path,
                        (unsigned long long)r->max_bytes);
    CLB_TRY(clb_matrix_bind(r->model->registry, TYPE_F32, rank, base->n_cols, a->name.p, &part->a, r->err));
    part->rank = rank;
    part->n_out = base->n_rows;
    part->a_stride = (size_t)rank * base->n_cols;
    float *values;
    CLB_TRY(read_floats(r, a, &values));
    part->a.data = values;
    part->b = malloc((size_t)b->n_elems * sizeof *part->b);
    if (!part->b)
        return CLB_NOMEM(r->err, "an adapter");
    CLB_TRY(read_floats(r, b, &values));
    const size_t one = (size_t)part->n_out * rank;
    for (size_t e = 0; e < n_experts; e++)
        turn(values + e * one, part->b + e * one, part->n_out, rank);
    free(values);
    r->lora->n_parts++;
    if (rank > r->lora->rank)
        r->lora->rank = rank;
    return COLIBRI_OK;
}

#define A_END ".lora_a"
#define B_END ".lora_b"

static bool ends_with(clb_str s, const char *end)
{
    const size_t n = strlen(end);
    return s.n >= n && memcmp(s.p + s.n - n, end, n) == 0;
}

/* "blk.12.attn_q.weight.lora_a" is layer 12, target Q. */
static bool parse_name(clb_str name, uint32_t *il, enum clb_lora_target *target)
{
    char what[64];
    int at = 0;
    if (name.n >= 128 || sscanf(name.p, "blk.%9u.%n", il, &at) != 1 || !at)
        return false;
    const size_t n = name.n - (size_t)at - strlen(A_END);
    if (n >= sizeof what)
        return false;
    memcpy(what, name.p + at, n);
    what[n] = '\0';
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (strcmp(what, targets[i].name) == 0) {
            *target = targets[i].target;
            return true;
        }
    return false;
}

static int read_tensor(struct reader *r, const clb_gguf_tensor *t)
{
    char other[160];
    uint32_t il;
    enum clb_lora_target target = CLB_LORA_Q;
    if (t->name.n >= sizeof other || (!ends_with(t->name, A_END) && !ends_with(t->name, B_END)))
        return clb_fail(r->err, COLIBRI_E_UNSUPPORTED, "adapter tensor %s is neither a lora_a nor a lora_b", t->name.p);
    memcpy(other, t->name.p, t->name.n + 1);
    const bool is_a = ends_with(t->name, A_END);
    other[t->name.n - 1] = is_a ? 'b' : 'a';
    const clb_gguf_tensor *pair = clb_gguf_find_tensor(r->g, other);
    if (!pair)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s has no %s", t->name.p, other);
    if (!is_a)
        return COLIBRI_OK; /* read with its A */
    if (!parse_name(t->name, &il, &target))
        return clb_fail(
            r->err, COLIBRI_E_UNSUPPORTED,
            "adapter tensor %s: only the attention, feed-forward, router and expert weights of layers can be changed",
            t->name.p);
    if (il >= r->lora->n_layers)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: the model has %u layers", t->name.p,
                        r->lora->n_layers);
    return read_part(r, t, pair, il, target);
}

static int demand(const struct reader *r, const char *key, const char *want)
{
    clb_str value;
    const int rc = clb_gguf_get_str(r->g, key, &value, r->err);
    if (rc == COLIBRI_E_NOT_FOUND)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "%s is no LoRA adapter: it lacks the key %s", r->lora->path, key);
    CLB_TRY(rc);
    if (value.n != strlen(want) || memcmp(value.p, want, value.n) != 0)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "%s: %s is \"%.*s\", expected \"%s\"", r->lora->path, key,
                        (int)(value.n < 64 ? value.n : 64), value.p, want);
    return COLIBRI_OK;
}

static int read_all(struct reader *r)
{
    clb_str name;
    CLB_TRY(demand(r, "general.type", "adapter"));
    CLB_TRY(demand(r, "adapter.type", "lora"));
    CLB_TRY(demand(r, "general.architecture", r->model->arch->name));
    if (clb_gguf_find(r->g, "adapter.alora.invocation_tokens"))
        return clb_fail(r->err, COLIBRI_E_UNSUPPORTED,
                        "%s is an activated LoRA (invocation tokens): only plain ones can be used", r->lora->path);
    CLB_TRY(clb_gguf_get_f32_or(r->g, "adapter.lora.alpha", 0.0f, &r->lora->alpha, r->err));
    if (!isfinite(r->lora->alpha))
        return clb_fail(r->err, COLIBRI_E_FORMAT, "%s: adapter.lora.alpha is no finite number", r->lora->path);
    if (clb_gguf_get_str(r->g, "general.name", &name, NULL) == COLIBRI_OK && name.n && name.n < 256)
        r->lora->name = strndup(name.p, name.n);
    else
        r->lora->name = strdup(strrchr(r->lora->path, '/') ? strrchr(r->lora->path, '/') + 1 : r->lora->path);
    r->lora->parts = calloc((size_t)r->lora->n_layers * CLB_LORA_TARGETS, sizeof *r->lora->parts);
    if (!r->lora->name || !r->lora->parts)
        return CLB_NOMEM(r->err, "an adapter");
    for (uint64_t i = 0; i < clb_gguf_n_tensors(r->g); i++)
        CLB_TRY(read_tensor(r, clb_gguf_tensor_at(r->g, i)));
    if (!r->lora->n_parts)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "%s has no tensors", r->lora->path);
    return COLIBRI_OK;
}

static bool geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    (void)ctx;
    return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
}

int clb_lora_open(const clb_model *model, const char *path, uint64_t max_bytes, clb_lora **out, clb_error *err)
{
    clb_error local;
    struct reader r = {.model = model, .max_bytes = max_bytes, .err = err ? err : &local};
    clb_gguf *g = NULL;
    *out = NULL;
    r.lora = calloc(1, sizeof *r.lora);
    if (!r.lora)
        return CLB_NOMEM(err, "an adapter");
    r.lora->n_layers = model->hp.n_layers;
    r.lora->path = strdup(path);
    int rc = r.lora->path ? clb_gguf_open(path, geometry, NULL, &g, r.err) : CLB_NOMEM(err, "an adapter");
    r.g = g;
    if (!rc)
        rc = read_all(&r);
    if (!rc)
        rc = clb_gguf_identity(g, r.lora->identity, r.err);
    clb_gguf_close(g);
    if (rc)
        clb_lora_close(r.lora);
    else
        *out = r.lora;
    return rc;
}

void clb_lora_close(clb_lora *lora)
{
    if (!lora)
        return;
    for (size_t i = 0; lora->parts && i < (size_t)lora->n_layers * CLB_LORA_TARGETS; i++) {
        free((void *)lora->parts[i].a.data);
        free(lora->parts[i].b);
    }
    free(lora->parts);
    free(lora->name);
    free(lora->path);
    free(lora);
}
