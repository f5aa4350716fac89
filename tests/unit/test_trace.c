/* Traces: what is written is what is read, a cut-off recording is readable, other formats keep what they can, and what
 * is damaged is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/bytes.h"
#include "replay/replay.h"
#include "replay/trace_format.h"
#include "support/traces.h"

static test_dir dir;

static const test_trace_shape shapes[] = {
    {.n_layers = 3,
     .n_experts = 8,
     .top_k = 2,
     .gates = CLB_GATES_F32,
     .units = 3,
     .prompt_rows = 6,
     .decode = 5,
     .expert_bytes = 4096},
    {.n_layers = 1, .n_experts = 300, .top_k = 3, .gates = CLB_GATES_F16, .units = 1, .prompt_rows = 0, .decode = 9},
    {.n_layers = 2, .n_experts = 256, .top_k = 1, .gates = CLB_GATES_NONE, .units = 2, .prompt_rows = 4, .decode = 3},
    {.n_layers = 4,
     .n_experts = 16,
     .top_k = 4,
     .gates = CLB_GATES_F32,
     .ahead_layers = 2,
     .ahead_top = 6,
     .units = 2,
     .prompt_rows = 5,
     .decode = 4,
     .expert_bytes = 1000},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static clb_trace *make(size_t shape, char path[PATH_MAX])
{
    test_dir_file(&dir, "trace.clbt", path);
    return test_trace_make(&shapes[shape], path);
}

static void written_and_read(void **state)
{
    (void)state;
    clb_error err;
    for (size_t i = 0; i < N_SHAPES; i++) {
        char path[PATH_MAX], again[PATH_MAX];
        clb_trace *const a = make(i, path);
        clb_trace *b;
        assert_false(a->ends_early);
        assert_int_equal(a->n_units, shapes[i].units);
        assert_int_equal(a->n_rows, shapes[i].units * (shapes[i].prompt_rows + shapes[i].decode));
        test_dir_file(&dir, "again.clbt", again);
        assert_ok(clb_trace_save(a, again, true, &err), &err);
        assert_ok(clb_trace_open(again, &b, &err), &err);
        test_trace_same(a, b, false);
        assert_fails(clb_trace_save(a, again, false, &err), &err, COLIBRI_E_USAGE, "--force");
        size_t n, m;
        char *const x = test_read_file(path, &n), *const y = test_read_file(again, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);
        clb_trace_close(a);
        clb_trace_close(b);
    }
}

/* A crash may cut the file anywhere. */
static void cut_off(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        char path[PATH_MAX];
        size_t n;
        clb_trace *const whole = make(i, path);
        char *const data = test_read_file(path, &n);
        const uint32_t header = clb_get32((const uint8_t *)data + 8);
        uint64_t before = 0;
        for (size_t cut = 0; cut < n; cut++) {
            clb_error err;
            clb_trace *t = NULL;
            char *const part = malloc(cut ? cut : 1); /* of its own, so that a sanitizer sees reads behind it */
            assert_non_null(part);
            memcpy(part, data, cut);
            const int rc = clb_trace_parse(part, cut, &t, &err);
            if (cut < header) {
                assert_int_equal(rc, COLIBRI_E_FORMAT);
                assert_null(t);
            } else {
                assert_ok(rc, &err);
                assert_true(t->ends_early);
                assert_true(t->n_passes >= before && t->n_passes <= whole->n_passes);
                before = t->n_passes;
                const size_t choices = (size_t)t->n_rows * t->info.n_layers * t->info.top_k;
                if (choices)
                    assert_memory_equal(t->ids, whole->ids, choices * sizeof *t->ids);
            }
            clb_trace_close(t);
            free(part);
        }
        assert_int_equal(before, whole->n_passes);
        clb_trace_close(whole);
        free(data);
    }
}

static void refuse(const uint8_t *data, size_t n, int code, const char *text)
{
    clb_error err;
    clb_trace *t = NULL;
    assert_fails(clb_trace_parse(data, n, &t, &err), &err, code, text);
    assert_null(t);
}

static void damaged(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t n;
    clb_trace_close(make(0, path));
    uint8_t *const d = (uint8_t *)test_read_file(path, &n);
    const uint32_t header = clb_get32(d + 8), unit = clb_get32(d + header + 4);
    uint8_t *const pass = d + header + 8 + unit; /* the first pass's record: 6 rows */
    const size_t ids = 8 + CLB_TRACE_PASS_FIXED + 6 * 8;
    const struct {
        uint8_t *at;
        size_t n;
        uint32_t value;
        int code;
        const char *text;
    } cases[] = {
        {d, 1, 'X', COLIBRI_E_FORMAT, "not a Colibri trace"},
        {d + 4, 4, 9, COLIBRI_E_UNSUPPORTED, "version 9"},
        {d + 8, 4, header + 1, COLIBRI_E_FORMAT, "header says"},
        {d + 12, 4, 0, COLIBRI_E_FORMAT, "header says"},
        {d + 12, 4, UINT32_MAX, COLIBRI_E_FORMAT, "out of range"},
        {d + 16, 4, 0, COLIBRI_E_FORMAT, "0 experts"},
        {d + 20, 4, 9, COLIBRI_E_FORMAT, "9 of 8 experts"},
        {d + 24, 4, 3, COLIBRI_E_FORMAT, "router weights"},
        {d + 28, 4, 3, COLIBRI_E_FORMAT, "layers ahead"},
        {d + 36, 4, 1000, COLIBRI_E_FORMAT, "out of range"},
        {d + 48, 4, 1 << 9, COLIBRI_E_FORMAT, "experts of 2199"},
        {d + header, 4, 1, COLIBRI_E_FORMAT, "unknown record"},
        {d + header + 8, 1, 7, COLIBRI_E_FORMAT, "printable"},
        {pass + 8, 4, 3, COLIBRI_E_FORMAT, "phase 3"},
        {pass + 12, 4, 5, COLIBRI_E_FORMAT, "5 rows do not take"},
        {pass + 12, 4, UINT32_MAX, COLIBRI_E_FORMAT, "do not take"},
        {pass + 16, 4, 7, COLIBRI_E_FORMAT, "7 sequences"},
        {pass + 20, 4, 1, COLIBRI_E_FORMAT, "reserved"},
        {pass + ids, 1, 8, COLIBRI_E_FORMAT, "expert 8 of 8"},
        {pass + ids, 1, pass[ids + 1], COLIBRI_E_FORMAT, "named twice"},
        {pass + ids + 36, 4, 0x7fc00000, COLIBRI_E_FORMAT, "not a number"},
        {d + n - 24, 4, 5, COLIBRI_E_FORMAT, "end record"},
        {d + n - 28, 4, 23, COLIBRI_E_FORMAT, "end record has 23"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t saved[4];
        memcpy(saved, cases[i].at, cases[i].n);
        if (cases[i].n == 1)
            *cases[i].at = (uint8_t)cases[i].value;
        else
            clb_put32(cases[i].at, cases[i].value);
        refuse(d, n, cases[i].code, cases[i].text);
        memcpy(cases[i].at, saved, cases[i].n);
    }
    uint8_t *const more = malloc(n + 1);
    assert_non_null(more);
    memcpy(more, d, n);
    more[n] = 0;
    refuse(more, n + 1, COLIBRI_E_FORMAT, "too many");
    free(more);
    free(d);
}

/* No single changed byte may crash the reader or slip in something out of range. */
static void any_byte(void **state)
{
    (void)state;
    char path[PATH_MAX];
    size_t n;
    clb_trace_close(make(3, path));
    uint8_t *const d = (uint8_t *)test_read_file(path, &n);
    static const uint8_t masks[] = {0x01, 0x80, 0xff};
    for (size_t at = 0; at < n; at++)
        for (size_t m = 0; m < sizeof masks; m++) {
            clb_error err;
            clb_trace *t = NULL;
            d[at] ^= masks[m];
            if (clb_trace_parse(d, n, &t, &err) == COLIBRI_OK) {
                clb_replay_index x = {0};
                if (t->n_passes)
                    assert_ok(clb_replay_index_make(t, &x, &err), &err);
                clb_replay_index_free(&x);
            } else {
                assert_true(*err.msg && !strchr(err.msg, '\n'));
            }
            clb_trace_close(t);
            d[at] ^= masks[m];
        }
    free(d);
}

static void writer_checks(void **state)
{
    (void)state;
    clb_error err;
    char path[PATH_MAX];
    clb_trace_writer *w;
    const clb_trace_info info = {.n_layers = 1, .n_experts = 4, .top_k = 2, .gates = CLB_GATES_F32};
    test_dir_file(&dir, "checks.clbt", path);
    assert_fails(clb_trace_create(path, true, &(clb_trace_info){.n_layers = 1, .n_experts = 2, .top_k = 3}, &w, &err),
                 &err, COLIBRI_E_USAGE, "3 of 2");
    assert_ok(clb_trace_create(path, true, &info, &w, &err), &err);
    const uint32_t twice[] = {1, 1}, good[] = {1, 2};
    const float gates[] = {0.5f, 0.5f}, bad[] = {0.5f, NAN};
    clb_trace_put put = {.n_rows = 1, .n_sequences = 1, .ids = twice, .gates = gates};
    assert_fails(clb_trace_pass_put(w, &put, &err), &err, COLIBRI_E_USAGE, "twice");
    put.ids = good;
    put.gates = NULL;
    assert_fails(clb_trace_pass_put(w, &put, &err), &err, COLIBRI_E_USAGE, "lacks");
    put.gates = bad;
    assert_fails(clb_trace_pass_put(w, &put, &err), &err, COLIBRI_E_USAGE, "not a number");
    put.gates = gates;
    assert_ok(clb_trace_pass_put(w, &put, &err), &err); /* no unit: one without a name */
    assert_ok(clb_trace_finish(w, NULL, &err), &err);
    clb_trace *t;
    assert_ok(clb_trace_open(path, &t, &err), &err);
    assert_int_equal(t->n_units, 1);
    assert_int_equal(t->n_passes, 1);
    assert_int_equal(t->tokens[0], UINT32_MAX);
    clb_trace_close(t);
    assert_fails(clb_trace_open("/no/such/file", &t, &err), &err, COLIBRI_E_NOT_FOUND, "/no/such/file");
}

/* ---- other formats ---- */

static int to_buffer(void *ctx, const void *data, size_t n, clb_error *err)
{
    return clb_buf_append(ctx, data, n, err);
}

static clb_trace *through(const clb_trace *t, enum clb_trace_format format, const clb_trace_import_options *o,
                          clb_buf *text)
{
    clb_error err;
    clb_trace *out;
    assert_ok(clb_trace_export(t, format, &(struct clb_trace_sink){to_buffer, text}, &err), &err);
    assert_ok(clb_trace_import(text->data, text->n, format, o, &out, &err), &err);
    return out;
}

static void text_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        char path[PATH_MAX];
        clb_trace *const a = make(i, path);
        clb_buf csv = {0}, json = {0};
        clb_trace *const b = through(a, CLB_TRACE_JSONL, NULL, &json);
        test_trace_same(a, b, true);
        assert_string_equal(a->info.model, b->info.model);
        assert_memory_equal(a->info.expert_bytes, b->info.expert_bytes,
                            a->info.n_layers * sizeof *a->info.expert_bytes);
        clb_trace *const c =
            through(a, CLB_TRACE_CSV, &(clb_trace_import_options){.n_experts = a->info.n_experts}, &csv);
        test_trace_same(a, c, true);
        clb_trace_close(a);
        clb_trace_close(b);
        clb_trace_close(c);
        clb_buf_free(&csv);
        clb_buf_free(&json);
    }
}

static void import_fails(enum clb_trace_format format, const char *text, const char *part)
{
    clb_error err;
    clb_trace *t;
    assert_fails(clb_trace_import(text, strlen(text), format, NULL, &t, &err), &err, COLIBRI_E_FORMAT, part);
}

#define HEAD "unit,pass,phase,row,sequence,token,layer,experts,gates\n"
static void bad_text(void **state)
{
    (void)state;
    import_fails(CLB_TRACE_CSV, "a,b\n", "columns must be");
    import_fails(CLB_TRACE_CSV, HEAD, "no rows");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,1 2,\nu,1,decode,0,0,1,0,1,\n", "line 3 has 1 experts");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,sleep,0,0,1,0,1 2,\n", "phase is");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,1 x,\n", "number is expected");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,0x10 2,\n", "number is expected");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,1 1,\n", "named twice");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,1 70000,\n", "expert 70000");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,0,0,1,0,1,\nu,0,decode,0,0,1,1,1,\nu,1,decode,0,0,1,0,1,\n",
                 "one per row and layer");
    import_fails(CLB_TRACE_CSV, HEAD "u,0,decode,1,0,1,0,1,\n", "twice in its pass");
    import_fails(CLB_TRACE_CSV, HEAD "\"u,0,decode,1,0,1,0,1,\n", "does not end");
    import_fails(CLB_TRACE_JSONL, "{\"pass\":0,\"layer\":0,\"experts\":[1,2}\n", "is expected");
    import_fails(CLB_TRACE_JSONL, "{\"pass\":0,\"experts\":[1,2]}\n", "no layer");
    import_fails(CLB_TRACE_JSONL, "{\"pass\":0,\"layer\":0,\"experts\":[1,2]} x\n", "behind the object");
    import_fails(CLB_TRACE_JSONL, "{\"pass\":0,\"layer\":0,\"experts\":[1,2],\"more\":{\"a\":[1,\n", "ends inside");
}

/* What other loggers write: one token per pass, values of unknown keys are read over. */
static void foreign_jsonl(void **state)
{
    (void)state;
    clb_error err;
    clb_trace *t;
    static const char text[] =
        "{\"token_idx\":0,\"layer_idx\":0,\"selected_ids\":[3,1],\"gate_weights\":[0.75,0.25],"
        "\"extra\":{\"x\":[1,{\"y\":\"]}\"}],\"z\":null}}\n"
        "{\"token_idx\":0,\"layer_idx\":1,\"selected_ids\":[0,2],\"gate_weights\":[0.5,0.5],\"n\":1e3}\r\n"
        "\n"
        "{\"token_idx\":1,\"layer_idx\":1,\"selected_ids\":[2,3],\"gate_weights\":[0.5,0.5]}\n"
        "{\"token_idx\":1,\"layer_idx\":0,\"selected_ids\":[1,0],\"gate_weights\":[1,0]}";
    assert_ok(clb_trace_import(text, sizeof text - 1, CLB_TRACE_JSONL, NULL, &t, &err), &err);
    assert_int_equal(t->n_passes, 2);
    assert_int_equal(t->info.n_layers, 2);
    assert_int_equal(t->info.n_experts, 4);
    assert_int_equal(t->ids[clb_trace_at(t, 1, 0)], 1);
    assert_int_equal(t->ids[clb_trace_at(t, 1, 1)], 2);
    assert_true(t->gates[0] == 0.75f);
    clb_trace_close(t);
}

/* Which row asked is lost; what every layer asks for is not. */
static void oracle_general(void **state)
{
    (void)state;
    clb_error err;
    char path[PATH_MAX];
    clb_trace *const a = make(0, path);
    clb_buf data = {0};
    clb_trace *const b =
        through(a, CLB_TRACE_ORACLE, &(clb_trace_import_options){.n_layers = 3, .n_experts = 8, .top_k = 2}, &data);
    clb_replay_index x, y;
    assert_ok(clb_replay_index_make(a, &x, &err), &err);
    assert_ok(clb_replay_index_make(b, &y, &err), &err);
    assert_int_equal(x.n_visits, y.n_visits);
    assert_int_equal(x.n_lookups, y.n_lookups);
    assert_int_equal(data.n, x.n_lookups * 24);
    assert_memory_equal(x.union_ids, y.union_ids, x.n_lookups * sizeof *x.union_ids);
    assert_memory_equal(x.next, y.next, x.n_lookups * sizeof *x.next);
    const uint8_t *const p = (const uint8_t *)data.data;
    for (uint64_t i = 0; i < x.n_lookups; i++) { /* next_access is the number of the next request for the same object */
        const uint64_t next = clb_get64(p + 24 * i + 16), id = clb_get64(p + 24 * i + 4);
        uint64_t k = i + 1;
        while (k < x.n_lookups && clb_get64(p + 24 * k + 4) != id)
            k++;
        assert_int_equal(next, k < x.n_lookups ? k : UINT64_MAX);
        assert_int_equal(clb_get32(p + 24 * i + 12), 4096);
    }
    clb_trace *objects;
    assert_ok(clb_trace_import(data.data, data.n, CLB_TRACE_ORACLE, NULL, &objects, &err), &err);
    assert_int_equal(objects->n_passes, x.n_lookups);
    assert_int_equal(objects->info.n_layers, 1);
    assert_int_equal(objects->info.expert_bytes[0], 4096);
    clb_trace *none;
    assert_fails(clb_trace_import(data.data, data.n - 1, CLB_TRACE_ORACLE, NULL, &none, &err), &err, COLIBRI_E_FORMAT,
                 "whole number");
    assert_fails(
        clb_trace_import(data.data, data.n, CLB_TRACE_ORACLE, &(clb_trace_import_options){.top_k = 2}, &none, &err),
        &err, COLIBRI_E_USAGE, "--layers");
    const clb_trace_import_options narrow = {.n_layers = 2, .n_experts = 8, .top_k = 2};
    assert_fails(clb_trace_import(data.data, data.n, CLB_TRACE_ORACLE, &narrow, &none, &err), &err, COLIBRI_E_FORMAT,
                 "object");
    clb_trace_close(a);
    clb_trace_close(b);
    clb_trace_close(objects);
    clb_replay_index_free(&x);
    clb_replay_index_free(&y);
    clb_buf_free(&data);
}

static void trc1(void **state)
{
    (void)state;
    clb_error err;
    enum { N = 25, L = 2, K = 2, E = 6, W = 10 };
    uint8_t data[24 + N * (4 + L * K * 5)];
    uint8_t *p = data;
    memcpy(p, "TRC1", 4);
    p += 4;
    const uint32_t head[] = {N, L, K, E, W};
    for (int i = 0; i < 5; i++)
        p = clb_put32(p, head[i]);
    for (uint32_t i = 0; i < N; i++)
        p = clb_put32(p, 100 + i);
    for (uint32_t i = 0; i < N * L; i++) {
        *p++ = (uint8_t)(i % E);
        *p++ = (uint8_t)((i + 1) % E);
    }
    for (uint32_t i = 0; i < N * L * K; i++)
        p = clb_put_f32(p, (float)i / 128);
    clb_trace *t;
    const clb_trace_import_options o = {.prefill = 4, .label = "topic", .expert_bytes = 77};
    assert_int_equal(clb_trace_guess_format("x.trace", data, sizeof data), CLB_TRACE_TRC1);
    assert_ok(clb_trace_import(data, sizeof data, CLB_TRACE_TRC1, &o, &t, &err), &err);
    assert_int_equal(t->n_units, 3);
    assert_string_equal(t->units[1].label, "topic window 1");
    assert_int_equal(t->units[0].n_passes, 1 + 6);
    assert_int_equal(t->units[2].n_passes, 1 + 1); /* 5 tokens are left */
    assert_int_equal(t->passes[0].n_rows, 4);
    assert_int_equal(t->passes[1].phase, COLIBRI_PHASE_DECODE);
    assert_int_equal(t->tokens[12], 112);
    /* token 2 of the first pass, layer 1 */
    assert_int_equal(t->ids[clb_trace_at(t, 0, 1) + 2 * K], (2 * L + 1) % E);
    assert_true(t->gates[clb_trace_at(t, 0, 1) + 2 * K] == (float)((2 * L + 1) * K) / 128);
    assert_int_equal(t->info.expert_bytes[1], 77);
    clb_trace_close(t);
    assert_fails(clb_trace_import(data, sizeof data - 1, CLB_TRACE_TRC1, &o, &t, &err), &err, COLIBRI_E_FORMAT,
                 "do not take");
    clb_put32(data + 20, 0);
    assert_fails(clb_trace_import(data, sizeof data, CLB_TRACE_TRC1, &o, &t, &err), &err, COLIBRI_E_FORMAT,
                 "out of range");
}

/* ---- recording ---- */

static uint64_t fake_now(void)
{
    static uint64_t t;
    return t += 10;
}

static void recorder(void **state)
{
    (void)state;
    clb_error err;
    char path[PATH_MAX];
    clb_trace_writer *w;
    clb_recorder *r;
    clb_trace *t;
    const clb_trace_info info = {
        .n_layers = 2, .n_experts = 4, .top_k = 1, .gates = CLB_GATES_F32, .ahead_layers = 1, .ahead_top = 2};
    test_dir_file(&dir, "recorded.clbt", path);
    assert_ok(clb_trace_create(path, true, &info, &w, &err), &err);
    assert_ok(clb_trace_unit_begin(w, "p", &err), &err);
    assert_ok(clb_recorder_create(w, &info, fake_now, &r, &err), &err);
    const uint32_t tokens[] = {7, 8, 9}, ids[] = {0, 3, 2}, sequence[] = {0, 0, 1};
    const float gates[] = {1, 0.5f, 0.25f};
    const float logits[] = {1, 3, 2, -INFINITY, 0, 0, 5, 0, -INFINITY, -INFINITY, -INFINITY, 4};
    const float *const ahead[] = {logits};
    struct colibri_route route = {.struct_size = sizeof route,
                                  .n_rows = 3,
                                  .top_k = 1,
                                  .ids = ids,
                                  .gates = gates,
                                  .row_sequence = sequence,
                                  .n_ahead = 1,
                                  .ahead_logits = ahead};
    clb_recorder_feed(r, COLIBRI_PHASE_PREFILL, tokens, 3);
    clb_recorder_route(r, &route); /* this pass is cancelled after its first layer and starts over */
    clb_recorder_route(r, &route);
    route.layer = 1;
    route.n_ahead = 0;
    clb_recorder_route(r, &route);
    assert_ok(clb_recorder_flush(r, &err), &err);
    clb_recorder_feed(r, COLIBRI_PHASE_DECODE, tokens + 1, 1);
    route.n_rows = 1;
    for (route.layer = 0; route.layer < 2; route.layer++)
        clb_recorder_route(r, &route);
    assert_ok(clb_recorder_flush(r, &err), &err);
    clb_recorder_feed(r, COLIBRI_PHASE_DECODE, tokens, 1);
    route.layer = 1;
    clb_recorder_route(r, &route); /* a layer is missing: said at the next flush, and ever after */
    assert_fails(clb_recorder_flush(r, &err), &err, COLIBRI_E_INTERNAL, "layer 1");
    clb_recorder_destroy(r);
    assert_ok(clb_trace_finish(w, NULL, &err), &err);
    assert_ok(clb_trace_open(path, &t, &err), &err);
    assert_int_equal(t->n_passes, 2);
    assert_int_equal(t->passes[0].n_rows, 3);
    assert_int_equal(t->passes[0].n_sequences, 2);
    assert_int_equal(t->sequences[2], 1);
    assert_int_equal(t->passes[1].phase, COLIBRI_PHASE_DECODE);
    assert_int_equal(t->tokens[3], 8);
    assert_true(t->passes[0].took_ns > 0);
    const clb_trace_guess *const g = t->ahead + clb_trace_ahead_at(t, 0, 0);
    assert_int_equal(g[0].expert, 1);
    assert_int_equal(g[1].expert, 2);
    assert_int_equal(g[2].expert, 2); /* row 1; then a tie goes to the lower id */
    assert_int_equal(g[3].expert, 0);
    assert_int_equal(g[4].expert, 3); /* row 2 knows one only */
    assert_int_equal(g[5].expert, UINT32_MAX);
    assert_int_equal(t->ahead[clb_trace_ahead_at(t, 0, 1)].expert, UINT32_MAX);
    clb_trace_close(t);
}

static int set_up(void **state)
{
    (void)state;
    test_dir_create(&dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_dir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read), cmocka_unit_test(cut_off),
        cmocka_unit_test(damaged),          cmocka_unit_test(any_byte),
        cmocka_unit_test(writer_checks),    cmocka_unit_test(text_formats),
        cmocka_unit_test(bad_text),         cmocka_unit_test(foreign_jsonl),
        cmocka_unit_test(oracle_general),   cmocka_unit_test(trc1),
        cmocka_unit_test(recorder),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
