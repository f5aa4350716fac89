/* Values for templates, built by callers; and the copy of them that a rendering works on. */
#include "text/jinja_data.h"

#include <stdlib.h>
#include <string.h>

#include "text/jinja_impl.h"

/* Keys of a dict are found one after the other. */
#define KEYS_MAX 4096

struct clb_jdata {
    clb_jrun run; /* for its arena and error */
    clb_error error;
    int status;
};

int clb_jdata_create(size_t limit, clb_jdata **out, clb_error *err)
{
    clb_jdata *d = calloc(1, sizeof *d);
    *out = d;
    if (!d)
        return CLB_NOMEM(err, "data of a chat template");
    d->run.arena.limit = limit;
    d->run.err = &d->error;
    return COLIBRI_OK;
}

void clb_jdata_free(clb_jdata *d)
{
    if (!d)
        return;
    clb_jarena_free(&d->run.arena);
    free(d);
}

int clb_jdata_status(const clb_jdata *d, clb_error *err)
{
    return d->status ? clb_fail(err, d->status, "%s", d->error.msg) : COLIBRI_OK;
}

/* Keeps the first error. The arena's own message speaks of a template. */
static void note(clb_jdata *d, int rc)
{
    if (rc == COLIBRI_E_LIMIT)
        clb_fail(&d->error, rc, "the conversation needs more than %zu MiB", d->run.arena.limit >> 20);
    d->status = rc;
}

static clb_jvalue *make(clb_jdata *d, clb_jvalue value)
{
    void *p = NULL;
    if (!d->status)
        note(d, clb_jalloc(&d->run.arena, sizeof(clb_jvalue), &p, d->run.err));
    if (d->status)
        return NULL;
    *(clb_jvalue *)p = value;
    return p;
}

clb_jvalue *clb_jdata_null(clb_jdata *d)
{
    return make(d, (clb_jvalue){.type = J_NONE});
}

clb_jvalue *clb_jdata_bool(clb_jdata *d, bool value)
{
    return make(d, clb_jbool(value));
}

clb_jvalue *clb_jdata_int(clb_jdata *d, int64_t value)
{
    return make(d, clb_jint(value));
}

clb_jvalue *clb_jdata_float(clb_jdata *d, double value)
{
    return make(d, (clb_jvalue){.type = J_FLOAT, .as.f = value});
}

static clb_jvalue string(clb_jdata *d, clb_str s, enum clb_jtaint taint)
{
    void *p = NULL;
    if (!d->status)
        note(d, clb_jalloc(&d->run.arena, s.n, &p, d->run.err));
    if (d->status)
        return (clb_jvalue){.type = J_NONE};
    if (s.n)
        memcpy(p, s.p, s.n);
    return (clb_jvalue){.type = J_STR, .as.s = {.p = p, .n = s.n, .taint = taint}};
}

clb_jvalue *clb_jdata_str(clb_jdata *d, clb_str s)
{
    return make(d, string(d, s, J_TAINTED));
}

clb_jvalue *clb_jdata_clean(clb_jdata *d, const char *s)
{
    return make(d, string(d, (clb_str){s, strlen(s)}, J_CLEAN));
}

clb_jvalue *clb_jdata_mixed(clb_jdata *d, clb_str s, const uint8_t *taint)
{
    clb_jvalue v = string(d, s, J_MIXED);
    void *marks = NULL;
    if (!d->status)
        note(d, clb_jalloc(&d->run.arena, s.n, &marks, d->run.err));
    if (d->status)
        return NULL;
    if (s.n)
        memcpy(marks, taint, s.n);
    v.as.s.marks = marks;
    return make(d, v);
}

clb_jvalue *clb_jdata_list(clb_jdata *d)
{
    clb_jvalue list = {.type = J_NONE};
    if (!d->status)
        note(d, clb_jlist_new(&d->run, &list));
    return make(d, list);
}

clb_jvalue *clb_jdata_dict(clb_jdata *d)
{
    clb_jvalue dict = {.type = J_NONE};
    if (!d->status)
        note(d, clb_jdict_new(&d->run, &dict));
    return make(d, dict);
}

/* Whether there is something to put into something of the right kind. */
static bool fits(clb_jdata *d, const clb_jvalue *into, enum clb_jtype type, const clb_jvalue *item)
{
    if (d->status || !into || !item)
        return false;
    if (into->type != type)
        d->status = clb_fail(&d->error, COLIBRI_E_USAGE, "a %s is no %s", clb_jtype_name(into),
                             type == J_LIST ? "list" : "dict");
    return !d->status;
}

void clb_jdata_push(clb_jdata *d, clb_jvalue *list, const clb_jvalue *item)
{
    if (fits(d, list, J_LIST, item))
        note(d, clb_jlist_push(&d->run, list->as.list, *item));
}

void clb_jdata_set(clb_jdata *d, clb_jvalue *dict, clb_str key, const clb_jvalue *value)
{
    if (!fits(d, dict, J_DICT, value))
        return;
    if (dict->as.dict->n >= KEYS_MAX) {
        d->status = clb_fail(&d->error, COLIBRI_E_LIMIT, "an object of more than %d keys", KEYS_MAX);
        return;
    }
    const clb_jvalue k = string(d, key, J_TAINTED);
    if (!d->status)
        note(d, clb_jdict_set(&d->run, dict->as.dict, k, *value));
}

/* A template may change lists and dicts: each rendering has its own. Texts are shared. */
int clb_jcopy(clb_jrun *r, const clb_jvalue *v, unsigned depth, clb_jvalue *out)
{
    *out = *v;
    if (v->type != J_LIST && v->type != J_DICT)
        return COLIBRI_OK;
    if (depth > CLB_JDATA_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "the messages or tools are nested more than %d deep", CLB_JDATA_DEPTH);
    const bool dict = v->type == J_DICT;
    const size_t n = dict ? v->as.dict->n : v->as.list->n;
    const clb_jvalue *from = dict ? v->as.dict->values : v->as.list->items;
    void *items;
    CLB_TRY(clb_jalloc(&r->arena, n * sizeof *from, &items, r->err));
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_jcopy(r, &from[i], depth + 1, (clb_jvalue *)items + i));
    if (!dict) {
        CLB_TRY(clb_jlist_new(r, out));
        out->as.list->items = items;
        out->as.list->n = out->as.list->cap = n;
        return COLIBRI_OK;
    }
    void *keys;
    CLB_TRY(clb_jdict_new(r, out));
    CLB_TRY(clb_jalloc(&r->arena, n * sizeof *from, &keys, r->err));
    if (n)
        memcpy(keys, v->as.dict->keys, n * sizeof *from);
    out->as.dict->keys = keys;
    out->as.dict->values = items;
    out->as.dict->n = out->as.dict->cap = n;
    return COLIBRI_OK;
}

size_t clb_jbytes(const clb_jvalue *v, unsigned depth)
{
    size_t n = v->type == J_STR ? v->as.s.n : 0;
    if (depth > CLB_JDATA_DEPTH)
        return n; /* clb_jcopy refuses it */
    for (size_t i = 0; v->type == J_LIST && i < v->as.list->n; i++)
        n += clb_jbytes(&v->as.list->items[i], depth + 1);
    for (size_t i = 0; v->type == J_DICT && i < v->as.dict->n; i++)
        n += clb_jbytes(&v->as.dict->values[i], depth + 1);
    return n;
}
