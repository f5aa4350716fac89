/* OpenAI's words: errors, chunks of a stream, usage, log probabilities, and the fields that its endpoints share. */
#ifndef CLB_SERVE_OPENAI_H
#define CLB_SERVE_OPENAI_H

#include "serve/completion.h"
#include "serve/tools.h"

/* {"error": {"message", "type", "param", "code"}} with the status, and Retry-After where it is known. */
void clb_openai_refuse(clb_exchange *x, const clb_refusal *r);
/* The same as an event of a stream that has begun. */
void clb_openai_stream_error(clb_completion *c, const clb_refusal *r, clb_json_buf *out);

/* Feeds a piece of a choice's text to its parser, token by token; adds the tokens of thoughts, their marks included, to
 * the completion's usage. *n_fed: bytes of the text before, 0 at first. */
int clb_openai_feed(clb_completion *c, clb_reply_parser *parser, const char *text, size_t n,
                    const clb_token_info *tokens, size_t n_tokens, size_t *n_fed, clb_error *err);

/* What every body and chunk begins with:
 * {"id":"<prefix><exchange>","object":...,"created":...,"model":...,"system_fingerprint":..., */
void clb_openai_head(const clb_completion *c, const char *prefix, const char *object, clb_json_buf *out);
/* "usage":{...} */
void clb_openai_usage(const clb_completion *c, clb_json_buf *out);
/* "timings":{...} in llama.cpp's words */
void clb_openai_timings(const clb_completion *c, clb_json_buf *out);
/* "prompt_progress":{...} in llama.cpp's words */
void clb_openai_progress(const clb_progress_info *p, clb_json_buf *out);
/* What follows a choice's delta or text in a chunk: its finish_reason (NULL: null), the end of the choices, usage and timings as the
 * options ask for them; the chunk itself stays open. */
void clb_openai_chunk_end(clb_completion *c, const char *finish, clb_json_buf *out);
/* "stop", "length" */
const char *clb_openai_finish(enum clb_finish finish);

/* Variables of the template as a new object: chat_template_kwargs and enable_thinking of the body, and how much effort
 * to put into thoughts, which is the field `name` of `from`. */
int clb_openai_template_values(const json_t *body, const json_t *from, const char *name, json_t **kwargs,
                               clb_refusal *r);
/* A schema as GBNF at the end of *gbnf; NULL: any JSON object. `param` is what a refusal is about. */
int clb_openai_schema(const json_t *schema, const char *param, clb_buf *gbnf, clb_refusal *r);
/* response_format, json_schema, grammar: at most one of them, as GBNF at the end of *gbnf (nothing if none was given).
 * *param is the one that it came from. */
int clb_openai_format_read(const json_t *body, clb_buf *gbnf, const char **param, clb_refusal *r);
/* The grammar of the options. `param` is what a refusal is about. */
int clb_openai_grammar(clb_text_options *o, const clb_buf *gbnf, const char *param, clb_refusal *r);

/* Elements of chat's logprobs.content; a comma goes before each but the first of `out`. */
void clb_openai_chat_logprobs(const clb_vocab *vocab, const clb_token_info *tokens, size_t n, clb_json_buf *out);
/* The four arrays of the older form, without brackets: tokens, token_logprobs, top_logprobs (null where n_logprobs is
 * 0), text_offset (offset[i] of token i, in characters). */
void clb_openai_legacy_logprobs(const clb_vocab *vocab, const clb_token_info *tokens, size_t n, const uint64_t *offset,
                                bool first_is_null, clb_json_buf out[4]);

#endif
