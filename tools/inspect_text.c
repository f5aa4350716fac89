/* colibri inspect: reports for people. Every string of the file is escaped: a terminal must not obey a model. */
#include "inspect.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/escape.h"

static void put_escaped(clb_str s, size_t max)
{
    const size_t n = clb_inspect_cut(s, max);
    for (size_t i = 0; i < n;) {
        char piece[CLB_ESCAPE_MAX];
        size_t piece_n;
        i += clb_escape_step(s.p + i, s.n - i, piece, &piece_n, NULL);
        fwrite(piece, 1, piece_n, stdout);
    }
}

/* "34.6 M": parameters are counted in powers of ten. */
static const char *human_count(uint64_t n, char out[24])
{
    static const char *const unit[] = {"", " K", " M", " G", " T", " P", " E"};
    double v = (double)n;
    size_t u = 0;
    for (; v >= 999.5 && u + 1 < sizeof unit / sizeof *unit; u++)
        v /= 1000.0;
    snprintf(out, 24, u ? "%.3g%s" : "%.0f%s", v, unit[u]);
    return out;
}

/* 1234567 as "1,234,567". */
static const char *grouped(uint64_t n, char out[32])
{
    char digits[24];
    const int len = snprintf(digits, sizeof digits, "%" PRIu64, n);
    char *to = out;
    for (int i = 0; i < len; i++) {
        *to++ = digits[i];
        if (i + 1 < len && (len - i) % 3 == 1)
            *to++ = ',';
    }
    *to = '\0';
    return out;
}

static void label(const char *name)
{
    printf("%-16s", name);
}

static void row_text(const char *name, clb_str s)
{
    if (!s.n)
        return;
    label(name);
    put_escaped(s, CLB_INSPECT_TEXT);
    putchar('\n');
}

static void put_ints(clb_ints v)
{
    printf("%" PRId64, v.min);
    if (v.max != v.min)
        printf("-%" PRId64 " (differs by layer)", v.max);
}

static void print_heads(const clb_inspection *in)
{
    if (!in->heads.n)
        return;
    label("heads");
    put_ints(in->heads);
    if (in->kv_heads.n) {
        printf(" query, ");
        put_ints(in->kv_heads);
        printf(" key/value");
    }
    const int64_t heads = in->heads.max;
    if (in->key_width.n && in->key_width.max > 0)
        printf(", %" PRId64 " wide", in->key_width.max);
    else if (in->width.n && heads > 0 && in->heads.min == heads && in->width.max % heads == 0)
        printf(", %" PRId64 " wide", in->width.max / heads);
    if (in->key_width.n && in->value_width.n && in->value_width.max != in->key_width.max)
        printf(" (values %" PRId64 ")", in->value_width.max);
    putchar('\n');
}

static void print_experts(const clb_inspection *in)
{
    if (!in->experts.n || in->experts.max <= 0)
        return;
    char a[24], b[24];
    label("experts");
    put_ints(in->experts);
    if (in->used.n) {
        printf(", ");
        put_ints(in->used);
        printf(" used per token");
    }
    if (in->shared.n && in->shared.max > 0)
        printf(", %" PRId64 " shared", in->shared.max);
    if (in->expert_layers) {
        printf(", in %" PRIu64 " layer%s\n", in->expert_layers, in->expert_layers == 1 ? "" : "s");
        label("expert size");
        printf("%s", clb_human_bytes(in->expert_min, a));
        if (in->expert_max != in->expert_min)
            printf(" to %s (differs by layer)", clb_human_bytes(in->expert_max, b));
    }
    putchar('\n');
}

static void row_ints(const char *name, clb_ints v, const char *unit)
{
    if (!v.n)
        return;
    label(name);
    put_ints(v);
    printf("%s\n", unit);
}

static void tally_row(const char *name, const clb_tally *t, const clb_tally *total)
{
    char bytes[24], params[24];
    if (t->tensors)
        printf("  %-16s %10s %6.1f %%  %7" PRIu64 "  %10s\n", name, clb_human_bytes(t->bytes, bytes),
               total->bytes ? 100.0 * (double)t->bytes / (double)total->bytes : 0.0, t->tensors,
               human_count(t->params, params));
}

static void print_packing(const clb_gguf *g)
{
    uint64_t x16 = 0, blocks = 0;
    if (!clb_gguf_is_packed(g))
        return;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        x16 += t->packed;
        blocks += t->expert_stride && t->offset == t->block_offset ? t->ne[2] : 0; /* the first part counts */
    }
    label("packing");
    printf("packed x16: %" PRIu64 " of %" PRIu64 " tensors", x16, clb_gguf_n_tensors(g));
    if (blocks)
        printf("; %" PRIu64 " experts in blocks of their own", blocks);
    printf("; %s\n", clb_gguf_has_checksums(g) ? "checksums (xxh3-64)" : "no checksums");
}

void clb_inspect_print_summary(const clb_inspection *in)
{
    char a[32], b[24];
    const uint32_t n_files = clb_gguf_n_shards(in->g);
    label("file");
    const char *path = clb_gguf_shard_path(in->g, 0);
    put_escaped((clb_str){path, strlen(path)}, SIZE_MAX);
    putchar('\n');
    label("size");
    printf("%s", clb_human_bytes(in->file_bytes, b));
    if (n_files > 1)
        printf(" in %u files", n_files);
    if (clb_gguf_is_packed(in->g))
        printf(" (packed, %" PRIu64 " keys, %" PRIu64 " tensors)\n", clb_gguf_n_keys(in->g),
               clb_gguf_n_tensors(in->g));
    else
        printf(" (GGUF version %u, %" PRIu64 " keys, %" PRIu64 " tensors)\n", clb_gguf_version(in->g),
               clb_gguf_n_keys(in->g), clb_gguf_n_tensors(in->g));
    print_packing(in->g);
    row_text("architecture", in->arch);
    row_text("name", in->name);
    if (in->total.tensors) {
        label("parameters");
        printf("%s (%s)\n", human_count(in->total.params, b), grouped(in->total.params, a));
    }
    if (in->total.tensors && in->token_bytes) {
        label("per token");
        printf("%s parameters, %s of weights\n", human_count(in->token_params, b), clb_human_bytes(in->token_bytes, a));
    }
    row_ints("context", in->context, " tokens");
    row_ints("layers", in->layers, "");
    row_ints("width", in->width, "");
    print_heads(in);
    row_ints("feed-forward", in->ffn, "");
    row_ints("expert width", in->expert_ffn, "");
    print_experts(in);
    if (in->tokenizer.n || in->n_vocab) {
        label("tokenizer");
        put_escaped(in->tokenizer, CLB_INSPECT_TEXT);
        if (in->pre.n) {
            printf(" / ");
            put_escaped(in->pre, CLB_INSPECT_TEXT);
        }
        printf("%s%s tokens%s\n", in->tokenizer.n ? ", " : "", grouped(in->n_vocab, a),
               in->has_template ? ", with a chat template" : "");
    }
    if (!in->total.tensors)
        return;
    printf("\n  %-16s %10s %8s  %7s  %10s\n", "weights", "bytes", "share", "tensors", "parameters");
    for (int r = 0; r < CLB_ROLE_COUNT; r++)
        tally_row(clb_role_names[r], &in->roles[r], &in->total);
    printf("\n  %-16s %10s %8s  %7s  %10s\n", "types", "bytes", "share", "tensors", "parameters");
    for (size_t i = 0; i < in->n_types; i++) {
        char name[16];
        tally_row(clb_gguf_type_name(in->types[i].type, name), &in->types[i].sum, &in->total);
    }
    if (in->unknown)
        printf("\n%" PRIu64 " tensor%s of a type unknown to this version: sizes are the room up to the next tensor\n",
               in->unknown, in->unknown == 1 ? " is" : "s are");
}

/* ---- metadata --------------------------------------------------------------------------------------- */

/* The shortest decimal that reads back as the same number. */
static void put_float(double v, bool single)
{
    char text[40];
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back = 0;
        sscanf(text, "%lf", &back);
        if (single ? (float)back == (float)v : back == v)
            break;
    }
    fputs(text, stdout);
}

static void put_string(clb_str s, bool full)
{
    putchar('"');
    put_escaped(s, full ? SIZE_MAX : CLB_INSPECT_TEXT);
    putchar('"');
    if (!full && s.n > CLB_INSPECT_TEXT)
        printf("... (%zu bytes)", s.n);
}

static int put_value(const clb_gguf_value *v, bool full, clb_error *err);

static int put_item(const clb_gguf_value *array, uint64_t i, bool full, clb_error *err)
{
    clb_gguf_value item = {.type = array->as.arr.elem};
    int64_t n = 0;
    switch (array->as.arr.elem) {
    case CLB_GGUF_ARRAY:
        return put_value((const clb_gguf_value *)array->as.arr.items + i, full, err);
    case CLB_GGUF_STRING:
        CLB_TRY(clb_gguf_item_str(array, i, &item.as.str, err));
        break;
    case CLB_GGUF_F32:
    case CLB_GGUF_F64:
        CLB_TRY(clb_gguf_item_f64(array, i, &item.as.f, err));
        break;
    case CLB_GGUF_U64:
        memcpy(&item.as.u, (const char *)array->as.arr.items + i * 8, 8);
        break;
    default:
        CLB_TRY(clb_gguf_item_i64(array, i, &n, err));
        item.as.i = n;
    }
    return put_value(&item, full, err);
}

static int put_value(const clb_gguf_value *v, bool full, clb_error *err)
{
    switch (v->type) {
    case CLB_GGUF_STRING:
        put_string(v->as.str, full);
        break;
    case CLB_GGUF_ARRAY: {
        const uint64_t n = v->as.arr.n, shown = full || n <= CLB_INSPECT_ITEMS ? n : CLB_INSPECT_ITEMS;
        putchar('[');
        for (uint64_t i = 0; i < shown; i++) {
            if (i)
                printf(", ");
            CLB_TRY(put_item(v, i, full, err));
        }
        printf(shown < n ? ", ... (%" PRIu64 " in all)]" : "]", n);
        break;
    }
    case CLB_GGUF_F32:
    case CLB_GGUF_F64:
        put_float(v->as.f, v->type == CLB_GGUF_F32);
        break;
    case CLB_GGUF_BOOL:
        printf(v->as.u ? "true" : "false");
        break;
    case CLB_GGUF_I8:
    case CLB_GGUF_I16:
    case CLB_GGUF_I32:
    case CLB_GGUF_I64:
        printf("%" PRId64, v->as.i);
        break;
    default:
        printf("%" PRIu64, v->as.u);
    }
    return COLIBRI_OK;
}

int clb_inspect_print_metadata(const clb_gguf *g, bool full, clb_error *err)
{
    for (uint64_t i = 0; i < clb_gguf_n_keys(g); i++) {
        const clb_gguf_value *v = clb_gguf_value_at(g, i);
        char type[32];
        if (v->type == CLB_GGUF_ARRAY)
            snprintf(type, sizeof type, "%s[]", clb_gguf_vtype_name(v->as.arr.elem));
        else
            snprintf(type, sizeof type, "%s", clb_gguf_vtype_name(v->type));
        printf("%-9s ", type);
        put_escaped(clb_gguf_key(g, i), SIZE_MAX);
        printf(" = ");
        CLB_TRY(put_value(v, full, err));
        putchar('\n');
    }
    return COLIBRI_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

void clb_inspect_print_tensors(const clb_inspection *in)
{
    const bool split = clb_gguf_n_shards(in->g) > 1, packed = clb_gguf_is_packed(in->g);
    printf("%-8s %-26s %14s %16s %s%s%s\n", "type", "shape", "bytes", "offset", packed ? "layout " : "",
           split ? "file " : "", "name");
    for (uint64_t i = 0; i < clb_gguf_n_tensors(in->g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(in->g, i);
        char type[16], shape[4 * 24] = "", bytes[32];
        for (uint32_t d = 0, n = 0; d < t->n_dims; d++)
            n += (uint32_t)snprintf(shape + n, sizeof shape - n, d ? " x %" PRIu64 : "%" PRIu64, t->ne[d]);
        snprintf(bytes, sizeof bytes, t->n_bytes ? "%" PRIu64 : "<= %" PRIu64, in->spans[i]);
        printf("%-8s %-26s %14s %16" PRIu64 " ", clb_gguf_type_name(t->type, type), shape, bytes, t->offset);
        if (packed)
            printf("%-6s ", t->packed ? "x16" : "rows");
        if (split)
            printf("%4u ", t->shard + 1);
        put_escaped(t->name, SIZE_MAX);
        putchar('\n');
    }
}
