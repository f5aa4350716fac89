/* JSON schemas as grammars (GBNF, core/grammar/grammar.h): what the grammar allows is JSON that the schema accepts.
 *
 * What a schema says is met or refused, never left out: a keyword that cannot be turned into a grammar is UNSUPPORTED with its JSON
 * pointer and name ("#/properties/a: \"not\" is not supported"), a schema that contradicts itself or its own form USAGE, one
 * that is too large or too deep LIMIT. Keywords that assert nothing (title, description, default, examples, ...) and unknown
 * ones are no constraint in JSON Schema either. docs/grammars.md lists what is supported.
 *
 * The grammar may allow less than the schema: properties come in the schema's order; an object has no further properties unless
 * additionalProperties (or an object without properties) says so; white space is bounded; no NUL characters and no lone
 * surrogates in strings. [any-thread; one thread per builder] */
#ifndef CLB_SERVE_SCHEMA_H
#define CLB_SERVE_SCHEMA_H

#include <jansson.h>

#include "base/error.h"
#include "base/str.h"

/* A whole grammar: `root` is a value of the schema (an object, or true). Appends to out. */
int clb_schema_to_gbnf(const json_t *schema, clb_buf *out, clb_error *err);
/* The same for any JSON object (response_format json_object). */
int clb_json_object_gbnf(clb_buf *out, clb_error *err);

/* The parts, for grammars around values (tool calls): a set of rules that grows.
 *
 *     clb_gbnf *g;                                      char args[CLB_GBNF_NAME];
 *     clb_gbnf_create(&g, err);
 *     clb_gbnf_schema(g, parameters, args, err);        args: "r7", a rule that matches one value
 *     clb_gbnf_literal(&body, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", n, err);
 *     clb_buf_printf(&body, err, " %s \"}\\n</tool_call>\"", args);
 *     clb_gbnf_finish(g, body.data, &grammar, err);     adds "root ::= ..."
 */
typedef struct clb_gbnf clb_gbnf;
#define CLB_GBNF_NAME 24

int clb_gbnf_create(clb_gbnf **out, clb_error *err);
void clb_gbnf_destroy(clb_gbnf *g);
/* A rule for one value of the schema; $ref is looked up in the schema given here. NULL: any JSON value. Begins and ends
 * without white space. */
int clb_gbnf_schema(clb_gbnf *g, const json_t *schema, char rule[CLB_GBNF_NAME], clb_error *err);
/* The same for several parts of one schema: begin says where "$ref" are looked up, and a part is a rule for one value.
 * What was found out about one part is known for the next. root must stay until the last part. */
int clb_gbnf_begin(clb_gbnf *g, const json_t *root, clb_error *err);
int clb_gbnf_part(clb_gbnf *g, const json_t *part, char rule[CLB_GBNF_NAME], clb_error *err);
/* A rule for any JSON object. */
int clb_gbnf_object(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err);
/* A rule for the white space that may stand between two parts: none, a blank, or a newline with an indent. */
int clb_gbnf_space(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err);
/* A rule of the caller's: `body` in GBNF. */
int clb_gbnf_rule(clb_gbnf *g, const char *body, char rule[CLB_GBNF_NAME], clb_error *err);
/* Appends all rules and `root ::= body` to out. Once, at the end. */
int clb_gbnf_finish(clb_gbnf *g, const char *root_body, clb_buf *out, clb_error *err);

/* Appends text as a GBNF literal, quoted: matches exactly these characters (UTF-8; USAGE if they are not). */
int clb_gbnf_literal(clb_buf *out, const char *text, size_t n, clb_error *err);

#endif
