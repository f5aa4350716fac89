/* Statements of the Jinja interpreter, macros, and the rendering of one conversation. */
#include <string.h>

#include "text/jinja_impl.h"

static int push_scope(clb_jrun *r, clb_jscope *parent, clb_jscope **before)
{
    void *s;
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jscope), &s, r->err));
    *before = r->scope;
    r->scope = s;
    r->scope->parent = parent;
    return COLIBRI_OK;
}

/* One value to one or several targets. */
static int assign(clb_jrun *r, const clb_jnode *n, clb_jvalue value)
{
    if (n->n == 1) {
        const clb_jnode *target = n->items[0];
        clb_jvalue of;
        if (target->kind == JN_NAME)
            return clb_jassign(r, target->name, value);
        CLB_TRY(clb_jeval(r, target->a, &of));
        if (of.type != J_DICT || !of.as.dict->namespace)
            return clb_jfail(r, COLIBRI_E_USAGE, "only a namespace can be changed");
        return clb_jdict_set(r, of.as.dict, clb_jstr_lit(target->name), value);
    }
    clb_jlist items;
    CLB_TRY(clb_jiterate(r, &value, &items));
    if (items.n != n->n)
        return clb_jfail(r, COLIBRI_E_USAGE, "%zu values for %zu names", items.n, n->n);
    for (size_t i = 0; i < n->n; i++) {
        if (n->items[i]->kind != JN_NAME)
            return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "several attributes at once");
        CLB_TRY(clb_jassign(r, n->items[i]->name, items.items[i]));
    }
    return COLIBRI_OK;
}

static int loop_variable(clb_jrun *r, const clb_jlist *items, size_t i, clb_jdict *loop)
{
    const struct {
        const char *name;
        clb_jvalue value;
    } of[] = {
        {"index0", clb_jint((int64_t)i)},
        {"index", clb_jint((int64_t)i + 1)},
        {"revindex0", clb_jint((int64_t)(items->n - 1 - i))},
        {"revindex", clb_jint((int64_t)(items->n - i))},
        {"first", clb_jbool(i == 0)},
        {"last", clb_jbool(i + 1 == items->n)},
        {"length", clb_jint((int64_t)items->n)},
        {"previtem", i ? items->items[i - 1] : clb_jundefined("loop.previtem")},
        {"nextitem", i + 1 < items->n ? items->items[i + 1] : clb_jundefined("loop.nextitem")},
        {"depth", clb_jint(1)},
        {"depth0", clb_jint(0)},
    };
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        CLB_TRY(clb_jdict_set(r, loop, clb_jstr_lit(of[k].name), of[k].value));
    return COLIBRI_OK;
}

/* The items that the loop's own "if" lets through. */
static int filtered(clb_jrun *r, const clb_jnode *n, clb_jlist *items)
{
    clb_jvalue kept;
    clb_jscope *outer;
    CLB_TRY(clb_jlist_new(r, &kept));
    CLB_TRY(push_scope(r, r->scope, &outer));
    for (size_t i = 0; i < items->n; i++) {
        clb_jvalue v;
        r->scope->n = 0;
        CLB_TRY(assign(r, n, items->items[i]));
        CLB_TRY(clb_jeval(r, n->b, &v));
        if (clb_jtrue(&v))
            CLB_TRY(clb_jlist_push(r, kept.as.list, items->items[i]));
    }
    r->scope = outer;
    *items = *kept.as.list;
    return COLIBRI_OK;
}

static int for_loop(clb_jrun *r, const clb_jnode *n)
{
    clb_jvalue over, loop;
    clb_jlist items;
    clb_jscope *outer, *inner;
    CLB_TRY(clb_jeval(r, n->a, &over));
    CLB_TRY(clb_jiterate(r, &over, &items));
    if (n->b)
        CLB_TRY(filtered(r, n, &items));
    if (items.n == 0)
        return n->c ? clb_jexec(r, n->c) : COLIBRI_OK;
    CLB_TRY(clb_jdict_new(r, &loop));
    CLB_TRY(push_scope(r, r->scope, &outer));
    for (size_t i = 0; i < items.n; i++) {
        if (r->scope->captured)
            CLB_TRY(push_scope(r, outer, &inner));
        r->scope->n = 0;
        CLB_TRY(loop_variable(r, &items, i, loop.as.dict));
        CLB_TRY(clb_jassign(r, "loop", loop));
        CLB_TRY(assign(r, n, items.items[i]));
        CLB_TRY(clb_jexec(r, n->named[0]));
        const enum clb_jflow flow = r->flow;
        r->flow = JF_NEXT;
        if (flow == JF_BREAK)
            break;
    }
    r->scope = outer;
    return COLIBRI_OK;
}

/* Runs a body and gives its text. */
static int capture(clb_jrun *r, const clb_jnode *body, clb_jvalue *out)
{
    clb_jout text = {0}, *before = r->out;
    r->out = &text;
    CLB_TRY(clb_jexec(r, body));
    r->out = before;
    *out = clb_jout_value(&text);
    return COLIBRI_OK;
}

/* Filters over a text: the innermost operand, a NULL in the tree, is the text. */
static int filter_chain(clb_jrun *r, const clb_jnode *f, clb_jvalue *value)
{
    clb_jvalue of = *value, list, named;
    if (!f)
        return COLIBRI_OK;
    CLB_TRY(filter_chain(r, f->a, &of));
    CLB_TRY(clb_jlist_new(r, &list));
    CLB_TRY(clb_jdict_new(r, &named));
    for (size_t i = 0; i < f->n; i++) {
        clb_jvalue v;
        CLB_TRY(clb_jeval(r, f->items[i], &v));
        CLB_TRY(clb_jlist_push(r, list.as.list, v));
    }
    const clb_jargs args = {list.as.list, named.as.dict};
    return clb_jfilter(r, f->name, &of, &args, value);
}

int clb_jcall_macro(clb_jrun *r, const clb_jmacro *m, const clb_jlist *args, const clb_jdict *named, clb_jvalue *out)
{
    clb_jscope *outer;
    const clb_jargs given = {args, named};
    if (args->n > m->node->n)
        return clb_jfail(r, COLIBRI_E_USAGE, "macro %s takes %zu arguments", m->node->name, m->node->n);
    CLB_TRY(push_scope(r, m->scope, &outer));
    for (size_t i = 0; i < m->node->n; i++) {
        const clb_jnode *parameter = m->node->items[i];
        const clb_jvalue *v = clb_jarg(&given, i, parameter->name);
        clb_jvalue value = clb_jundefined(parameter->name);
        if (v)
            value = *v;
        else if (parameter->a)
            CLB_TRY(clb_jeval(r, parameter->a, &value));
        CLB_TRY(clb_jassign(r, parameter->name, value));
    }
    CLB_TRY(capture(r, m->node->a, out));
    r->scope = outer;
    r->flow = JF_NEXT;
    return COLIBRI_OK;
}

static int define_macro(clb_jrun *r, const clb_jnode *n)
{
    void *m;
    CLB_TRY(clb_jalloc(&r->arena, sizeof(clb_jmacro), &m, r->err));
    *(clb_jmacro *)m = (clb_jmacro){n, r->scope};
    for (clb_jscope *s = r->scope; s; s = s->parent)
        s->captured = true;
    return clb_jassign(r, n->name, (clb_jvalue){.type = J_MACRO, .as.macro = m});
}

static int if_chain(clb_jrun *r, const clb_jnode *n)
{
    for (size_t i = 0; i < n->n; i++) {
        clb_jvalue v;
        CLB_TRY(clb_jeval(r, n->named[i], &v));
        if (clb_jtrue(&v))
            return clb_jexec(r, n->items[i]);
    }
    return n->c ? clb_jexec(r, n->c) : COLIBRI_OK;
}

static int exec(clb_jrun *r, const clb_jnode *n)
{
    clb_jvalue v;
    clb_jstr s;
    switch (n->kind) {
    case JN_BLOCK:
        for (size_t i = 0; i < n->n && r->flow == JF_NEXT; i++)
            CLB_TRY(clb_jexec(r, n->items[i]));
        return COLIBRI_OK;
    case JN_TEXT:
        return clb_jout_put(r, r->out, n->value.as.s);
    case JN_PRINT:
        CLB_TRY(clb_jeval(r, n->a, &v));
        CLB_TRY(clb_jto_str(r, &v, &s));
        return clb_jout_put(r, r->out, s);
    case JN_IF:
        return if_chain(r, n);
    case JN_FOR:
        return for_loop(r, n);
    case JN_SET:
        CLB_TRY(clb_jeval(r, n->a, &v));
        return assign(r, n, v);
    case JN_SET_BLOCK:
        CLB_TRY(capture(r, n->a, &v));
        CLB_TRY(filter_chain(r, n->b, &v));
        return assign(r, n, v);
    case JN_MACRO:
        return define_macro(r, n);
    case JN_FILTER_BLOCK:
        CLB_TRY(capture(r, n->a, &v));
        CLB_TRY(filter_chain(r, n->b, &v));
        CLB_TRY(clb_jto_str(r, &v, &s));
        return clb_jout_put(r, r->out, s);
    case JN_BREAK:
    case JN_CONTINUE:
        r->flow = n->kind == JN_BREAK ? JF_BREAK : JF_CONTINUE;
        return COLIBRI_OK;
    default:
        return clb_jfail(r, COLIBRI_E_INTERNAL, "an expression among statements");
    }
}

int clb_jexec(clb_jrun *r, const clb_jnode *s)
{
    r->line = s->line;
    if (++r->steps > CLB_JINJA_MAX_STEPS)
        return clb_jfail(r, COLIBRI_E_LIMIT, "the template does not come to an end");
    if (++r->depth > 4 * CLB_JINJA_MAX_DEPTH)
        return clb_jfail(r, COLIBRI_E_LIMIT, "calls are nested too deeply");
    CLB_TRY(exec(r, s));
    r->depth--;
    return COLIBRI_OK;
}

static clb_jvalue text(clb_str s, enum clb_jtaint taint)
{
    return (clb_jvalue){.type = J_STR, .as.s = {.p = s.n ? s.p : "", .n = s.n, .taint = taint}};
}

/* The variables that transformers gives to a template; those of the caller go before them. */
static int variables(clb_jrun *r, const clb_jinja_input *in)
{
    clb_jvalue list, none = {.type = J_NONE};
    CLB_TRY(clb_jlist_new(r, &list));
    for (size_t i = 0; i < in->n; i++) {
        clb_jvalue m;
        CLB_TRY(clb_jdict_new(r, &m));
        CLB_TRY(clb_jdict_set(r, m.as.dict, clb_jstr_lit("role"), text(in->messages[i].role, J_CLEAN)));
        CLB_TRY(clb_jdict_set(r, m.as.dict, clb_jstr_lit("content"), text(in->messages[i].content, J_TAINTED)));
        CLB_TRY(clb_jlist_push(r, list.as.list, m));
    }
    CLB_TRY(clb_jassign(r, "messages", list));
    CLB_TRY(clb_jassign(r, "add_generation_prompt", clb_jbool(in->add_generation_prompt)));
    CLB_TRY(clb_jassign(r, "bos_token", text(in->bos_token, J_CLEAN)));
    CLB_TRY(clb_jassign(r, "eos_token", text(in->eos_token, J_CLEAN)));
    CLB_TRY(clb_jassign(r, "tools", none));
    CLB_TRY(clb_jassign(r, "documents", none));
    for (size_t i = 0; in->values && i < in->values->as.dict->n; i++) {
        const clb_jstr key = in->values->as.dict->keys[i].as.s;
        clb_jvalue copy;
        void *name;
        CLB_TRY(clb_jalloc(&r->arena, key.n + 1, &name, r->err));
        memcpy(name, key.p, key.n);
        CLB_TRY(clb_jcopy(r, &in->values->as.dict->values[i], 0, &copy));
        CLB_TRY(clb_jassign(r, name, copy));
    }
    return COLIBRI_OK;
}

void clb_jinja_output_free(clb_jinja_output *out)
{
    clb_buf_free(&out->text);
    clb_buf_free(&out->taint);
}

int clb_jinja_render(const clb_jinja *t, const clb_jinja_input *in, clb_jinja_output *out, clb_error *err)
{
    clb_jscope *none;
    clb_jout o = {0};
    clb_jrun r = {.t = t, .out = &o, .now = in->now, .err = err};
    size_t bytes = 0;
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < in->n; i++)
        bytes += in->messages[i].content.n;
    bytes += in->values ? clb_jbytes(in->values, 0) : 0;
    r.arena.limit = ((size_t)256 << 20) + (bytes < SIZE_MAX / 256 ? 64 * bytes : 0);
    CLB_GO(push_scope(&r, NULL, &none));
    CLB_GO(variables(&r, in));
    CLB_GO(clb_jexec(&r, t->root));
    CLB_GO(clb_buf_append(&out->text, o.p, o.n, err));
    CLB_GO(clb_buf_append(&out->taint, o.marks, o.n, err));
done:
    clb_jarena_free(&r.arena);
    return rc;
}
