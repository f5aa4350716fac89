/* Inside of grammars: text -> tree of expressions (gbnf.c) -> automaton of bytes and calls (build.c, check.c) -> sets
 * of states with their stacks, made as a text needs them (stacks.c, machine.c) -> masks over a token tree (tree.c,
 * mask.c).
 *
 * Each rule is an automaton whose edges are byte ranges, empty, a call of a rule, or one whole token. A place in a text
 * is a *config*: the states that the automata may be in, each with the stacks of return states below it. The stacks of
 * a state are one *context*: a set of frames (return state, context below), interned, so that equal sets are the same
 * number, and stacks that share their lower part share its memory. Configs are interned too, and remember their
 * successors: following a text is one table lookup per byte wherever a text has been before. */
#ifndef CLB_GRAMMAR_INTERNAL_H
#define CLB_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "grammar/grammar.h"

/* Bounds; a grammar is untrusted. */
#define CLB_GRAMMAR_MOST_TEXT   (4u << 20) /* bytes of GBNF */
#define CLB_GRAMMAR_MOST_NODES  2000000u   /* expressions */
#define CLB_GRAMMAR_MOST_DEPTH  256        /* parentheses */
#define CLB_GRAMMAR_MOST_STATES 400000u
#define CLB_GRAMMAR_MOST_EDGES  1000000u
#define CLB_GRAMMAR_MOST_STACK  1000  /* calls within calls */
#define CLB_GRAMMAR_MOST_TOKENS 1024u /* <token> marks */
#define CLB_MACHINE_MOST_BYTES  (64u << 20)
#define CLB_MACHINE_SOFT_BYTES                                                                                         \
    (16u << 20)                        /* beyond it everything but the current place is forgotten between two steps */
#define CLB_MACHINE_MOST_WORK 4000000u /* of one step: items looked at */
#define CLB_MASKS_MOST_BYTES  (24u << 20) /* of a grammar's remembered masks */

/* ---- expressions (gbnf.c) ---- */

enum clb_gbnf_kind {
    CLB_GBNF_TEXT,  /* a: first byte, b: bytes */
    CLB_GBNF_SET,   /* a: first range, b: ranges (sorted, apart, no surrogates) */
    CLB_GBNF_REF,   /* a: rule */
    CLB_GBNF_TOKEN, /* a: token mark */
    CLB_GBNF_SEQ,   /* children in order; none: the empty text */
    CLB_GBNF_ALT,   /* children */
    CLB_GBNF_REPEAT /* child, a times to b times (CLB_GBNF_FOREVER) */
};
#define CLB_GBNF_FOREVER UINT32_MAX
#define CLB_GBNF_NONE    UINT32_MAX

typedef struct clb_gbnf_node {
    enum clb_gbnf_kind kind;
    uint32_t a, b;
    uint32_t child, next; /* CLB_GBNF_NONE: none */
} clb_gbnf_node;

typedef struct clb_gbnf_range {
    uint32_t lo, hi;
} clb_gbnf_range;

typedef struct clb_gbnf_rule {
    uint32_t name, name_n; /* in text */
    uint32_t body;         /* CLB_GBNF_NONE: only referred to so far */
    uint32_t line;         /* of the first mention */
} clb_gbnf_rule;

/* `<text>` or `<[id]>`. */
typedef struct clb_token_mark {
    uint32_t text, text_n; /* in text; text_n 0: by id */
    uint32_t id;
    bool negated;
} clb_token_mark;

typedef struct clb_gbnf_tree {
    char *text; /* names of rules, literals, texts of tokens */
    uint32_t n_text, cap_text;
    clb_gbnf_node *nodes;
    uint32_t n_nodes, cap_nodes;
    clb_gbnf_range *ranges;
    uint32_t n_ranges, cap_ranges;
    clb_gbnf_rule *rules;
    uint32_t n_rules, cap_rules;
    clb_token_mark *marks;
    uint32_t n_marks, cap_marks;
    uint32_t root;
} clb_gbnf_tree;

int clb_gbnf_read(clb_str gbnf, clb_gbnf_tree *out, clb_error *err); /* free either way */
void clb_gbnf_tree_free(clb_gbnf_tree *t);

/* Room for one more element of *p (of n, cap); new elements are not cleared. */
int clb_grow(void *p, uint32_t n, uint32_t *cap, size_t size, clb_error *err);

/* ---- the automaton (build.c, check.c) ---- */

enum clb_edge_kind { CLB_EDGE_EMPTY, CLB_EDGE_BYTE, CLB_EDGE_CALL, CLB_EDGE_TOKEN };

typedef struct clb_edge {
    uint8_t kind, lo, hi;
    uint32_t to;
    uint32_t arg; /* rule or token mark; while building: the state's next edge */
} clb_edge;

enum {
    CLB_STATE_FINAL = 1, /* its rule may end here */
    CLB_STATE_LAST = 2,  /* and nothing else may happen: a call that returns here needs no frame */
    CLB_STATE_READS = 4, /* has byte or token edges */
    CLB_STATE_MARKS = 8  /* has token edges */
};

typedef struct clb_nfa {
    uint32_t n_states, n_edges, n_rules;
    uint32_t *first; /* [n_states + 1]: edges of a state */
    uint8_t *flags;  /* [n_states] */
    clb_edge *edges;
    uint32_t *start; /* [n_rules] */
    uint32_t root;
} clb_nfa;

int clb_nfa_build(const clb_gbnf_tree *t, clb_nfa *out, clb_error *err); /* free either way */
/* Refuses left recursion and grammars without texts; drops edges that lead nowhere; sets flags. */
int clb_nfa_check(clb_nfa *a, const clb_gbnf_tree *t, clb_error *err);
void clb_nfa_free(clb_nfa *a);

struct clb_mask_cache;

struct clb_grammar {
    atomic_uint holders;
    clb_nfa nfa;
    char *mark_text;
    clb_token_mark *marks;
    uint32_t n_marks;
    uint8_t class_of[256]; /* bytes that no edge tells apart have one class */
    uint8_t class_byte[256];
    uint32_t n_classes;
    pthread_mutex_t lock; /* of masks */
    struct clb_mask_cache *masks;
};

/* ---- stacks and configs (stacks.c, machine.c) ---- */

enum {
    CLB_CONTEXT_NONE = 0, /* no stack at all */
    CLB_CONTEXT_END = 1,  /* the empty stack: the text may end */
    CLB_CONTEXT_OPEN = 2  /* an unknown one */
};
enum { CLB_AT_END = 1, CLB_AT_OPEN = 2 }; /* flags: the empty stack, or an unknown one, is among (has been reached) */
#define CLB_CONFIG_DEAD    0u
#define CLB_CONFIG_UNKNOWN UINT32_MAX /* not computed yet */

/* In a context: a return state and the stacks below it. In a config: a state and its stacks. */
typedef struct clb_frame {
    uint32_t state, context;
} clb_frame;

typedef struct clb_frame_set {
    uint32_t first, n; /* sorted by state */
    uint32_t hash;
    uint16_t depth; /* contexts: longest stack */
    uint8_t flags;
} clb_frame_set;

/* Interned sets of frames. Number 0 is the empty set without flags. */
typedef struct clb_frame_sets {
    clb_frame_set *sets;
    uint32_t n, cap;
    clb_frame *frames;
    uint32_t n_frames, cap_frames;
    uint32_t *table; /* set + 1 */
    uint32_t table_size;
} clb_frame_sets;

typedef struct clb_union {
    uint32_t a, b, result; /* a 0: free */
} clb_union;

typedef struct clb_machine {
    const clb_grammar *g;
    clb_frame_sets contexts, configs;
    uint32_t *rows; /* [configs][n_classes]: successors */
    uint32_t cap_rows;
    clb_union *unions;
    uint32_t n_unions, unions_size;
    clb_frame *scratch; /* of unions */
    uint32_t n_scratch, cap_scratch;
    uint32_t *seen;    /* [n_states]: context of a state in the config being made, 0: not in it */
    uint32_t *touched; /* states in seen */
    uint32_t n_touched;
    uint32_t *todo; /* states whose edges are to be followed */
    uint32_t n_todo, cap_todo;
    uint8_t reached; /* flags of the config being made */
    uint64_t work;   /* of the current step */
} clb_machine;

int clb_machine_init(clb_machine *m, const clb_grammar *g, clb_error *err);
void clb_machine_free(clb_machine *m);
uint64_t clb_machine_bytes(const clb_machine *m);
/* Forgets everything but config, which gets a new number. */
int clb_machine_forget(clb_machine *m, uint32_t *config, clb_error *err);
/* The grammar's begin over the empty stack. */
int clb_machine_begin(clb_machine *m, uint32_t *config, clb_error *err);
/* The config after a class of bytes; use clb_machine_step. */
int clb_machine_make_step(clb_machine *m, uint32_t config, uint32_t class, uint32_t *next, clb_error *err);
/* Where one is after popping from a context. */
int clb_machine_pop(clb_machine *m, uint32_t context, uint32_t *config, clb_error *err);
/* `base` together with what follows the token edges of `config` that allow `token`; resolved[mark]: the tokens of
 * marks. spelled: it has bytes of its own (others are allowed by name only). */
int clb_machine_token(clb_machine *m, uint32_t config, uint32_t base, const uint32_t *resolved, uint32_t token,
                      bool spelled, uint32_t *next, clb_error *err);
/* The states of the frames, all over an unknown stack. */
int clb_machine_open(clb_machine *m, const uint32_t *states, uint32_t n, uint32_t *config, clb_error *err);

static inline int clb_machine_step(clb_machine *m, uint32_t config, uint8_t byte, uint32_t *next, clb_error *err)
{
    const uint32_t class = m->g->class_of[byte];
    *next = m->rows[(size_t)config * m->g->n_classes + class];
    return *next == CLB_CONFIG_UNKNOWN ? clb_machine_make_step(m, config, class, next, err) : COLIBRI_OK;
}

int clb_frame_sets_init(clb_frame_sets *s, clb_error *err);
void clb_frame_sets_free(clb_frame_sets *s);
/* frames: [n], sorted by state, none twice; copied (not from s). *made: it is new. */
int clb_frame_sets_intern(clb_frame_sets *s, const clb_frame *frames, uint32_t n, uint8_t flags, uint16_t depth,
                          uint32_t *out, bool *made, clb_error *err);
/* The context {(state, below)}. */
int clb_context_push(clb_machine *m, uint32_t state, uint32_t below, uint32_t *out, clb_error *err);
int clb_context_union(clb_machine *m, uint32_t a, uint32_t b, uint32_t *out, clb_error *err);
/* LIMIT if this step has done too much, or if everything together takes too much memory. */
int clb_machine_spend(clb_machine *m, uint64_t work, clb_error *err);
int clb_machine_fits(const clb_machine *m, clb_error *err);

/* ---- the tree of tokens (tree.c, walk.c) ---- */

/* Nodes in preorder: the children of node i begin at i + 1, its subtree ends before `skip`. */
typedef struct clb_tree_node {
    uint32_t skip;
    uint32_t token;         /* ids[token .. next node's token) end here; ids[token .. nodes[skip].token) at or below */
    uint16_t depth, groups; /* groups: kinds of characters in what its subtree says, this byte included */
    uint8_t byte, height;   /* height: most characters in its subtree, capped */
} clb_tree_node;

struct clb_token_tree {
    const clb_vocab *vocab;
    uint64_t made_ns;     /* with its address it tells a tree from an earlier one at the same place */
    clb_tree_node *nodes; /* [n_nodes + 1]: the last one only ends the token lists */
    uint32_t n_nodes, n_vocab, max_depth;
    uint32_t *ids; /* in order of the nodes */
    uint32_t n_ids;
    uint32_t *eog; /* end-of-generation tokens */
    uint32_t n_eog;
};

/* Groups of bytes, the same for all grammars. The last two: characters beyond ASCII (the last one of a token may be
 * cut), and bytes that are no UTF-8. */
#define CLB_GROUP_WIDE   13
#define CLB_GROUP_BROKEN 14
unsigned clb_byte_group(uint8_t byte); /* of ASCII */
/* How many continuation bytes follow a first byte, the first of them in lo..hi; 0: it begins no character. */
unsigned clb_wide_head(uint8_t byte, uint8_t *lo, uint8_t *hi);

static inline void clb_bit_set(uint64_t *bits, uint32_t i)
{
    bits[i / 64] |= UINT64_C(1) << (i % 64);
}

/* ---- masks (mask.c) ---- */

/* A config, and what it is open to (walk.c). */
typedef struct clb_walk_place {
    uint32_t config, open;
} clb_walk_place;

/* What a walk over the tree finds. */
typedef struct clb_walk {
    uint64_t *bits;
    uint32_t *pops; /* inner nodes at which an unknown stack was reached; NULL: there is none */
    uint32_t n_pops, most_pops;
    clb_walk_place *stack; /* [max_depth + 1] scratch */
    uint32_t *open;        /* per config, as far as it was asked; to be emptied when the machine forgets */
    uint32_t n_open, cap_open;
} clb_walk;

/* Below node, from config on. Stops with n_pops > most_pops where there are too many. */
int clb_tree_walk(clb_machine *m, const clb_token_tree *t, uint32_t node, uint32_t config, clb_walk *w, clb_error *err);

struct clb_matcher {
    clb_grammar *g;
    const clb_token_tree *tree;
    clb_machine machine;
    uint32_t config;
    bool ended;
    uint32_t *resolved; /* [n_marks] token of a mark */
    clb_walk walk;
    uint32_t *states; /* scratch: states of one context */
    uint32_t cap_states;
    /* The last masks, by config. */
    struct clb_known_mask {
        uint32_t config; /* CLB_CONFIG_DEAD: free */
        uint64_t *bits;
    } known[16];
    uint32_t next_known;
};

int clb_matcher_fill(clb_matcher *m, uint64_t *bits, clb_error *err);
void clb_mask_cache_free(struct clb_mask_cache *c);

#endif
