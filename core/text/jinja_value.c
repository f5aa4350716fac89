/* Values of the Jinja interpreter: memory, strings with taint, lists, dicts, comparison. */
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"
#include "text/utf8.h"

struct clb_jchunk {
    struct clb_jchunk *next;
    alignas(max_align_t) char data[];
};

#define CHUNK ((size_t)16 << 10)

int clb_jalloc(clb_jarena *a, size_t n, void **out, clb_error *err)
{
    const size_t align = alignof(max_align_t);
    n = n ? (n + align - 1) / align * align : align;
    if (n > a->size - a->used) {
        const size_t size = n > CHUNK ? n : CHUNK;
        if (size > a->limit - a->total)
            return clb_fail(err, COLIBRI_E_LIMIT, "the chat template needs more than %zu MiB", a->limit >> 20);
        struct clb_jchunk *c = calloc(1, sizeof *c + size);
        if (!c)
            return CLB_NOMEM(err, "chat template");
        c->next = a->chunks;
        a->chunks = c;
        a->size = size;
        a->used = 0;
        a->total += size;
    }
    *out = a->chunks->data + a->used;
    a->used += n;
    return COLIBRI_OK;
}

void clb_jarena_free(clb_jarena *a)
{
    while (a->chunks) {
        struct clb_jchunk *next = a->chunks->next;
        free(a->chunks);
        a->chunks = next;
    }
    *a = (clb_jarena){0};
}

char *clb_jone_line(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127)
            *p = ' ';
    return text;
}

int clb_jfail(clb_jrun *r, int status, const char *fmt, ...)
{
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return clb_fail(r->err, status, "chat template \"%s\", line %u: %s; --raw sends the prompt without it",
                    r->t->first_line, r->line, clb_jone_line(what));
}

clb_jvalue clb_jstr_lit(const char *s)
{
    return (clb_jvalue){.type = J_STR, .as.s = {.p = s, .n = strlen(s)}};
}

clb_jvalue clb_jbool(bool b)
{
    return (clb_jvalue){.type = J_BOOL, .as.b = b};
}

clb_jvalue clb_jint(int64_t i)
{
    return (clb_jvalue){.type = J_INT, .as.i = i};
}

clb_jvalue clb_jundefined(const char *name)
{
    clb_jvalue v = clb_jstr_lit(name);
    v.type = J_UNDEFINED;
    return v;
}

const char *clb_jtype_name(const clb_jvalue *v)
{
    static const char *const name[] = {"undefined", "NoneType", "bool",  "int",      "float", "str",
                                       "list",      "dict",     "macro", "function", "method"};
    return name[v->type];
}

bool clb_jtrue(const clb_jvalue *v)
{
    switch (v->type) {
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v->as.b;
    case J_INT:
        return v->as.i != 0;
    case J_FLOAT:
        return v->as.f != 0;
    case J_STR:
        return v->as.s.n > 0;
    case J_LIST:
        return v->as.list->n > 0;
    case J_DICT:
        return v->as.dict->n > 0 || v->as.dict->namespace;
    default:
        return true;
    }
}

bool clb_jstr_is(const clb_jvalue *v, const char *s)
{
    return v->type == J_STR && v->as.s.n == strlen(s) && memcmp(v->as.s.p, s, v->as.s.n) == 0;
}

static bool number(const clb_jvalue *v, double *out)
{
    *out = v->type == J_FLOAT ? v->as.f : v->type == J_INT ? (double)v->as.i : v->type == J_BOOL ? v->as.b : 0;
    return v->type == J_BOOL || v->type == J_INT || v->type == J_FLOAT;
}

/* `left`: how many values may still be looked at, `depth`: how deep. Lists of a template may hold themselves: what
 * cannot be told apart within the bounds counts as different. */
static bool equal(const clb_jvalue *a, const clb_jvalue *b, unsigned depth, size_t *left)
{
    double x, y;
    if (number(a, &x) && number(b, &y))
        return x == y;
    if (a->type != b->type || *left == 0 || depth > CLB_JINJA_MAX_DEPTH)
        return false;
    --*left;
    switch (a->type) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_STR:
        return a->as.s.n == b->as.s.n && memcmp(a->as.s.p, b->as.s.p, a->as.s.n) == 0;
    case J_LIST:
        if (a->as.list == b->as.list)
            return true;
        if (a->as.list->n != b->as.list->n)
            return false;
        for (size_t i = 0; i < a->as.list->n; i++)
            if (!equal(&a->as.list->items[i], &b->as.list->items[i], depth + 1, left))
                return false;
        return true;
    case J_DICT:
        if (a->as.dict == b->as.dict)
            return true;
        if (a->as.dict->n != b->as.dict->n || a->as.dict->namespace || b->as.dict->namespace)
            return false;
        for (size_t i = 0; i < a->as.dict->n; i++) {
            const clb_jvalue *other = NULL;
            for (size_t k = 0; k < b->as.dict->n && !other && *left; k++)
                if (equal(&a->as.dict->keys[i], &b->as.dict->keys[k], depth + 1, left))
                    other = &b->as.dict->values[k];
            if (!other || !equal(&a->as.dict->values[i], other, depth + 1, left))
                return false;
        }
        return true;
    default:
        return false;
    }
}

bool clb_jequal(const clb_jvalue *a, const clb_jvalue *b)
{
    size_t left = 1000000;
    return equal(a, b, 0, &left);
}

int clb_jorder(clb_jrun *r, const clb_jvalue *a, const clb_jvalue *b, int *out)
{
    double x, y;
    if (number(a, &x) && number(b, &y)) {
        *out = x < y ? -1 : x > y;
        return COLIBRI_OK;
    }
    if (a->type == J_STR && b->type == J_STR) {
        const size_t n = a->as.s.n < b->as.s.n ? a->as.s.n : b->as.s.n;
        const int d = memcmp(a->as.s.p, b->as.s.p, n);
        *out = d ? (d > 0) - (d < 0) : (a->as.s.n > b->as.s.n) - (a->as.s.n < b->as.s.n);
        return COLIBRI_OK;
    }
    if (a->type == J_LIST && b->type == J_LIST) {
        *out = 0;
        if (++r->depth > 4 * CLB_JINJA_MAX_DEPTH)
            return clb_jfail(r, COLIBRI_E_LIMIT, "a value is nested too deeply");
        for (size_t i = 0; i < a->as.list->n && i < b->as.list->n; i++) {
            if (++r->steps > CLB_JINJA_MAX_STEPS)
                return clb_jfail(r, COLIBRI_E_LIMIT, "comparing too much");
            CLB_TRY(clb_jorder(r, &a->as.list->items[i], &b->as.list->items[i], out));
            if (*out)
                break;
        }
        r->depth--;
        if (*out == 0)
            *out = (a->as.list->n > b->as.list->n) - (a->as.list->n < b->as.list->n);
        return COLIBRI_OK;
    }
    return clb_jfail(r, COLIBRI_E_USAGE, "cannot order %s and %s", clb_jtype_name(a), clb_jtype_name(b));
}

clb_jstr clb_jsub(clb_jstr s, size_t from, size_t to)
{
    return (clb_jstr){s.p + from, s.marks ? s.marks + from : NULL, to - from, s.taint, s.safe};
}

void clb_jcopy_marks(uint8_t *to, clb_jstr s)
{
    if (s.taint == J_MIXED)
        memcpy(to, s.marks, s.n);
    else
        memset(to, s.taint == J_TAINTED, s.n);
}

int clb_jconcat(clb_jrun *r, clb_jstr a, clb_jstr b, clb_jvalue *out)
{
    void *p, *m = NULL;
    enum clb_jtaint taint = a.n == 0 ? b.taint : a.taint;
    if (a.n && b.n && (a.taint != b.taint || a.taint == J_MIXED))
        taint = J_MIXED;
    CLB_TRY(clb_jalloc(&r->arena, a.n + b.n, &p, r->err));
    if (a.n)
        memcpy(p, a.p, a.n);
    if (b.n)
        memcpy((char *)p + a.n, b.p, b.n);
    if (taint == J_MIXED) {
        CLB_TRY(clb_jalloc(&r->arena, a.n + b.n, &m, r->err));
        clb_jcopy_marks(m, a);
        clb_jcopy_marks((uint8_t *)m + a.n, b);
    }
    *out = (clb_jvalue){.type = J_STR, .as.s = {.p = p, .marks = m, .n = a.n + b.n, .taint = taint}};
    return COLIBRI_OK;
}

/* Room for one more of `size` bytes in an array of the arena. */
static int grow(clb_jrun *r, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return COLIBRI_OK;
    const size_t bigger = *cap ? *cap * 2 : 4;
    void *p;
    CLB_TRY(clb_jalloc(&r->arena, bigger * size, &p, r->err));
    if (n)
        memcpy(p, *items, n * size);
    *items = p;
    *cap = bigger;
    return COLIBRI_OK;
}

int clb_jlist_new(clb_jrun *r, clb_jvalue *out)
{
    void *p;
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jlist), &p, r->err));
    *out = (clb_jvalue){.type = J_LIST, .as.list = p};
    return COLIBRI_OK;
}

int clb_jlist_push(clb_jrun *r, clb_jlist *l, clb_jvalue item)
{
    void *items = l->items;
    CLB_TRY(grow(r, &items, l->n, &l->cap, sizeof *l->items));
    l->items = items;
    l->items[l->n++] = item;
    return COLIBRI_OK;
}

int clb_jdict_new(clb_jrun *r, clb_jvalue *out)
{
    void *p;
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jdict), &p, r->err));
    *out = (clb_jvalue){.type = J_DICT, .as.dict = p};
    return COLIBRI_OK;
}

clb_jvalue *clb_jdict_get(const clb_jdict *d, const clb_jvalue *key)
{
    for (size_t i = 0; i < d->n; i++)
        if (clb_jequal(&d->keys[i], key))
            return &d->values[i];
    return NULL;
}

clb_jvalue *clb_jdict_at(const clb_jdict *d, const char *key)
{
    const clb_jvalue k = clb_jstr_lit(key);
    return clb_jdict_get(d, &k);
}

int clb_jdict_set(clb_jrun *r, clb_jdict *d, clb_jvalue key, clb_jvalue value)
{
    clb_jvalue *at = clb_jdict_get(d, &key);
    if (at) {
        *at = value;
        return COLIBRI_OK;
    }
    void *keys = d->keys, *values = d->values;
    size_t cap = d->cap;
    CLB_TRY(grow(r, &keys, d->n, &cap, sizeof *d->keys));
    CLB_TRY(grow(r, &values, d->n, &d->cap, sizeof *d->values));
    d->keys = keys;
    d->values = values;
    d->keys[d->n] = key;
    d->values[d->n++] = value;
    return COLIBRI_OK;
}

size_t clb_jchar_at(clb_jstr s, size_t index)
{
    size_t i = 0;
    for (; i < s.n && index; index--) {
        const size_t len = clb_utf8_decode(s.p + i, s.n - i, NULL);
        i += len ? len : 1;
    }
    return i;
}

size_t clb_jlength(const clb_jvalue *v)
{
    size_t n = 0;
    switch (v->type) {
    case J_STR:
        for (size_t i = 0; i < v->as.s.n; n++) {
            const size_t len = clb_utf8_decode(v->as.s.p + i, v->as.s.n - i, NULL);
            i += len ? len : 1;
        }
        return n;
    case J_LIST:
        return v->as.list->n;
    case J_DICT:
        return v->as.dict->n;
    default:
        return 0;
    }
}

int clb_jiterate(clb_jrun *r, const clb_jvalue *v, clb_jlist *out)
{
    *out = (clb_jlist){0};
    switch (v->type) {
    case J_UNDEFINED:
    case J_NONE: /* Python refuses; templates made for tools loop over the tools that are not there */
        return COLIBRI_OK;
    case J_LIST:
        out->items = v->as.list->items;
        out->n = v->as.list->n;
        return COLIBRI_OK;
    case J_DICT:
        out->items = v->as.dict->keys;
        out->n = v->as.dict->n;
        return COLIBRI_OK;
    case J_STR:
        for (size_t i = 0; i < v->as.s.n;) {
            size_t len = clb_utf8_decode(v->as.s.p + i, v->as.s.n - i, NULL);
            len = len ? len : 1;
            CLB_TRY(clb_jlist_push(r, out, (clb_jvalue){.type = J_STR, .as.s = clb_jsub(v->as.s, i, i + len)}));
            i += len;
        }
        return COLIBRI_OK;
    default:
        return clb_jfail(r, COLIBRI_E_USAGE, "cannot loop over %s", clb_jtype_name(v));
    }
}
