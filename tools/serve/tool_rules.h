/* Inside of grammars of calls: a set of rules that grows, and what calls are made of in each format. */
#ifndef CLB_SERVE_TOOL_RULES_H
#define CLB_SERVE_TOOL_RULES_H

#include "serve/schema.h"
#include "serve/tools.h"

#define CLB_CALL_TOKENS 64u

typedef struct clb_call_rules {
    const clb_tool_format *f;
    clb_gbnf *g;
    clb_buf body; /* GBNF of the rule at hand */
    clb_buf more; /* whole rules that refer to themselves, behind those of g */
    unsigned n_texts;
    char value_text[CLB_GBNF_NAME]; /* rule of a parameter's text; "" until it is needed */
    uint64_t looked;                /* work on schemas of parameters, as clb_schema_types_cost counts */
    clb_error *err;
    const clb_vocab *vocab;
    uint32_t marks[CLB_CALL_TOKENS], n_marks;     /* control tokens in marks of calls */
    uint32_t between[CLB_CALL_TOKENS], n_between; /* in marks of thoughts, and in marks that are no text */
    const char *thoughts[CLB_CALL_TOKENS];        /* marks that open thoughts and are tokens */
    uint32_t n_thoughts;
} clb_call_rules;

int clb_rules_begin(clb_call_rules *m, const clb_tool_format *f, const clb_vocab *vocab, clb_error *err);
/* Appends all rules, with the body as root. */
int clb_rules_finish(clb_call_rules *m, clb_buf *gbnf);
void clb_rules_free(clb_call_rules *m);

/* At the end of the body: text, with its control tokens as such; a rule. */
int clb_rules_literal(clb_call_rules *m, const char *text);
int clb_rules_refer(clb_call_rules *m, const char *rule);
int clb_put_literal(clb_call_rules *m, clb_buf *out, const char *text); /* at the end of out */
/* Makes the body so far a rule of its own and begins a new one. */
int clb_rules_close(clb_call_rules *m, char rule[CLB_GBNF_NAME]);
/* A rule for text in which none of the marks occurs (tool_text.h). */
int clb_rules_text(clb_call_rules *m, const char *const *marks, size_t n, char rule[CLB_GBNF_NAME]);

/* What opens calls with the mark f->open[which], as text. */
int clb_write_open(const clb_tool_format *f, size_t which, clb_buf *out, clb_error *err);
/* From the begin of one call up to its arguments. */
int clb_write_head(const clb_tool_format *f, const char *name, clb_buf *out, clb_error *err);
bool clb_is_format(const clb_tool_format *f, const char *name);

/* A rule for one call of any of the tools (`only`: of this one); or of `single`, whose name has been said. */
int clb_calls_rule(clb_call_rules *m, const json_t *tools, const char *only, const json_t *single,
                   char rule[CLB_GBNF_NAME]);
/* clb_schema_types, and what the answer cost; 50 is a schema. Beyond 100,000 it is any type. */
unsigned clb_schema_types_cost(const json_t *root, const json_t *schema, uint64_t *cost);
/* One call or several, and what closes them, at the end of the body; they were opened with f->open[which]. */
int clb_put_calls(clb_call_rules *m, const char *call, size_t which, bool once);
/* Arguments as a JSON object. A schema that grammars do not know is an error for strict functions only. */
int clb_arguments_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME]);
/* Parameters one by one, up to the end of the call. */
int clb_parameters_rule(clb_call_rules *m, const json_t *function, char rule[CLB_GBNF_NAME]);

/* A parameter while its rule is made (tool_values.c). */
typedef struct clb_parameter {
    const json_t *root; /* the schema of all parameters, which clb_gbnf_begin knows */
    const char *name;
    bool strict;
    bool free_text; /* other texts than those of a list may be its value */
    unsigned types; /* as the parser will see them */
} clb_parameter;

/* Alternatives of a value that is text (strings) and of one that is JSON (anything else); either may be empty. What
 * cannot be followed is an error for strict functions, and free for others. */
int clb_value_rules(clb_call_rules *m, clb_parameter *p, const json_t *schema, clb_buf *text, clb_buf *json);
/* Any text that the parser does not take for the end of the value. */
int clb_value_text(clb_call_rules *m, char rule[CLB_GBNF_NAME]);
/* Fails: not to be followed. */
int clb_parameter_refuse(clb_call_rules *m, const clb_parameter *p, const char *what);
/* All schemas together took too much work: nothing more is looked at. */
bool clb_rules_spent(const clb_call_rules *m);

#endif
