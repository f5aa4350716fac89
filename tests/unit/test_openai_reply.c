/* From the scheduler's events to OpenAI's words, one step at a time: the order of a stream's chunks, errors before and
 * after its beginning, prompts that wait, clients that go away. */
#include "openai_fake.h"
#include "serve/completion.h"
#include "serve/metrics.h"
#include "support/vocab_image.h"

static void complete(const char *body)
{
    exchange_reset(&x, body);
    clb_serve_completions(&app, &x);
}

static void chat(const char *body)
{
    exchange_reset(&x, body);
    clb_serve_chat_completions(&app, &x);
}

static json_t *event(size_t i)
{
    const char *at = event_at(i);
    if (!at)
        fail_msg("no event %zu in: %s", i, x.out.data);
    assert_memory_equal(at, "data: ", 6);
    return event_data(at);
}

static size_t n_events(void)
{
    size_t n = 0;
    for (const char *at = x.out.data; x.out.n && (at = strstr(at, "\n\n")); at += 2)
        n++;
    return n;
}

/* A path of names and indices: "choices.0.delta.content". */
static json_t *at(json_t *o, const char *path)
{
    char part[64];
    while (o && *path) {
        const size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(part)) : json_object_get(o, part);
        path += n + (path[n] == '.');
    }
    return o;
}

static void assert_text(json_t *o, const char *path, const char *want)
{
    const json_t *v = at(o, path);
    if (!json_is_string(v) || strcmp(json_string_value(v), want)) {
        char *text = json_dumps(o, 0);
        fail_msg("%s is not '%s' in %s", path, want, text);
    }
}

static void assert_error(int status, const char *type, const char *code)
{
    assert_int_equal(x.status, status);
    assert_true(x.ended && !x.streams);
    json_t *o = answer();
    assert_text(o, "error.type", type);
    if (code)
        assert_text(o, "error.code", code);
    else
        assert_true(json_is_null(at(o, "error.code")));
    json_decref(o);
}

static void a_whole_reply(void **state)
{
    (void)state;
    complete("{\"prompt\":[\"one\",\"two\"],\"n\":2,\"stop\":[\"X\",\"Y\"],\"seed\":7,\"max_tokens\":9,\"logit_bias\":{"
             "\"3\":-100,\"4\":1.5}}");
    assert_int_equal(fake.n, 2);
    const clb_request_options *o = &fake.requests[1]->o;
    assert_int_equal(o->n_choices, 2);
    assert_int_equal(o->n_stops, 2);
    assert_int_equal(o->sampling.seed, 7);
    assert_int_equal(o->max_tokens, 9);
    assert_int_equal(o->n_logprobs, -1);
    assert_int_equal(o->n_bias, 2);
    fake_text(1, 1, "d\"\n");
    fake_text(0, 0, "a");
    fake_text(0, 1, "b");
    fake_text(0, 0, "A");
    fake_text(1, 0, "c\xff");
    fake_choice(1, 0, CLB_FINISH_STOP, 1);
    fake_choice(1, 1, CLB_FINISH_CONTEXT, 2);
    fake_done(1, COLIBRI_OK, "", 3);
    assert_int_equal(x.status, 0);
    fake_choice(0, 1, CLB_FINISH_LENGTH, 4);
    fake_choice(0, 0, CLB_FINISH_STOP, 5);
    fake_done(0, COLIBRI_OK, "", 9);
    assert_int_equal(x.status, 200);
    assert_true(x.ended && !x.streams);
    json_t *r = answer();
    static const char *const texts[] = {"aA", "b", "c\xef\xbf\xbd", "d\"\n"}, *const finish[] = {"stop", "length",
                                                                                                 "stop", "length"};
    assert_int_equal(json_array_size(at(r, "choices")), 4);
    for (int i = 0; i < 4; i++) {
        json_t *c = json_array_get(at(r, "choices"), (size_t)i);
        assert_int_equal(json_integer_value(at(c, "index")), i);
        assert_text(c, "text", texts[i]);
        assert_text(c, "finish_reason", finish[i]);
        assert_true(json_is_null(at(c, "logprobs")));
    }
    const json_int_t n_prompt = (json_int_t)(fake.requests[0]->n_prompt + fake.requests[1]->n_prompt);
    assert_int_equal(json_integer_value(at(r, "usage.prompt_tokens")), n_prompt);
    assert_int_equal(json_integer_value(at(r, "usage.completion_tokens")), 12);
    assert_int_equal(json_integer_value(at(r, "usage.total_tokens")), n_prompt + 12);
    assert_text(r, "object", "text_completion");
    assert_text(r, "id", "cmpl-0123");
    assert_text(r, "model", "tiny");
    json_decref(r);
}

static void fields_reach_the_scheduler(void **state)
{
    (void)state;
    app.timeout_ns = 60000000000u;
    chat("{\"model\":\"gpt-4o\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0.25,\"top_p\":0."
         "5,\"top_k\":-1,"
         "\"min_p\":0.125,\"presence_penalty\":-1.5,\"frequency_penalty\":1.5,\"repeat_penalty\":1.25,\"repeat_last_"
         "n\":-1,"
         "\"seed\":-5,\"max_tokens\":7,\"max_completion_tokens\":8,\"logit_bias\":{\"3\":-100,\"4\":-99.5},\"ignore_"
         "eos\":true,"
         "\"logprobs\":true,\"top_logprobs\":20,\"lora\":[{\"id\":2,\"scale\":0.5}],\"user\":\"me\",\"store\":true,"
         "\"metadata\":{},"
         "\"mirostat\":0,\"typical_p\":1.0,\"cache_prompt\":true,\"n\":null,\"stop\":null,\"stream\":null,\"tools\":"
         "null,"
         "\"modalities\":[\"text\"],\"verbosity\":\"medium\"}");
    assert_int_equal(fake.n, 1);
    const clb_request_options *o = &fake.requests[0]->o;
    const clb_sampler_params *p = &o->sampling;
    assert_true(p->temperature == 0.25 && p->top_p == 0.5 && p->top_k == 0 && p->min_p == 0.125);
    assert_true(p->presence_penalty == -1.5 && p->frequency_penalty == 1.5 && p->repeat_penalty == 1.25);
    assert_int_equal(p->repeat_last_n, 2048); /* the context, and no more */
    assert_true(p->seed == (uint64_t)-5);
    assert_int_equal(o->max_tokens, 8);
    assert_true(o->ignore_eog && o->lora_given && !o->score_prompt && !o->embed && !o->no_text);
    assert_int_equal(o->n_logprobs, 20);
    assert_int_equal(o->n_lora, 1);
    assert_int_equal(o->n_choices, 1);
    assert_true(o->timeout_ns > 50000000000u && o->timeout_ns <= 60000000000u);
    fake_done(0, COLIBRI_E_INTERNAL, "enough", 0);
    reset(NULL);
    app.timeout_ns = 0;

    /* what is not given is as the server was started; seeds differ */
    uint64_t seeds[2];
    for (int i = 0; i < 2; i++) {
        complete(i ? "{\"prompt\":\"a\",\"seed\":-1,\"lora\":[],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}"
                   : "{\"prompt\":\"a\"}");
        o = &fake.requests[0]->o;
        assert_true(o->sampling.temperature == 0.8 && o->sampling.top_k == 40);
        assert_int_equal(o->max_tokens, 2048);
        assert_int_equal(o->n_logprobs, i - 1);
        assert_true(o->lora_given == (i == 1) && o->n_lora == 0 && o->no_text == (i == 1) &&
                    o->score_prompt == (i == 1));
        seeds[i] = o->sampling.seed;
        fake_done(0, COLIBRI_E_INTERNAL, "enough", 0);
        reset(NULL);
    }
    assert_true(seeds[0] != seeds[1]);
    app.sampling.seed = 42; /* of the operator's */
    app.max_tokens = 11;
    complete("{\"prompt\":\"a\"}");
    assert_int_equal(fake.requests[0]->o.sampling.seed, 42);
    assert_int_equal(fake.requests[0]->o.max_tokens, 11);
    fake_done(0, COLIBRI_E_INTERNAL, "enough", 0);
    reset(NULL);
    complete("{\"prompt\":\"a\",\"max_tokens\":-1,\"seed\":0}");
    assert_int_equal(fake.requests[0]->o.sampling.seed, 0);
    assert_int_equal(fake.requests[0]->o.max_tokens, 2048);
    fake_done(0, COLIBRI_E_INTERNAL, "enough", 0);
    app.sampling.seed = 0;
    app.max_tokens = 0;
}

static void a_chat_stream(void **state)
{
    (void)state;
    chat("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":2,\"stream\":true,\"stream_options\":{\"include_"
         "usage\":true}}");
    assert_int_equal(fake.n, 1);
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED});
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_PROMPT, .n_done = 2});
    assert_int_equal(x.status, 0); /* nothing is promised before the first text */
    fake_text(0, 1, "b");
    assert_int_equal(x.status, 200);
    assert_true(x.streams);
    assert_string_equal(x.type, "text/event-stream");
    assert_non_null(strstr(x.headers, "Cache-Control: no-cache"));
    assert_int_equal(n_events(), 2); /* sent at once */
    fake_text(0, 0, "a");
    fake_choice(0, 1, CLB_FINISH_LENGTH, 1);
    assert_int_equal(n_events(), 5);
    fake_text(0, 0, "A");
    fake_choice(0, 0, CLB_FINISH_STOP, 2);
    assert_int_equal(n_events(), 6); /* the last end waits for the figures */
    assert_false(x.ended);
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_DONE, .n_generated = 3, .n_reused = 1, .prompt_ns = 5000000});
    assert_true(x.ended);
    static const struct {
        int index;
        const char *content, *finish;
    } want[] = {{1, NULL, NULL},     {1, "b", NULL}, {0, NULL, NULL},  {0, "a", NULL},
                {1, NULL, "length"}, {0, "A", NULL}, {0, NULL, "stop"}};
    for (size_t i = 0; i < 7; i++) {
        json_t *e = event(i), *c = at(e, "choices.0");
        assert_text(e, "object", "chat.completion.chunk");
        assert_text(e, "id", "chatcmpl-0123");
        assert_true(json_is_null(at(e, "usage")));
        assert_int_equal(json_integer_value(at(c, "index")), want[i].index);
        if (i == 0 || i == 2) {
            assert_text(c, "delta.role", "assistant");
            assert_true(json_is_null(at(c, "delta.content")));
        } else if (want[i].content) {
            assert_text(c, "delta.content", want[i].content);
            assert_null(at(c, "delta.role"));
        } else {
            assert_int_equal(json_object_size(at(c, "delta")), 0);
        }
        if (want[i].finish)
            assert_text(c, "finish_reason", want[i].finish);
        else
            assert_true(json_is_null(at(c, "finish_reason")));
        json_decref(e);
    }
    json_t *usage = event(7);
    assert_int_equal(json_array_size(at(usage, "choices")), 0);
    assert_true(json_is_array(at(usage, "choices")));
    assert_int_equal(json_integer_value(at(usage, "usage.completion_tokens")), 3);
    assert_int_equal(json_integer_value(at(usage, "usage.prompt_tokens_details.cached_tokens")), 1);
    assert_int_equal((int)json_real_value(at(usage, "timings.prompt_ms")), 5);
    json_decref(usage);
    const char *end = "\n\ndata: [DONE]\n\n";
    assert_string_equal(x.out.data + x.out.n - strlen(end), end);
    assert_int_equal(n_events(), 9);
}

/* A piece of a choice's text with its tokens, which are of these lengths; `at` is the place of the first of them. */
static void fake_tokens(uint32_t choice, const char *text, uint32_t at, const uint32_t *lengths)
{
    clb_token_info t[8] = {{0}};
    size_t n = 0;
    for (; lengths[n]; n++) {
        t[n] = (clb_token_info){.text_offset = at, .n_bytes = lengths[n]};
        at += lengths[n];
    }
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_TEXT,
                                      .choice = choice,
                                      .text = text,
                                      .n_text = strlen(text),
                                      .tokens = t,
                                      .n_tokens = n});
}

/* Tokens of thoughts are counted with their marks, wherever the pieces are cut. */
static void thoughts_are_counted(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":3}",
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":3,\"stream\":true,"
         "\"stream_options\":{\"include_usage\":true}}"),
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":3,\"reasoning_format\":\"none\"}"};
    for (int k = 0; k < 3; k++) {
        chat(bodies[k]);
        fake_tokens(0, "<think>hm", 0, (const uint32_t[]){7, 2, 0});
        fake_tokens(0, "</think>Hel", 9, (const uint32_t[]){8, 3, 0});
        fake_tokens(0, "lo", 20, (const uint32_t[]){2, 0});
        fake_tokens(1, "Hi", 0, (const uint32_t[]){2, 0});
        fake_tokens(2, "<think>\xc3\xa9 a", 0, (const uint32_t[]){7, 1, 1, 0}); /* " a" is the beginning of a token */
        fake_tokens(2, "b</think>", 9, (const uint32_t[]){3, 8, 0});
        fake_tokens(2, "x", 20, (const uint32_t[]){1, 0});
        for (uint32_t i = 0; i < 3; i++)
            fake_choice(0, i, CLB_FINISH_STOP, 5);
        fake_done(0, COLIBRI_OK, "", 15);
        json_t *r = k == 1 ? event(n_events() - 2) : answer();
        assert_int_equal(json_integer_value(at(r, "usage.completion_tokens")), 15);
        assert_true(json_is_integer(at(r, "usage.completion_tokens_details.reasoning_tokens")));
        assert_int_equal(json_integer_value(at(r, "usage.completion_tokens_details.reasoning_tokens")),
                         k == 2 ? 0 : 3 + 5);
        if (k == 0) {
            assert_text(r, "choices.0.message.reasoning_content", "hm");
            assert_text(r, "choices.0.message.content", "Hello");
            assert_text(r, "choices.2.message.reasoning_content", "\xc3\xa9 ab");
            assert_text(r, "choices.2.message.content", "x");
        }
        json_decref(r);
        reset(NULL);
    }
}

/* With the older form: text, and where it is not asked for no usage, but times with the last chunk. */
static void a_text_stream(void **state)
{
    (void)state;
    complete("{\"prompt\":\"one\",\"echo\":true,\"stream\":true}");
    fake_text(0, 0, "a");
    fake_choice(0, 0, CLB_FINISH_STOP, 1);
    fake_done(0, COLIBRI_OK, "", 1);
    assert_int_equal(n_events(), 4);
    static const char *const texts[] = {"one", "a", ""};
    for (size_t i = 0; i < 3; i++) {
        json_t *e = event(i);
        assert_text(e, "choices.0.text", texts[i]);
        assert_null(at(e, "usage"));
        assert_int_equal(at(e, "timings") != NULL, i == 2);
        json_decref(e);
    }
}

static void errors_before_and_after_the_beginning(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *message;
        int http;
        const char *type, *code;
    } cases[] = {
        {COLIBRI_E_INTERNAL, "a bug", 500, "server_error", NULL},
        {COLIBRI_E_NOMEM, "no memory", 503, "unavailable_error", NULL},
        {COLIBRI_E_CANCELLED, "the server is shutting down", 503, "unavailable_error", "shutting_down"},
        {COLIBRI_E_LIMIT, "no token is left", 400, "invalid_request_error", NULL},
        {COLIBRI_E_USAGE, "wrong", 400, "invalid_request_error", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        complete("{\"prompt\":\"one\",\"stream\":true}");
        fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED});
        fake_done(0, cases[i].status, cases[i].message, 0);
        assert_error(cases[i].http, cases[i].type, cases[i].code);
        reset(NULL);

        complete("{\"prompt\":\"one\",\"stream\":true}");
        fake_text(0, 0, "a");
        fake_done(0, cases[i].status, cases[i].message, 1);
        assert_int_equal(x.status, 200);
        assert_true(x.ended);
        assert_int_equal(n_events(), 2); /* and no [DONE] */
        json_t *e = event(1);
        assert_text(e, "error.message", cases[i].message);
        assert_text(e, "error.type", cases[i].type);
        json_decref(e);
        reset(NULL);

        complete("{\"prompt\":\"one\"}"); /* whole replies have no beginning */
        fake_text(0, 0, "a");
        fake_done(0, cases[i].status, cases[i].message, 1);
        assert_error(cases[i].http, cases[i].type, cases[i].code);
        reset(NULL);
    }
}

static void refusals_of_the_scheduler(void **state)
{
    (void)state;
    fake_refuse(COLIBRI_E_LIMIT, "too long");
    complete("{\"prompt\":\"one two\",\"stream\":true}");
    assert_error(400, "invalid_request_error", "context_length_exceeded");
    json_t *r = answer();
    assert_text(r, "error.param", "prompt");
    assert_int_equal(json_integer_value(at(r, "error.n_ctx")), 2048);
    assert_true(json_integer_value(at(r, "error.n_prompt_tokens")) >= 2);
    json_decref(r);

    fake_refuse(COLIBRI_E_BUSY, "the queue is full");
    complete("{\"prompt\":\"one\"}");
    assert_error(429, "rate_limit_error", "queue_full");
    assert_non_null(strstr(x.headers, "Retry-After: 1\n"));

    fake_refuse(COLIBRI_E_CANCELLED, "the server is shutting down");
    chat("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_error(503, "unavailable_error", "shutting_down");
}

/* One of several prompts fails: the others are cancelled, the client hears of the one that failed, once. */
static void one_prompt_of_several_fails(void **state)
{
    (void)state;
    complete("{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}");
    assert_int_equal(fake.n, 4); /* no more than run at once */
    fake_done(2, COLIBRI_E_INTERNAL, "a bug", 0);
    assert_int_equal(fake.n, 4); /* nothing is submitted any more */
    assert_true(fake.requests[0]->cancelled && fake.requests[1]->cancelled && fake.requests[3]->cancelled);
    assert_int_equal(x.status, 0);
    fake_text(0, 0, "late");
    fake_done(0, COLIBRI_E_CANCELLED, "cancelled", 0);
    fake_done(1, COLIBRI_E_CANCELLED, "cancelled", 0);
    fake_done(3, COLIBRI_E_CANCELLED, "cancelled", 0);
    assert_error(500, "server_error", NULL);
    reset(NULL);

    /* while they are submitted: a stream that an earlier prompt began is not seen */
    fake.refuse_from = 2;
    fake_refuse(COLIBRI_E_LIMIT, "too long");
    complete("{\"prompt\":[\"a\",\"b\",\"c\"],\"stream\":true}");
    assert_int_equal(fake.n, 2);
    assert_int_equal(x.status, 0);
    fake_done(0, COLIBRI_E_CANCELLED, "cancelled", 0);
    fake_done(1, COLIBRI_E_CANCELLED, "cancelled", 0);
    assert_error(400, "invalid_request_error", "context_length_exceeded");
}

static void prompts_wait_for_their_turn(void **state)
{
    (void)state;
    complete("{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\"],\"stream\":true}");
    assert_int_equal(fake_submitted(), 4);
    fake_text(1, 0, "1");
    fake_choice(1, 0, CLB_FINISH_STOP, 1);
    fake_done(1, COLIBRI_OK, "", 1);
    assert_int_equal(fake_submitted(), 5);
    fake_refuse(COLIBRI_E_BUSY,
                "the queue is full"); /* the queue is full of others: try again when one of ours ends */
    for (size_t i = 0; i < 5; i++)
        if (i != 1) {
            fake_choice(i, 0, CLB_FINISH_STOP, 1);
            fake_done(i, COLIBRI_OK, "", 1);
        }
    assert_int_equal(fake_submitted(), 5);
    assert_false(x.ended);
    fake_refuse(0, ""); /* the timer does */
    for (int i = 0; i < 100 && fake_submitted() < 6; i++)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_int_equal(fake_submitted(), 6);
    fake_text(5, 0, "6");
    fake_choice(5, 0, CLB_FINISH_STOP, 1);
    fake_done(5, COLIBRI_OK, "", 1);
    assert_true(x.ended);
    assert_non_null(strstr(x.out.data, "{\"text\":\"6\",\"index\":5,"));
    assert_non_null(strstr(x.out.data, "data: [DONE]"));
}

static void a_client_goes_away(void **state)
{
    (void)state;
    complete("{\"prompt\":[\"a\",\"b\"],\"stream\":true}");
    fake_text(0, 0, "x");
    assert_non_null(x.gone);
    x.gone(x.gone_ctx);
    assert_true(fake.requests[0]->cancelled && fake.requests[1]->cancelled);
    fake_done(0, COLIBRI_E_CANCELLED, "cancelled", 1);
    assert_false(x.ended);
    fake_done(1, COLIBRI_E_CANCELLED, "cancelled", 1);
    assert_true(x.ended);
    reset(NULL);

    complete("{\"prompt\":\"a\"}"); /* a whole reply, in the queue */
    x.gone(x.gone_ctx);
    fake_done(0, COLIBRI_E_CANCELLED, "cancelled", 0);
    assert_int_equal(x.status, 499);
}

static void tick(void) /* the timer looks five times a second */
{
    nanosleep(&(struct timespec){.tv_nsec = 450000000}, NULL);
}

static void the_queue_takes_too_long(void **state)
{
    (void)state;
    static const clb_http_route none[1];
    clb_error err;
    clb_buf text = {0};
    assert_ok(clb_metrics_create(none, &app.metrics, &err), &err);
    app.queue_timeout_ns = 1;
    complete("{\"prompt\":[\"a\",\"b\"],\"stream\":true}");
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED}); /* the second waits for the first */
    app.queue_timeout_ns = 0;
    tick();
    fake_text(0, 0, "x"); /* takes the lock: what the timer did is seen */
    assert_false(fake.requests[0]->cancelled || fake.requests[1]->cancelled);
    assert_int_equal(x.status, 200);
    x.gone(x.gone_ctx);
    fake_done(0, COLIBRI_E_CANCELLED, "cancelled", 1);
    fake_done(1, COLIBRI_E_CANCELLED, "cancelled", 0);
    reset(NULL);

    for (int stream = 0; stream < 2; stream++) {
        app.queue_timeout_ns = (stream ? 1400 : 100) * UINT64_C(1000000);
        app.keep_alive_s = 1;
        complete(stream ? "{\"prompt\":\"a\",\"stream\":true}" : "{\"prompt\":[\"a\",\"b\"]}");
        app.queue_timeout_ns = app.keep_alive_s = 0;
        tick();
        for (int i = 0; i < 3 && stream; i++)
            tick();
        fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED}); /* too late */
        assert_true(fake.requests[0]->cancelled);
        assert_false(x.ended); /* the scheduler has them still */
        for (size_t i = 0; i < fake.n; i++)
            fake_done(i, COLIBRI_E_CANCELLED, "cancelled", 0);
        assert_true(x.ended);
        if (stream && x.status == 200) { /* the comment came first */
            assert_ptr_equal(strstr(x.out.data, ": queued\n\ndata: {\"error\":"), x.out.data);
            assert_non_null(strstr(x.out.data, "\"code\":\"queue_timeout\""));
        } else {
            assert_error(503, "unavailable_error", "queue_timeout");
            assert_non_null(strstr(x.headers, "Retry-After: 5\n"));
        }
        reset(NULL);
    }
    assert_ok(clb_metrics_text(app.metrics, &text, &err), &err);
    assert_non_null(strstr(text.data, "\ncolibri_queue_timeouts_total 2\n"));
    clb_buf_free(&text);
    clb_metrics_destroy(app.metrics);
    app.metrics = NULL;
}

static void silence_is_filled(void **state)
{
    (void)state;
    app.keep_alive_s = 1;
    complete("{\"prompt\":\"a b c d\",\"stream\":true}");
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 300000000}, NULL);
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED}); /* takes the lock: what the timer wrote is seen */
    assert_int_equal(x.status, 200);
    assert_string_equal(x.out.data, ": queued\n\n");
    fake_done(0, COLIBRI_E_INTERNAL, "a bug", 0); /* now it is too late for a plain error */
    assert_non_null(strstr(x.out.data, "\n\ndata: {\"error\":{\"message\":\"a bug\""));
    app.keep_alive_s = 0;
}

static void progress_is_told(void **state)
{
    (void)state;
    chat("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"return_progress\":true}");
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_STARTED});
    fake_event(0, (clb_request_event){.kind = CLB_EVENT_PROMPT, .n_done = 3, .n_reused = 1});
    fake_text(0, 0, "a");
    fake_choice(0, 0, CLB_FINISH_STOP, 1);
    fake_done(0, COLIBRI_OK, "", 1);
    json_t *role = event(0), *progress = event(1), *text = event(2);
    assert_text(role, "choices.0.delta.role", "assistant");
    assert_int_equal(json_object_size(at(progress, "choices.0.delta")), 0);
    assert_int_equal(json_integer_value(at(progress, "prompt_progress.total")), (json_int_t)fake.requests[0]->n_prompt);
    assert_int_equal(json_integer_value(at(progress, "prompt_progress.processed")), 3);
    assert_int_equal(json_integer_value(at(progress, "prompt_progress.cache")), 1);
    assert_text(text, "choices.0.delta.content", "a");
    json_decref(role);
    json_decref(progress);
    json_decref(text);
}

static void embeddings_in_both_forms(void **state)
{
    (void)state;
    static const float v[2][8] = {{1, 0, -0.5f, 0.25f}, {0, 1e-7f, 3, -1}};
    for (int base64 = 0; base64 < 2; base64++) {
        exchange_reset(&x, base64 ? "{\"input\":[\"a\",\"b\"],\"encoding_format\":\"base64\"}"
                                  : "{\"input\":[\"a\",\"b\"]}");
        clb_serve_embeddings(&app, &x);
        assert_int_equal(fake.n, 2);
        for (size_t k = 2; k-- > 0;) {
            assert_true(fake.requests[k]->o.embed);
            fake_event(k, (clb_request_event){.kind = CLB_EVENT_EMBEDDED, .embedding = v[k], .n_embedding = 8});
            fake_choice(k, 0, CLB_FINISH_LENGTH, 0);
            fake_done(k, COLIBRI_OK, "", 0);
        }
        json_t *r = answer();
        for (size_t k = 0; k < 2; k++) {
            json_t *d = json_array_get(at(r, "data"), k);
            assert_int_equal(json_integer_value(at(d, "index")), k);
            for (size_t i = 0; i < 8 && !base64; i++)
                assert_true((float)json_number_value(json_array_get(at(d, "embedding"), i)) == v[k][i]);
        }
        if (base64)
            assert_text(r, "data.0.embedding", "AACAPwAAAAAAAAC/AACAPgAAAAAAAAAAAAAAAAAAAAA=");
        assert_true(json_integer_value(at(r, "usage.total_tokens")) >= 2);
        json_decref(r);
        reset(NULL);
    }
}

/* Both forms of log probabilities, parts of a character, offsets in characters. */
static void log_probabilities(void **state)
{
    (void)state;
    uint32_t id[2];
    clb_tokens ids = {0};
    clb_error err;
    assert_ok(clb_tokenize(app.engine->vocab, "\xc3\xa9", 2, 0, &ids, &err),
              &err); /* byte tokens, or one: either is fine */
    const size_t n = ids.n;
    assert_true(n == 1 || n == 2);
    id[0] = ids.ids[0];
    id[1] = ids.ids[n - 1];
    clb_token_info t[3] = {
        {.token = id[0], .text_offset = 0, .n_bytes = 1, .self = {id[0], -0.5f}, .n_top = 1, .top = {{id[0], -0.5f}}},
        {.token = id[1], .text_offset = 1, .n_bytes = 1, .self = {id[1], -INFINITY}, .n_top = 1, .top = {{5, -0.25f}}},
        {.token = 5, .text_offset = 2, .n_bytes = 1, .self = {5, -1}, .n_top = 1, .top = {{5, -1}}}};
    if (n == 1)
        t[1].n_bytes = 0;
    complete("{\"prompt\":\"a\",\"logprobs\":1}");
    assert_int_equal(fake.requests[0]->o.n_logprobs, 1);
    fake_event(
        0, (clb_request_event){.kind = CLB_EVENT_TEXT, .text = "\xc3\xa9z", .n_text = 3, .tokens = t, .n_tokens = 3});
    fake_choice(0, 0, CLB_FINISH_LENGTH, 3);
    fake_done(0, COLIBRI_OK, "", 3);
    json_t *r = answer();
    if (n == 2) {
        assert_text(r, "choices.0.logprobs.tokens.0", "bytes:\\xc3");
        assert_text(r, "choices.0.logprobs.tokens.1", "bytes:\\xa9");
    }
    assert_true(json_number_value(at(r, "choices.0.logprobs.token_logprobs.0")) == -0.5);
    assert_true(json_number_value(at(r, "choices.0.logprobs.token_logprobs.1")) == -9999);
    assert_int_equal(json_object_size(at(r, "choices.0.logprobs.top_logprobs.0")), 1);
    assert_int_equal(json_object_size(at(r, "choices.0.logprobs.top_logprobs.1")), 2); /* the best and its own */
    assert_int_equal(json_integer_value(at(r, "choices.0.logprobs.text_offset.0")), 0);
    assert_int_equal(json_integer_value(at(r, "choices.0.logprobs.text_offset.2")), 1);
    json_decref(r);
    clb_tokens_free(&ids);
}

/* Filling in: the model's own tokens around the text before and the text behind. */
static void text_is_filled_in(void **state)
{
    (void)state;
    static const small_token tokens[] = {{"a", T_NORMAL, 0},
                                         {"b", T_NORMAL, 0},
                                         {"<fim_suffix>", T_CONTROL, 0},
                                         {"<|fim_suffix|>", T_CONTROL, 0}, /* a family that is not complete */
                                         {"<fim_middle>", T_CONTROL, 0},
                                         {"<fim_prefix>", T_CONTROL, 0},
                                         {NULL, 0, 0}};
    static const char *const no_merges[] = {NULL};
    clb_vocab *const own = app.engine->vocab;
    small_vocab v = {"gpt2", "gpt-2", NULL, tokens, no_merges, NULL, false, false};
    app.engine->vocab = small_vocab_load(&v);
    complete("{\"prompt\":\"aba\",\"suffix\":\"bb\"}");
    static const uint32_t want[] = {5, 0, 1, 0, 2, 1, 1, 4};
    assert_int_equal(fake.n, 1);
    assert_int_equal(fake.requests[0]->n_prompt, 8);
    assert_memory_equal(fake.requests[0]->prompt, want, sizeof want);
    fake_text(0, 0, "b");
    fake_choice(0, 0, CLB_FINISH_STOP, 1);
    fake_done(0, COLIBRI_OK, "", 1);
    json_t *r = answer();
    assert_text(r, "choices.0.text", "b");
    json_decref(r);
    clb_vocab_free(app.engine->vocab);
    app.engine->vocab = own;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_teardown(f, reset)
    const struct CMUnitTest tests[] = {
        TEST(a_whole_reply),
        TEST(fields_reach_the_scheduler),
        TEST(a_chat_stream),
        TEST(thoughts_are_counted),
        TEST(a_text_stream),
        TEST(errors_before_and_after_the_beginning),
        TEST(refusals_of_the_scheduler),
        TEST(one_prompt_of_several_fails),
        TEST(prompts_wait_for_their_turn),
        TEST(a_client_goes_away),
        TEST(the_queue_takes_too_long),
        TEST(silence_is_filled),
        TEST(progress_is_told),
        TEST(embeddings_in_both_forms),
        TEST(log_probabilities),
        TEST(text_is_filled_in),
    };
    return cmocka_run_group_tests(tests, open_app, close_app);
}
