/* POST /tokenize and /detokenize, with llama.cpp's fields. */
#include <string.h>

#include "serve/app.h"
#include "serve/fields.h"
#include "serve/json_write.h"

static const clb_field tokenize_fields[] = {
    {"content", CLB_FIELD_USED, NULL},       {"add_special", CLB_FIELD_USED, NULL},
    {"parse_special", CLB_FIELD_USED, NULL}, {"with_pieces", CLB_FIELD_USED, NULL},
    {"model", CLB_FIELD_IGNORED, NULL},      {NULL, CLB_FIELD_USED, NULL},
};
static const clb_field detokenize_fields[] = {
    {"tokens", CLB_FIELD_USED, NULL},
    {"model", CLB_FIELD_IGNORED, NULL},
    {NULL, CLB_FIELD_USED, NULL},
};

static void refuse(clb_exchange *x, const clb_refusal *r)
{
    clb_reply_error(x, r->http, r->type, *r->param ? r->param : NULL, r->code, "%s", r->message);
}

/* A piece that is text, or the numbers of its bytes. */
static int put_piece(const clb_vocab *v, uint32_t id, clb_json_buf *out, clb_error *err)
{
    clb_buf piece = {0};
    const int rc = clb_token_bytes(v, id, true, &piece, err);
    if (!rc) {
        json_t *const text = json_stringn(piece.data ? piece.data : "", piece.n);
        if (text) {
            clb_jb_string(out, piece.data ? piece.data : "", piece.n);
        } else {
            clb_jb_raw(out, "[");
            for (size_t i = 0; i < piece.n; i++) {
                clb_jb_raw(out, i ? "," : "");
                clb_jb_uint(out, (unsigned char)piece.data[i]);
            }
            clb_jb_raw(out, "]");
        }
        json_decref(text);
    }
    clb_buf_free(&piece);
    return rc;
}

static int put_tokens(const clb_vocab *v, const clb_tokens *ids, bool with_pieces, clb_json_buf *out, clb_error *err)
{
    clb_jb_raw(out, "{\"tokens\":[");
    for (size_t i = 0; i < ids->n; i++) {
        clb_jb_raw(out, i ? "," : "");
        if (!with_pieces) {
            clb_jb_uint(out, ids->ids[i]);
            continue;
        }
        clb_jb_raw(out, "{\"id\":");
        clb_jb_uint(out, ids->ids[i]);
        clb_jb_raw(out, ",\"piece\":");
        CLB_TRY(put_piece(v, ids->ids[i], out, err));
        clb_jb_raw(out, "}");
    }
    clb_jb_raw(out, "]}");
    return out->failed ? CLB_NOMEM(err, "the reply") : COLIBRI_OK;
}

void clb_serve_tokenize(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    static const clb_field *const tables[] = {tokenize_fields};
    bool add_special = false, parse_special = true, with_pieces = false;
    clb_refusal r = {0};
    clb_tokens ids = {0};
    clb_json_buf out = {0};
    clb_error err = {0};
    const json_t *const content = json_object_get(body, "content");
    int rc = clb_fields_check(body, "", tables, 1, &r);
    rc = rc ? rc : clb_field_bool(body, "add_special", &add_special, &r);
    rc = rc ? rc : clb_field_bool(body, "parse_special", &parse_special, &r);
    rc = rc ? rc : clb_field_bool(body, "with_pieces", &with_pieces, &r);
    if (!rc && !json_is_string(content))
        rc = clb_refuse(&r, content ? "invalid_type" : "missing_required_parameter", "content",
                        "'content' must be a string");
    if (rc) {
        refuse(x, &r);
    } else {
        const unsigned flags = (parse_special ? CLB_TOKENIZE_SPECIAL : 0) | (add_special ? CLB_TOKENIZE_BOS : 0);
        rc = clb_tokenize(a->engine->vocab, json_string_value(content), json_string_length(content), flags, &ids, &err);
        rc = rc ? rc : put_tokens(a->engine->vocab, &ids, with_pieces, &out, &err);
        if (rc)
            clb_reply_status(x, rc, err.msg);
        else
            clb_reply(x, 200, "application/json", out.buf.data, out.buf.n);
    }
    clb_jb_free(&out);
    clb_tokens_free(&ids);
    json_decref(body);
}

static int read_tokens(const clb_vocab *v, const json_t *body, clb_tokens *ids, clb_refusal *r)
{
    const json_t *const list = json_object_get(body, "tokens");
    size_t i;
    const json_t *item;
    if (!json_is_array(list))
        return clb_refuse(r, list ? "invalid_type" : "missing_required_parameter", "tokens",
                          "'tokens' must be an array of token ids");
    json_array_foreach(list, i, item)
    {
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || (uint64_t)id >= clb_vocab_size(v))
            return clb_refuse(r, "invalid_value", "tokens", "tokens[%zu] is no token id (0 to %u)", i,
                              clb_vocab_size(v) - 1);
        if (clb_tokens_push(ids, (uint32_t)id, NULL))
            return clb_refuse_nomem(r);
    }
    return COLIBRI_OK;
}

void clb_serve_detokenize(void *app, clb_exchange *x)
{
    const clb_app *const a = app;
    json_t *const body = clb_exchange_json(x);
    if (!body)
        return;
    static const clb_field *const tables[] = {detokenize_fields};
    clb_refusal r = {0};
    clb_tokens ids = {0};
    clb_buf text = {0};
    clb_json_buf out = {0};
    clb_error err = {0};
    int rc = clb_fields_check(body, "", tables, 1, &r);
    rc = rc ? rc : read_tokens(a->engine->vocab, body, &ids, &r);
    if (rc) {
        refuse(x, &r);
    } else {
        rc = clb_detokenize(a->engine->vocab, ids.ids, ids.n, true, &text, &err);
        clb_jb_raw(&out, "{\"content\":");
        clb_jb_string(&out, text.data ? text.data : "", text.n);
        clb_jb_raw(&out, "}");
        if (!rc && out.failed)
            rc = CLB_NOMEM(&err, "the reply");
        if (rc)
            clb_reply_status(x, rc, err.msg);
        else
            clb_reply(x, 200, "application/json", out.buf.data, out.buf.n);
    }
    clb_jb_free(&out);
    clb_buf_free(&text);
    clb_tokens_free(&ids);
    json_decref(body);
}
