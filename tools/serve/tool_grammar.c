/* A grammar that makes the model call. What every call begins with is written into the prompt, where the marks are
 * tokens; the grammar is for the rest. */
#include "serve/tool_grammar.h"

#include <string.h>

#include "serve/tool_impl.h"
#include "serve/tool_rules.h"

static const json_t *find_tool(const json_t *tools, const char *only, size_t *n)
{
    const json_t *tool, *found = NULL;
    size_t i;
    *n = 0;
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        if (only && strcmp(only, json_string_value(json_object_get(f, "name"))) != 0)
            continue;
        found = f;
        ++*n;
    }
    return found;
}

int clb_tool_grammar(const clb_tool_format *f, const clb_vocab *vocab, const json_t *tools, const char *only,
                     bool one_call, clb_buf *prefill, clb_buf *gbnf, clb_error *err)
{
    clb_call_rules m;
    char rule[CLB_GBNF_NAME];
    size_t n;
    const json_t *single = find_tool(tools, only, &n);
    const bool once = one_call || only || f->shape == CLB_SHAPE_HARMONY || clb_is_format(f, "functionary-v3.2");
    int rc = COLIBRI_OK;
    if (n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no function \"%s\" among the tools", only ? only : "");
    CLB_GO(clb_rules_begin(&m, f, vocab, err));
    CLB_GO(clb_write_open(f, 0, prefill, err));
    if (n > 1 || !once)
        single = NULL;
    if (single) { /* the name is known: only the arguments are left */
        CLB_GO(clb_write_head(f, json_string_value(json_object_get(single, "name")), prefill, err));
        if ((f->shape == CLB_SHAPE_XML || f->shape == CLB_SHAPE_PYTHON) && f->call_open && f->call_open[0])
            CLB_GO(clb_buf_printf(prefill, err, "\n"));
    }
    CLB_GO(clb_calls_rule(&m, tools, only, single, rule));
    m.body.n = 0;
    CLB_GO(clb_put_calls(&m, rule, 0, once));
    rc = clb_rules_finish(&m, gbnf);
done:
    clb_rules_free(&m);
    return rc;
}
