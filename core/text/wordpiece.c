#include "text/vocab_impl.h"
int clb_wpm_tokenize(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    (void)v, (void)text, (void)n, (void)out;
    return clb_fail(err, COLIBRI_E_UNSUPPORTED, "WordPiece");
}
