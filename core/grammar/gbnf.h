/* The reader of GBNF: what its two files share. */
#ifndef CLB_GRAMMAR_GBNF_H
#define CLB_GRAMMAR_GBNF_H

#include "grammar/internal.h"

typedef struct clb_gbnf_reader {
    clb_str in;
    size_t at;
    uint32_t line;
    size_t line_begin;
    int depth;
    clb_gbnf_tree *t;
    uint32_t *names; /* hash table: rule + 1 */
    uint32_t names_size;
    clb_error *err;
} clb_gbnf_reader;

/* Fails at the current place: "grammar line L, column C: ...". */
#define clb_gbnf_fail(r, code, ...) (clb_gbnf_say((r), (code), __VA_ARGS__), clb_error_code(code))
void clb_gbnf_say(clb_gbnf_reader *r, int code, const char *fmt, ...) CLB_PRINTF(3, 4);

static inline int clb_gbnf_peek(const clb_gbnf_reader *r)
{
    return r->at < r->in.n ? (unsigned char)r->in.p[r->at] : -1;
}

int clb_gbnf_node_new(clb_gbnf_reader *r, enum clb_gbnf_kind kind, uint32_t *node);
int clb_gbnf_text_add(clb_gbnf_reader *r, const char *p, size_t n);

/* gbnf_chars.c: at `"`, at `[`, at `.`. */
int clb_gbnf_literal_node(clb_gbnf_reader *r, uint32_t *node);
int clb_gbnf_class_node(clb_gbnf_reader *r, uint32_t *node);
int clb_gbnf_any_node(clb_gbnf_reader *r, uint32_t *node);

#endif
