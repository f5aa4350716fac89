/* Special tokens: which end a generation, which strip white space, and finding them in text. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "text/vocab_impl.h"

/* Texts of tokens that end a turn or a document. GGUF files name one or two of them by id; models emit any. */
static const char *const eog_texts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "[e~[",
    "<|END_OF_TURN_TOKEN|>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    /* fill in the middle: padding, next repository, next file */
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<|file_sep|>", NULL};

/* The same, but only where the file calls them special: elsewhere they are words of HTML and the like, as </s> is in
 * Qwen's vocabulary. */
static const char *const eog_unless_normal[] = {"</s>",  "<EOT>", "_<EOT>", "[EOT]",      "[EOS]", "<eos>",
                                                "<PAD>", "[PAD]", "<REPO>", "<reponame>", NULL};

/* The other marks of filling in the middle: markup, whatever type the file gives them. */
static const char *const fim_texts[] = {"<|fim_prefix|>",
                                        "<fim-prefix>",
                                        "<fim_prefix>",
                                        "<PRE>",
                                        CLB_SPM_SPACE "<PRE>",
                                        "<|code_prefix|>",
                                        "<|prefix|>",
                                        "<|fim_suffix|>",
                                        "<fim-suffix>",
                                        "<fim_suffix>",
                                        "<SUF>",
                                        CLB_SPM_SPACE "<SUF>",
                                        "<|code_suffix|>",
                                        "<|suffix|>",
                                        "<|fim_middle|>",
                                        "<fim-middle>",
                                        "<fim_middle>",
                                        "<MID>",
                                        CLB_SPM_SPACE "<MID>",
                                        "<|code_middle|>",
                                        "<|middle|>",
                                        "<\xEF\xBD\x9C"
                                        "fim\xE2\x96\x81"
                                        "begin\xEF\xBD\x9C>",
                                        "<\xEF\xBD\x9C"
                                        "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
                                        "<\xEF\xBD\x9C"
                                        "fim\xE2\x96\x81"
                                        "end\xEF\xBD\x9C>",
                                        NULL};

/* Marks of gpt-oss that are content: people and parsers need them. */
static const char *const shown_texts[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", NULL};

static const char *const eog_keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id",
                                       "tokenizer.ggml.fim_pad_token_id",
                                       "tokenizer.ggml.fim_rep_token_id",
                                       "tokenizer.ggml.fim_sep_token_id",
                                       NULL};

static bool is_text(const clb_vocab *v, uint32_t id, const char *text)
{
    return v->tokens[id].text_n == strlen(text) && memcmp(v->texts + v->tokens[id].text, text, strlen(text)) == 0;
}

static bool in_list(const clb_vocab *v, uint32_t id, const char *const *list)
{
    for (; *list; list++)
        if (is_text(v, id, *list))
            return true;
    return false;
}

static uint32_t find_text(const clb_vocab *v, const char *text)
{
    for (uint32_t id = 0; id < v->n; id++)
        if (is_text(v, id, text))
            return id;
    return CLB_TOKEN_NONE;
}

static int find_eog(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    for (uint32_t id = 0; id < v->n; id++) {
        const char c = v->tokens[id].text_n ? v->texts[v->tokens[id].text] : '\0';
        if (c != '<' && c != '[' && c != '_' && c != CLB_SPM_SPACE[0])
            continue;
        const bool normal = v->tokens[id].type == CLB_TOKEN_NORMAL;
        if (in_list(v, id, eog_texts) || (!normal && in_list(v, id, eog_unless_normal))) {
            v->tokens[id].flags |= CLB_TF_EOG;
            v->tokens[id].type = CLB_TOKEN_CONTROL; /* some files call them normal */
        } else if (in_list(v, id, fim_texts)) {
            v->tokens[id].type = CLB_TOKEN_CONTROL;
        } else if (in_list(v, id, shown_texts)) {
            v->tokens[id].flags |= CLB_TF_SHOWN;
        }
    }
    for (const char *const *key = eog_keys; *key; key++) {
        uint32_t id = CLB_TOKEN_NONE;
        CLB_TRY(clb_gguf_get_u32_or(g, *key, CLB_TOKEN_NONE, &id, err));
        if (id != CLB_TOKEN_NONE && id >= v->n)
            return clb_fail(err, COLIBRI_E_FORMAT, "%s is %u, outside the vocabulary of %u", *key, id, v->n);
        if (id != CLB_TOKEN_NONE)
            v->tokens[id].flags |= CLB_TF_EOG;
    }
    if (v->eos != CLB_TOKEN_NONE)
        v->tokens[v->eos].flags |= CLB_TF_EOG;

    /* gpt-oss and Solar: <|end|> closes a message, not the turn. */
    const uint32_t end = find_text(v, "<|end|>");
    const bool call = find_text(v, "<|call|>") != CLB_TOKEN_NONE || find_text(v, "<|calls|>") != CLB_TOKEN_NONE;
    const bool more = find_text(v, "<|return|>") != CLB_TOKEN_NONE || find_text(v, "<|flush|>") != CLB_TOKEN_NONE;
    if (end != CLB_TOKEN_NONE && call && more) {
        v->tokens[end].flags &= (uint8_t)~CLB_TF_EOG;
        v->tokens[end].flags |= CLB_TF_SHOWN;
    }
    /* Gemma 4 has </s> as a word of HTML. */
    const uint32_t s = find_text(v, "</s>");
    if (s != CLB_TOKEN_NONE && s != v->eos && find_text(v, "<|tool_response>") != CLB_TOKEN_NONE) {
        v->tokens[s].flags &= (uint8_t)~CLB_TF_EOG;
        v->tokens[s].type = CLB_TOKEN_NORMAL;
    }
    return COLIBRI_OK;
}

static bool contains(clb_str s, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.n; i++)
        if (strncasecmp(s.p + i, word, n) == 0)
            return true;
    return false;
}

static void set_flag(clb_vocab *v, const char *text, uint8_t flag, bool on)
{
    const uint32_t id = find_text(v, text);
    if (id != CLB_TOKEN_NONE)
        v->tokens[id].flags = (uint8_t)(on ? v->tokens[id].flags | flag : v->tokens[id].flags & ~flag);
}

static bool is_special(const clb_vocab *v, uint32_t id)
{
    const uint8_t type = v->tokens[id].type;
    return type == CLB_TOKEN_CONTROL || type == CLB_TOKEN_USER_DEFINED || type == CLB_TOKEN_UNKNOWN;
}

/* GGUF has no place for the strip flags of added tokens; the models that use them are known by name. */
static int set_strip(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    clb_str name = {0};
    const int rc = clb_gguf_get_str(g, "general.name", &name, err);
    if (rc && rc != COLIBRI_E_NOT_FOUND)
        return rc;
    if (strstr(v->pre, "jina-v2-de") || strstr(v->pre, "jina-v2-es") || strstr(v->pre, "jina-v2-code")) {
        set_flag(v, "<mask>", CLB_TF_LSTRIP, true);
    } else if (contains(name, "phi-3") || contains(name, "phi3")) {
        for (uint32_t id = 0; id < v->n; id++)
            if (is_special(v, id))
                v->tokens[id].flags |= CLB_TF_RSTRIP;
        set_flag(v, "</s>", CLB_TF_RSTRIP, true);
        set_flag(v, "<unk>", CLB_TF_RSTRIP, false);
        set_flag(v, "<s>", CLB_TF_RSTRIP, false);
        set_flag(v, "<|endoftext|>", CLB_TF_RSTRIP, false);
    } else if (contains(name, "modern-bert")) {
        set_flag(v, "[MASK]", CLB_TF_LSTRIP, true);
    }
    return COLIBRI_OK;
}

static int new_node(clb_specials *s, uint8_t byte, uint32_t *out, clb_error *err)
{
    if (s->n == s->cap) {
        const uint32_t cap = s->cap ? s->cap * 2 : 256;
        clb_trie_node *grown = cap > s->cap ? realloc(s->nodes, cap * sizeof *grown) : NULL;
        if (!grown)
            return CLB_NOMEM(err, "special tokens");
        s->nodes = grown;
        s->cap = cap;
    }
    s->nodes[s->n] = (clb_trie_node){.id = CLB_TOKEN_NONE, .byte = byte};
    *out = s->n++;
    return COLIBRI_OK;
}

static uint32_t child(const clb_specials *s, uint32_t node, uint8_t byte)
{
    uint32_t c = s->nodes[node].child;
    while (c && s->nodes[c].byte != byte)
        c = s->nodes[c].sibling;
    return c;
}

static int insert(clb_specials *s, const char *text, size_t n, uint32_t id, clb_error *err)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)text[i];
        uint32_t next = i ? child(s, node, byte) : s->first[byte];
        if (!next) {
            CLB_TRY(new_node(s, byte, &next, err));
            if (i) {
                s->nodes[next].sibling = s->nodes[node].child;
                s->nodes[node].child = next;
            } else {
                s->first[byte] = next;
            }
        }
        node = next;
    }
    if (s->nodes[node].id == CLB_TOKEN_NONE)
        s->nodes[node].id = id;
    return COLIBRI_OK;
}

int clb_vocab_find_specials(clb_vocab *v, const clb_gguf *g, clb_error *err)
{
    CLB_TRY(find_eog(v, g, err));
    CLB_TRY(set_strip(v, g, err));
    uint32_t root;
    CLB_TRY(new_node(&v->specials, 0, &root, err));
    for (uint32_t id = 0; id < v->n; id++) {
        const clb_token *t = &v->tokens[id];
        if (!is_special(v, id) || t->text_n == 0)
            continue;
        CLB_TRY(insert(&v->specials, v->texts + t->text, t->text_n, id, err));
        if (t->type == CLB_TOKEN_USER_DEFINED)
            v->specials.user_first[(uint8_t)v->texts[t->text]] = true;
    }
    return COLIBRI_OK;
}

void clb_specials_free(clb_specials *s)
{
    free(s->nodes);
    *s = (clb_specials){0};
}

/* The longest special token at text[0..n); control and unknown tokens only within the first n_all bytes. */
static uint32_t match(const clb_vocab *v, const char *text, size_t n, size_t n_all)
{
    const clb_specials *s = &v->specials;
    uint32_t best = CLB_TOKEN_NONE;
    uint32_t node = n_all || s->user_first[(uint8_t)text[0]] ? s->first[(uint8_t)text[0]] : 0;
    for (size_t i = 1; node; i++) {
        const uint32_t id = s->nodes[node].id;
        if (id != CLB_TOKEN_NONE && (i <= n_all || v->tokens[id].type == CLB_TOKEN_USER_DEFINED))
            best = id;
        node = i < n ? child(s, node, (uint8_t)text[i]) : 0;
    }
    return best;
}

/* ASCII white space, whatever the locale. */
static bool white(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool clb_specials_next(const clb_vocab *v, const char *text, size_t n, size_t from, bool all, const uint8_t *taint,
                       size_t *begin, size_t *end, uint32_t *id)
{
    size_t clean_end = all && !taint ? n : from; /* where the run of clean bytes at i ends */
    for (size_t i = from; i < n; i++) {
        if (all && taint && i >= clean_end)
            for (clean_end = i; clean_end < n && !taint[clean_end];)
                clean_end++;
        *id = match(v, text + i, n - i, clean_end > i ? clean_end - i : 0);
        if (*id == CLB_TOKEN_NONE)
            continue;
        *begin = i;
        *end = i + v->tokens[*id].text_n;
        if (v->tokens[*id].flags & CLB_TF_LSTRIP)
            while (*begin > from && white(text[*begin - 1]))
                --*begin;
        if (v->tokens[*id].flags & CLB_TF_RSTRIP)
            while (*end < n && white(text[*end]))
                ++*end;
        return true;
    }
    return false;
}
