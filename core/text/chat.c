/* Chat templates: from the file or built in, rendered by the interpreter, tokenized with care. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/chat_impl.h"
#include "text/jinja.h"
#include "text/vocab_impl.h"

/* Marks that tell families apart; the first row whose marks are all there wins. */
static const struct {
    const char *name, *mark[3];
} families[] = {
    {"phi-4", {"<|im_start|>", "<|im_sep|>"}},
    {"chatml", {"<|im_start|>"}},
    {"gpt-oss", {"<|start|>", "<|channel|>"}},
    {"mistral-v7", {"[INST]", "[SYSTEM_PROMPT]"}},
    {"llama2", {"[INST]", "<<SYS>>"}},
    {"mistral-v3", {"[INST]", "[AVAILABLE_TOOLS]"}},
    {"mistral-v1", {"[INST]"}},
    {"glm4", {"[gMASK]"}},
    {"phi-3", {"<|assistant|>", "<|end|>"}},
    {"gemma", {"<start_of_turn>"}},
    {"gemma4", {"<turn|>"}},
    {"llama3", {"<|start_header_id|>"}},
    {"llama4", {"<|header_start|>"}},
    {"deepseek-v3",
     {"<\xEF\xBD\x9C"
      "Assistant\xEF\xBD\x9C>"}},
    {"deepseek-v2", {"Assistant: ", "User: "}},
    {"command-r", {"<|START_OF_TURN_TOKEN|>"}},
    {"granite", {"<|start_of_role|>"}},
    {"kimi-k2", {"<|im_middle|>"}},
    {"bailing", {"<role>"}},
    {"zephyr", {"<|user|>", "eos_token"}},
    {"olmo", {"<|user|>", "<|endoftext|>"}},
};

static const char *family_of(clb_str s)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        bool all = true;
        for (size_t k = 0; k < 3 && families[i].mark[k]; k++)
            all = all && memmem(s.p, s.n, families[i].mark[k], strlen(families[i].mark[k]));
        if (all)
            return families[i].name;
    }
    return "custom";
}

void clb_chat_free(const clb_chat_format *format)
{
    if (!format || format->source)
        return;
    clb_chat_format *f = (clb_chat_format *)format;
    clb_jinja_free(f->jinja);
    free(f->bos);
    free(f->eos);
    free(f);
}

static int make(clb_str jinja, clb_str bos, clb_str eos, const clb_chat_format **out, clb_error *err)
{
    clb_chat_format *f = calloc(1, sizeof *f);
    if (!f)
        return CLB_NOMEM(err, "chat template");
    int rc = COLIBRI_OK;
    f->name = family_of(jinja);
    f->bos = strndup(bos.p, bos.n);
    f->eos = strndup(eos.p, eos.n);
    if (!f->bos || !f->eos)
        CLB_GO(CLB_NOMEM(err, "chat template"));
    CLB_GO(clb_jinja_parse(jinja, &f->jinja, err));
    *out = f;
    return COLIBRI_OK;
done:
    clb_chat_free(f);
    return rc;
}

int clb_chat_detect_template(clb_str jinja, const clb_chat_format **out, clb_error *err)
{
    return make(jinja, (clb_str){"<s>", 3}, (clb_str){"</s>", 4}, out, err);
}

/* Text of the token that a key names; empty if the key is absent or names none. */
static int token_of(const clb_gguf *g, const char *key, clb_str *out, clb_error *err)
{
    const clb_gguf_value *tokens = clb_gguf_find(g, "tokenizer.ggml.tokens");
    uint32_t id = UINT32_MAX;
    *out = (clb_str){"", 0};
    CLB_TRY(clb_gguf_get_u32_or(g, key, id, &id, err));
    if (!tokens || tokens->type != CLB_GGUF_ARRAY || id >= tokens->as.arr.n)
        return COLIBRI_OK;
    return clb_gguf_item_str(tokens, id, out, err);
}

int clb_chat_detect(const clb_gguf *g, const clb_chat_format **out, clb_error *err)
{
    clb_str jinja, bos, eos;
    const int rc = clb_gguf_get_str(g, "tokenizer.chat_template", &jinja, err);
    if (rc == COLIBRI_E_NOT_FOUND)
        return clb_fail(err, rc, "the model has no chat template (tokenizer.chat_template)");
    CLB_TRY(rc);
    CLB_TRY(token_of(g, "tokenizer.ggml.bos_token_id", &bos, err));
    CLB_TRY(token_of(g, "tokenizer.ggml.eos_token_id", &eos, err));
    return make(jinja, bos, eos, out, err);
}

const char *clb_chat_name(const clb_chat_format *format)
{
    return format->name;
}

const clb_chat_format *clb_chat_by_name(const char *name)
{
    for (const clb_chat_format *f = clb_chat_builtins; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

const char *clb_chat_builtin(size_t i)
{
    size_t n = 0;
    while (clb_chat_builtins[n].name)
        n++;
    return i < n ? clb_chat_builtins[i].name : NULL;
}

int clb_chat_render_at(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                       int64_t now, clb_jinja_output *out, clb_error *err)
{
    clb_jinja *own = NULL;
    clb_jinja_message *list = calloc(n ? n : 1, sizeof *list);
    int rc = COLIBRI_OK;
    if (!list)
        return CLB_NOMEM(err, "chat messages");
    for (size_t i = 0; i < n; i++) {
        list[i].role = (clb_str){messages[i].role, strlen(messages[i].role)};
        list[i].content = (clb_str){messages[i].content, strlen(messages[i].content)};
    }
    const char *bos = format->bos ? format->bos : "", *eos = format->eos ? format->eos : "";
    const clb_jinja_input in = {.messages = list,
                                .n = n,
                                .add_generation_prompt = add_generation,
                                .bos_token = {bos, strlen(bos)},
                                .eos_token = {eos, strlen(eos)},
                                .now = now};
    if (!format->jinja)
        CLB_GO(clb_jinja_parse((clb_str){format->source, strlen(format->source)}, &own, err));
    CLB_GO(clb_jinja_render(own ? own : format->jinja, &in, out, err));
done:
    clb_jinja_free(own);
    free(list);
    return rc;
}

/* Length of the BOS token that the template wrote in front, 0 if it wrote none. */
static size_t leading_bos(const clb_chat_format *format, const clb_jinja_output *o)
{
    const size_t n = format->bos ? strlen(format->bos) : 0;
    if (n == 0 || o->text.n < n || memcmp(o->text.data, format->bos, n) != 0 || memchr(o->taint.data, 1, n))
        return 0;
    return n;
}

int clb_chat_render(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                    clb_buf *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_chat_render_at(format, messages, n, add_generation, (int64_t)time(NULL), &o, err));
    const size_t skip = leading_bos(format, &o);
    CLB_GO(clb_buf_append(out, o.text.data + skip, o.text.n - skip, err));
done:
    clb_jinja_output_free(&o);
    return rc;
}

int clb_chat_tokenize(const clb_chat_format *format, const clb_vocab *vocab, const clb_message *messages, size_t n,
                      int add_generation, clb_tokens *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_chat_render_at(format, messages, n, add_generation, (int64_t)time(NULL), &o, err));
    const uint32_t bos = clb_vocab_bos(vocab);
    const size_t skip = leading_bos(format, &o);
    if (bos != CLB_TOKEN_NONE && (skip || clb_vocab_add_bos(vocab)))
        CLB_GO(clb_tokens_push(out, bos, err));
    CLB_GO(clb_tokenize_marked(vocab, o.text.data + skip, (const uint8_t *)o.taint.data + skip, o.text.n - skip, out,
                               err));
done:
    clb_jinja_output_free(&o);
    return rc;
}
