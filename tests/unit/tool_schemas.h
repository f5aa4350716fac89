/* For tests of functions' schemas: the grammar of a call of one function with these parameters. */
#ifndef CLB_TESTS_TOOL_SCHEMAS_H
#define CLB_TESTS_TOOL_SCHEMAS_H

#include <time.h>

#include "serve/tool_grammar.h"
#include "serve/tool_impl.h"
#include "tool_replies.h"

#define SECONDS 10 /* with sanitizers; without such limits it would be minutes to centuries */

static inline double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One function `f` with these parameters. */
static inline json_t *tools_with(const char *parameters, bool strict)
{
    json_error_t e;
    json_t *const schema = json_loads(parameters, 0, &e);
    if (!schema)
        fail_msg("%s: %.200s", e.text, parameters);
    json_t *const v = json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function", "function", "name", "f", "strict",
                                strict, "parameters", schema);
    assert_non_null(v);
    return v;
}

/* The grammar of a call that must be. */
static inline int grammar_of(const char *format, const char *parameters, bool strict, clb_buf *prefill, clb_buf *gbnf,
                             clb_error *err)
{
    json_t *const of = tools_with(parameters, strict);
    const double begin = cpu();
    const int rc = clb_tool_grammar(clb_tool_format_by_name(format), vocab, of, NULL, true, prefill, gbnf, err);
    if (cpu() - begin > SECONDS)
        fail_msg("%s: %.1f s for %.100s", format, cpu() - begin, parameters);
    json_decref(of);
    return rc;
}

/* Refused for a strict function with these words; followed or left free for others. */
static inline void refused(const char *format, const char *parameters, const char *words)
{
    clb_buf gbnf = {0}, prefill = {0};
    clb_error err = {0};
    if (!grammar_of(format, parameters, true, &prefill, &gbnf, &err) || !strstr(err.msg, words))
        fail_msg("%s: \"%s\" instead of \"%s\" for %.200s", format, err.msg, words, parameters);
    prefill.n = gbnf.n = 0;
    assert_ok(grammar_of(format, parameters, false, &prefill, &gbnf, &err), &err);
    clb_grammar *g;
    if (clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &g, &err))
        fail_msg("%s for %.200s\n%.2000s", err.msg, parameters, gbnf.data);
    clb_grammar_release(g);
    clb_buf_free(&gbnf);
    clb_buf_free(&prefill);
}

/* The grammar of a call takes this text behind what it begins with; strict or not. */
static inline bool takes(const char *format, const char *parameters, bool strict, const char *text)
{
    clb_buf gbnf = {0}, prefill = {0};
    clb_error err = {0};
    assert_ok(grammar_of(format, parameters, strict, &prefill, &gbnf, &err), &err);
    const bool good = follows(gbnf.data, text);
    clb_buf_free(&gbnf);
    clb_buf_free(&prefill);
    return good;
}

#endif
