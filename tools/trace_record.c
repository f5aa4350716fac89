/* colibri trace: runs prompts and records their routing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "compare.h"
#include "paths.h"
#include "store/io.h"
#include "trace.h"

struct job {
    clb_args *args;
    clb_engine *engine;
    clb_session *session;
    clb_sampler *sampler;
    clb_prompts prompts;
    clb_trace_info info;
    clb_trace_writer *writer;
    clb_recorder *recorder;
    bool forced, reset_cache, ignore_eos;
    uint32_t prefill, window, max_windows, n_predict;
    clb_profile prompt_profile, decode_profile;
    uint64_t prompt_rows, decode_rows;
};

static void on_route(void *ctx, const struct colibri_route *route)
{
    struct job *const j = ctx;
    if (j->recorder)
        clb_recorder_route(j->recorder, route);
}

/* ---- what to run ---- */

static int add_prompt(struct job *j, const char *label, const char *text, size_t n, clb_error *err)
{
    clb_prompt *const more = realloc(j->prompts.v, ((size_t)j->prompts.n + 1) * sizeof *more);
    if (!more)
        return CLB_NOMEM(err, "prompts");
    j->prompts.v = more;
    clb_prompt *const p = &more[j->prompts.n++];
    *p = (clb_prompt){.id = strdup(label), .topic = strdup(""), .text = malloc(n + 1), .n = n};
    if (!p->id || !p->topic || !p->text)
        return CLB_NOMEM(err, "prompts");
    memcpy(p->text, text, n);
    p->text[n] = '\0';
    return COLIBRI_OK;
}

static const char *base_name(const char *path)
{
    const char *const slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int read_lines(struct job *j, const char *file, clb_error *err)
{
    clb_buf text = {0};
    char label[300];
    unsigned number = 0;
    int rc = clb_read_input(file, &text, err);
    for (const char *at = text.data, *end = text.data + text.n; !rc && at < end;) {
        const char *const nl = memchr(at, '\n', (size_t)(end - at));
        const size_t n = nl ? (size_t)(nl - at) : (size_t)(end - at);
        number++;
        snprintf(label, sizeof label, "%.200s:%u", base_name(file), number);
        if (n)
            rc = add_prompt(j, label, at, n, err);
        at += n + (nl != NULL);
    }
    clb_buf_free(&text);
    return rc;
}

/* -f reads prompts as `compare` does, --prompts one on each line. */
static int read_prompts(struct job *j, clb_error *err)
{
    const char *const *files;
    size_t n = clb_args_values(j->args, "file", &files);
    for (size_t i = 0; i < n; i++) {
        clb_prompts some = {0};
        const int rc = clb_prompts_read(&files[i], 1, &some, err);
        for (uint32_t k = 0; k < some.n && !rc; k++) {
            char label[300];
            if (some.n == 1)
                snprintf(label, sizeof label, "%.200s", base_name(files[i]));
            else
                snprintf(label, sizeof label, "%.160s:%.80s", base_name(files[i]), some.v[k].id);
            if (add_prompt(j, label, some.v[k].text, some.v[k].n, err)) {
                clb_prompts_free(&some);
                return COLIBRI_E_NOMEM;
            }
            j->prompts.v[j->prompts.n - 1].raw = some.v[k].raw;
        }
        clb_prompts_free(&some);
        CLB_TRY(rc);
    }
    n = clb_args_values(j->args, "prompts", &files);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(read_lines(j, files[i], err));
    if (j->prompts.n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no prompts: give texts with -f or lines with --prompts");
    for (uint32_t i = 0; i < j->prompts.n && j->forced; i++)
        j->prompts.v[i].raw = true; /* the text itself, not a question to an assistant */
    return COLIBRI_OK;
}

static int read_flags(struct job *j, clb_error *err)
{
    const clb_args *const args = j->args;
    static const char *const importing[] = {"from",  "to",           "layers", "experts",
                                            "top-k", "expert-bytes", "label",  "json"};
    for (size_t i = 0; i < sizeof importing / sizeof *importing; i++)
        if (clb_args_has(args, importing[i]))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s does not go with recording", importing[i]);
    j->forced = clb_args_has(args, "teacher-forced");
    j->reset_cache = clb_args_has(args, "reset-cache");
    j->ignore_eos = clb_args_has(args, "ignore-eos");
    j->n_predict = (uint32_t)clb_config_u64(clb_args_config(args), CLB_SET_run_predict);
    j->prefill = 128;
    CLB_TRY(clb_trace_flag(args, "prefill", CLB_TRACE_ROWS_MAX, &j->prefill, err));
    CLB_TRY(clb_trace_flag(args, "window", CLB_TRACE_ROWS_MAX, &j->window, err));
    CLB_TRY(clb_trace_flag(args, "max-windows", UINT32_MAX, &j->max_windows, err));
    static const char *const forced[] = {"prefill", "window", "max-windows"};
    for (size_t i = 0; i < sizeof forced / sizeof *forced && !j->forced; i++)
        if (clb_args_has(args, forced[i]))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s goes with --teacher-forced", forced[i]);
    if (!clb_args_value(args, "output"))
        return clb_fail(err, COLIBRI_E_USAGE, "say with -o where the trace goes");
    return clb_trace_flag(args, "ahead", CLB_TRACE_AHEAD_MAX, &j->info.ahead_layers, err);
}

/* ---- the trace's header ---- */

static void copy_text(clb_str from, char *out, size_t size)
{
    const size_t n = from.n < size - 1 ? from.n : size - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)from.p[i] < 32 || from.p[i] == 127 ? '?' : from.p[i];
    out[n] = '\0';
}

static int gates_type(const char *text, enum clb_trace_gates *out, clb_error *err)
{
    *out = CLB_GATES_F32;
    if (!text || !strcmp(text, "f32"))
        return COLIBRI_OK;
    *out = !strcmp(text, "f16") ? CLB_GATES_F16 : CLB_GATES_NONE;
    return !strcmp(text, "f16") || !strcmp(text, "none")
               ? COLIBRI_OK
               : clb_fail(err, COLIBRI_E_USAGE, "--gates %.40s: f32, f16 or none is expected", text);
}

static int make_info(struct job *j, clb_error *err)
{
    const clb_model *const m = j->engine->model;
    clb_trace_info *const i = &j->info;
    if (m->n_moe_layers == 0)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED, "the model has no experts: there is no routing to record");
    i->n_layers = m->n_moe_layers;
    i->n_experts = m->hp.n_experts;
    i->top_k = m->hp.top_k;
    CLB_TRY(gates_type(clb_args_value(j->args, "gates"), &i->gates, err));
    if (i->ahead_layers) {
        i->ahead_top = 2 * i->top_k < i->n_experts ? 2 * i->top_k : i->n_experts;
        CLB_TRY(clb_trace_flag(j->args, "ahead-top", i->n_experts, &i->ahead_top, err));
    } else if (clb_args_has(j->args, "ahead-top")) {
        return clb_fail(err, COLIBRI_E_USAGE, "--ahead-top goes with --ahead");
    }
    clb_str name = {0};
    const char *const path = clb_config_str(clb_args_config(j->args), CLB_SET_model_model);
    if (clb_gguf_get_str(j->engine->gguf, "general.name", &name, NULL) || name.n == 0)
        name = (clb_str){base_name(path), strlen(base_name(path))};
    copy_text(name, i->model, sizeof i->model);
    copy_text((clb_str){m->arch->name, strlen(m->arch->name)}, i->arch, sizeof i->arch);
    i->expert_bytes = calloc(i->n_layers, sizeof *i->expert_bytes);
    if (!i->expert_bytes)
        return CLB_NOMEM(err, "the trace");
    for (uint32_t l = 0; l < i->n_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            i->expert_bytes[l] += m->expert_layers[l].part[p].bytes;
    return COLIBRI_OK;
}

/* ---- running ---- */

static int feed(struct job *j, const uint32_t *ids, size_t n, bool decode, clb_error *err)
{
    int rc = COLIBRI_OK;
    clb_recorder_feed(j->recorder, decode ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL, ids, n);
    clb_forward_profile(j->engine->forward, decode ? &j->decode_profile : &j->prompt_profile);
    rc = decode ? clb_session_append(j->session, ids[0], err) : clb_session_extend(j->session, ids, n, err);
    clb_forward_profile(j->engine->forward, NULL);
    if (rc)
        return rc;
    *(decode ? &j->decode_rows : &j->prompt_rows) += n;
    CLB_TRY(clb_recorder_flush(j->recorder, err));
    return clb_args_interrupted(j->args) ? clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request") : COLIBRI_OK;
}

static int begin_unit(struct job *j, const char *label, clb_error *err)
{
    clb_session_reset(j->session);
    if (j->reset_cache)
        clb_store_reset_experts(j->engine->model->store);
    return clb_trace_unit_begin(j->writer, label, err);
}

static int generate(struct job *j, const clb_prompt *p, clb_error *err)
{
    const clb_sampler_params params = clb_engine_sampler_params(clb_args_config(j->args));
    const uint32_t n_vocab = j->engine->model->hp.n_vocab;
    CLB_TRY(begin_unit(j, p->id, err));
    CLB_TRY(feed(j, p->ids.ids, p->ids.n, false, err));
    CLB_TRY(clb_sampler_create(&params, n_vocab, &j->sampler, err));
    for (size_t i = 0; i < p->ids.n; i++)
        clb_sampler_accept(j->sampler, p->ids.ids[i]);
    int rc = COLIBRI_OK;
    for (uint32_t n = 0; (!j->n_predict || n < j->n_predict) && clb_session_n_tokens(j->session) < j->engine->ctx;
         n++) {
        uint32_t token;
        CLB_GO(clb_sampler_sample(j->sampler, clb_session_logits(j->session), &token, err));
        clb_sampler_accept(j->sampler, token);
        if (clb_vocab_is_eog(j->engine->vocab, token) && !j->ignore_eos)
            break;
        CLB_GO(feed(j, &token, 1, true, err));
    }
done:
    clb_sampler_destroy(j->sampler);
    j->sampler = NULL;
    return rc;
}

static int force(struct job *j, const clb_prompt *p, clb_error *err)
{
    const size_t window = j->window && j->window < p->ids.n ? j->window : p->ids.n;
    uint32_t number = 0;
    for (size_t at = 0; at < p->ids.n && (!j->max_windows || number < j->max_windows); at += window, number++) {
        const size_t n = p->ids.n - at < window ? p->ids.n - at : window;
        char label[CLB_TRACE_NAME_MAX];
        if (n < window && number)
            break; /* a rest would count as a prompt of its own */
        snprintf(label, sizeof label, window < p->ids.n ? "%.200s window %u" : "%.200s", p->id, number);
        CLB_TRY(begin_unit(j, label, err));
        const size_t prompt = n < j->prefill ? n : j->prefill;
        CLB_TRY(feed(j, p->ids.ids + at, prompt, false, err));
        for (size_t i = prompt; i < n; i++) {
            CLB_TRY(feed(j, p->ids.ids + at + i, 1, true, err));
            clb_progress(clb_args_log(j->args), "recording tokens", at + i + 1, p->ids.n);
        }
    }
    return COLIBRI_OK;
}

/* Times of experts and of everything else, of the passes that were recorded. */
static void measure(const struct job *j, clb_trace_rates *out)
{
    const struct {
        const clb_profile *profile;
        uint64_t units; /* visits that the time is spread over */
        double *layer, *expert;
    } parts[] = {
        {&j->decode_profile, j->decode_rows * j->info.n_layers, &out->decode_layer_ns, &out->decode_expert_ns},
        {&j->prompt_profile, j->prompt_rows * j->info.n_layers, &out->prefill_layer_ns, &out->prefill_expert_ns}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const clb_profile *const p = parts[i].profile;
        const double experts = (double)(p->wall_ns[CLB_PHASE_EXPERT_IN] + p->wall_ns[CLB_PHASE_EXPERT_DOWN]);
        const double rest = (double)p->pass_ns - experts - (double)p->wall_ns[CLB_PHASE_STORE];
        if (!parts[i].units)
            continue;
        *parts[i].layer = rest > 0 ? rest / (double)parts[i].units : 0;
        *parts[i].expert = experts / ((double)parts[i].units * j->info.top_k);
    }
    clb_io_speed speed = {0};
    const char *const path = clb_config_str(clb_args_config(j->args), CLB_SET_model_model);
    if (clb_io_measure(path, 256u << 20, 500000000u, &speed, NULL) == COLIBRI_OK)
        out->read_bytes_per_s = speed.direct_bytes_per_second > speed.buffered_bytes_per_second
                                    ? speed.direct_bytes_per_second
                                    : speed.buffered_bytes_per_second;
}

static int open_engine(struct job *j, clb_error *err)
{
    char dir[PATH_MAX];
    const clb_engine_options options = {
        .config = clb_args_config(j->args),
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(j->args),
        .n_sequences = 1,
        .on_route = on_route,
        .on_route_ctx = j,
        .ahead = j->info.ahead_layers,
        .cancelled = clb_run_interrupted,
        .cancelled_ctx = j->args,
        .pin_caller = true,
    };
    return clb_engine_open(&options, &j->engine, err);
}

/* A forced text may be longer than the context: only its windows must fit, and the session says so if they do not. */
static int tokenize(struct job *j, clb_error *err)
{
    if (!j->forced)
        return clb_prompts_tokenize(&j->prompts, j->args, j->engine, err);
    for (uint32_t i = 0; i < j->prompts.n; i++) {
        clb_prompt *const p = &j->prompts.v[i];
        CLB_TRY(clb_tokenize(j->engine->vocab, p->text, p->n, CLB_TOKENIZE_BOS | CLB_TOKENIZE_SPECIAL, &p->ids, err));
        if (p->ids.n == 0)
            return clb_fail(err, COLIBRI_E_USAGE, "prompt %.80s has no tokens", p->id);
    }
    return COLIBRI_OK;
}

static int record(struct job *j, clb_error *err)
{
    const char *const out = clb_args_value(j->args, "output");
    CLB_TRY(make_info(j, err));
    CLB_TRY(tokenize(j, err));
    CLB_TRY(clb_session_create(j->engine, &j->session, err));
    CLB_TRY(clb_trace_create(out, clb_args_has(j->args, "force"), &j->info, &j->writer, err));
    CLB_TRY(clb_recorder_create(j->writer, &j->info, clb_now_ns, &j->recorder, err));
    for (uint32_t i = 0; i < j->prompts.n; i++) {
        CLB_TRY(j->forced ? force(j, &j->prompts.v[i], err) : generate(j, &j->prompts.v[i], err));
        clb_progress(clb_args_log(j->args), "recording prompts", i + 1, j->prompts.n);
    }
    clb_trace_rates rates = {0};
    measure(j, &rates);
    const uint64_t bytes = clb_trace_written(j->writer);
    clb_trace_writer *const w = j->writer;
    j->writer = NULL;
    CLB_TRY(clb_trace_finish(w, &rates, err));
    char text[24];
    printf("%s: %llu prompt tokens, %llu decoded tokens, %s\n", out, (unsigned long long)j->prompt_rows,
           (unsigned long long)j->decode_rows, clb_human_bytes(bytes, text));
    return COLIBRI_OK;
}

int clb_trace_cmd_record(clb_args *args, clb_error *err)
{
    struct job j = {.args = args};
    int rc = COLIBRI_OK;
    CLB_GO(read_flags(&j, err));
    CLB_GO(read_prompts(&j, err));
    CLB_GO(open_engine(&j, err));
    rc = record(&j, err);
done:
    clb_recorder_destroy(j.recorder);
    clb_trace_abandon(j.writer);
    clb_session_destroy(j.session);
    clb_engine_close(j.engine);
    clb_prompts_free(&j.prompts);
    free(j.info.expert_bytes);
    return rc;
}
