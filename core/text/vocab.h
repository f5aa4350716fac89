/* Vocabulary and tokenizers: text <-> token ids, from a GGUF's tokenizer.* keys.
 *
 * The handle is immutable after loading: [any-thread]. Unknown `tokenizer.ggml.model` or `.pre` is UNSUPPORTED. */
#ifndef CLB_TEXT_VOCAB_H
#define CLB_TEXT_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "gguf/gguf.h"

typedef struct clb_vocab clb_vocab;

#define CLB_TOKEN_NONE UINT32_MAX

int clb_vocab_load(const clb_gguf *g, clb_vocab **out, clb_error *err);
void clb_vocab_free(clb_vocab *v);

uint32_t clb_vocab_size(const clb_vocab *v);
const char *clb_vocab_model(const clb_vocab *v); /* "llama", "gpt2" */
const char *clb_vocab_pre(const clb_vocab *v);
uint32_t clb_vocab_bos(const clb_vocab *v); /* CLB_TOKEN_NONE if it has none */
uint32_t clb_vocab_eos(const clb_vocab *v);
bool clb_vocab_add_bos(const clb_vocab *v);
bool clb_vocab_add_eos(const clb_vocab *v);
/* End-of-generation set. */
bool clb_vocab_is_eog(const clb_vocab *v, uint32_t id);
/* CONTROL, UNKNOWN or UNUSED: not shown to people unless asked. */
bool clb_vocab_is_control(const clb_vocab *v, uint32_t id);

typedef struct clb_tokens {
    uint32_t *ids;
    size_t n, cap;
} clb_tokens;
void clb_tokens_free(clb_tokens *t);
int clb_tokens_push(clb_tokens *t, uint32_t id, clb_error *err);

#define CLB_TOKENIZE_SPECIAL 0x1u /* special tokens written in the text are recognised */
#define CLB_TOKENIZE_BOS     0x2u /* add BOS/EOS if the vocabulary says so; see clb_tokens_double_bos */

/* Appends the ids of text (UTF-8; invalid bytes go through byte tokens or byte-level BPE, never an error). */
int clb_tokenize(const clb_vocab *v, const char *text, size_t n, uint32_t flags, clb_tokens *out, clb_error *err);

/* The ids begin with BOS twice: the text had one of its own. */
bool clb_tokens_double_bos(const clb_vocab *v, const clb_tokens *t);

/* Bytes of one token appended to out; control tokens give nothing unless `special`. May be part of a UTF-8 sequence. */
int clb_token_bytes(const clb_vocab *v, uint32_t id, bool special, clb_buf *out, clb_error *err);
/* Whole sequences: SPM vocabularies drop the space that tokenizing put in front. */
int clb_detokenize(const clb_vocab *v, const uint32_t *ids, size_t n, bool special, clb_buf *out, clb_error *err);
/* The token's text as stored, for tables. */
clb_str clb_token_text(const clb_vocab *v, uint32_t id);

/* Length of the longest prefix of data[0..n) that does not end inside a UTF-8 sequence that could still be completed.
 */
size_t clb_utf8_complete(const char *data, size_t n);

#endif
