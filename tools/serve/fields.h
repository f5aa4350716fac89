/* The fields of a request's body: types, ranges and names, checked as OpenAI's API checks them, and the refusal that
 * says what is wrong. Knows nothing about how the refusal is sent.
 *
 * A field that is null counts as not given. Getters leave *value alone then: it holds the default. All return
 * COLIBRI_OK or a status, with *r filled in. A name with dots is that of the last part, in the object that is given;
 * messages name it whole. [any-thread] */
#ifndef CLB_SERVE_FIELDS_H
#define CLB_SERVE_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"

typedef struct clb_refusal {
    int http;                /* 400, ...; 0: nothing was refused */
    const char *type, *code; /* "invalid_request_error", "invalid_type"; code may be NULL */
    char param[128];         /* "messages[0].content"; "": none */
    char message[640];
    uint32_t n_prompt, n_ctx; /* context_length_exceeded: the counts, if they are known */
    uint32_t retry_after_s;   /* 0: not said */
} clb_refusal;

/* 400 invalid_request_error. The value is COLIBRI_E_USAGE. */
int clb_refuse(clb_refusal *r, const char *code, const char *param, const char *fmt, ...) CLB_PRINTF(4, 5);
/* A status of the engine: USAGE, UNSUPPORTED, LIMIT 400, NOMEM and CANCELLED 503, the rest 500. The value is the
 * status. */
int clb_refuse_status(clb_refusal *r, int status, const char *message);
int clb_refuse_nomem(clb_refusal *r);
/* r, or what it truly was: without memory JSON is refused as no JSON, texts as no UTF-8 (json_memory.h). */
const clb_refusal *clb_refusal_truly(const clb_refusal *r, clb_refusal *room);
/* Anything else. The value is `status`. */
int clb_refuse_as(clb_refusal *r, int status, int http, const char *type, const char *code, const char *message);

enum clb_field_kind {
    CLB_FIELD_USED,
    CLB_FIELD_IGNORED, /* known, of no use here, harmless: docs/api.md */
    CLB_FIELD_REFUSED, /* known, cannot be done */
    CLB_FIELD_NEUTRAL, /* known, cannot be done: accepted only with the value that changes nothing */
};
typedef struct clb_field {
    const char *name;
    enum clb_field_kind kind;
    const char *note; /* REFUSED: what to do instead; NEUTRAL: that value, as JSON ("0", "\"auto\"", "[]") */
} clb_field;

/* Every name of `object` (found at `where`, "" for the body) must be in the table, which ends with name NULL; further
 * tables may be NULL. The message names the nearest field. */
int clb_fields_check(const json_t *object, const char *where, const clb_field *const tables[], size_t n_tables,
                     clb_refusal *r);

int clb_field_number(const json_t *body, const char *name, double least, double most, double *value, clb_refusal *r);
int clb_field_integer(const json_t *body, const char *name, int64_t least, int64_t most, int64_t *value,
                      clb_refusal *r);
int clb_field_bool(const json_t *body, const char *name, bool *value, clb_refusal *r);
/* Borrowed from the body. */
int clb_field_string(const json_t *body, const char *name, const char **value, clb_refusal *r);
/* One of `names`, which end with NULL; *value is its place. */
int clb_field_choice(const json_t *body, const char *name, const char *const *names, size_t *value, clb_refusal *r);
/* NULL if not given. */
int clb_field_object(const json_t *body, const char *name, json_t **value, clb_refusal *r);
int clb_field_array(const json_t *body, const char *name, json_t **value, clb_refusal *r);

const char *clb_json_type_name(const json_t *v); /* "a string", "an integer", "null"; of NULL "nothing" */
/* A wrong type at `param`: "Invalid type for 'x': expected a number, but got a string instead." */
int clb_refuse_type(clb_refusal *r, const char *param, const char *expected, const json_t *got);
/* "Missing required parameter: 'x'." */
int clb_refuse_missing(clb_refusal *r, const char *param);

#endif
