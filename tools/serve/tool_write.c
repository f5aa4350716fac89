/* Calls as the model would write them: for prompts of templates that do not, and as the example of how to. */
#include <stdlib.h>
#include <string.h>

#include "serve/tool_write.h"

static int mark(clb_marked *m, const char *text, clb_error *err)
{
    return text ? clb_marked_add(m, text, strlen(text), false, err) : COLIBRI_OK;
}

int clb_marked_add(clb_marked *m, const char *text, size_t n, bool tainted, clb_error *err)
{
    static const char ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const char zeros[64];
    CLB_TRY(clb_buf_append(&m->text, text, n, err));
    for (size_t i = 0; i < n; i += 64)
        CLB_TRY(clb_buf_append(&m->taint, tainted ? ones : zeros, n - i < 64 ? n - i : 64, err));
    return COLIBRI_OK;
}

void clb_marked_free(clb_marked *m)
{
    clb_buf_free(&m->text);
    clb_buf_free(&m->taint);
}

static int data(clb_marked *m, const char *text, clb_error *err)
{
    return clb_marked_add(m, text, strlen(text), true, err);
}

static int python_call(clb_marked *m, const char *name, const json_t *arguments, clb_error *err)
{
    const char *key;
    json_t *value;
    size_t i = 0;
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_buf_printf(&text, err, "%s(", name));
    json_object_foreach((json_t *)arguments, key, value)
    {
        CLB_GO(clb_buf_printf(&text, err, "%s%s=", i++ ? ", " : "", key));
        CLB_GO(clb_json_to_python(value, &text, err));
    }
    CLB_GO(clb_buf_append(&text, ")", 1, err));
    CLB_GO(data(m, text.data, err));
done:
    clb_buf_free(&text);
    return rc;
}

static int json_call(const clb_tool_format *f, clb_marked *m, const char *name, const char *arguments, clb_error *err)
{
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    if (f->key_is_name)
        CLB_GO(clb_buf_printf(&text, err, "{\"%s\": %s}", name, arguments));
    else
        CLB_GO(
            clb_buf_printf(&text, err, "{\"%s\": \"%s\", \"%s\": %s}", f->name_key, name, f->arguments_key, arguments));
    CLB_GO(data(m, text.data, err));
done:
    clb_buf_free(&text);
    return rc;
}

int clb_tool_write_calls(const clb_tool_format *f, const clb_written_call *calls, size_t n, clb_marked *m,
                         clb_error *err)
{
    const bool list = f->list || f->shape == CLB_SHAPE_PYTHON;
    const bool each = f->shape == CLB_SHAPE_JSON && !f->list; /* marks around every single one */
    for (size_t i = 0; i < n; i++) {
        char *arguments = json_dumps(calls[i].arguments, 0);
        int rc = arguments ? COLIBRI_OK : CLB_NOMEM(err, "arguments");
        if (!rc && (i == 0 || each))
            rc = mark(m, f->open[0], err);
        if (!rc && i == 0 && list)
            rc = mark(m, "[", err);
        if (!rc && i && list)
            rc = mark(m, ", ", err);
        if (!rc && f->shape == CLB_SHAPE_NAMED) {
            rc = mark(m, f->call_open, err);
            if (!rc)
                rc = data(m, calls[i].name, err);
            if (!rc)
                rc = mark(m, f->sep, err);
            if (!rc)
                rc = data(m, arguments, err);
            if (!rc)
                rc = mark(m, f->call_close, err);
        } else if (!rc && f->shape == CLB_SHAPE_PYTHON) {
            rc = python_call(m, calls[i].name, calls[i].arguments, err);
        } else if (!rc) {
            const bool lines = each && f->close[0];
            rc = mark(m, lines ? "\n" : "", err);
            if (!rc)
                rc = json_call(f, m, calls[i].name, arguments, err);
            if (!rc && lines)
                rc = mark(m, "\n", err);
        }
        if (!rc && each)
            rc = mark(m, f->close[0], err);
        if (!rc && each && i + 1 < n)
            rc = mark(m, "\n", err);
        free(arguments);
        CLB_TRY(rc);
    }
    if (list)
        CLB_TRY(mark(m, "]", err));
    return each ? COLIBRI_OK : mark(m, f->close[0], err);
}

bool clb_tool_writes(const clb_tool_format *f)
{
    return f->shape == CLB_SHAPE_JSON || f->shape == CLB_SHAPE_NAMED || f->shape == CLB_SHAPE_PYTHON;
}

int clb_tool_explain(const clb_tool_format *f, const json_t *tools, bool one_call, clb_marked *m, clb_error *err)
{
    const json_t *tool;
    size_t i;
    json_t *example = json_pack("{s:s}", "parameter", "value");
    const clb_written_call call = {"function_name", example};
    int rc = example ? COLIBRI_OK : CLB_NOMEM(err, "explanation of tools");
    if (rc)
        goto done;
    CLB_GO(mark(m, "You can call functions. Here they are, one JSON object per line:\n<tools>\n", err));
    json_array_foreach(tools, i, tool)
    {
        char *text = json_dumps(json_object_get(tool, "function"), 0);
        rc = text ? data(m, text, err) : CLB_NOMEM(err, "explanation of tools");
        free(text);
        CLB_GO(rc);
        CLB_GO(mark(m, "\n", err));
    }
    CLB_GO(
        mark(m, "</tools>\n\nTo call a function, write its name and arguments as JSON, exactly in this form:\n", err));
    CLB_GO(clb_tool_write_calls(f, &call, 1, m, err));
    CLB_GO(
        mark(m, one_call ? "\nCall at most one function at a time." : "\nSeveral calls may follow each other.", err));
    CLB_GO(mark(m, " Answer in plain text where no function helps.", err));
done:
    json_decref(example);
    return rc;
}
