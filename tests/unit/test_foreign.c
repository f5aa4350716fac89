/* Foreign functions: the text of a section, what is refused when its library is loaded, the values that a policy's
 * functions receive, and products by a BLAS. */
#include "support/registry.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "colibri/numerics.h"
#include "plugin/foreign.h"
#include "plugin/fpstate.h"
#include "plugin/open.h"

#define LIBRARY       COLIBRI_TEST_BINARY_DIR "/tests/plugins-bad/foreign.so"
#define FLUSH_LIBRARY COLIBRI_TEST_BINARY_DIR "/tests/plugins-bad/foreign_flush.so"
#define SECTION       "[foreign.x]\nkind = expert-policy\nlibrary = " LIBRARY "\n"
#define PRODUCT       "[foreign.blas]\nkind = matmul-f32\nlibrary = " LIBRARY "\n"

/* A registry on the build tree's plugins, from INI text. */
typedef struct rig {
    clb_config *config;
    clb_registry *reg;
    char log_text[4096];
    clb_log log;
} rig;

static void collect(void *ctx, int level, const char *line)
{
    rig *const r = ctx;
    const size_t n = strlen(r->log_text);
    if (level <= COLIBRI_LOG_WARN)
        snprintf(r->log_text + n, sizeof r->log_text - n, "%s\n", line);
}

static int try_begin(rig *r, const char *text, clb_error *err)
{
    memset(r, 0, sizeof *r);
    r->log = (clb_log){.level = COLIBRI_LOG_WARN, .write = collect, .ctx = r};
    CLB_TRY(clb_config_create(&r->config, err));
    CLB_TRY(clb_config_load_text(r->config, text, strlen(text), "x.ini", false, err));
    return clb_registry_from_config(r->config, COLIBRI_TEST_PLUGIN_DIR, &r->log, &r->reg, err);
}

static void begin(rig *r, const char *text)
{
    clb_error err = {0};
    assert_ok(try_begin(r, text, &err), &err);
}

static void end(rig *r)
{
    clb_registry_close(r->reg);
    clb_config_destroy(r->config);
}

static const struct colibri_expert_policy *policy_of(rig *r, const char *name)
{
    clb_error err = {0};
    const struct colibri_expert_policy *const p = clb_registry_expert_policy(r->reg, name, &err);
    if (!p)
        fail_msg("%s: %s", name, err.msg);
    return p;
}

/* A variable of the test library. */
static void *variable(const char *name)
{
    void *const handle = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD), *const p = handle ? dlsym(handle, name) : NULL;
    assert_non_null(p);
    dlclose(handle);
    return p;
}

static uint32_t counter(const char *name)
{
    return *(const uint32_t *)variable(name);
}

/* ---- text --------------------------------------------------------------------------------------------------- */

static void wrong_text_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[foreign.]\n", "needs a name: [foreign.NAME]"},
        {"[foreign.Big]\n", "a-z, 0-9"},
        {"[foriegn.x]\n", "did you mean [foreign"},
        {"[foreign.x]\nlibary = /x.so\n", "unknown key 'libary'; did you mean 'library'?"},
        {"[foreign.x]\nkind = kernel\n", "expert-policy|kv-strategy|matmul-f32"},
        {"[foreign.x]\nkind =\n", "x.ini:2: foreign.x.kind"},
        {"[foreign.x]\nsymbol =\n", "no value"},
        {"[foreign.x]\nmin-x = 0\n", "foreign.x.min-x"},
        {"[foreign.x]\nrank = high\n", "not a whole number"},
        {"[foreign.x]\ndeterministic = perhaps\n", "foreign.x.deterministic"},
        {"[foreign.x]\nsymbol = a\nsymbol = b\n", "given twice, first in line 2"},
        {"[foreign.x]\nsymbol = score\n",
         "x.ini:2: [foreign.x]: it needs library, symbol, signature and kind: there is no kind"},
        {SECTION "signature = double()\n", "there is no symbol"},
        {SECTION "symbol = score\n", "there is no signature"},
        {"[foreign.x]\nkind = expert-policy\nsymbol = s\nsignature = double()\n", "there is no library"},
        {"[foreign.x]\nkind = expert-policy\nsymbol = s\nsignature = double()\nlibrary = ./score.so\n",
         "x.ini:5: foreign.x.library: './score.so' is neither an absolute path"},
        {"[foreign.x]\nkind = expert-policy\nsymbol = s\nsignature = double()\nlibrary = score.so\n",
         "neither an absolute"},
        {"[foreign.x]\nkind = expert-policy\nsymbol = s\nsignature = double()\nlibrary = lib/libm.so.6\n", "neither"},
        {"[foreign.x]\nkind = expert-policy\nsymbol = s\nsignature = double()\nlibrary = libm.sox\n", "neither"},
        {SECTION "symbol = a b\nsignature = double()\n", "foreign.x.symbol: 'a b' is not the name of a function"},
        {SECTION "symbol = s\nsignature = int()\n", "x.ini:5: foreign.x.signature: unknown type 'int'"},
        {SECTION "symbol = s\nsignature = (u32 layer)\n", "a type is expected"},
        {SECTION "symbol = s\nsignature = void()\n", "a score is a double or a float"},
        {SECTION "symbol = s\nsignature = u64()\n", "a score is a double or a float"},
        {SECTION "symbol = s\nsignature = double\n", "'(' is expected"},
        {SECTION "symbol = s\nsignature = double(\n", "a type is expected"},
        {SECTION "symbol = s\nsignature = double(u32)\n", "a name is expected behind 'u32'"},
        {SECTION "symbol = s\nsignature = double(u32 layers)\n", "no argument 'layers' here; did you mean 'layer'?"},
        {SECTION "symbol = s\nsignature = double(u32 uses)\n", "argument 'uses' is u64 (or f64), not u32"},
        {SECTION "symbol = s\nsignature = double(u64 layer)\n", "argument 'layer' is u32 (or f64), not u64"},
        {SECTION "symbol = s\nsignature = double(f32 gate_average)\n", "argument 'gate_average' is f64, not f32"},
        {SECTION "symbol = s\nsignature = double(f32 gate)\n", "no argument 'gate' here"},
        {SECTION "symbol = s\nsignature = double(u32 layer,)\n", "an argument is expected behind ','"},
        {SECTION "symbol = s\nsignature = double(u32 layer u32 expert)\n", "',' or ')' is expected"},
        {SECTION "symbol = s\nsignature = double(u32 layer\n", "',' or ')' is expected"},
        {SECTION "symbol = s\nsignature = double() const\n", "text behind ')'"},
        {SECTION "symbol = s\nsignature = double()\nmin-x = 4\n",
         "foreign.x.min-x: it does not go with kind = expert-policy"},
        {SECTION "symbol = s\nsignature = double()\non-use-signature = void()\n", "there is no on-use"},
        {SECTION "symbol = s\nsignature = double()\nreset-signature = void()\n", "there is no reset"},
        {SECTION "symbol = s\nsignature = double()\non-use = u\non-use-signature = double()\n", "returns nothing"},
        {SECTION "symbol = s\nsignature = double()\nreset = r\nreset-signature = void(u32 layer)\n",
         "no argument 'layer'"},
        {PRODUCT "symbol = s\nsignature = dgemm_\n", "cblas_sgemm (C, 32-bit integers) or sgemm_"},
        {PRODUCT "symbol = s\nsignature = sgemm_\nscore-rises = yes\n", "it does not go with kind = matmul-f32"},
        {"[foreign.lru]\nkind = expert-policy\nlibrary = " LIBRARY "\nsymbol = s\nsignature = double()\n",
         "x.ini:2: [foreign.lru]: plugin colibri.expert-policy.lru"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        clb_error err = {0};
        const int rc = try_begin(&r, cases[i].text, &err);
        if (rc != COLIBRI_E_USAGE || !test_contains(err.msg, cases[i].part) || strchr(err.msg, '\n'))
            fail_msg("%s: %s: \"%s\" lacks \"%s\"", cases[i].text, clb_status_name(rc), rc ? err.msg : "",
                     cases[i].part);
        assert_string_equal(r.log_text, "");
        end(&r);
    }
}

static void the_command_line_and_models(void **state)
{
    (void)state;
    clb_config *config = NULL;
    clb_error err = {0};
    assert_ok(clb_config_create(&config, &err), &err);
    const char *const text = "[foreign.x]\nsymbol = score\n";
    assert_fails(clb_config_load_text(config, text, strlen(text), "m.ini", true, &err), &err, COLIBRI_E_USAGE,
                 "not allowed in a file beside a model");
    assert_int_equal(clb_config_foreign_count(config), 0);
    assert_ok(clb_config_set(config, "foreign.a.b.library=/lib/x.so.1", "--set", &err), &err);
    assert_fails(clb_config_set(config, "foreign.a.b.library=/y", "--set", &err), &err, COLIBRI_E_USAGE, "given twice");
    assert_fails(clb_config_set(config, "foreign.a.libary=/y", "--set", &err), &err, COLIBRI_E_USAGE,
                 "--set foreign.a.libary: unknown key 'libary'");
    assert_fails(clb_config_set(config, "foreign.library=/y", "--set", &err), &err, COLIBRI_E_USAGE, "foreign.library");
    /* A later file replaces single keys of an earlier one. */
    assert_ok(clb_config_load_text(config, "[foreign.z]\nsymbol = a\nrank = 3\n", 32, "1.ini", false, &err), &err);
    assert_ok(clb_config_load_text(config, "[foreign.z]\nsymbol = b\n", 23, "2.ini", false, &err), &err);
    const char *name, *key, *value, *origin;
    assert_int_equal(clb_config_foreign_count(config), 3);
    clb_config_foreign_at(config, 0, &name, &key, &value, &origin);
    assert_string_equal(name, "a.b");
    assert_string_equal(value, "/lib/x.so.1");
    clb_config_foreign_at(config, 1, &name, &key, &value, &origin);
    assert_string_equal(value, "b");
    assert_string_equal(origin, "2.ini:2");
    clb_config_destroy(config);
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

static void wrong_libraries_are_refused(void **state)
{
    (void)state;
    test_dir dir;
    char path[PATH_MAX], text[2 * PATH_MAX];
    test_dir_create(&dir);
    size_t n;
    char *const bytes = test_read_file(LIBRARY, &n);
    test_write_file(test_dir_file(&dir, "open.so", path), bytes, n);
    assert_int_equal(chmod(path, 0666), 0);
    test_write_text(test_dir_file(&dir, "text.so", path), "no object\n");
    assert_int_equal(chmod(path, 0644), 0);
    free(bytes);
    static const struct {
        const char *library, *symbol, *more, *part;
    } cases[] = {
        {"/nonexistent/score.so", "score", "", "No such file"},
        {"libcolibri-test-none.so.1", "score", "", "cannot open shared object file"},
        {"%s/open.so", "score_age", "", "chmod go-w"},
        {"%s/text.so", "score_age", "", "the dynamic linker refuses it"},
        {LIBRARY, "skore", "", "it has no function skore"},
        {LIBRARY, "seen", "", "its seen is data, not a function"},
        {LIBRARY, "score_age", "on-use = nope\n", "it has no function nope"},
        {LIBRARY, "score_age", "reset = n_calls\n", "its n_calls is data"},
        {FLUSH_LIBRARY, "score_age", "", "loading it changed the floating-point control state"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        char library[PATH_MAX];
        clb_error err = {0};
        const char *const at = strstr(cases[i].library, "%s");
        snprintf(library, sizeof library, "%s%s", at ? dir.path : "", at ? at + 2 : cases[i].library);
        snprintf(text, sizeof text,
                 "[foreign.x]\nkind = expert-policy\nlibrary = %s\nsymbol = %s\nsignature = double(u64 age)\n%s",
                 library, cases[i].symbol, cases[i].more);
        begin(&r, text);
        const clb_fpstate before = clb_fpstate_get();
        assert_null(clb_registry_expert_policy(r.reg, "x", &err));
        assert_true(clb_fpstate_same(before, clb_fpstate_get()));
        if (err.code != COLIBRI_E_NOT_FOUND || !test_contains(err.msg, cases[i].part) ||
            !test_contains(err.msg, library))
            fail_msg("%s %s: %s", library, cases[i].symbol, err.msg);
        assert_string_equal(r.log_text, ""); /* one line: the error */
        assert_non_null(clb_registry_expert_policy(r.reg, "lru", &err));
        end(&r);
    }
    test_dir_remove(&dir);
}

static void views_name_the_library(void **state)
{
    (void)state;
    rig r;
    begin(&r, SECTION "symbol = score_age\nsignature = double(u64 age)\n");
    bool found = false;
    for (size_t i = 0; i < clb_registry_n_plugins(r.reg); i++) {
        clb_plugin_view v;
        clb_registry_plugin(r.reg, i, &v);
        if (!v.id || strcmp(v.id, "foreign.x") != 0)
            continue;
        found = true;
        assert_int_equal(v.state, CLB_PLUGIN_AVAILABLE); /* nothing is loaded before it is named */
        assert_string_equal(v.path, LIBRARY);
        assert_true(fixture_verdict_has(v.verdict, "foreign", true, "bound in x.ini:2"));
    }
    assert_true(found);
    const struct colibri_expert_policy *const p = policy_of(&r, "x");
    assert_ptr_equal(p, policy_of(&r, "foreign.x"));
    assert_string_equal(p->name, "x");
    assert_int_equal(p->flags, COLIBRI_POLICY_LOSSLESS);
    assert_true(test_contains(p->source, "x.ini:2"));
    clb_verdict v = {0};
    const char *chosen;
    clb_error err = {0};
    assert_ok(clb_registry_explain(r.reg, "x", &v, &chosen, &err), &err);
    assert_string_equal(chosen, "x");
    clb_verdict_free(&v);
    end(&r);
    begin(&r,
          SECTION "symbol = score_age\nsignature = double(u64 age)\ndeterministic = yes\nscore-rises = yes\n[plugins]\n"
                  "deny = foreign.*\n");
    assert_null(clb_registry_expert_policy(r.reg, "x", &err));
    assert_true(test_contains(err.msg, "denied"));
    end(&r);
    begin(&r, SECTION "symbol = score_age\nsignature = double(u64 age)\ndeterministic = yes\nscore-rises = yes\n");
    assert_int_equal(policy_of(&r, "x")->flags,
                     COLIBRI_POLICY_LOSSLESS | COLIBRI_POLICY_DETERMINISTIC | COLIBRI_POLICY_SCORE_RISES);
    end(&r);
}

/* ---- policies ------------------------------------------------------------------------------------------------ */

#define N_LAYERS  3u
#define N_EXPERTS 8u

static void *instance_of(const struct colibri_expert_policy *p)
{
    static const uint64_t bytes[N_LAYERS] = {1000, 2000, 3000};
    const struct colibri_policy_config config = {.struct_size = sizeof config,
                                                 .n_layers = N_LAYERS,
                                                 .n_experts = N_EXPERTS,
                                                 .top_k = 2,
                                                 .n_slots = 5,
                                                 .expert_bytes = bytes};
    char why[256] = "";
    void *const self = p->create(&config, why, sizeof why);
    if (!self)
        fail_msg("%s: %s", p->name, why);
    return self;
}

static void step(const struct colibri_expert_policy *p, void *self, uint32_t n_rows)
{
    if (p->on_step)
        p->on_step(self, &(struct colibri_step){.struct_size = sizeof(struct colibri_step),
                                                .phase = COLIBRI_PHASE_DECODE,
                                                .n_rows = n_rows,
                                                .n_sequences = 1});
}

static void route(const struct colibri_expert_policy *p, void *self, uint32_t layer, uint32_t n_rows,
                  const uint32_t *ids, const float *gates)
{
    p->on_route(self, &(struct colibri_route){.struct_size = sizeof(struct colibri_route),
                                              .layer = layer,
                                              .n_rows = n_rows,
                                              .top_k = 2,
                                              .ids = ids,
                                              .gates = gates});
}

static void functions_get_the_right_values(void **state)
{
    (void)state;
    rig r;
    begin(&r, SECTION
          "symbol = spy\nsignature = double(u32 layer, u32 expert, u64 number, u64 now, u64 uses, u64 uses_here, "
          "u64 last_use, u64 age, u64 inserted, u32 prefetched, u32 layers_ahead, f32 gate_last, f64 gate_average, "
          "u32 phase, u64 expert_bytes, u32 n_layers, u32 n_experts, u32 n_slots, u32 top_k, u32 instance)\n"
          "on-use = on_use\nreset = reset\n");
    const struct colibri_expert_policy *const p = policy_of(&r, "x");
    const uint32_t resets = counter("n_resets");
    void *const self = instance_of(p);
    assert_int_equal(counter("n_resets"), resets + 1);
    assert_int_equal(counter("n_uses"), 0);
    step(p, self, 2);
    route(p, self, 1, 2, (const uint32_t[]){4, 6, 6, 2}, (const float[]){0.75f, 0.25f, 0.5f, 0.5f});
    assert_int_equal(counter("n_uses"), 4);
    const uint32_t *const use = variable("use_seen");
    assert_int_equal(use[0], 1);
    assert_int_equal(use[1], 2);
    assert_true(*(const float *)variable("use_gate") == 0.5f);
    p->on_insert(self, 1, 6, COLIBRI_CAUSE_DEMAND);
    p->on_insert(self, 2, 7, COLIBRI_CAUSE_PREFETCH);
    step(p, self, 1);
    route(p, self, 0, 1, (const uint32_t[]){0, 1}, (const float[]){0.5f, 0.5f});
    const double *const seen = variable("seen");
    /* Ticks: row r, layer l is 1 + r * 3 + l. Expert (1, 6) was used at 2 and 5; now is 1 + 2 * 3 + 0 = 7. */
    static const double want[] = {1, 6, 14, 7, 2, 2, 5, 2, 5, 0, 1, 0.5, 0.375, 1, 2000, 3, 8, 5, 2, 0};
    assert_true(p->score(self, 1, 6) == 42);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (seen[i] != want[i])
            fail_msg("argument %zu is %g instead of %g", i, seen[i], want[i]);
    /* Fetched ahead: counts as used when it came, until it is. */
    static const double ahead[] = {2, 7, 23, 7, 0, 0, 5, 2, 5, 1, 2, 0, 0, 1, 3000, 3, 8, 5, 2, 0};
    p->score(self, 2, 7);
    for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++)
        if (seen[i] != ahead[i])
            fail_msg("argument %zu is %g instead of %g", i, seen[i], ahead[i]);
    p->score(self, 0, 1);
    assert_true(seen[10] == 3); /* the routed layer itself: a whole round away */
    /* What is here counts anew after it has left. */
    p->on_evict(self, 1, 6, 2, 0);
    route(p, self, 1, 1, (const uint32_t[]){6, 0}, (const float[]){1, 0});
    p->score(self, 1, 6);
    assert_true(seen[4] == 3 && seen[5] == 1);
    char line[200] = "";
    p->explain(self, 1, 6, line, sizeof line);
    assert_true(test_contains(line, "x: 3 uses"));
    p->reset(self);
    assert_int_equal(counter("n_resets"), resets + 2);
    p->score(self, 1, 6);
    assert_true(seen[3] == 0 && seen[4] == 0 && seen[12] == 0);
    /* Its library remembers uses without knowing whose: a second instance would mix them up. */
    char why[256] = "";
    const struct colibri_policy_config config = {
        .struct_size = sizeof config, .n_layers = 1, .n_experts = 4, .top_k = 1, .n_slots = 2};
    assert_null(p->create(&config, why, sizeof why));
    assert_true(test_contains(why, "'u32 instance'"));
    p->destroy(self);
    void *const next = p->create(&config, why, sizeof why);
    assert_non_null(next);
    p->destroy(next);
    end(&r);

    begin(&r, SECTION "symbol = score_float\nsignature = float(f32 gate_last)\n"
                      "on-use = on_use_of\non-use-signature = void(u32 instance, f64 router_rank)\n");
    const struct colibri_expert_policy *const q = policy_of(&r, "x");
    void *const a = instance_of(q), *const b = instance_of(q);
    step(q, b, 1);
    route(q, b, 0, 1, (const uint32_t[]){3, 5}, (const float[]){0.75f, 0.25f});
    assert_int_equal(counter("last_instance"), 1);
    assert_int_equal(use[2], 1); /* the second choice of the router */
    assert_true(q->score(b, 0, 5) == 0.5);
    assert_true(q->score(a, 0, 5) == 0);
    q->destroy(a);
    q->destroy(b);
    end(&r);
}

/* "The lowest last_use leaves" is lru: score by score, whatever happens. */
static void last_use_is_lru(void **state)
{
    (void)state;
    rig r;
    begin(&r, SECTION "symbol = score_last_use\nsignature = double(f64 last_use)\n");
    const struct colibri_expert_policy *const p[2] = {policy_of(&r, "x"), policy_of(&r, "lru")};
    void *const self[2] = {instance_of(p[0]), instance_of(p[1])};
    test_rand rng = {77};
    for (int pass = 0; pass < 500; pass++) {
        const uint32_t n_rows = 1 + (uint32_t)(test_rand_u64(&rng) % 5);
        for (int k = 0; k < 2; k++)
            step(p[k], self[k], n_rows);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            uint32_t ids[10];
            float gates[10];
            for (uint32_t i = 0; i < 2 * n_rows; i++) {
                ids[i] = (uint32_t)(test_rand_u64(&rng) % N_EXPERTS);
                gates[i] = 0.5f;
            }
            const uint32_t expert = (uint32_t)(test_rand_u64(&rng) % N_EXPERTS),
                           cause = (uint32_t)(test_rand_u64(&rng) % 3);
            for (int k = 0; k < 2; k++) {
                route(p[k], self[k], layer, n_rows, ids, gates);
                p[k]->on_insert(self[k], (layer + 1) % N_LAYERS, expert, cause);
            }
            for (uint32_t l = 0; l < N_LAYERS; l++)
                for (uint32_t e = 0; e < N_EXPERTS; e++)
                    if (p[0]->score(self[0], l, e) != p[1]->score(self[1], l, e))
                        fail_msg("pass %d, expert (%u, %u): %g, lru says %g", pass, l, e, p[0]->score(self[0], l, e),
                                 p[1]->score(self[1], l, e));
        }
    }
    for (int k = 0; k < 2; k++)
        p[k]->destroy(self[k]);
    end(&r);
}

static void bad_answers(void **state)
{
    (void)state;
    rig r;
    begin(&r, SECTION "symbol = score_nan\nsignature = double()\n"
                      "[foreign.y]\nkind = expert-policy\nlibrary = " LIBRARY
                      "\nsymbol = score_flush\nsignature = double(u32 expert)\n");
    const struct colibri_expert_policy *const x = policy_of(&r, "x"), *const y = policy_of(&r, "y");
    void *const sx = instance_of(x), *const sy = instance_of(y);
    assert_true(isnan(x->score(sx, 0, 0)));
    assert_string_equal(r.log_text, "");
    const clb_fpstate before = clb_fpstate_get();
    assert_true(isnan(y->score(sy, 0, 3))); /* the host takes its own choice instead */
    assert_true(clb_fpstate_same(before, clb_fpstate_get()));
    assert_true(isnan(y->score(sy, 0, 3)));
    const char *const said =
        strstr(r.log_text, "foreign.y (" LIBRARY "): score_flush changed the floating-point control");
    assert_non_null(said);
    assert_null(strstr(said + 1, "foreign.y"));
    x->destroy(sx);
    y->destroy(sy);
    end(&r);
}

#define CALLS 20000

static void *ask_often(void *ctx)
{
    const struct colibri_expert_policy *const p = ctx;
    void *const self = instance_of(p);
    for (int i = 0; i < CALLS; i++)
        p->score(self, 0, 0);
    p->destroy(self);
    return NULL;
}

/* The library's function is not made for threads; simulations run several instances at once. */
static void one_call_at_a_time(void **state)
{
    (void)state;
    rig r;
    begin(&r, SECTION "symbol = count\nsignature = double(void)\n");
    const struct colibri_expert_policy *const p = policy_of(&r, "x");
    const uint32_t before = counter("n_calls");
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i], NULL, ask_often, (void *)(uintptr_t)p), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(counter("n_calls"), before + 3 * CALLS);
    assert_true(counter("n_resets") < 1000000);
    end(&r);
}

/* ---- products ------------------------------------------------------------------------------------------------ */

#define INEXACT "[kernels]\nallow-inexact = yes\n"

typedef struct shape {
    uint32_t n_rows, n_cols, n_x, begin, end; /* groups */
    bool indexed;
} shape;

static void check_product(const struct colibri_matmul *m, const shape *s, test_rand *rng)
{
    const size_t ldx = s->n_cols + 3, ldy = s->n_rows + 5, n_rows_x = s->n_x + 4;
    float *const w = malloc((size_t)s->n_rows * s->n_cols * sizeof *w), *const x = malloc(n_rows_x * ldx * sizeof *x),
                 *const y = malloc(s->n_x * ldy * sizeof *y);
    uint32_t *const index = malloc(s->n_x * sizeof *index);
    assert_true(w && x && y && index);
    for (size_t i = 0; i < (size_t)s->n_rows * s->n_cols; i++)
        w[i] = (float)(int)(test_rand_u64(rng) % 2001) / 1000 - 1;
    for (size_t i = 0; i < n_rows_x * ldx; i++)
        x[i] = (float)(int)(test_rand_u64(rng) % 2001) / 1000 - 1;
    for (size_t i = 0; i < s->n_x * ldy; i++)
        y[i] = 12345;
    for (uint32_t t = 0; t < s->n_x; t++) /* runs of three rows, then a jump back */
        index[t] = t % 3 ? index[t - 1] + 1 : (uint32_t)(test_rand_u64(rng) % (n_rows_x - 3));
    m->run(&(struct colibri_matmul_args){.struct_size = sizeof(struct colibri_matmul_args),
                                         .n_rows = s->n_rows,
                                         .n_cols = s->n_cols,
                                         .n_x = s->n_x,
                                         .group_begin = s->begin,
                                         .group_end = s->end,
                                         .w = w,
                                         .group_stride = 16 * sizeof(float) * s->n_cols,
                                         .x = x,
                                         .x_stride = ldx * sizeof(float),
                                         .x_index = s->indexed ? index : NULL,
                                         .y = y,
                                         .y_stride = ldy});
    for (uint32_t t = 0; t < s->n_x; t++)
        for (size_t row = 0; row < ldy; row++) {
            const float got = y[t * ldy + row];
            if (row < 16 * s->begin || row >= 16 * s->end || row >= s->n_rows) {
                assert_true(got == 12345);
                continue;
            }
            const float want = colibri_dot_f32(w + row * s->n_cols, x + (s->indexed ? index[t] : t) * ldx, s->n_cols);
            if (!(fabsf(got - want) <= 1e-4f * (float)s->n_cols))
                fail_msg("%s, %u x %u, x row %u, row %zu: %g instead of %g", m->name, s->n_rows, s->n_cols, t, row,
                         (double)got, (double)want);
        }
    free(w);
    free(x);
    free(y);
    free(index);
}

static void products_are_right(void **state)
{
    (void)state;
    static const char *const conventions[] = {"cblas_sgemm", "sgemm_"};
    static const shape shapes[] = {{16, 32, 1, 0, 1, false}, {40, 64, 7, 0, 3, false},   {40, 64, 7, 1, 2, false},
                                   {33, 1, 5, 2, 3, false},  {100, 96, 33, 2, 7, false}, {48, 64, 12, 1, 3, true},
                                   {48, 64, 40, 0, 3, true}, {16, 64, 3, 1, 1, false},   {16, 64, 3, 4, 9, false}};
    for (size_t c = 0; c < 2; c++) {
        rig r;
        char text[PATH_MAX + 200];
        clb_error err = {0};
        snprintf(text, sizeof text, PRODUCT "symbol = %s\nsignature = %s\nmin-x = 8\n" INEXACT, conventions[c],
                 conventions[c]);
        begin(&r, text);
        assert_ok(clb_registry_foreign_ready(r.reg, &err), &err);
        const struct colibri_format *const f32 = clb_registry_format_named(r.reg, "F32", &err);
        assert_non_null(f32);
        const struct colibri_matmul *const many = clb_registry_matmul(r.reg, f32, 8), *const few = clb_registry_matmul(
                                                                                          r.reg, f32, 7);
        assert_non_null(many);
        assert_string_equal(many->name, "blas");
        assert_true(many->max_ulp > 0);
        assert_true(!few || strcmp(few->name, "blas") != 0);
        test_rand rng = {5};
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_product(many, &shapes[i], &rng);
        end(&r);
    }
}

static void products_need_permission(void **state)
{
    (void)state;
    rig r;
    clb_error err = {0};
    begin(&r, PRODUCT "symbol = nope\nsignature = cblas_sgemm\n");
    assert_ok(clb_registry_foreign_ready(r.reg, &err), &err); /* it cannot serve, so it is not loaded */
    end(&r);
    begin(&r, PRODUCT "symbol = nope\nsignature = cblas_sgemm\n" INEXACT);
    assert_fails(clb_registry_foreign_ready(r.reg, &err), &err, COLIBRI_E_PLUGIN,
                 "x.ini:2: [foreign.blas]: " LIBRARY ": it has no function nope");
    assert_string_equal(r.log_text, "");
    end(&r);
    begin(&r, PRODUCT "symbol = cblas_sgemm\nsignature = cblas_sgemm\nmin-x = 1\n");
    const struct colibri_format *const f32 = clb_registry_format_named(r.reg, "F32", &err);
    const struct colibri_matmul *const m = clb_registry_matmul(r.reg, f32, 64);
    assert_true(!m || strcmp(m->name, "blas") != 0);
    end(&r);
    /* One of a low rank stays behind Colibri's own, where there is one for this CPU. */
    begin(&r, INEXACT);
    const struct colibri_matmul *const own =
        clb_registry_matmul(r.reg, clb_registry_format_named(r.reg, "F32", &err), 64);
    end(&r);
    begin(&r, PRODUCT "symbol = cblas_sgemm\nsignature = cblas_sgemm\nmin-x = 1\nrank = 0\n" INEXACT);
    const struct colibri_matmul *const best =
        clb_registry_matmul(r.reg, clb_registry_format_named(r.reg, "F32", &err), 64);
    assert_non_null(best);
    assert_string_equal(best->name, own ? own->name : "blas");
    end(&r);
}

static void products_restore_the_state(void **state)
{
    (void)state;
    rig r;
    clb_error err = {0};
    begin(&r, PRODUCT "symbol = sgemm_flush\nsignature = cblas_sgemm\nmin-x = 1\n" INEXACT);
    const struct colibri_matmul *const m =
        clb_registry_matmul(r.reg, clb_registry_format_named(r.reg, "F32", &err), 64);
    assert_string_equal(m->name, "blas");
    const clb_fpstate before = clb_fpstate_get();
    test_rand rng = {6};
    check_product(m, &(shape){32, 32, 4, 0, 2, false}, &rng);
    assert_true(clb_fpstate_same(before, clb_fpstate_get()));
    assert_true(test_contains(r.log_text, "sgemm_flush changed the floating-point control state"));
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_text_is_refused),
        cmocka_unit_test(the_command_line_and_models),
        cmocka_unit_test(wrong_libraries_are_refused),
        cmocka_unit_test(views_name_the_library),
        cmocka_unit_test(functions_get_the_right_values),
        cmocka_unit_test(last_use_is_lru),
        cmocka_unit_test(bad_answers),
        cmocka_unit_test(one_call_at_a_time),
        cmocka_unit_test(products_are_right),
        cmocka_unit_test(products_need_permission),
        cmocka_unit_test(products_restore_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
