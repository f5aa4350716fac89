/* For tests of OpenAI's endpoints: one server and one exchange (serve_fake.h), bodies that are refused, and what was
 * answered as JSON. */
#ifndef CLB_TESTS_OPENAI_FAKE_H
#define CLB_TESTS_OPENAI_FAKE_H

#include "serve_fake.h"

static clb_app app;
static clb_exchange x;

static inline int open_app(void **state)
{
    (void)state;
    fake_app_open(&app);
    return 0;
}

static inline int close_app(void **state)
{
    (void)state;
    fake_app_close(&app);
    return 0;
}

/* All handles are given back, all is freed: the next test begins anew. */
static inline int reset(void **state)
{
    (void)state;
    assert_int_equal(fake.released, fake.n);
    exchange_reset(&x, NULL);
    fake_reset();
    return 0;
}

/* The body of a plain reply; json_decref it. */
static inline json_t *answer(void)
{
    json_error_t e;
    json_t *o = json_loadb(x.out.data, x.out.n, 0, &e);
    if (!o)
        fail_msg("no JSON (%s): %s", e.text, x.out.data);
    return o;
}

/* ---- bodies that are refused ---- */

struct bad {
    const char *body, *param, *code;
    const char *message; /* a part of it; NULL: whatever it says */
};

static inline void refuses(void (*handle)(void *app, clb_exchange *x), const struct bad *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct bad *c = &cases[i];
        exchange_reset(&x, c->body);
        handle(&app, &x);
        json_t *o = answer();
        const json_t *e = json_object_get(o, "error");
        if (x.status != 400 || !e)
            fail_msg("%s: status %d: %s", c->body, x.status, x.out.data);
        const char *param = json_string_value(json_object_get(e, "param"));
        const char *code = json_string_value(json_object_get(e, "code"));
        const char *message = json_string_value(json_object_get(e, "message"));
        if (strcmp(param ? param : "", c->param ? c->param : "") || strcmp(code ? code : "", c->code ? c->code : ""))
            fail_msg("%s: %s", c->body, x.out.data);
        if (!message || !*message || (c->message && !test_contains(message, c->message)))
            fail_msg("%s: %s lacks '%s'", c->body, x.out.data, c->message ? c->message : "a message");
        assert_string_equal(json_string_value(json_object_get(e, "type")), "invalid_request_error");
        assert_string_equal(x.type, "application/json");
        assert_int_equal(fake.n, 0); /* nothing was submitted */
        json_decref(o);
        exchange_reset(&x, NULL);
    }
}
#define REFUSES(handle, cases) refuses(handle, cases, sizeof(cases) / sizeof *(cases))

/* ---- events of a stream ---- */

/* Where the i-th begins; NULL: there are no more. */
static inline const char *event_at(size_t i)
{
    const char *at = x.out.data;
    for (; at && i; i--) {
        at = strstr(at, "\n\n");
        at = at ? at + 2 : NULL;
    }
    return at && *at ? at : NULL;
}

/* The data of the one that begins here; json_decref it. */
static inline json_t *event_data(const char *at)
{
    const char *const data = strstr(at, "data: "), *const end = strstr(at, "\n\n");
    assert_true(data && end && data < end);
    json_error_t e;
    json_t *o = json_loadb(data + 6, (size_t)(end - data - 6), 0, &e);
    if (!o)
        fail_msg("event is no JSON (%s): %s", e.text, at);
    return o;
}

#endif
