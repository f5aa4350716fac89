/* Grammars from files. */
#include "constrain.h"

#include "model_run.h"
#include "serve/schema.h"

/* A schema's JSON -> GBNF. */
static int convert(const char *path, const clb_buf *text, clb_buf *gbnf, clb_error *err)
{
    json_error_t where;
    json_t *schema =
        json_loadb(text->data ? text->data : "", text->n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (!schema)
        return clb_fail(err, COLIBRI_E_USAGE, "%s, line %d: %s", path, where.line, where.text);
    int rc = clb_schema_to_gbnf(schema, gbnf, err);
    json_decref(schema);
    return rc ? clb_context(err, "%s", path) : COLIBRI_OK;
}

int clb_constraint_read(clb_args *args, clb_constraint *c, clb_error *err)
{
    const char *grammar = clb_args_value(args, "grammar"), *schema = clb_args_value(args, "json-schema");
    const char *path = grammar ? grammar : schema;
    clb_buf text = {0}, gbnf = {0};
    int rc = COLIBRI_OK;
    if (!path)
        return COLIBRI_OK;
    if (grammar && schema)
        return clb_fail(err, COLIBRI_E_USAGE,
                        "--grammar and --json-schema do not go together: each says what the text may be");
    CLB_GO(clb_read_input(path, &text, err));
    if (schema)
        CLB_GO(convert(path, &text, &gbnf, err));
    const clb_buf *use = schema ? &gbnf : &text;
    rc = clb_grammar_parse((clb_str){use->data ? use->data : "", use->n}, &c->grammar, err);
    if (rc)
        clb_context(err, "%s", path);
done:
    clb_buf_free(&text);
    clb_buf_free(&gbnf);
    return rc;
}

int clb_constraint_open(clb_constraint *c, const clb_vocab *vocab, clb_matcher **matcher, clb_error *err)
{
    *matcher = NULL;
    if (!c->grammar)
        return COLIBRI_OK;
    CLB_TRY(clb_token_tree_create(vocab, &c->tree, err));
    CLB_TRY(clb_matcher_create(c->grammar, c->tree, &c->matcher, err));
    *matcher = c->matcher;
    return COLIBRI_OK;
}

void clb_constraint_close(clb_constraint *c)
{
    clb_matcher_destroy(c->matcher);
    clb_token_tree_destroy(c->tree);
    clb_grammar_release(c->grammar);
    *c = (clb_constraint){0};
}
