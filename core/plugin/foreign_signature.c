/* "double(u32 layer, u64 age)": an author names the arguments that a function wants; the host knows what they are. */
#include <ctype.h>
#include <string.h>

#include "base/str.h"
#include "plugin/foreign_private.h"

static const struct {
    const char *name;
    enum clb_foreign_type type;
} types[] = {{"void", CLB_FT_VOID}, {"u32", CLB_FT_U32},   {"u64", CLB_FT_U64},   {"f32", CLB_FT_F32},
             {"f64", CLB_FT_F64},   {"float", CLB_FT_F32}, {"double", CLB_FT_F64}};

static const struct {
    const char *name;
    enum clb_foreign_type type;
    unsigned functions;
} arguments[CLB_ARG_COUNT] = {
#define TYPE_u32                   CLB_FT_U32
#define TYPE_u64                   CLB_FT_U64
#define TYPE_f32                   CLB_FT_F32
#define TYPE_f64                   CLB_FT_F64
#define ROW(name, type, functions) {#name, TYPE_##type, functions},
    CLB_FOREIGN_ARGUMENTS(ROW)
#undef ROW
};

static const char *type_name(enum clb_foreign_type type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type)
            return types[i].name;
    return "?";
}

static const char *skip_blanks(const char *p)
{
    while (*p == ' ' || *p == '\t')
        p++;
    return p;
}

/* A word of [A-Za-z0-9_]; "" if there is none. */
static const char *take_word(const char *p, char word[64])
{
    size_t n = 0;
    p = skip_blanks(p);
    while (isalnum((unsigned char)*p) || *p == '_') {
        if (n + 1 < 64)
            word[n++] = *p;
        p++;
    }
    word[n] = '\0';
    return skip_blanks(p);
}

static int take_type(const char **p, enum clb_foreign_type *out, clb_error *err)
{
    char word[64];
    const char *const rest = take_word(*p, word);
    if (!*word)
        return clb_fail(err, COLIBRI_E_USAGE, "a type is expected at '%.40s'", *p);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, word)) {
            *out = types[i].type;
            *p = rest;
            return COLIBRI_OK;
        }
    return clb_fail(err, COLIBRI_E_USAGE,
                    "unknown type '%s' (there are u32, u64, f32 or float, f64 or double, and void for no result)",
                    word);
}

static int take_argument(const char **p, unsigned function, clb_foreign_signature *out, clb_error *err)
{
    enum clb_foreign_type as;
    char word[64];
    CLB_TRY(take_type(p, &as, err));
    *p = take_word(*p, word);
    if (!*word)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "a name is expected behind '%s': arguments are chosen by name, as in 'u64 age'", type_name(as));
    const char *names[CLB_ARG_COUNT];
    size_t n = 0;
    for (unsigned i = 0; i < CLB_ARG_COUNT; i++) {
        if (!(arguments[i].functions & function))
            continue;
        names[n++] = arguments[i].name;
        if (strcmp(arguments[i].name, word) != 0)
            continue;
        if (as != arguments[i].type && as != CLB_FT_F64)
            return clb_fail(err, COLIBRI_E_USAGE, "argument '%s' is %s%s, not %s", word, type_name(arguments[i].type),
                            arguments[i].type == CLB_FT_F64 ? "" : " (or f64)", type_name(as));
        if (out->n == CLB_FOREIGN_MAX_ARGS)
            return clb_fail(err, COLIBRI_E_USAGE, "more than %u arguments", CLB_FOREIGN_MAX_ARGS);
        out->arg[out->n].what = (enum clb_foreign_argument)i;
        out->arg[out->n++].as = as;
        return COLIBRI_OK;
    }
    const long near = clb_nearest(word, names, n);
    return clb_fail(err, COLIBRI_E_USAGE, "there is no argument '%s' here%s%s%s", word,
                    near >= 0 ? "; did you mean '" : " (docs/foreign.md lists them)", near >= 0 ? names[near] : "",
                    near >= 0 ? "'?" : "");
}

static int parse(const char *p, unsigned function, clb_foreign_signature *out, clb_error *err)
{
    *out = (clb_foreign_signature){0};
    CLB_TRY(take_type(&p, &out->result, err));
    const bool scores = function == CLB_FOREIGN_IN_SCORE || function == CLB_FOREIGN_IN_KV;
    if (scores && out->result != CLB_FT_F64 && out->result != CLB_FT_F32)
        return clb_fail(err, COLIBRI_E_USAGE, "a score is a double or a float");
    if (!scores && out->result != CLB_FT_VOID)
        return clb_fail(err, COLIBRI_E_USAGE, "this function returns nothing: write void(...)");
    if (*p != '(')
        return clb_fail(err, COLIBRI_E_USAGE, "'(' is expected behind the type of the result");
    p = skip_blanks(p + 1);
    char word[64];
    const char *const after = take_word(p, word);
    if (!strcmp(word, "void") && *after == ')')
        p = after;
    while (*p != ')') {
        CLB_TRY(take_argument(&p, function, out, err));
        if (*p == ',') {
            p = skip_blanks(p + 1);
            if (*p == ')')
                return clb_fail(err, COLIBRI_E_USAGE, "an argument is expected behind ','");
        } else if (*p != ')') {
            return clb_fail(err, COLIBRI_E_USAGE, "',' or ')' is expected at '%.40s'", *p ? p : "the end");
        }
    }
    p = skip_blanks(p + 1);
    return *p ? clb_fail(err, COLIBRI_E_USAGE, "text behind ')': '%.40s'", p) : COLIBRI_OK;
}

int clb_foreign_parse(const char *text, unsigned function, clb_foreign_signature *out, clb_error *err)
{
    return parse(skip_blanks(text), function, out, err);
}

bool clb_foreign_asks(const clb_foreign_signature *s, enum clb_foreign_argument what)
{
    for (unsigned i = 0; i < s->n; i++)
        if (s->arg[i].what == what)
            return true;
    return false;
}
