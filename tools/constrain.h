/* --grammar and --json-schema: text that a grammar allows. */
#ifndef CLB_TOOLS_CONSTRAIN_H
#define CLB_TOOLS_CONSTRAIN_H

#include "command.h"
#include "grammar/grammar.h"

/* Starts as {0}. */
typedef struct clb_constraint {
    clb_grammar *grammar; /* NULL: no flag was given */
    clb_token_tree *tree;
    clb_matcher *matcher;
} clb_constraint;

/* The grammar that a flag names; before a model is loaded, so that what is wrong with it is said at once. */
int clb_constraint_read(clb_args *args, clb_constraint *c, clb_error *err);
/* *matcher is NULL without a grammar. The vocabulary must outlive the constraint. */
int clb_constraint_open(clb_constraint *c, const clb_vocab *vocab, clb_matcher **matcher, clb_error *err);
void clb_constraint_close(clb_constraint *c);

#endif
