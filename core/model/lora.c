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

/* Where a part lies. */
struct clb_lora_source {
    const clb_gguf_tensor *t[2]; /* A, B */
    const struct colibri_format *format[2];
};

struct reader {
    const clb_model *model;
    const clb_gguf *g;
    clb_lora *lora;
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

static size_t n_places(const clb_lora *lora)
{
    return (size_t)lora->n_layers * CLB_LORA_TARGETS;
}

static bool is_expert(enum clb_lora_target target)
{
    return target >= CLB_LORA_EXPERT_GATE;
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

static int look_at_part(struct reader *r, const clb_gguf_tensor *a, const clb_gguf_tensor *b, uint32_t il,
                        enum clb_lora_target target)
{
    const clb_matrix *base = base_of(r->model, il, target);
    const size_t at = (size_t)il * CLB_LORA_TARGETS + target;
    clb_lora_part *part = &r->lora->parts[at];
    const uint64_t n_experts = is_expert(target) ? r->model->hp.n_experts : 1;
    if (!base)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: the model has no such weight", a->name.p);
    if (part->rank)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: this weight is changed twice", a->name.p);
    CLB_TRY(check_shapes(r, a, b, base, n_experts));
    part->rank = (uint32_t)a->ne[1];
    part->n_out = base->n_rows;
    part->a_stride = (size_t)part->rank * base->n_cols;
    r->lora->sources[at] = (struct clb_lora_source){.t = {a, b}};
    r->lora->bytes += (a->n_elems + n_experts * clb_lora_b_floats(part)) * sizeof(float);
    r->lora->n_parts++;
    if (part->rank > r->lora->rank)
        r->lora->rank = part->rank;
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

static int look_at_tensor(struct reader *r, const clb_gguf_tensor *t)
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
        return COLIBRI_OK; /* looked at with its A */
    if (!parse_name(t->name, &il, &target))
        return clb_fail(
            r->err, COLIBRI_E_UNSUPPORTED,
            "adapter tensor %s: only the attention, feed-forward, router and expert weights of layers can be changed",
            t->name.p);
    if (il >= r->lora->n_layers)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "adapter tensor %s: the model has %u layers", t->name.p,
                        r->lora->n_layers);
    return look_at_part(r, t, pair, il, target);
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

static int look_at_all(struct reader *r)
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
    r->lora->parts = calloc(n_places(r->lora), sizeof *r->lora->parts);
    r->lora->sources = calloc(n_places(r->lora), sizeof *r->lora->sources);
    if (!r->lora->name || !r->lora->parts || !r->lora->sources)
        return CLB_NOMEM(r->err, "an adapter");
    for (uint64_t i = 0; i < clb_gguf_n_tensors(r->g); i++)
        CLB_TRY(look_at_tensor(r, clb_gguf_tensor_at(r->g, i)));
    if (!r->lora->n_parts)
        return clb_fail(r->err, COLIBRI_E_FORMAT, "%s has no tensors", r->lora->path);
    return COLIBRI_OK;
}

static bool geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    (void)ctx;
    return clb_gguf_known_geometry(NULL, type, block_elems, block_bytes);
}

int clb_lora_look(const clb_model *model, const char *path, clb_lora **out, clb_error *err)
{
    clb_gguf *g;
    *out = NULL;
    CLB_TRY(clb_gguf_open(path, geometry, NULL, &g, err));
    return clb_lora_look_in(model, g, path, out, err);
}

int clb_lora_look_in(const clb_model *model, clb_gguf *file, const char *path, clb_lora **out, clb_error *err)
{
    clb_error local;
    struct reader r = {.model = model, .g = file, .err = err ? err : &local};
    *out = NULL;
    r.lora = calloc(1, sizeof *r.lora);
    if (!r.lora) {
        clb_gguf_close(file);
        return CLB_NOMEM(err, "an adapter");
    }
    r.lora->file = file;
    r.lora->n_layers = model->hp.n_layers;
    r.lora->path = strdup(path);
    int rc = r.lora->path ? look_at_all(&r) : CLB_NOMEM(err, "an adapter");
    if (!rc)
        rc = clb_gguf_identity(file, r.lora->identity, r.err);
    if (rc)
        clb_lora_close(r.lora);
    else
        *out = r.lora;
    return rc;
}

static int bind_tensor(const clb_model *model, const clb_gguf_tensor *t, const struct colibri_format **out,
                       clb_error *err)
{
    *out = clb_registry_format(model->registry, t->type, err);
    if (!*out)
        return clb_context(err, "tensor %s", t->name.p);
    if (t->packed || t->expert_stride || t->ne[0] % (*out)->block_elems)
        return clb_fail(err, COLIBRI_E_FORMAT, "tensor %s does not have plain rows", t->name.p);
    return COLIBRI_OK;
}

int clb_lora_bind(clb_lora *lora, const clb_model *model, clb_error *err)
{
    clb_error local;
    err = err ? err : &local;
    for (size_t i = 0; i < n_places(lora); i++) {
        clb_lora_part *const part = &lora->parts[i];
        struct clb_lora_source *const from = &lora->sources[i];
        if (!part->rank)
            continue;
        CLB_TRY(bind_tensor(model, from->t[0], &from->format[0], err));
        CLB_TRY(bind_tensor(model, from->t[1], &from->format[1], err));
        CLB_TRY(clb_matrix_bind(model->registry, TYPE_F32, part->rank, (uint32_t)from->t[0]->ne[0],
                                from->t[0]->name.p, &part->a, err));
    }
    return COLIBRI_OK;
}

int clb_lora_open(const clb_model *model, const char *path, uint64_t max_bytes, clb_lora **out, clb_error *err)
{
    clb_lora *lora;
    *out = NULL;
    CLB_TRY(clb_lora_look(model, path, &lora, err));
    int rc = COLIBRI_OK;
    if (max_bytes && lora->bytes > max_bytes)
        rc = clb_fail(err, COLIBRI_E_NOMEM, "%s needs %llu bytes, %llu are left for adapters (--lora-memory)", path,
                      (unsigned long long)lora->bytes, (unsigned long long)max_bytes);
    if (!rc)
        rc = clb_lora_bind(lora, model, err);
    if (!rc)
        rc = clb_lora_read(lora, NULL, NULL, err);
    if (rc)
        clb_lora_close(lora);
    else
        *out = lora;
    return rc;
}

/* ---- data ---- */

#define CHUNK_FLOATS ((size_t)65536)

struct chunk {
    const clb_gguf *g;
    float *values;
    void *bytes;
    bool (*cancelled)(void *ctx);
    void *ctx;
};

/* Rows [first, first + n) as floats. */
static int read_rows(const struct chunk *c, const clb_gguf_tensor *t, const struct colibri_format *format, size_t first,
                     size_t n, float *out, clb_error *err)
{
    const size_t row_bytes = (size_t)t->ne[0] / format->block_elems * format->block_bytes;
    if (c->cancelled && c->cancelled(c->ctx))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped while an adapter was read");
    CLB_TRY(clb_gguf_read(c->g, t, first * row_bytes, c->bytes, n * row_bytes, err));
    format->dequantize(c->bytes, out, n * (size_t)t->ne[0]);
    return COLIBRI_OK;
}

static size_t chunk_rows(const clb_gguf_tensor *t)
{
    return t->ne[0] < CHUNK_FLOATS ? CHUNK_FLOATS / (size_t)t->ne[0] : 1;
}

static int read_a(const struct chunk *c, const struct clb_lora_source *from, float *out, clb_error *err)
{
    const clb_gguf_tensor *t = from->t[0];
    const size_t n_rows = (size_t)(t->ne[1] * t->ne[2]), most = chunk_rows(t);
    for (size_t row = 0; row < n_rows; row += most) {
        const size_t n = n_rows - row < most ? n_rows - row : most;
        CLB_TRY(read_rows(c, t, from->format[0], row, n, out + row * (size_t)t->ne[0], err));
    }
    return COLIBRI_OK;
}

/* B lies by rows of outputs, and is added by columns, 16 at a time: turned once here. */
static int read_b(const struct chunk *c, const struct clb_lora_source *from, float *out, clb_error *err)
{
    const clb_gguf_tensor *t = from->t[1];
    const size_t rank = (size_t)t->ne[0], n_out = (size_t)t->ne[1], most = chunk_rows(t);
    for (size_t e = 0; e < t->ne[2]; e++, out += (n_out + 15) / 16 * 16 * rank)
        for (size_t row = 0; row < n_out; row += most) {
            const size_t n = n_out - row < most ? n_out - row : most;
            CLB_TRY(read_rows(c, t, from->format[1], e * n_out + row, n, c->values, err));
            for (size_t o = 0; o < n; o++) {
                float *const to = out + (row + o) / 16 * 16 * rank + (row + o) % 16;
                for (size_t k = 0; k < rank; k++)
                    to[16 * k] = c->values[o * rank + k];
            }
        }
    return COLIBRI_OK;
}

static int read_part(struct chunk *c, const struct clb_lora_source *from, clb_lora_part *part, clb_error *err)
{
    size_t bytes = 0, floats = CHUNK_FLOATS;
    for (int i = 0; i < 2; i++) {
        const size_t row = (size_t)from->t[i]->ne[0];
        const size_t all = chunk_rows(from->t[i]) * (row / from->format[i]->block_elems * from->format[i]->block_bytes);
        bytes = all > bytes ? all : bytes;
        floats = row > floats ? row : floats;
    }
    float *const a = malloc((size_t)from->t[0]->n_elems * sizeof *a);
    part->a.data = a;
    part->b = calloc((size_t)from->t[1]->ne[2] * clb_lora_b_floats(part), sizeof *part->b);
    c->values = malloc(floats * sizeof *c->values);
    c->bytes = malloc(bytes);
    int rc = a && part->b && c->values && c->bytes ? COLIBRI_OK : CLB_NOMEM(err, "an adapter");
    if (!rc)
        rc = read_a(c, from, a, err);
    if (!rc)
        rc = read_b(c, from, part->b, err);
    free(c->values);
    free(c->bytes);
    return rc;
}

int clb_lora_read(clb_lora *lora, bool (*cancelled)(void *ctx), void *ctx, clb_error *err)
{
    struct chunk c = {.g = lora->file, .cancelled = cancelled, .ctx = ctx};
    for (size_t i = 0; i < n_places(lora); i++)
        if (lora->parts[i].rank)
            CLB_TRY(read_part(&c, &lora->sources[i], &lora->parts[i], err));
    clb_gguf_close(lora->file);
    free(lora->sources);
    lora->file = NULL;
    lora->sources = NULL;
    return COLIBRI_OK;
}

void clb_lora_close(clb_lora *lora)
{
    if (!lora)
        return;
    for (size_t i = 0; lora->parts && i < n_places(lora); i++) {
        free((void *)lora->parts[i].a.data);
        free(lora->parts[i].b);
    }
    clb_gguf_close(lora->file);
    free(lora->sources);
    free(lora->parts);
    free(lora->name);
    free(lora->path);
    free(lora);
}
