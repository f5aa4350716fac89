/* Tests ("x is ...") of the Jinja interpreter. */
#include <string.h>

#include "text/jinja_impl.h"

static bool same_case(const clb_jvalue *v, char from, char to)
{
    bool letter = false;
    if (v->type != J_STR)
        return false;
    for (size_t i = 0; i < v->as.s.n; i++) {
        const char c = v->as.s.p[i];
        if (c >= from && c <= to)
            return false;
        letter |= (c | 32) >= 'a' && (c | 32) <= 'z';
    }
    return letter;
}

int clb_jtest(clb_jrun *r, const char *name, const clb_jvalue *of, const clb_jargs *a, bool *out)
{
    const enum clb_jtype t = of->type;
    const clb_jvalue *v = clb_jarg(a, 0, NULL);
    const struct {
        const char *name;
        bool holds;
    } simple[] = {{"defined", t != J_UNDEFINED},
                  {"undefined", t == J_UNDEFINED},
                  {"none", t == J_NONE},
                  {"string", t == J_STR},
                  {"mapping", t == J_DICT},
                  {"number", t == J_INT || t == J_FLOAT || t == J_BOOL},
                  {"integer", t == J_INT},
                  {"float", t == J_FLOAT},
                  {"boolean", t == J_BOOL},
                  {"true", t == J_BOOL && of->as.b},
                  {"false", t == J_BOOL && !of->as.b},
                  {"iterable", t == J_STR || t == J_LIST || t == J_DICT || t == J_UNDEFINED},
                  {"sequence", t == J_STR || t == J_LIST || t == J_DICT || t == J_UNDEFINED},
                  {"callable", t == J_MACRO || t == J_FUNCTION || t == J_METHOD},
                  {"lower", same_case(of, 'A', 'Z')},
                  {"upper", same_case(of, 'a', 'z')}};
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (strcmp(simple[i].name, name) == 0) {
            *out = simple[i].holds;
            return COLIBRI_OK;
        }
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0) {
        if (t != J_INT)
            return clb_jfail(r, COLIBRI_E_USAGE, "%s is %s", clb_jtype_name(of), name);
        *out = (of->as.i % 2 != 0) == (name[0] == 'o');
        return COLIBRI_OK;
    }
    static const struct {
        const char *name;
        char how;
    } binary[] = {{"equalto", '='}, {"eq", '='}, {"==", '='},       {"sameas", '='}, {"ne", '!'}, {"!=", '!'},
                  {"in", 'i'},      {"lt", '<'}, {"lessthan", '<'}, {"<", '<'},      {"gt", '>'}, {"greaterthan", '>'},
                  {">", '>'},       {"le", 'l'}, {"<=", 'l'},       {"ge", 'g'},     {">=", 'g'}, {"divisibleby", '%'}};
    char how = 0;
    for (size_t i = 0; i < sizeof binary / sizeof *binary; i++)
        if (strcmp(binary[i].name, name) == 0)
            how = binary[i].how;
    if (!how)
        return clb_jfail(r, COLIBRI_E_UNSUPPORTED, "unknown test \"%s\"", name);
    if (!v)
        return clb_jfail(r, COLIBRI_E_USAGE, "test %s takes an argument", name);
    int order = 0;
    clb_jlist items;
    if (how == '=' || how == '!') {
        *out = clb_jequal(of, v) == (how == '=');
    } else if (how == 'i') {
        *out = false;
        if (v->type == J_STR && t == J_STR) {
            *out = of->as.s.n == 0 || memmem(v->as.s.p, v->as.s.n, of->as.s.p, of->as.s.n) != NULL;
            return COLIBRI_OK;
        }
        CLB_TRY(clb_jiterate(r, v, &items));
        for (size_t i = 0; i < items.n && !*out; i++)
            *out = clb_jequal(&items.items[i], of);
    } else if (how == '%') {
        if (t != J_INT || v->type != J_INT || v->as.i == 0 || v->as.i == -1)
            return clb_jfail(r, COLIBRI_E_USAGE, "divisibleby takes numbers");
        *out = of->as.i % v->as.i == 0;
    } else {
        CLB_TRY(clb_jorder(r, of, v, &order));
        *out = how == '<' ? order < 0 : how == '>' ? order > 0 : how == 'l' ? order <= 0 : order >= 0;
    }
    return COLIBRI_OK;
}
