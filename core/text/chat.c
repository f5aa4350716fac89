/* Chat templates: from the file or built in, rendered by the interpreter, tokenized with care. */
#include "text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    pthread_mutex_destroy(&f->lock);
    free(f->text);
    free(f->bos);
    free(f->eos);
    free(f->note);
    free(f);
}

/* A built-in format of the family instead of a template that cannot be interpreted: whatever else is wrong stays an
 * error. */
static int stand_in(clb_chat_format *f, int rc, clb_error *err)
{
    f->stand_in = rc == COLIBRI_E_UNSUPPORTED ? clb_chat_by_name(f->name) : NULL;
    if (!f->stand_in)
        return rc;
    char note[sizeof err->msg + 80];
    snprintf(note, sizeof note, "%s; the built-in format \"%s\" is used instead", err->msg, f->name);
    f->note = strdup(note);
    return f->note ? COLIBRI_OK : CLB_NOMEM(err, "chat template");
}

/* Whether the interpreter knows what a plain conversation needs: filters and functions show when they are used. */
static int try_out(const clb_chat_format *f, clb_error *err)
{
    const clb_message hello = {"user", "hello"};
    clb_jinja_output o = {0};
    const int rc = clb_chat_render_at(f, &hello, 1, 1, 0, &o, err);
    clb_jinja_output_free(&o);
    return rc == COLIBRI_E_UNSUPPORTED ? rc : COLIBRI_OK;
}

static int make(clb_str jinja, clb_str bos, clb_str eos, const clb_chat_format **out, clb_error *err)
{
    clb_chat_format *f = calloc(1, sizeof *f);
    if (!f)
        return CLB_NOMEM(err, "chat template");
    int rc = COLIBRI_OK;
    pthread_mutex_init(&f->lock, NULL);
    f->name = family_of(jinja);
    f->bos = strndup(bos.p, bos.n);
    f->eos = strndup(eos.p, eos.n);
    f->text = malloc(jinja.n + 1);
    if (!f->bos || !f->eos || !f->text)
        CLB_GO(CLB_NOMEM(err, "chat template"));
    if (jinja.n)
        memcpy(f->text, jinja.p, jinja.n);
    f->text[jinja.n] = '\0';
    f->n_text = jinja.n;
    rc = clb_jinja_parse(jinja, &f->jinja, err);
    if (!rc)
        rc = try_out(f, err);
    if (rc)
        CLB_GO(stand_in(f, rc, err));
    *out = f;
    return COLIBRI_OK;
done:
    clb_chat_free(f);
    return rc;
}

clb_str clb_chat_source(const clb_chat_format *format)
{
    if (format->stand_in)
        format = format->stand_in;
    return format->source ? (clb_str){format->source, strlen(format->source)} : (clb_str){format->text, format->n_text};
}

const char *clb_chat_note(const clb_chat_format *format)
{
    return format->note;
}

/* Built-in formats know messages of the three old roles and nothing else. */
static const clb_chat_caps builtin_caps = {.system = true};

const clb_chat_caps *clb_chat_get_caps(const clb_chat_format *format)
{
    if (format->source || format->stand_in)
        return &builtin_caps;
    clb_chat_format *f = (clb_chat_format *)format;
    pthread_mutex_lock(&f->lock);
    if (!f->has_caps)
        clb_chat_probe(f, &f->caps);
    f->has_caps = true;
    pthread_mutex_unlock(&f->lock);
    return &f->caps;
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

int clb_chat_open(const char *name_or_path, const clb_gguf *g, const clb_chat_format **out, clb_error *err)
{
    clb_str bos = {"<s>", 3}, eos = {"</s>", 4};
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    *out = clb_chat_by_name(name_or_path);
    if (*out)
        return COLIBRI_OK;
    if (g)
        CLB_TRY(token_of(g, "tokenizer.ggml.bos_token_id", &bos, err));
    if (g)
        CLB_TRY(token_of(g, "tokenizer.ggml.eos_token_id", &eos, err));
    const int fd = open(name_or_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "cannot open chat template %s",
                       name_or_path);
        clb_buf names = {0};
        for (const clb_chat_format *f = clb_chat_builtins; f->name; f++)
            CLB_GO(clb_buf_printf(&names, err, " %s", f->name));
        rc = strchr(name_or_path, '/')
                 ? err->code
                 : clb_fail(err, err->code, "no chat template \"%s\": neither a file nor one of%s", name_or_path,
                            names.data);
        clb_buf_free(&names);
        return rc;
    }
    rc = clb_buf_read(&text, fd, name_or_path, (size_t)1 << 20, err);
    close(fd);
    if (!rc)
        rc = make((clb_str){text.data ? text.data : "", text.n}, bos, eos, out, err);
done:
    clb_buf_free(&text);
    return rc;
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

int clb_chat_run(const clb_chat_format *format, clb_jinja_input *in, clb_jinja_output *out, clb_error *err)
{
    const clb_chat_format *use = format->stand_in ? format->stand_in : format;
    const char *bos = format->bos ? format->bos : "", *eos = format->eos ? format->eos : "";
    clb_jinja *own = NULL;
    int rc = COLIBRI_OK;
    in->bos_token = (clb_str){bos, strlen(bos)};
    in->eos_token = (clb_str){eos, strlen(eos)};
    if (!use->jinja)
        CLB_GO(clb_jinja_parse((clb_str){use->source, strlen(use->source)}, &own, err));
    CLB_GO(clb_jinja_render(own ? own : use->jinja, in, out, err));
done:
    clb_jinja_free(own);
    return rc;
}

int clb_chat_render_at(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                       int64_t now, clb_jinja_output *out, clb_error *err)
{
    clb_jinja_message *list = calloc(n ? n : 1, sizeof *list);
    if (!list)
        return CLB_NOMEM(err, "chat messages");
    for (size_t i = 0; i < n; i++) {
        list[i].role = (clb_str){messages[i].role, strlen(messages[i].role)};
        list[i].content = (clb_str){messages[i].content, strlen(messages[i].content)};
    }
    clb_jinja_input in = {.messages = list, .n = n, .add_generation_prompt = add_generation, .now = now};
    const int rc = clb_chat_run(format, &in, out, err);
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

/* Text without the BOS in front, which tokenizing adds. */
static int give_text(const clb_chat_format *format, const clb_jinja_output *o, clb_buf *out, clb_error *err)
{
    const size_t skip = leading_bos(format, o);
    return clb_buf_append(out, o->text.data + skip, o->text.n - skip, err);
}

static int give_tokens(const clb_chat_format *format, const clb_vocab *vocab, const clb_jinja_output *o,
                       clb_tokens *out, clb_error *err)
{
    const uint32_t bos = clb_vocab_bos(vocab);
    const size_t skip = leading_bos(format, o);
    if (bos != CLB_TOKEN_NONE && (skip || clb_vocab_add_bos(vocab)))
        CLB_TRY(clb_tokens_push(out, bos, err));
    return clb_tokenize_marked(vocab, o->text.data + skip, (const uint8_t *)o->taint.data + skip, o->text.n - skip, out,
                               err);
}

int clb_chat_render(const clb_chat_format *format, const clb_message *messages, size_t n, int add_generation,
                    clb_buf *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = clb_chat_render_at(format, messages, n, add_generation, (int64_t)time(NULL), &o, err);
    if (!rc)
        rc = give_text(format, &o, out, err);
    clb_jinja_output_free(&o);
    return rc;
}

int clb_chat_tokenize(const clb_chat_format *format, const clb_vocab *vocab, const clb_message *messages, size_t n,
                      int add_generation, clb_tokens *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = clb_chat_render_at(format, messages, n, add_generation, (int64_t)time(NULL), &o, err);
    if (!rc)
        rc = give_tokens(format, vocab, &o, out, err);
    clb_jinja_output_free(&o);
    return rc;
}

int clb_chat_render_values(const clb_chat_format *format, const clb_chat_values *values, clb_buf *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = clb_chat_render_marked(format, values, &o, err);
    if (!rc)
        rc = give_text(format, &o, out, err);
    clb_jinja_output_free(&o);
    return rc;
}

int clb_chat_tokenize_values(const clb_chat_format *format, const clb_vocab *vocab, const clb_chat_values *values,
                             clb_tokens *out, clb_error *err)
{
    clb_jinja_output o = {0};
    int rc = clb_chat_render_marked(format, values, &o, err);
    if (!rc)
        rc = give_tokens(format, vocab, &o, out, err);
    clb_jinja_output_free(&o);
    return rc;
}

int clb_chat_tokenize_marked(const clb_chat_format *format, const clb_vocab *vocab, const clb_jinja_output *text,
                             clb_tokens *out, clb_error *err)
{
    return give_tokens(format, vocab, text, out, err);
}
