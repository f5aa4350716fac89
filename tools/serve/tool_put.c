/* What the reply parser gives out, and what it knows about tools. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "serve/tool_impl.h"

static int put(clb_reply_parser *p, const clb_piece *piece, clb_error *err)
{
    p->begun = true;
    return p->o.on_piece(p->o.ctx, piece, err);
}

int clb_put_content(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    const clb_piece piece = {.kind = CLB_PIECE_CONTENT, .text = text, .n = n};
    return n ? put(p, &piece, err) : COLIBRI_OK;
}

int clb_put_thought(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    const clb_piece piece = {.kind = CLB_PIECE_REASONING, .text = text, .n = n};
    return n ? put(p, &piece, err) : COLIBRI_OK;
}

/* An id that no other call has: "call_" and 24 letters and digits, or nine of them. */
static int new_id(bool brief, char out[32], clb_error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[24];
    const size_t n = brief ? 9 : 24;
    size_t k = 0;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return clb_fail_errno(err, COLIBRI_E_INTERNAL, errno, "no random bytes");
    if (!brief) {
        memcpy(out, "call_", 5);
        k = 5;
    }
    for (size_t i = 0; i < n; i++)
        out[k++] = letters[random[i] % (sizeof letters - 1)];
    out[k] = '\0';
    return COLIBRI_OK;
}

int clb_put_call(clb_reply_parser *p, clb_str name, clb_str id, clb_error *err)
{
    char own_id[32];
    clb_buf texts = {0}; /* name and id with an end */
    int rc = COLIBRI_OK;
    if (id.n == 0) {
        CLB_TRY(new_id(p->f->short_ids || p->o.format->short_ids, own_id, err));
        id = (clb_str){own_id, strlen(own_id)};
    }
    CLB_GO(clb_buf_append(&texts, name.p, name.n, err));
    CLB_GO(clb_buf_append(&texts, "\0", 1, err));
    CLB_GO(clb_buf_append(&texts, id.p, id.n, err));
    const clb_piece piece = {
        .kind = CLB_PIECE_CALL, .text = "", .index = p->n_calls, .name = texts.data, .id = texts.data + name.n + 1};
    p->n_calls++;
    p->in_call = p->any_in_section = true;
    rc = put(p, &piece, err);
done:
    clb_buf_free(&texts);
    return rc;
}

int clb_put_arguments(clb_reply_parser *p, const char *text, size_t n, clb_error *err)
{
    const clb_piece piece = {.kind = CLB_PIECE_ARGUMENTS, .text = text, .n = n, .index = p->n_calls - 1};
    return n ? put(p, &piece, err) : COLIBRI_OK;
}

int clb_put_call_end(clb_reply_parser *p, clb_error *err)
{
    const clb_piece piece = {.kind = CLB_PIECE_CALL_END, .text = "", .index = p->n_calls - 1};
    p->in_call = false;
    return put(p, &piece, err);
}

static const json_t *tool_of(const clb_reply_parser *p, clb_str name)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(p->o.tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function"), *s = json_object_get(f, "name");
        if (json_string_length(s) == name.n && memcmp(json_string_value(s), name.p, name.n) == 0)
            return f;
    }
    return NULL;
}

bool clb_tool_known(const clb_reply_parser *p, clb_str name)
{
    return tool_of(p, name) != NULL;
}

unsigned clb_parameter_types(const clb_reply_parser *p, const char *tool, const char *parameter)
{
    const json_t *const f = tool_of(p, (clb_str){tool, strlen(tool)}), *const root = json_object_get(f, "parameters");
    const json_t *const schema =
        json_object_get(json_object_get(clb_schema_target(root, root), "properties"), parameter);
    return schema ? clb_schema_types(root, schema) : CLB_TYPE_ANY;
}

size_t clb_value_scan_on(clb_value_scan *v, const char *text, size_t n)
{
    size_t i = 0;
    for (; i < n && !v->done; i++) {
        const char c = text[i];
        if (v->in_string) {
            if (v->escaped) {
                v->escaped = false;
            } else if (c == '\\') {
                v->escaped = true;
            } else if (c == '"') {
                v->in_string = false;
                v->done = v->depth == 0;
            }
        } else if (c == '"') {
            v->in_string = true;
        } else if (c == '{' || c == '[') {
            v->depth++;
        } else if (v->depth && (c == '}' || c == ']')) {
            v->done = --v->depth == 0;
        } else if (v->depth == 0 && strchr(",}] \n\r\t", c)) { /* what follows a number, true, false, null */
            v->done = true;
            return i;
        }
    }
    return i;
}

int clb_json_escape(clb_buf *out, const char *text, size_t n, clb_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            CLB_TRY(clb_buf_printf(out, err, "\\%c", c));
        else if (c == '\n')
            CLB_TRY(clb_buf_append(out, "\\n", 2, err));
        else if (c < 0x20)
            CLB_TRY(clb_buf_printf(out, err, "\\u%04x", c));
        else
            CLB_TRY(clb_buf_append(out, text + i, 1, err));
    }
    return COLIBRI_OK;
}
