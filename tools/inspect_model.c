/* colibri inspect: gathers the facts. It must work on models that this build cannot run, so it asks the file, not the
 * architectures. */
#include "inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const clb_role_names[CLB_ROLE_COUNT] = {
    [CLB_ROLE_ATTENTION] = "attention",   [CLB_ROLE_FFN] = "dense ffn",        [CLB_ROLE_EXPERTS] = "experts",
    [CLB_ROLE_SHARED] = "shared experts", [CLB_ROLE_ROUTER] = "router",        [CLB_ROLE_EMBEDDING] = "embeddings",
    [CLB_ROLE_OUTPUT] = "output",         [CLB_ROLE_OTHER] = "norms and other"};

size_t clb_inspect_cut(clb_str s, size_t max)
{
    if (s.n <= max)
        return s.n;
    size_t n = max;
    while (n && max - n < 3 && ((unsigned char)s.p[n] & 0xc0) == 0x80)
        n--;
    return n;
}

static bool starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* "blk.12.rest": the layer, and the rest; any other name: -1. */
static long layer_of(const char *name, const char **rest)
{
    *rest = name;
    if (!starts(name, "blk.") || name[4] < '0' || name[4] > '9')
        return -1;
    char *end;
    const unsigned long layer = strtoul(name + 4, &end, 10);
    if (*end != '.' || layer > INT32_MAX)
        return -1;
    *rest = end + 1;
    return (long)layer;
}

/* "ffn_gate.7.weight": one tensor per expert, as older files have it. */
static bool is_single_expert(const char *s)
{
    static const char *const names[] = {"ffn_gate.", "ffn_up.", "ffn_down."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (starts(s, names[i]) && s[strlen(names[i])] >= '0' && s[strlen(names[i])] <= '9')
            return true;
    }
    return false;
}

enum clb_role clb_role_of(clb_str tensor)
{
    const char *rest;
    if (layer_of(tensor.p, &rest) < 0) {
        if (starts(rest, "token_embd.") || starts(rest, "per_layer_token_embd") || starts(rest, "position_embd") ||
            starts(rest, "token_types"))
            return CLB_ROLE_EMBEDDING;
        return starts(rest, "output.") ? CLB_ROLE_OUTPUT : CLB_ROLE_OTHER;
    }
    if (strstr(rest, "norm"))
        return CLB_ROLE_OTHER;
    if (strstr(rest, "_shexp"))
        return CLB_ROLE_SHARED;
    if (strstr(rest, "_exps") || is_single_expert(rest))
        return CLB_ROLE_EXPERTS;
    if (starts(rest, "ffn_gate_inp") || starts(rest, "exp_probs_b"))
        return CLB_ROLE_ROUTER;
    return starts(rest, "ffn_") ? CLB_ROLE_FFN : starts(rest, "attn_") ? CLB_ROLE_ATTENTION : CLB_ROLE_OTHER;
}

static void add(clb_tally *sum, uint64_t bytes, uint64_t params)
{
    sum->bytes += bytes;
    sum->params += params;
    sum->tensors++;
}

/* ---- metadata --------------------------------------------------------------------------------------- */

static clb_str text(const clb_gguf *g, const char *key)
{
    clb_str s = {"", 0};
    (void)clb_gguf_get_str(g, key, &s, NULL);
    return s;
}

static clb_ints ints(const clb_inspection *in, const char *suffix)
{
    clb_ints r = {0};
    char key[256];
    const int n = snprintf(key, sizeof key, "%.*s.%s", (int)in->arch.n, in->arch.p, suffix);
    const clb_gguf_value *v = n > 0 && (size_t)n < sizeof key ? clb_gguf_find(in->g, key) : NULL;
    if (!v)
        return r;
    if (v->type != CLB_GGUF_ARRAY) {
        uint64_t u;
        if (clb_gguf_get_u64(in->g, key, &u, NULL) == COLIBRI_OK && u <= INT64_MAX)
            r = (clb_ints){1, (int64_t)u, (int64_t)u};
        return r;
    }
    for (uint64_t i = 0; i < v->as.arr.n; i++) {
        int64_t item;
        if (clb_gguf_item_i64(v, i, &item, NULL))
            return (clb_ints){0};
        r.min = i == 0 || item < r.min ? item : r.min;
        r.max = i == 0 || item > r.max ? item : r.max;
        r.n++;
    }
    return r;
}

static void read_metadata(clb_inspection *in)
{
    const clb_gguf *g = in->g;
    in->arch = text(g, "general.architecture");
    in->name = text(g, "general.name");
    in->tokenizer = text(g, "tokenizer.ggml.model");
    in->pre = text(g, "tokenizer.ggml.pre");
    in->has_template = clb_gguf_find(g, "tokenizer.chat_template") != NULL;
    in->context = ints(in, "context_length");
    in->layers = ints(in, "block_count");
    in->width = ints(in, "embedding_length");
    in->heads = ints(in, "attention.head_count");
    in->kv_heads = ints(in, "attention.head_count_kv");
    in->key_width = ints(in, "attention.key_length");
    in->value_width = ints(in, "attention.value_length");
    in->ffn = ints(in, "feed_forward_length");
    in->expert_ffn = ints(in, "expert_feed_forward_length");
    in->experts = ints(in, "expert_count");
    in->used = ints(in, "expert_used_count");
    in->shared = ints(in, "expert_shared_count");
    const clb_gguf_value *tokens = clb_gguf_find(g, "tokenizer.ggml.tokens");
    const clb_ints vocab = ints(in, "vocab_size");
    if (tokens && tokens->type == CLB_GGUF_ARRAY)
        in->n_vocab = tokens->as.arr.n;
    else if (vocab.n)
        in->n_vocab = (uint64_t)(vocab.max > 0 ? vocab.max : 0);
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const clb_gguf_tensor *x = *(const clb_gguf_tensor *const *)a, *y = *(const clb_gguf_tensor *const *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Sizes; where the type is unknown, the distance to what comes next. */
static int measure(clb_inspection *in, clb_error *err)
{
    const size_t n = (size_t)clb_gguf_n_tensors(in->g);
    in->spans = calloc(n + 1, sizeof *in->spans);
    const clb_gguf_tensor **order = malloc((n + 1) * sizeof(const clb_gguf_tensor *));
    if (!in->spans || !order) {
        free(order);
        return CLB_NOMEM(err, "the tensor list");
    }
    const clb_gguf_tensor *first = n ? clb_gguf_tensor_at(in->g, 0) : NULL;
    for (size_t i = 0; i < n; i++)
        order[i] = clb_gguf_tensor_at(in->g, i);
    qsort(order, n, sizeof(const clb_gguf_tensor *), by_place);
    for (size_t i = 0; i < n; i++) {
        const clb_gguf_tensor *t = order[i];
        const bool followed = i + 1 < n && order[i + 1]->shard == t->shard;
        in->spans[t - first] = t->n_bytes ? t->n_bytes : followed ? order[i + 1]->offset - t->offset : t->room;
        in->unknown += t->n_bytes == 0;
    }
    free(order);
    return COLIBRI_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const clb_type_tally *x = a, *y = b;
    if (x->sum.bytes != y->sum.bytes)
        return x->sum.bytes > y->sum.bytes ? -1 : 1;
    return x->type < y->type ? -1 : x->type > y->type;
}

static int by_type(const void *a, const void *b)
{
    const clb_type_tally *x = a, *y = b;
    return x->type < y->type ? -1 : x->type > y->type;
}

static int tally_types(clb_inspection *in, clb_error *err)
{
    const size_t n = (size_t)clb_gguf_n_tensors(in->g);
    clb_type_tally *types = calloc(n + 1, sizeof *types);
    if (!types)
        return CLB_NOMEM(err, "the tensor types");
    for (size_t i = 0; i < n; i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(in->g, i);
        types[i] = (clb_type_tally){t->type, {in->spans[i], t->n_elems, 1}};
    }
    qsort(types, n, sizeof *types, by_type);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (used && types[used - 1].type == types[i].type) {
            types[used - 1].sum.bytes += types[i].sum.bytes;
            types[used - 1].sum.params += types[i].sum.params;
            types[used - 1].sum.tensors++;
        } else {
            types[used++] = types[i];
        }
    }
    qsort(types, used, sizeof *types, by_bytes);
    in->types = types;
    in->n_types = used;
    return COLIBRI_OK;
}

typedef struct layer_bytes {
    long layer;
    uint64_t bytes;
} layer_bytes;

static int by_layer(const void *a, const void *b)
{
    const layer_bytes *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* Bytes of one expert: those of a layer's routed experts, divided by their number. */
static int measure_experts(clb_inspection *in, clb_error *err)
{
    const uint64_t n_experts = in->experts.n && in->experts.max > 0 ? (uint64_t)in->experts.max : 0;
    const size_t n = (size_t)in->roles[CLB_ROLE_EXPERTS].tensors;
    if (!n || !n_experts)
        return COLIBRI_OK;
    layer_bytes *layers = calloc(n, sizeof *layers);
    if (!layers)
        return CLB_NOMEM(err, "the expert sizes");
    size_t k = 0;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(in->g); i++) {
        const char *rest;
        const clb_str name = clb_gguf_tensor_at(in->g, i)->name;
        if (clb_role_of(name) == CLB_ROLE_EXPERTS)
            layers[k++] = (layer_bytes){layer_of(name.p, &rest), in->spans[i]};
    }
    qsort(layers, n, sizeof *layers, by_layer);
    for (size_t i = 0; i < n;) {
        uint64_t sum = 0;
        const long layer = layers[i].layer;
        for (; i < n && layers[i].layer == layer; i++)
            sum += layers[i].bytes;
        sum /= n_experts;
        in->expert_min = in->expert_layers == 0 || sum < in->expert_min ? sum : in->expert_min;
        in->expert_max = sum > in->expert_max ? sum : in->expert_max;
        in->expert_layers++;
    }
    free(layers);
    return COLIBRI_OK;
}

/* value * part / whole, without overflow. */
static uint64_t scaled(uint64_t value, uint64_t part, uint64_t whole)
{
    return (uint64_t)((unsigned __int128)value * part / whole);
}

static void measure_token(clb_inspection *in)
{
    const clb_tally *experts = &in->roles[CLB_ROLE_EXPERTS], *embedding = &in->roles[CLB_ROLE_EMBEDDING];
    uint64_t bytes = in->total.bytes - experts->bytes, params = in->total.params - experts->params;
    if (in->roles[CLB_ROLE_OUTPUT].tensors) {
        bytes -= embedding->bytes;
        params -= embedding->params;
    }
    if (experts->tensors) {
        if (!in->experts.n || !in->used.n || in->used.max <= 0 || in->experts.max < in->used.max)
            return;
        const uint64_t used = (uint64_t)in->used.max, of = (uint64_t)in->experts.max;
        bytes += scaled(experts->bytes, used, of);
        params += scaled(experts->params, used, of);
    }
    in->token_bytes = bytes;
    in->token_params = params;
}

int clb_inspect(const clb_gguf *g, clb_inspection *out, clb_error *err)
{
    *out = (clb_inspection){.g = g};
    int rc = COLIBRI_OK;
    CLB_GO(measure(out, err));
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        add(&out->total, out->spans[i], t->n_elems);
        add(&out->roles[clb_role_of(t->name)], out->spans[i], t->n_elems);
    }
    for (uint32_t i = 0; i < clb_gguf_n_shards(g); i++)
        out->file_bytes += clb_gguf_shard_size(g, i);
    CLB_GO(tally_types(out, err));
    read_metadata(out);
    CLB_GO(measure_experts(out, err));
    measure_token(out);
    return COLIBRI_OK;
done:
    clb_inspection_free(out);
    return rc;
}

void clb_inspection_free(clb_inspection *in)
{
    free(in->spans);
    free(in->types);
    *in = (clb_inspection){0};
}
