/* What a packed model consists of: the tensors of the source in their order, the experts of a layer as one run of
 * blocks. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/escape.h"
#include "gguf/pack_internal.h"

#define MAX_EXPERTS 65536u

enum role { GATE, UP, DOWN, GATE_UP, ROLES };

static const char *const role_names[ROLES] = {"ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up"};

/* The experts of a layer, as the source has them. */
typedef struct layer {
    uint32_t number;
    const clb_gguf_tensor *stacked[ROLES];
    const clb_gguf_tensor **single[ROLES]; /* [MAX_EXPERTS at most], by expert */
    uint32_t n_single[ROLES], cap_single[ROLES];
    bool done; /* its run was made */
} layer;

typedef struct planner {
    clb_pack *pack;
    layer *layers;
    size_t n_layers;
    uint32_t cap_parts, cap_runs;
    clb_error *err;
} planner;

static int refuse(const planner *p, int code, const clb_gguf_tensor *t, const char *why)
{
    char name[100];
    return clb_fail(p->err, code, "tensor \"%s\": %s", clb_escape(t->name, name, sizeof name), why);
}

/* A number without sign or leading zeros; NULL if there is none. */
static const char *number(const char *s, uint32_t most, uint32_t *out)
{
    uint32_t n = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        n = n * 10 + (uint32_t)(*p - '0');
        if (n > most)
            return NULL;
    }
    *out = n;
    return p == s || (*s == '0' && p != s + 1) ? NULL : p;
}

/* "blk.3.ffn_gate_exps.weight": layer 3, all experts; "blk.3.ffn_gate.7.weight": layer 3, expert 7. */
static bool is_expert(const clb_gguf_tensor *t, uint32_t *layer_no, enum role *role, bool *single, uint32_t *expert)
{
    const char *rest = strncmp(t->name.p, "blk.", 4) == 0 ? number(t->name.p + 4, 1u << 20, layer_no) : NULL;
    if (!rest || *rest++ != '.')
        return false;
    for (int r = 0; r < ROLES; r++) {
        const size_t n = strlen(role_names[r]);
        if (strncmp(rest, role_names[r], n) != 0)
            continue;
        *role = (enum role)r;
        *single = false;
        if (strcmp(rest + n, "_exps.weight") == 0)
            return t->n_dims == 3;
        if (rest[n] != '.')
            continue;
        const char *end = number(rest + n + 1, MAX_EXPERTS - 1, expert);
        *single = true;
        return end && strcmp(end, ".weight") == 0 && t->n_dims >= 2 && t->ne[2] == 1 && t->ne[3] == 1;
    }
    return false;
}

static layer *find_layer(planner *p, uint32_t number_of)
{
    for (size_t i = p->n_layers; i-- > 0;)
        if (p->layers[i].number == number_of)
            return &p->layers[i];
    layer *grown = realloc(p->layers, (p->n_layers + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    p->layers = grown;
    grown[p->n_layers] = (layer){.number = number_of};
    return &grown[p->n_layers++];
}

static int add_single(planner *p, layer *l, enum role role, uint32_t expert, const clb_gguf_tensor *t)
{
    if (expert >= l->cap_single[role]) {
        const uint32_t cap = expert < 32 ? 64 : 2 * expert;
        const clb_gguf_tensor **grown = realloc(l->single[role], cap * sizeof(const clb_gguf_tensor *));
        if (!grown)
            return CLB_NOMEM(p->err, "the experts of a layer");
        memset(grown + l->cap_single[role], 0, (cap - l->cap_single[role]) * sizeof(const clb_gguf_tensor *));
        l->single[role] = grown;
        l->cap_single[role] = cap;
    }
    l->single[role][expert] = t; /* names are distinct, and so are experts */
    l->n_single[role]++;
    return COLIBRI_OK;
}

static int collect_experts(planner *p)
{
    const clb_gguf *g = p->pack->source;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        uint32_t number_of, expert;
        enum role role;
        bool single;
        if (t->n_bytes == 0)
            return refuse(p, COLIBRI_E_UNSUPPORTED, t, "of a type whose size is unknown to this version");
        if (!is_expert(t, &number_of, &role, &single, &expert))
            continue;
        layer *l = find_layer(p, number_of);
        if (!l)
            return CLB_NOMEM(p->err, "the layers of a model");
        if (single && expert >= clb_gguf_n_tensors(g) + 64) /* add_single makes room for all before it */
            return refuse(p, COLIBRI_E_FORMAT, t, "of an expert whose number is larger than that of all tensors");
        if (single)
            CLB_TRY(add_single(p, l, role, expert, t));
        else
            l->stacked[role] = t;
    }
    return COLIBRI_OK;
}

static void *grow(void *items, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return items;
    const uint32_t more = *cap ? 2 * *cap : 64;
    void *p = realloc(items, more * size);
    if (p)
        *cap = more;
    return p;
}

static clb_pack_run *add_run(planner *p)
{
    clb_pack *pack = p->pack;
    clb_pack_run *runs = grow(pack->runs, pack->n_runs, &p->cap_runs, sizeof *runs);
    if (!runs)
        return NULL;
    pack->runs = runs;
    runs[pack->n_runs] = (clb_pack_run){.first = pack->n_parts};
    return &runs[pack->n_runs++];
}

/* n_sources pointers are to be filled in. */
static clb_pack_part *add_part(planner *p, const char *name, size_t n_name, const clb_gguf_tensor *like,
                               uint32_t n_sources)
{
    clb_pack *pack = p->pack;
    clb_pack_part *parts = grow(pack->parts, pack->n_parts, &p->cap_parts, sizeof *parts);
    if (!parts)
        return NULL;
    pack->parts = parts;
    char *copy = strndup(name, n_name);
    const clb_gguf_tensor **source = calloc(n_sources, sizeof(const clb_gguf_tensor *));
    if (!copy || !source) {
        free(copy);
        free(source);
        return NULL;
    }
    clb_pack_part *part = &parts[pack->n_parts++];
    *part = (clb_pack_part){.name = copy,
                            .type = like->type,
                            .n_dims = like->n_dims,
                            .ne = {like->ne[0], like->ne[1], like->ne[2], like->ne[3]},
                            .row_bytes = like->n_bytes / (like->n_elems / like->ne[0]),
                            .source = source};
    const clb_pack_options *o = &pack->options;
    part->format = o->format(o->format_ctx, like->type);
    part->x16 = part->format && part->format->layout == COLIBRI_LAYOUT_X16;
    return part;
}

/* What a model cuts into matrices of its own cannot be packed as one: the cut may go through a group. */
static bool is_cut(const char *name)
{
    static const char fused[] = ".attn_qkv.weight";
    const size_t n = strlen(name);
    return n >= sizeof fused - 1 && strcmp(name + n - (sizeof fused - 1), fused) == 0;
}

static int plan_plain(planner *p, const clb_gguf_tensor *t)
{
    clb_pack_run *run = add_run(p);
    clb_pack_part *part = run ? add_part(p, t->name.p, t->name.n, t, 1) : NULL;
    if (!part)
        return CLB_NOMEM(p->err, "the plan of a packed model");
    part->source[0] = t;
    part->n_rows = t->n_elems / t->ne[0];
    part->x16 = part->x16 && t->n_dims >= 2 && t->ne[1] >= 2 && t->ne[2] == 1 && t->ne[3] == 1 && !is_cut(part->name);
    part->bytes = clb_packed_rows_bytes(part->row_bytes, part->n_rows, part->x16);
    run->n = 1;
    run->bytes = part->bytes;
    run->block = clb_packed_unit(part->row_bytes, part->x16);
    run->n_blocks = (run->bytes - 1) / run->block + 1;
    return COLIBRI_OK;
}

/* One tensor of a layer's run: rows [first, first + n_rows) of every expert of `stacked`, or the single tensors. */
static int plan_part(planner *p, clb_pack_run *run, const layer *l, enum role name, const clb_gguf_tensor *stacked,
                     uint64_t first, uint64_t n_rows, uint32_t n_experts)
{
    char text[64];
    const int n = snprintf(text, sizeof text, "blk.%u.%s_exps.weight", l->number, role_names[name]);
    const clb_gguf_tensor *like = stacked ? stacked : l->single[name][0];
    clb_pack_part *part = add_part(p, text, (size_t)n, like, stacked ? 1 : n_experts);
    if (!part)
        return CLB_NOMEM(p->err, "the plan of a packed model");
    for (uint32_t e = 0; !stacked && e < n_experts; e++) {
        const clb_gguf_tensor *t = l->single[name][e];
        if (!t)
            return refuse(p, COLIBRI_E_FORMAT, like, "the layer lacks this tensor of another expert");
        if (t->type != like->type || t->ne[0] != like->ne[0] || t->ne[1] != like->ne[1])
            return refuse(p, COLIBRI_E_UNSUPPORTED, t,
                          "its type or shape differs from expert 0's, so they cannot become "
                          "one tensor");
        part->source[e] = t;
    }
    if (stacked)
        part->source[0] = stacked;
    part->per_expert = !stacked;
    part->n_dims = 3;
    part->ne[1] = part->n_rows = n_rows;
    part->ne[2] = n_experts;
    part->src_offset = first * part->row_bytes;
    part->src_stride = stacked ? stacked->ne[1] * part->row_bytes : 0;
    part->bytes = clb_packed_rows_bytes(part->row_bytes, n_rows, part->x16);
    part->at = run->block;
    run->block = clb_packed_round(run->block + part->bytes, CLB_PACKED_PART);
    run->n++;
    return COLIBRI_OK;
}

static int plan_layer(planner *p, layer *l, const clb_gguf_tensor *at)
{
    uint64_t n_experts = 0;
    l->done = true;
    for (int r = 0; r < ROLES; r++) {
        const uint64_t n = l->stacked[r] ? l->stacked[r]->ne[2] : l->n_single[r];
        if (l->stacked[r] && l->n_single[r])
            return refuse(p, COLIBRI_E_FORMAT, l->stacked[r], "the layer also has one tensor per expert for it");
        if (n && n_experts && n != n_experts)
            return refuse(p, COLIBRI_E_FORMAT, at,
                          "the expert tensors of this layer have different numbers of experts");
        n_experts = n ? n : n_experts;
    }
    const clb_gguf_tensor *fused = l->stacked[GATE_UP];
    if (n_experts > MAX_EXPERTS)
        return refuse(p, COLIBRI_E_UNSUPPORTED, at, "more than 65536 experts");
    if (l->n_single[GATE_UP] ||
        (fused && (l->stacked[GATE] || l->stacked[UP] || l->n_single[GATE] || l->n_single[UP] || fused->ne[1] % 2)))
        return refuse(p, COLIBRI_E_FORMAT, at, "gate and up of this layer are neither one tensor nor two");
    clb_pack_run *run = add_run(p);
    if (!run)
        return CLB_NOMEM(p->err, "the plan of a packed model");
    run->experts = true;
    const uint32_t n = (uint32_t)n_experts;
    for (enum role r = GATE; r <= DOWN; r++) {
        if (fused && r != DOWN)
            CLB_TRY(plan_part(p, run, l, r, fused, r == UP ? fused->ne[1] / 2 : 0, fused->ne[1] / 2, n));
        else if (l->stacked[r])
            CLB_TRY(plan_part(p, run, l, r, l->stacked[r], 0, l->stacked[r]->ne[1], n));
        else if (l->n_single[r] && !l->single[r][0])
            return refuse(p, COLIBRI_E_FORMAT, at, "the layer lacks expert 0 of this or another tensor");
        else if (l->n_single[r])
            CLB_TRY(plan_part(p, run, l, r, NULL, 0, l->single[r][0]->ne[1], n));
    }
    run->block = clb_packed_round(run->block, CLB_PACKED_ALIGNMENT);
    run->n_blocks = n_experts;
    run->bytes = run->block * n_experts;
    return COLIBRI_OK;
}

static int make_runs(planner *p)
{
    const clb_gguf *g = p->pack->source;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        uint32_t number_of, expert;
        enum role role;
        bool single;
        if (!is_expert(t, &number_of, &role, &single, &expert)) {
            CLB_TRY(plan_plain(p, t));
            continue;
        }
        layer *l = find_layer(p, number_of);
        assert(l);
        if (!l->done)
            CLB_TRY(plan_layer(p, l, t));
    }
    return COLIBRI_OK;
}

static int make_marks(planner *p)
{
    clb_pack *pack = p->pack;
    pack->types = calloc(pack->n_parts + 1, sizeof *pack->types);
    pack->marks = calloc(pack->n_parts + 1, sizeof *pack->marks);
    if (!pack->types || !pack->marks)
        return CLB_NOMEM(p->err, "the plan of a packed model");
    for (uint32_t i = 0; i < pack->n_parts; i++) {
        const clb_pack_part *part = &pack->parts[i];
        uint32_t k = 0;
        while (k < pack->n_types && pack->types[k] != part->type)
            k++;
        if (!part->x16 || k < pack->n_types)
            continue;
        CLB_TRY(clb_packed_mark(part->format, &pack->marks[k], p->err));
        pack->types[k] = part->type;
        pack->n_types++;
    }
    return COLIBRI_OK;
}

int clb_pack_make_plan(clb_pack *pack, clb_error *err)
{
    planner p = {.pack = pack, .err = err};
    int rc = collect_experts(&p);
    if (!rc)
        rc = make_runs(&p);
    if (!rc)
        rc = make_marks(&p);
    for (size_t i = 0; i < p.n_layers; i++)
        for (int r = 0; r < ROLES; r++)
            free(p.layers[i].single[r]);
    free(p.layers);
    return rc;
}
