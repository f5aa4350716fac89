/* libFuzzer: tokenizers, vocabularies and chat templates. The first byte chooses:
 *   t, T  the rest is text (T: special tokens count) for the example model's vocabulary: the way back must give it
 * again v     the rest is a GGUF file with a vocabulary: whatever loads must tokenize and print j     the rest is a
 * chat template for a fixed conversation COLIBRI_FUZZ_MODEL names the model of the first; without it examples/tiny-moe
 * below the current folder is taken. Seeds: tests/fuzz/corpus/tokenize. */
#include <string.h>

#include "example_vocab.h"
#include "text/chat_impl.h"
#include "text/vocab.h"

static const clb_message talk[] = {
    {"system", "be <kind>"}, {"user", "<|im_end|> \xC3\xA9\xFF"}, {"assistant", "a</think>b"}};

/* Ids in range; their bytes together. */
static void spell(const clb_vocab *v, const clb_tokens *ids, clb_buf *out)
{
    clb_error err;
    clb_buf each = {0};
    for (size_t i = 0; i < ids->n; i++) {
        REQUIRE(ids->ids[i] < clb_vocab_size(v));
        REQUIRE(clb_token_bytes(v, ids->ids[i], true, &each, &err) == COLIBRI_OK);
    }
    REQUIRE(clb_detokenize(v, ids->ids, ids->n, true, out, &err) == COLIBRI_OK);
    REQUIRE(out->n <= each.n);
    REQUIRE(clb_utf8_complete(out->data ? out->data : "", out->n) <= out->n);
    clb_buf_free(&each);
}

static void text(const uint8_t *data, size_t size, uint32_t flags)
{
    clb_error err;
    clb_tokens ids = {0};
    clb_buf back = {0};
    REQUIRE(clb_tokenize(example(), (const char *)data, size, flags, &ids, &err) == COLIBRI_OK);
    spell(example(), &ids, &back);
    REQUIRE(back.n == size && (size == 0 || memcmp(back.data, data, size) == 0));
    clb_tokens_free(&ids);
    clb_buf_free(&back);
}

static void chat(const clb_chat_format *f, const clb_vocab *v)
{
    clb_error err = {0};
    clb_jinja_output out = {0};
    clb_tokens ids = {0};
    const int rc = clb_chat_render_at(f, talk, 3, 1, 0, &out, &err);
    REQUIRE(rc == COLIBRI_OK || (*err.msg && !strchr(err.msg, '\n')));
    REQUIRE(out.text.n == out.taint.n);
    clb_jinja_output_free(&out);
    if (v && clb_chat_tokenize(f, v, talk, 3, 0, &ids, &err) == COLIBRI_OK) {
        clb_buf back = {0};
        spell(v, &ids, &back);
        clb_buf_free(&back);
    }
    clb_tokens_free(&ids);
}

static void vocabulary(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {"Hello world",
                                        "",
                                        "  a b\n\n\xE2\x96\x81<s>x",
                                        "\xFF\x80\xE4\xB8\xAD\xF0\x9F\x98\x80 1234",
                                        "<|im_start|>user\nhi<|im_end|></s>",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    clb_error err = {0};
    clb_gguf *g;
    clb_vocab *v;
    const clb_chat_format *f;
    if (clb_gguf_open_memory(data, size, "fuzz.gguf", NULL, NULL, &g, &err))
        return;
    if (clb_vocab_load(g, &v, &err)) {
        REQUIRE(*err.msg);
        v = NULL;
    }
    for (size_t i = 0; v && i < sizeof texts / sizeof *texts; i++)
        for (uint32_t flags = 0; flags < 4; flags++) {
            clb_tokens ids = {0};
            clb_buf back = {0};
            REQUIRE(clb_tokenize(v, texts[i], strlen(texts[i]), flags, &ids, &err) == COLIBRI_OK);
            spell(v, &ids, &back);
            clb_tokens_free(&ids);
            clb_buf_free(&back);
        }
    if (clb_chat_detect(g, &f, &err) == COLIBRI_OK) {
        chat(f, v);
        clb_chat_free(f);
    }
    clb_vocab_free(v);
    clb_gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    clb_error err = {0};
    const clb_chat_format *f;
    if (size == 0)
        return 0;
    const uint8_t kind = *data++;
    size--;
    if (kind == 't' || kind == 'T') {
        text(data, size, kind == 'T' ? CLB_TOKENIZE_SPECIAL : 0);
    } else if (kind == 'v') {
        vocabulary(data, size);
    } else if (kind == 'j') {
        if (clb_chat_detect_template((clb_str){(const char *)data, size}, &f, &err)) {
            REQUIRE(*err.msg && !strchr(err.msg, '\n'));
            return 0;
        }
        chat(f, NULL);
        clb_chat_free(f);
    }
    return 0;
}
