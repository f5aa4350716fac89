/* Ids -> bytes. */
#include "text/vocab_impl.h"

static bool hidden(const clb_vocab *v, uint32_t id)
{
    const uint8_t type = v->tokens[id].type;
    return (type == CLB_TOKEN_CONTROL || type == CLB_TOKEN_UNKNOWN || type == CLB_TOKEN_UNUSED) &&
           !(v->tokens[id].flags & CLB_TF_SHOWN);
}

bool clb_vocab_is_control(const clb_vocab *v, uint32_t id)
{
    return id < v->n && hidden(v, id);
}

int clb_token_bytes(const clb_vocab *v, uint32_t id, bool special, clb_buf *out, clb_error *err)
{
    if (id >= v->n)
        return clb_fail(err, COLIBRI_E_USAGE, "token %u is outside the vocabulary of %u", id, v->n);
    if (hidden(v, id) && !special)
        return COLIBRI_OK;
    const clb_str s = clb_vocab_piece(v, id);
    return clb_buf_append(out, s.p, s.n, err);
}

int clb_detokenize(const clb_vocab *v, const uint32_t *ids, size_t n, bool special, clb_buf *out, clb_error *err)
{
    const bool prefixed = v->kind == CLB_VOCAB_WPM || (v->kind == CLB_VOCAB_SPM && v->add_space_prefix);
    bool drop_space = prefixed;
    for (size_t i = 0; i < n; i++) {
        const size_t begin = out->n;
        CLB_TRY(clb_token_bytes(v, ids[i], special, out, err));
        const uint8_t type = v->tokens[ids[i]].type;
        const bool text = type != CLB_TOKEN_CONTROL && type != CLB_TOKEN_USER_DEFINED;
        if (drop_space && text && out->n > begin && out->data[begin] == ' ') {
            for (size_t k = begin + 1; k <= out->n; k++) /* the terminator too */
                out->data[k - 1] = out->data[k];
            out->n--;
        }
        drop_space = prefixed && !text;
    }
    return COLIBRI_OK;
}
