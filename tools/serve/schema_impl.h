/* Inside of the schema converter (schema_*.c).
 *
 * A schema is flattened first ($ref with other keywords beside it and allOf become one schema, schema_merge.c), then
 * each schema becomes one rule, known by its text: a schema that contains itself finds the rule that is being made.
 * What no value can meet becomes a rule that matches nothing, which the grammar's reader takes out with everything that
 * depends on it. */
#ifndef CLB_SERVE_SCHEMA_IMPL_H
#define CLB_SERVE_SCHEMA_IMPL_H

#include <stdbool.h>

#include "serve/schema.h"

#define SCHEMA_MOST_DEPTH  100   /* schemas within schemas */
#define SCHEMA_MOST_RULES  20000 /* of a builder */
#define SCHEMA_MOST_TEXT   (4u << 20)
#define SCHEMA_MOST_COUNT  20000      /* a larger maxLength or maxItems allows this many; a larger minimum is refused */
#define SCHEMA_MOST_SIZE   (1u << 20) /* bytes of a schema */
#define SCHEMA_MOST_WORK   1000000000u /* of a builder: nanoseconds, roughly */
#define SCHEMA_MOST_NAMES  5000       /* properties of an object, names in "required" */
#define SCHEMA_MOST_DIGITS 18         /* of an integer: fits 64 bits in any reader */

struct clb_gbnf {
    clb_buf out;    /* rules so far */
    json_t *bodies; /* text of a rule -> its name */
    unsigned n_rules;
    /* of the schema being converted */
    const json_t *root;
    json_t *made;  /* text of a schema -> name of its rule */
    json_t *chain; /* texts of the schemas that are being made without a step into a part of a value */
    int depth;
    size_t root_size; /* bytes */
    uint64_t work;
    clb_buf path; /* JSON pointer of where one is, for messages */
};

/* Fails with the place: "#/properties/a: ...". */
#define schema_fail(g, err, code, ...) (schema_say((g), (err), (code), __VA_ARGS__), clb_error_code(code))
void schema_say(const clb_gbnf *g, clb_error *err, int code, const char *fmt, ...) CLB_PRINTF(4, 5);
/* LIMIT where a schema takes too much work. */
int schema_spend(clb_gbnf *g, uint64_t work, clb_error *err);
/* "#/...: "keyword" is not supported (why)"; why may be NULL. */
int schema_refuse(const clb_gbnf *g, clb_error *err, const char *keyword, const char *why);

/* One more step of the path; schema_path_back with what was returned. */
size_t schema_path_add(clb_gbnf *g, const char *step);
size_t schema_path_index(clb_gbnf *g, const char *step, size_t index);
void schema_path_back(clb_gbnf *g, size_t n);

/* schema_gbnf.c. A new name, to be defined later. */
int schema_new_name(clb_gbnf *g, char rule[CLB_GBNF_NAME], clb_error *err);
int schema_define(clb_gbnf *g, const char *rule, const char *body, clb_error *err);
/* Rules that many schemas share: "space", "value", "object", "array", "string", "char", "number", "integer", "none". */
int schema_shared(clb_gbnf *g, const char *what, char rule[CLB_GBNF_NAME], clb_error *err);
/* A literal in quotes for a JSON value, with room for white space. */
int schema_constant(clb_gbnf *g, const json_t *value, clb_buf *e, clb_error *err);
/* A string of JSON, quoted and escaped, as a GBNF literal. */
int schema_key(clb_buf *e, const char *key, clb_error *err);

/* schema.c: the rule of a schema that stands for a part of the value (part) or for the same value. */
int schema_rule(clb_gbnf *g, const json_t *schema, bool part, char rule[CLB_GBNF_NAME], clb_error *err);
/* A count keyword: not there: *out unchanged. */
int schema_count(const clb_gbnf *g, const json_t *schema, const char *keyword, size_t *out, clb_error *err);

/* One file each; the schema is flat. They append an expression. */
int schema_object(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err);
int schema_array(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err);
int schema_string(clb_gbnf *g, const json_t *schema, clb_buf *e, clb_error *err);
int schema_number(clb_gbnf *g, const json_t *schema, bool integer, clb_buf *e, clb_error *err);
/* The inside of a string that a pattern is found in; how many characters it may have (*most SIZE_MAX: any number). */
int schema_pattern(clb_gbnf *g, const char *pattern, clb_buf *e, size_t *least, size_t *most, clb_error *err);
/* NULL: not known. A format's string without its quotes, in GBNF. */
const char *schema_format(const char *name);
/* A format for people and forms: any string has it. */
bool schema_says_nothing(const char *format);

/* schema_merge.c. A schema without $ref and allOf that means the same, with a new reference; follows references at its
 * top only. Booleans stay. */
int schema_flatten(clb_gbnf *g, const json_t *schema, json_t **out, clb_error *err);
/* What both allow. Both flat; *out new. */
int schema_merge(clb_gbnf *g, const json_t *a, const json_t *b, json_t **out, clb_error *err);
/* What "$ref" names; borrowed. */
int schema_resolve(const clb_gbnf *g, const char *ref, const json_t **out, clb_error *err);
/* A keyword that says something about values. */
bool schema_asserts(const char *keyword);

/* schema_types.c: types as bits. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_FRACTION = 8, /* numbers that are no integers */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127
};
/* Types that "type" allows (any without it). */
int schema_types(const clb_gbnf *g, const json_t *schema, unsigned *types, clb_error *err);
/* Types that the grammar makes: without "type" those that the other keywords are about. */
int schema_made_types(const clb_gbnf *g, const json_t *schema, unsigned *types, clb_error *err);
unsigned schema_type_of(const json_t *value);
/* No value made for a or for b is valid for the other, as far as can be seen. */
int schema_apart(clb_gbnf *g, const json_t *a, const json_t *b, int depth, bool *apart, clb_error *err);

#endif
