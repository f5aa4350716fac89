/* Inside of the reply parser: the table of formats, and what the readers of the different shapes share.
 *
 * Text that has come in but is not understood yet is in p->buf from p->at on. A reader looks at it and takes what it
 * understands; what may be the beginning of something stays until more text has come, or until there is none (`final`).
 */
#ifndef CLB_SERVE_TOOL_IMPL_H
#define CLB_SERVE_TOOL_IMPL_H

#include "serve/tools.h"

/* How a call is written. */
enum clb_tool_shape {
    CLB_SHAPE_JSON,   /* {"name": "f", "arguments": {...}}, or a list of them */
    CLB_SHAPE_NAMED,  /* f <sep> {...} */
    CLB_SHAPE_XML,    /* <function=f><parameter=a>1</parameter></function> */
    CLB_SHAPE_PYTHON, /* [f(a=1, b="x")] */
    CLB_SHAPE_BRACES, /* call:f{a:1,b:<|"|>x<|"|>} */
    CLB_SHAPE_HARMONY /* channels */
};

#define CLB_MARKS 3 /* at most, and fewer end with NULL */

struct clb_tool_format {
    const char *name;
    const char *signs[CLB_MARKS]; /* all of them are in the templates of the family */
    enum clb_tool_shape shape;
    const char *open[CLB_MARKS];  /* begins calls; the first one is what the model was trained on */
    const char *close[CLB_MARKS]; /* ends them */
    const char *call_open;        /* begins each call within; may be "" */
    const char *call_close;
    const char *sep;                              /* NAMED: between name and arguments */
    const char *param_open, *key_end, *value_end; /* XML */
    const char *name_key, *arguments_key;         /* JSON: as the model writes them */
    const char *drop[2 * CLB_MARKS];              /* marks that are no text: left out of the answer */
    bool list;                                    /* JSON: always a list */
    bool key_is_name;                             /* JSON: {"f": {...}} */
    bool bare;                                    /* a call may have no mark at all, at the beginning of the text */
    bool lines;                                   /* XML: values are on lines of their own */
    bool short_ids;                               /* nine letters and digits */
};

extern const clb_tool_format clb_tool_formats[]; /* ends with name NULL; the generic one is the last before */

/* ---- the parser ---- */

enum clb_read {
    CLB_READ_MORE,
    CLB_READ_ON,
    CLB_READ_BAD
}; /* nothing to do without more text; something was taken; not a call */

enum clb_parser_mode { CLB_MODE_TEXT, CLB_MODE_THOUGHT, CLB_MODE_CALL };

/* Finds where a JSON value ends; goes on where it stopped. Returns how many of the bytes belong to the value. */
typedef struct clb_value_scan {
    unsigned depth;
    bool in_string, escaped, done;
} clb_value_scan;
size_t clb_value_scan_on(clb_value_scan *v, const char *text, size_t n);

#define CLB_LITERAL_DEPTH 64

typedef struct clb_literal {
    clb_buf out;
    size_t used;
    size_t ahead; /* bytes behind those that belong to a word that may go on */
    bool braces;
    bool first, key; /* no item of the innermost list or dict yet; the string at hand is a key */
    char quote;      /* of the string at hand */
    int phase;
    unsigned depth;
    char open[CLB_LITERAL_DEPTH + 1];
} clb_literal;

/* Finds where the text of a parameter ends (tool_xml.c): what is known of its first `seen` bytes. */
typedef struct clb_text_end {
    size_t seen;
    size_t first;   /* its first closing mark that stands within a string of JSON, */
    unsigned marks; /* and how many of them there are */
    enum { CLB_TEXT_BLANK, CLB_TEXT_JSON, CLB_TEXT_PLAIN } kind; /* nothing but blanks, the begin of JSON, no JSON */
    clb_value_scan scan;
} clb_text_end;

struct clb_reply_parser {
    clb_reply_parser_options o;
    clb_buf buf;
    size_t at;
    bool final;
    bool cut; /* by the length: the end is not the model's */
    enum clb_parser_mode mode;
    const clb_tool_format *f; /* of the call at hand: a model may write another one than its own */
    bool begun;               /* something of the answer was given out */
    bool start;               /* the text may still begin with thoughts or a call without a mark */
    bool answered;            /* with o.answer: it is an answer */
    bool after_thought;       /* blanks are not given out before the next text */
    size_t blanks;            /* white space at `at` that is given out when text follows */
    const char *thought_close;
    bool in_thought; /* the calls began within a thought */
    bool unclosed;   /* its closing mark may yet come, and is no text */
    /* calls */
    size_t mark;    /* where the mark of the calls is */
    unsigned phase; /* of the reader; 0 at first */
    bool in_list, in_call, any_in_section;
    bool unmarked; /* the call began without a mark */
    clb_value_scan scan;
    unsigned nest; /* JSON: objects around the arguments */
    bool first_param;
    char tool[80], key[128];
    int value_kind; /* JSON: given out as a whole; XML: what the parameter's text is */
    bool value_begun;
    clb_text_end value_end; /* XML: of the value that was begun */
    clb_literal literal;    /* Python and braces: that value */
    char channel[24];       /* harmony */
    uint32_t n_calls;
    int status;
};

/* Give out. */
int clb_put_content(clb_reply_parser *p, const char *text, size_t n, clb_error *err);
int clb_put_thought(clb_reply_parser *p, const char *text, size_t n, clb_error *err);
int clb_put_call(clb_reply_parser *p, clb_str name, clb_str id, clb_error *err); /* id may be empty: a new one */
int clb_put_arguments(clb_reply_parser *p, const char *text, size_t n, clb_error *err);
int clb_put_call_end(clb_reply_parser *p, clb_error *err);

/* What is left. */
clb_str clb_rest(const clb_reply_parser *p);
void clb_skip_space(clb_reply_parser *p);
/* Whether the rest begins with the mark: 1; may once there is more: 0; does not: -1. Empty marks: 1. */
int clb_begins(clb_str rest, const char *mark);
/* Offset of the first mark in s, or of what may be the beginning of one at its end; s.n if there is none. *which: its
 * index, or -1 for a beginning. */
size_t clb_find_mark(clb_str s, const char *const *marks, size_t n, bool final, int *which);
/* Takes a closing mark of the format if there is one: 1; 0: more text is needed; -1: there is none. */
int clb_take_close(clb_reply_parser *p);
/* Behind a call: another one, which the reader goes on with in `phase`, or the end of the calls. */
int clb_read_after(clb_reply_parser *p, unsigned phase, enum clb_read *out);
/* Types of values, as far as a schema says (tool_schema.c): `root` is what the schema is a part of, the one of all
 * parameters, where "$ref" leads to its "$defs" and "definitions". */
enum {
    CLB_TYPE_STRING = 1,
    CLB_TYPE_NUMBER = 2,
    CLB_TYPE_INTEGER = 4,
    CLB_TYPE_BOOLEAN = 8,
    CLB_TYPE_NULL = 16,
    CLB_TYPE_ARRAY = 32,
    CLB_TYPE_OBJECT = 64,
    CLB_TYPE_ANY = 127
};
unsigned clb_type_of(const json_t *value); /* an integer is one, not a number */
unsigned clb_schema_types(const json_t *root, const json_t *schema);
/* What "$ref" leads to, or the schema itself. */
const json_t *clb_schema_target(const json_t *root, const json_t *schema);
/* Types of a tool's parameter; any if nothing is said about it. */
unsigned clb_parameter_types(const clb_reply_parser *p, const char *tool, const char *parameter);
bool clb_tool_known(const clb_reply_parser *p, clb_str name);

/* The mark of an open thought that the text ends with, blanks aside, or NULL; what closes it; whether a token is such a
 * mark. */
const char *clb_thought_open(const char *text, size_t n);
const char *clb_thought_close(const char *open);
bool clb_thought_mark(clb_str token);
bool clb_thought_part(clb_str token);  /* or a part of one */
bool clb_begins_thought(clb_str text); /* the text is the begin of an opening mark, not yet all of it */
/* The marks that open calls even within a thought that is not closed: those of models that have tokens for them, which
 * no text has. NULL: there are none. */
const char *const *clb_marks_in_thoughts(const clb_tool_format *f);
/* The reply is read as channels. */
bool clb_harmony(const clb_reply_parser *p);
/* Whether the text begins with the head of a call without a mark, as grammars write it (clb_begins). */
int clb_begins_head(const clb_reply_parser *p, clb_str text);
/* Leaves out what a cut text ends with and is nothing yet (tool_cut.c). */
void clb_forget_cut(clb_reply_parser *p);
/* What turned out to be no call is one that was cut. */
bool clb_is_cut_call(const clb_reply_parser *p);

/* Readers: one step each. BAD before a call has begun makes the mark text. */
int clb_read_json(clb_reply_parser *p, enum clb_read *out, clb_error *err);
int clb_read_named(clb_reply_parser *p, enum clb_read *out, clb_error *err);
int clb_read_xml(clb_reply_parser *p, enum clb_read *out, clb_error *err);
int clb_read_python(clb_reply_parser *p, enum clb_read *out, clb_error *err);
int clb_read_harmony(clb_reply_parser *p, enum clb_read *out, clb_error *err);

/* Arguments as JSON (tool_json.c): what begins at the place at hand, and more of it. */
void clb_begin_json_value(clb_reply_parser *p);
int clb_read_json_value(clb_reply_parser *p, enum clb_read *out, clb_error *err);

/* A value written as Python or in Gemma's braces, as JSON text in l->out (tool_literal.c). `s` is the value as far as
 * it has come, from its first byte on; `used` bytes of it have been read, and are not read again. ON: it is complete;
 * MORE: it may go on. */
void clb_literal_begin(clb_literal *l, bool braces); /* keeps the memory of l->out, which is to be freed */
enum clb_read clb_literal_read(clb_literal *l, clb_str s, bool final, clb_error *err);
/* The same way round, for earlier calls in a prompt. */
int clb_json_to_python(const json_t *v, clb_buf *out, clb_error *err);
/* Text as a JSON string without the quotes. */
int clb_json_escape(clb_buf *out, const char *text, size_t n, clb_error *err);

#endif
