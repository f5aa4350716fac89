/* A section [foreign.NAME]: from its text to a loaded library and a table. */
#include "plugin/foreign.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/value.h"
#include "plugin/foreign_private.h"
#include "plugin/fpstate.h"
#include "plugin/mapped.h"
#include "plugin/search.h"

#define DEFAULT_USE   "void(u32 layer, u32 expert, f32 gate)"
#define DEFAULT_RESET "void()"
#define DEFAULT_RANK  1000 /* whoever writes a section and allows inexact kernels wants this one */
#define DEFAULT_MIN_X 32   /* products of few rows are bound by memory: nothing to win there */

/* ---- the text ---------------------------------------------------------------------------------------------- */

static const char *key_origin(const clb_config *config, const clb_foreign_spec *spec, const char *wanted)
{
    for (size_t i = 0; i < clb_config_foreign_count(config); i++) {
        const char *name, *key, *value, *origin;
        clb_config_foreign_at(config, i, &name, &key, &value, &origin);
        if (!strcmp(name, spec->name) && !strcmp(key, wanted))
            return origin;
    }
    return spec->origin;
}

/* Puts "FILE:LINE: foreign.NAME.KEY: " in front. */
static int blame(const clb_config *config, const clb_foreign_spec *spec, const char *key, clb_error *err)
{
    return clb_context(err, "%s: foreign.%s.%s", key_origin(config, spec, key), spec->name, key);
}

static int take_key(clb_foreign_spec *s, const char *key, const char *value, clb_error *err)
{
    const struct {
        const char *key;
        const char **text;
        bool *flag;
    } members[] = {
        {"library", &s->library, NULL},
        {"symbol", &s->symbol, NULL},
        {"signature", &s->signature, NULL},
        {"summary", &s->summary, NULL},
        {"on-use", &s->on_use, NULL},
        {"on-use-signature", &s->on_use_signature, NULL},
        {"reset", &s->reset, NULL},
        {"reset-signature", &s->reset_signature, NULL},
        {"deterministic", NULL, &s->deterministic},
        {"score-rises", NULL, &s->score_rises},
        {"thread-safe", NULL, &s->thread_safe},
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(members[i].key, key) != 0)
            continue;
        if (members[i].flag)
            return clb_parse_bool(value, members[i].flag, err);
        *members[i].text = value;
        return COLIBRI_OK;
    }
    uint64_t number = 0;
    if (!strcmp(key, "kind")) {
        s->kind = !strcmp(value, "matmul-f32")    ? CLB_FOREIGN_MATMUL_F32
                  : !strcmp(value, "kv-strategy") ? CLB_FOREIGN_KV_STRATEGY
                                                  : CLB_FOREIGN_EXPERT_POLICY;
        return COLIBRI_OK;
    }
    CLB_TRY(clb_parse_u64(value, &number, err)); /* within limits: the settings have checked it */
    if (!strcmp(key, "rank"))
        s->rank = (int)number;
    else if (!strcmp(key, "window"))
        s->window = (unsigned)number;
    else
        s->min_x = (unsigned)number;
    return COLIBRI_OK;
}

static int check_library(const char *library, clb_error *err)
{
    if (library[0] == '/')
        return COLIBRI_OK;
    const char *const so = strstr(library, ".so");
    if (strchr(library, '/') || strncmp(library, "lib", 3) != 0 || !so || (so[3] && so[3] != '.'))
        return clb_fail(err, COLIBRI_E_USAGE,
                        "'%.200s' is neither an absolute path nor the name of a system library like libopenblas.so.0",
                        library);
    return COLIBRI_OK;
}

static int check_symbol(const char *symbol, clb_error *err)
{
    const size_t n = strspn(symbol, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$.");
    if (symbol[n] || !n || n > 200)
        return clb_fail(err, COLIBRI_E_USAGE, "'%.80s' is not the name of a function", symbol);
    return COLIBRI_OK;
}

/* Everything that can be checked without the library. *key: the one to blame, NULL: the section. */
static int check_spec(const clb_foreign_spec *s, const char **key, clb_error *err)
{
    const struct {
        const char *key, *value;
    } needed[] = {{"library", s->library}, {"symbol", s->symbol}, {"signature", s->signature}};
    *key = NULL;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].value)
            return clb_fail(err, COLIBRI_E_USAGE, "it needs library, symbol, signature and kind: there is no %s",
                            needed[i].key);
    *key = "library";
    CLB_TRY(check_library(s->library, err));
    *key = "symbol";
    CLB_TRY(check_symbol(s->symbol, err));
    *key = "signature";
    clb_foreign_signature signature;
    bool fortran;
    if (s->kind == CLB_FOREIGN_MATMUL_F32)
        return clb_foreign_sgemm_convention(s->signature, &fortran, err);
    const bool kv = s->kind == CLB_FOREIGN_KV_STRATEGY;
    CLB_TRY(clb_foreign_parse(s->signature, kv ? CLB_FOREIGN_IN_KV : CLB_FOREIGN_IN_SCORE, &signature, err));
    *key = "window";
    if (s->window && !clb_foreign_asks(&signature, CLB_ARG_prob_last))
        return clb_fail(err, COLIBRI_E_USAGE, "it is about prob_last, which the signature does not ask for");
    *key = "on-use";
    if (s->on_use)
        CLB_TRY(check_symbol(s->on_use, err));
    *key = "on-use-signature";
    if (s->on_use_signature)
        CLB_TRY(clb_foreign_parse(s->on_use_signature, CLB_FOREIGN_IN_USE, &signature, err));
    *key = "reset";
    if (s->reset)
        CLB_TRY(check_symbol(s->reset, err));
    *key = "reset-signature";
    if (s->reset_signature)
        CLB_TRY(clb_foreign_parse(s->reset_signature, kv ? CLB_FOREIGN_IN_KV_RESET : CLB_FOREIGN_IN_RESET, &signature, err));
    return COLIBRI_OK;
}

/* A key of another kind of function, or one that goes with a key that is not there. */
static int check_fits(const clb_foreign_spec *s, const char *key, clb_error *err)
{
    enum { POLICY = 1, PRODUCT = 2, KV = 4 };
    static const struct {
        const char *key;
        unsigned kinds;
    } of[] = {{"on-use", POLICY},      {"on-use-signature", POLICY}, {"reset", POLICY | KV},
              {"score-rises", POLICY}, {"deterministic", POLICY | KV}, {"reset-signature", POLICY | KV},
              {"rank", PRODUCT},       {"thread-safe", POLICY | KV}, {"min-x", PRODUCT},
              {"window", KV}};
    static const struct {
        unsigned bit;
        const char *name;
    } kinds[] = {[CLB_FOREIGN_EXPERT_POLICY] = {POLICY, "expert-policy"},
                 [CLB_FOREIGN_MATMUL_F32] = {PRODUCT, "matmul-f32"},
                 [CLB_FOREIGN_KV_STRATEGY] = {KV, "kv-strategy"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (!strcmp(of[i].key, key) && !(of[i].kinds & kinds[s->kind].bit))
            return clb_fail(err, COLIBRI_E_USAGE, "it does not go with kind = %s", kinds[s->kind].name);
    if (!strcmp(key, "on-use-signature") && !s->on_use)
        return clb_fail(err, COLIBRI_E_USAGE, "there is no on-use");
    if (!strcmp(key, "reset-signature") && !s->reset)
        return clb_fail(err, COLIBRI_E_USAGE, "there is no reset");
    return COLIBRI_OK;
}

static int find_or_add(clb_foreign_list *list, const char *name, const char *origin, clb_foreign_spec **out,
                       clb_error *err)
{
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->at[i].name, name)) {
            *out = &list->at[i];
            return COLIBRI_OK;
        }
    clb_foreign_spec *const more = realloc(list->at, (list->n + 1) * sizeof *more);
    if (!more)
        return CLB_NOMEM(err, "foreign functions");
    list->at = more;
    *out = &more[list->n++];
    **out = (clb_foreign_spec){.name = name, .origin = origin, .rank = DEFAULT_RANK, .min_x = DEFAULT_MIN_X};
    return COLIBRI_OK;
}

static int collect(const clb_config *config, clb_foreign_list *list, clb_error *err)
{
    const size_t n = clb_config_foreign_count(config);
    const char *name, *key, *value, *origin;
    for (size_t i = 0; i < n; i++) {
        clb_foreign_spec *s = NULL;
        clb_config_foreign_at(config, i, &name, &key, &value, &origin);
        CLB_TRY(find_or_add(list, name, origin, &s, err));
        if (take_key(s, key, value, err))
            return blame(config, s, key, err);
    }
    for (size_t k = 0; k < list->n; k++) {
        const clb_foreign_spec *const s = &list->at[k];
        bool kind = false;
        for (size_t i = 0; i < n; i++) {
            clb_config_foreign_at(config, i, &name, &key, &value, &origin);
            if (strcmp(name, s->name) != 0)
                continue;
            kind = kind || !strcmp(key, "kind");
            if (check_fits(s, key, err))
                return blame(config, s, key, err);
        }
        int rc = kind
                     ? COLIBRI_OK
                     : clb_fail(err, COLIBRI_E_USAGE, "it needs library, symbol, signature and kind: there is no kind");
        key = NULL;
        if (!rc)
            rc = check_spec(s, &key, err);
        if (rc)
            return key ? blame(config, s, key, err) : clb_context(err, "%s: [foreign.%s]", s->origin, s->name);
    }
    return COLIBRI_OK;
}

int clb_foreign_from_config(const clb_config *config, clb_foreign_list *out, clb_error *err)
{
    *out = (clb_foreign_list){0};
    const int rc = collect(config, out, err);
    if (rc)
        clb_foreign_list_free(out);
    return rc;
}

void clb_foreign_list_free(clb_foreign_list *list)
{
    free(list->at);
    *list = (clb_foreign_list){0};
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

static void destroy(clb_foreign *f)
{
    const char *const strings[] = {f->spec.name,      f->spec.origin,         f->spec.library, f->spec.symbol,
                                   f->spec.signature, f->spec.summary,        f->spec.on_use,  f->spec.on_use_signature,
                                   f->spec.reset,     f->spec.reset_signature};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        free((char *)(uintptr_t)strings[i]);
    free(f);
}

static int copy(const char **out, const char *text, clb_error *err)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out ? COLIBRI_OK : CLB_NOMEM(err, "a foreign function");
}

static int fill(clb_foreign *f, const clb_foreign_spec *s, clb_error *err)
{
    clb_foreign_spec *const c = &f->spec;
    *c = (clb_foreign_spec){.kind = s->kind,
                            .deterministic = s->deterministic,
                            .score_rises = s->score_rises,
                            .thread_safe = s->thread_safe,
                            .rank = s->rank,
                            .window = s->window,
                            .min_x = s->min_x ? s->min_x : DEFAULT_MIN_X};
    const char *const use = s->on_use_signature ? s->on_use_signature : DEFAULT_USE;
    const char *const reset = s->reset_signature ? s->reset_signature : DEFAULT_RESET;
    char summary[200];
    snprintf(summary, sizeof summary, "%.60s of %.120s", s->symbol, s->library);
    CLB_TRY(copy(&c->name, s->name, err));
    CLB_TRY(copy(&c->origin, s->origin ? s->origin : "", err));
    CLB_TRY(copy(&c->library, s->library, err));
    CLB_TRY(copy(&c->symbol, s->symbol, err));
    CLB_TRY(copy(&c->signature, s->signature, err));
    CLB_TRY(copy(&c->summary, s->summary ? s->summary : summary, err));
    CLB_TRY(copy(&c->on_use, s->on_use, err));
    CLB_TRY(copy(&c->on_use_signature, s->on_use ? use : NULL, err));
    CLB_TRY(copy(&c->reset, s->reset, err));
    CLB_TRY(copy(&c->reset_signature, s->reset ? reset : NULL, err));
    snprintf(f->source, sizeof f->source, "foreign function %.60s, bound in %.160s", s->symbol, c->origin);
    if (s->kind == CLB_FOREIGN_MATMUL_F32)
        return clb_foreign_sgemm_convention(c->signature, &f->sgemm.fortran, err);
    if (s->kind == CLB_FOREIGN_KV_STRATEGY) {
        CLB_TRY(clb_foreign_parse(c->signature, CLB_FOREIGN_IN_KV, &f->kv.score.signature, err));
        return c->reset
                   ? clb_foreign_parse(c->reset_signature, CLB_FOREIGN_IN_KV_RESET, &f->kv.reset.signature, err)
                   : COLIBRI_OK;
    }
    CLB_TRY(clb_foreign_parse(c->signature, CLB_FOREIGN_IN_SCORE, &f->policy.score.signature, err));
    if (c->on_use)
        CLB_TRY(clb_foreign_parse(c->on_use_signature, CLB_FOREIGN_IN_USE, &f->policy.on_use.signature, err));
    if (c->reset)
        CLB_TRY(clb_foreign_parse(c->reset_signature, CLB_FOREIGN_IN_RESET, &f->policy.reset.signature, err));
    return COLIBRI_OK;
}

int clb_foreign_create(const clb_foreign_spec *spec, const clb_log *log, clb_foreign **out, clb_error *err)
{
    const char *key;
    if (check_spec(spec, &key, err))
        return clb_context(err, "[foreign.%s]%s%s", spec->name, key ? " " : "", key ? key : "");
    clb_foreign *const f = calloc(1, sizeof *f);
    if (!f)
        return CLB_NOMEM(err, "a foreign function");
    const int rc = fill(f, spec, err);
    if (rc) {
        destroy(f);
        return rc;
    }
    atomic_init(&f->log, log);
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->instances, NULL);
    *out = f;
    return COLIBRI_OK;
}

/* Those whose tables somebody may still hold; the list only keeps them reachable for leak checkers. */
static _Atomic(clb_foreign *) retired;

void clb_foreign_retire(clb_foreign *f)
{
    if (!f)
        return;
    atomic_store(&f->log, NULL);
    if (!f->closed) {
        destroy(f);
        return;
    }
    f->next = atomic_load(&retired);
    while (!atomic_compare_exchange_weak(&retired, &f->next, f))
        ;
}

const char *clb_foreign_library(const clb_foreign *f)
{
    return f->spec.library;
}

const char *clb_foreign_origin(const clb_foreign *f)
{
    return f->spec.origin;
}

const void *clb_foreign_table(const clb_foreign *f)
{
    return f->spec.kind == CLB_FOREIGN_MATMUL_F32    ? (const void *)&f->sgemm.table
           : f->spec.kind == CLB_FOREIGN_KV_STRATEGY ? (const void *)&f->kv.table
                                                     : &f->policy.table;
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

int clb_foreign_find(clb_foreign *f, const char *symbol, clb_foreign_fn *out, clb_error *err)
{
    const void *const address = dlsym(f->handle, symbol);
    if (!address)
        return clb_fail(err, COLIBRI_E_PLUGIN, "it has no function %s", symbol);
    if (!clb_mapped_size(address, true))
        return clb_fail(err, COLIBRI_E_PLUGIN, "its %s is data, not a function", symbol);
    memcpy(out, &address, sizeof address);
    return COLIBRI_OK;
}

static ffi_type *ffi_type_of(enum clb_foreign_type type)
{
    switch (type) {
    case CLB_FT_U32:
        return &ffi_type_uint32;
    case CLB_FT_U64:
        return &ffi_type_uint64;
    case CLB_FT_F32:
        return &ffi_type_float;
    case CLB_FT_F64:
        return &ffi_type_double;
    case CLB_FT_VOID:
        break;
    }
    return &ffi_type_void;
}

int clb_foreign_bind(clb_foreign *f, const char *symbol, clb_foreign_call *call, clb_error *err)
{
    CLB_TRY(clb_foreign_find(f, symbol, &call->fn, err));
    for (unsigned i = 0; i < call->signature.n; i++)
        call->types[i] = ffi_type_of(call->signature.arg[i].as);
    if (ffi_prep_cif(&call->cif, FFI_DEFAULT_ABI, call->signature.n, ffi_type_of(call->signature.result),
                     call->types) != FFI_OK)
        return clb_fail(err, COLIBRI_E_INTERNAL, "libffi cannot call %s", symbol);
    return COLIBRI_OK;
}

int clb_foreign_closure(clb_foreign *f, ffi_type *result, ffi_type **args, unsigned n,
                        void (*handler)(ffi_cif *cif, void *result, void **args, void *f), void **code, clb_error *err)
{
    f->closure = ffi_closure_alloc(sizeof *f->closure, code);
    if (!f->closure || ffi_prep_cif(&f->closure_cif, FFI_DEFAULT_ABI, n, result, args) != FFI_OK ||
        ffi_prep_closure_loc(f->closure, &f->closure_cif, handler, f, *code) != FFI_OK)
        return clb_fail(err, COLIBRI_E_PLUGIN, "libffi cannot make a callback here (is memory never executable?)");
    f->closed = true;
    return COLIBRI_OK;
}

void clb_foreign_complain(clb_foreign *f, const char *what)
{
    if (!atomic_exchange(&f->complained, true))
        clb_logf(atomic_load(&f->log), COLIBRI_LOG_WARN,
                 "foreign.%s (%s): %s changed the floating-point control state; it is put back after every call",
                 f->spec.name, f->spec.library, what);
}

static int open_library(clb_foreign *f, clb_error *err)
{
    if (f->spec.library[0] == '/') { /* judged as plugin files are: a library that others may write runs their code */
        clb_search_file file;
        int fd;
        clb_error e = {0};
        if (clb_search_open_file(f->spec.library, &file, &fd, &e))
            return clb_fail(err, COLIBRI_E_PLUGIN, "%s", e.msg);
        close(fd);
        clb_search_file_free(&file);
    }
    const clb_fpstate before = clb_fpstate_get();
    f->handle = dlopen(f->spec.library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *const reason = f->handle ? NULL : dlerror();
    const bool same = clb_fpstate_same(before, clb_fpstate_get());
    clb_fpstate_set(before);
    if (!f->handle)
        return clb_fail(err, COLIBRI_E_PLUGIN, "the dynamic linker refuses it: %s",
                        reason ? reason : "no reason given");
    if (!same)
        return clb_fail(err, COLIBRI_E_PLUGIN,
                        "loading it changed the floating-point control state: is it linked with -ffast-math");
    return COLIBRI_OK;
}

int clb_foreign_load(clb_foreign *f, clb_error *err)
{
    CLB_TRY(open_library(f, err));
    return f->spec.kind == CLB_FOREIGN_MATMUL_F32    ? clb_foreign_sgemm_load(f, err)
           : f->spec.kind == CLB_FOREIGN_KV_STRATEGY ? clb_foreign_kv_load(f, err)
                                                     : clb_foreign_policy_load(f, err);
}
