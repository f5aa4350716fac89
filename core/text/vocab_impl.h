/* Inside of a vocabulary, shared by the files of this folder. */
#ifndef CLB_TEXT_VOCAB_IMPL_H
#define CLB_TEXT_VOCAB_IMPL_H

#include "text/pretok.h"
#include "text/symtab.h"
#include "text/vocab.h"

enum clb_vocab_kind {
    CLB_VOCAB_SPM, /* "llama": SentencePiece, merges by score */
    CLB_VOCAB_BPE, /* "gpt2", "gemma4": merges by rank */
    CLB_VOCAB_WPM  /* "bert": WordPiece, greedy longest match */
};

/* tokenizer.ggml.token_type */
enum clb_token_type {
    CLB_TOKEN_UNDEFINED = 0,
    CLB_TOKEN_NORMAL = 1,
    CLB_TOKEN_UNKNOWN = 2,
    CLB_TOKEN_CONTROL = 3,
    CLB_TOKEN_USER_DEFINED = 4,
    CLB_TOKEN_UNUSED = 5,
    CLB_TOKEN_BYTE = 6
};

#define CLB_TF_EOG    0x1u /* ends a generation */
#define CLB_TF_SHOWN  0x2u /* a control token that people see (gpt-oss channel marks) */
#define CLB_TF_LSTRIP 0x4u /* takes the white space before it */
#define CLB_TF_RSTRIP 0x8u /* takes the white space after it */

/* Longest token or merge half in bytes: keeps matching linear whatever a file says. Published vocabularies stay below
 * 600. */
#define CLB_TOKEN_MAX_BYTES 4096

typedef struct clb_token {
    uint32_t text, text_n;   /* as stored, in texts */
    uint32_t piece, piece_n; /* the bytes it stands for, in pieces */
    float score;
    uint8_t type, flags;
} clb_token;

/* Trie over the special tokens' texts. Node 0 is the root. */
typedef struct clb_trie_node {
    uint32_t child, sibling; /* 0: none */
    uint32_t id;             /* CLB_TOKEN_NONE: no token ends here */
    uint8_t byte;
} clb_trie_node;

typedef struct clb_specials {
    clb_trie_node *nodes;
    uint32_t n, cap;
    uint32_t first[256];  /* node of a first byte, 0 if none */
    bool user_first[256]; /* a USER_DEFINED token begins with it */
} clb_specials;

struct clb_vocab {
    enum clb_vocab_kind kind;
    char *model, *pre;
    uint32_t n;
    clb_token *tokens;
    char *texts, *pieces, *virtuals; /* pools */
    clb_symtab syms; /* lookup strings: ids below n are tokens, above: merge halves and results that are no token */
    clb_merges merges;
    clb_specials specials;
    clb_pretok *pretok;
    uint32_t byte_id[256];  /* token of one byte, CLB_TOKEN_NONE if there is none */
    uint32_t byte_sym[256]; /* lookup id of the byte as a string, CLB_SYM_NONE if there is none */
    bool words_apart;       /* no lookup string has U+2581 behind another character: merges never cross such a place */
    uint32_t max_sym;       /* bytes of the longest lookup string */
    uint32_t bos, eos, unk, sep;
    bool add_bos, add_eos, add_sep, add_space_prefix, ignore_merges;
    bool raw;                      /* BPE on UTF-8 with U+2581 for spaces */
    bool lowercase, strip_accents; /* WordPiece */
};

static inline clb_str clb_vocab_piece(const clb_vocab *v, uint32_t id)
{
    return (clb_str){v->pieces + v->tokens[id].piece, v->tokens[id].piece_n};
}

/* U+2581, which stands for a space in SentencePiece vocabularies. */
#define CLB_SPM_SPACE "\xE2\x96\x81"

/* vocab_merges.c: tokenizer.ggml.merges into v->merges. */
int clb_vocab_read_merges(clb_vocab *v, const clb_gguf *g, uint64_t seed, clb_error *err);

/* vocab_special.c: fixes types, finds the end-of-generation set, sets strip flags, builds the trie. */
int clb_vocab_find_specials(clb_vocab *v, const clb_gguf *g, clb_error *err);
void clb_specials_free(clb_specials *s);
/* The first special token in text[from..n): *begin, *end, *id; false if there is none. With `all`, control and unknown
 * tokens count too, but only where taint (NULL: nowhere set) is 0 for all their bytes. */
bool clb_specials_next(const clb_vocab *v, const char *text, size_t n, size_t from, bool all, const uint8_t *taint,
                       size_t *begin, size_t *end, uint32_t *id);

/* tokenize.c: CLB_TOKENIZE_SPECIAL for the bytes whose taint is 0. */
int clb_tokenize_marked(const clb_vocab *v, const char *text, const uint8_t *taint, size_t n, clb_tokens *out,
                        clb_error *err);

/* One fragment without special tokens -> ids. */
int clb_bpe_tokenize(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err);
int clb_spm_tokenize(const clb_vocab *v, const char *text, size_t n, bool prefix, clb_tokens *out, clb_error *err);
int clb_wpm_tokenize(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err);
/* What is left of p[0..n) that no token covers: byte tokens, else UNK, else nothing. */
int clb_push_bytes(const clb_vocab *v, const char *p, size_t n, clb_tokens *out, clb_error *err);

/* Length of the first run of U+2581 and what follows up to the next one: with words_apart, each part can be merged on
 * its own, and short parts are merged faster. */
size_t clb_spaced_word(const clb_vocab *v, const char *text, size_t n);
/* Text with each space as U+2581 (and one in front if prefix), appended to out. */
int clb_escape_spaces(const char *text, size_t n, bool prefix, clb_buf *out, clb_error *err);

#endif
