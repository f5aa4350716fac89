/* Inside of the Jinja interpreter: memory, values, syntax tree. */
#ifndef CLB_TEXT_JINJA_IMPL_H
#define CLB_TEXT_JINJA_IMPL_H

#include <stdbool.h>

#include "text/jinja.h"

/* Memory of one template or one rendering: freed at once. */
typedef struct clb_jarena {
    struct clb_jchunk *chunks;
    size_t used, size, total, limit;
} clb_jarena;

int clb_jalloc(clb_jarena *a, size_t n, void **out, clb_error *err); /* zeroed, aligned for anything */
void clb_jarena_free(clb_jarena *a);

/* ---- values ---- */

enum clb_jtype { J_UNDEFINED, J_NONE, J_BOOL, J_INT, J_FLOAT, J_STR, J_LIST, J_DICT, J_MACRO, J_FUNCTION, J_METHOD };
enum clb_jtaint { J_CLEAN, J_TAINTED, J_MIXED };

typedef struct clb_jnode clb_jnode;
typedef struct clb_jscope clb_jscope;

typedef struct clb_jstr {
    const char *p;
    const uint8_t *marks; /* J_MIXED: one per byte */
    size_t n;
    enum clb_jtaint taint;
    bool safe; /* went through the filter "safe": + escapes what is added to it, as in Python (Markup) */
} clb_jstr;

typedef struct clb_jlist {
    clb_jvalue *items;
    size_t n, cap;
    bool tuple;
} clb_jlist;

typedef struct clb_jdict { /* in order of insertion */
    clb_jvalue *keys, *values;
    size_t n, cap;
    bool namespace; /* attributes may be set */
} clb_jdict;

typedef struct clb_jmethod {
    clb_jvalue *self;
    const char *name;
} clb_jmethod;

typedef struct clb_jmacro {
    const clb_jnode *node;
    clb_jscope *scope;
} clb_jmacro;

struct clb_jvalue {
    enum clb_jtype type;
    union {
        bool b;
        int64_t i;
        double f;
        clb_jstr s; /* J_UNDEFINED: the name, for messages */
        clb_jlist *list;
        clb_jdict *dict;
        clb_jmacro *macro;
        const char *function;
        clb_jmethod *method;
    } as;
};

/* ---- syntax tree ---- */

enum clb_jkind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST,
    JN_TUPLE,
    JN_DICT,
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,
    JN_CALL,
    JN_FILTER,
    JN_TEST,
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BINARY,
    JN_AND,
    JN_OR,
    JN_COMPARE,
    JN_COND,
    /* statements */
    JN_TEXT,
    JN_PRINT,
    JN_BLOCK,
    JN_IF,
    JN_FOR,
    JN_SET,
    JN_SET_BLOCK,
    JN_MACRO,
    JN_FILTER_BLOCK,
    JN_BREAK,
    JN_CONTINUE
};

enum clb_jop {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_POW,
    JO_CONCAT,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN
};

/* What a, b, c, items and names hold, per kind: jinja_parse.c and jinja_parse_expr.c. */
struct clb_jnode {
    enum clb_jkind kind;
    enum clb_jop op;
    uint32_t line;
    bool negate;
    clb_jvalue value; /* CONST, TEXT */
    const char *name; /* NAME, ATTR, FILTER, TEST, MACRO, keyword of an argument */
    clb_jnode *a, *b, *c;
    clb_jnode **items; /* elements, positional arguments, statements, parameters */
    size_t n;
    clb_jnode **named; /* keyword arguments, dict values, defaults: parallel to items where both are given */
    size_t n_named;
};

struct clb_jinja {
    clb_jarena arena;
    char *source;
    char first_line[48]; /* for messages */
    clb_jnode *root;
};

/* ---- tokens ---- */

enum clb_jtoken_type {
    JT_TEXT,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP,
    JT_END
};

typedef struct clb_jtoken {
    enum clb_jtoken_type type;
    uint32_t line;
    clb_str s; /* STRING: escapes resolved; OP: the operator */
} clb_jtoken;

/* Tokens of a whole template, ending with JT_END, in the arena. */
int clb_jlex(clb_jarena *a, clb_str source, clb_jtoken **out, clb_error *err);

typedef struct clb_jparser {
    clb_jarena *arena;
    const clb_jtoken *t;
    unsigned depth;
    clb_error *err;
} clb_jparser;

#define CLB_JINJA_MAX_DEPTH 120

int clb_jparse_fail(clb_jparser *p, const char *what);
bool clb_jis_op(const clb_jparser *p, const char *op);
bool clb_jis_name(const clb_jparser *p, const char *name);
bool clb_jtake_op(clb_jparser *p, const char *op);
bool clb_jtake_name(clb_jparser *p, const char *name);
int clb_jexpect_op(clb_jparser *p, const char *op);
int clb_jname(clb_jparser *p, const char **out); /* the name at hand, copied */
int clb_jnode_new(clb_jparser *p, enum clb_jkind kind, clb_jnode **out);
int clb_jnode_add(clb_jparser *p, clb_jnode ***list, size_t *n, clb_jnode *item);
int clb_jparse_expr(clb_jparser *p, clb_jnode **out);
int clb_jparse_tuple(clb_jparser *p, bool with_cond, clb_jnode **out);  /* "a" or "a, b" */
int clb_jparse_filters(clb_jparser *p, clb_jnode *of, clb_jnode **out); /* after the first "|": "name(args) | ..." */
int clb_jparse_template(clb_jparser *p, clb_jnode **out);

/* ---- evaluation ---- */

typedef struct clb_jvar {
    const char *name;
    clb_jvalue value;
} clb_jvar;

struct clb_jscope {
    clb_jscope *parent;
    clb_jvar *vars;
    size_t n, cap;
    bool captured; /* a macro refers to it */
};

typedef struct clb_jout {
    char *p;
    uint8_t *marks;
    size_t n, cap;
} clb_jout;

enum clb_jflow { JF_NEXT, JF_BREAK, JF_CONTINUE };

typedef struct clb_jrun {
    const clb_jinja *t;
    clb_jarena arena;
    clb_jscope *scope;
    clb_jout *out;
    enum clb_jflow flow;
    uint64_t steps;
    unsigned depth;
    uint32_t line;
    int64_t now;
    clb_error *err;
} clb_jrun;

#define CLB_JINJA_MAX_STEPS 5000000u

/* Control characters become spaces: messages are one line. Returns text. */
char *clb_jone_line(char *text);
/* Fails with "chat template "...", line N: <what>". */
int clb_jfail(clb_jrun *r, int status, const char *fmt, ...) CLB_PRINTF(3, 4);

clb_jvalue clb_jstr_lit(const char *s); /* clean, borrowed */
clb_jvalue clb_jbool(bool b);
clb_jvalue clb_jint(int64_t i);
clb_jvalue clb_jundefined(const char *name);
bool clb_jtrue(const clb_jvalue *v);
bool clb_jequal(const clb_jvalue *a, const clb_jvalue *b);
/* -1, 0, 1 of two numbers, strings or lists; others fail */
int clb_jorder(clb_jrun *r, const clb_jvalue *a, const clb_jvalue *b, int *out);
const char *clb_jtype_name(const clb_jvalue *v); /* Python's: "str", "NoneType" */
bool clb_jstr_is(const clb_jvalue *v, const char *s);
clb_jstr clb_jsub(clb_jstr s, size_t from, size_t to); /* bytes [from, to) */
void clb_jcopy_marks(uint8_t *to, clb_jstr s);         /* s.n of them */
int clb_jconcat(clb_jrun *r, clb_jstr a, clb_jstr b, clb_jvalue *out);
int clb_jescape(clb_jrun *r, clb_jstr s, clb_jstr *out); /* HTML's five, unless it is safe; the result is safe */
int clb_jlist_new(clb_jrun *r, clb_jvalue *out);
int clb_jlist_push(clb_jrun *r, clb_jlist *l, clb_jvalue item);
int clb_jdict_new(clb_jrun *r, clb_jvalue *out);
int clb_jdict_set(clb_jrun *r, clb_jdict *d, clb_jvalue key, clb_jvalue value);
clb_jvalue *clb_jdict_get(const clb_jdict *d, const clb_jvalue *key);
clb_jvalue *clb_jdict_at(const clb_jdict *d, const char *key);
/* As printed by {{ }} (str) or inside a list (repr). */
int clb_jto_str(clb_jrun *r, const clb_jvalue *v, clb_jstr *out);
int clb_jout_put(clb_jrun *r, clb_jout *o, clb_jstr s);
clb_jvalue clb_jout_value(const clb_jout *o);
int clb_jout_repr(clb_jrun *r, clb_jout *o, const clb_jvalue *v);
/* The arguments of Python's json.dumps. */
typedef struct clb_jjson {
    bool ascii, pretty, sort_keys;
    clb_jstr indent, comma, colon; /* indent: of one level, if pretty */
} clb_jjson;
int clb_jout_json(clb_jrun *r, clb_jout *o, const clb_jjson *j, const clb_jvalue *v, unsigned level);
int clb_jsorted(clb_jrun *r, const clb_jdict *d, clb_jdict *out); /* by key */
/* A value of a clb_jdata, for this rendering to change. */
int clb_jcopy(clb_jrun *r, const clb_jvalue *v, unsigned depth, clb_jvalue *out);
size_t clb_jbytes(const clb_jvalue *v, unsigned depth); /* of all its strings */
/* The items of a list, the characters of a string, the keys of a dict; nothing for none and undefined. */
int clb_jiterate(clb_jrun *r, const clb_jvalue *v, clb_jlist *out);
size_t clb_jlength(const clb_jvalue *v);       /* characters of a string */
size_t clb_jchar_at(clb_jstr s, size_t index); /* byte offset of a character */

int clb_jeval(clb_jrun *r, const clb_jnode *e, clb_jvalue *out);
int clb_jbinary(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, clb_jvalue *out);
int clb_jcompare(clb_jrun *r, enum clb_jop op, const clb_jvalue *a, const clb_jvalue *b, bool *out);
int clb_jget_attr(clb_jrun *r, const clb_jvalue *of, const char *name, clb_jvalue *out);
int clb_jget_item(clb_jrun *r, const clb_jvalue *of, const clb_jvalue *key, clb_jvalue *out);
int clb_jexec(clb_jrun *r, const clb_jnode *s);
int clb_jassign(clb_jrun *r, const char *name, clb_jvalue value);
int clb_jcall_macro(clb_jrun *r, const clb_jmacro *m, const clb_jlist *args, const clb_jdict *named, clb_jvalue *out);

/* Arguments are evaluated; a missing one is NULL. */
typedef struct clb_jargs {
    const clb_jlist *list;
    const clb_jdict *named;
} clb_jargs;
const clb_jvalue *clb_jarg(const clb_jargs *a, size_t i, const char *name);

bool clb_jbool_arg(const clb_jargs *a, size_t i, const char *name);
/* Argument i as an integer, or the default. */
int clb_jint_arg(clb_jrun *r, const clb_jargs *a, size_t i, const char *name, int64_t def, int64_t *out);

typedef struct clb_jfilter_entry { /* tables end with NULL */
    const char *name;
    int (*fn)(clb_jrun *r, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out);
} clb_jfilter_entry;
extern const clb_jfilter_entry clb_jlist_filters[];
int clb_jfilter(clb_jrun *r, const char *name, const clb_jvalue *of, const clb_jargs *a, clb_jvalue *out);
int clb_jtest(clb_jrun *r, const char *name, const clb_jvalue *of, const clb_jargs *a, bool *out);
int clb_jcall_method(clb_jrun *r, clb_jvalue *self, const char *name, const clb_jargs *a, clb_jvalue *out);
int clb_jstr_method(clb_jrun *r, clb_jstr s, const char *name, const clb_jargs *a, clb_jvalue *out);
extern const char *const clb_jstr_methods[]; /* ends with NULL */
bool clb_jhas_method(const clb_jvalue *of, const char *name);
int clb_jcall_function(clb_jrun *r, const char *name, const clb_jargs *a, clb_jvalue *out);
bool clb_jhas_function(const char *name);
int clb_jstrip(const clb_jstr *s, const clb_jvalue *chars, bool left, bool right, clb_jstr *out);
int clb_jreplace(clb_jrun *r, clb_jstr s, clb_jstr old, clb_jstr with, int64_t count, clb_jvalue *out);
int clb_jpercent(clb_jrun *r, clb_jstr format, const clb_jlist *args, clb_jvalue *out); /* Python's "..." % (...) */
int clb_jjoin(clb_jrun *r, const clb_jvalue *items, clb_jstr sep, bool strict, clb_jvalue *out);
int clb_jcase(clb_jrun *r, clb_jstr s, char how, clb_jvalue *out); /* 'l'ower, 'u'pper, 'c'apitalize, 't'itle */

#endif
