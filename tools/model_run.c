#include "model_run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv_settings.h"
#include "kv_stats.h"
#include "paths.h"
#include "plan_stats.h"
#include "store_stats.h"
#include "term.h"

#define INPUT_MAX ((size_t)256 << 20)

bool clb_run_interrupted(void *args)
{
    return clb_args_interrupted(args);
}

int clb_print_text(void *ctx, const char *text, size_t n, clb_error *err)
{
    (void)ctx;
    const bool ok = isatty(STDOUT_FILENO) ? clb_term_text(stdout, text, n) : fwrite(text, 1, n, stdout) == n;
    if (!ok || fflush(stdout))
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write to standard output");
    return COLIBRI_OK;
}

int clb_open_engine(clb_args *args, clb_engine **out, clb_error *err)
{
    return clb_open_engine_for(args, 0, 1, out, err);
}

int clb_open_engine_for(clb_args *args, uint32_t min_ctx, uint32_t n_sequences, clb_engine **out, clb_error *err)
{
    char dir[PATH_MAX];
    const clb_engine_options options = {
        .config = clb_args_config(args),
        .builtin_plugin_dir = clb_paths_plugin_dir(dir) ? dir : NULL,
        .log = clb_args_log(args),
        .n_sequences = n_sequences,
        .min_ctx = min_ctx,
        .cancelled = clb_run_interrupted,
        .cancelled_ctx = args,
        .pin_caller = true,
    };
    return clb_engine_open(&options, out, err);
}

int clb_open_chat(clb_args *args, const clb_engine *engine, const clb_chat_format **out, clb_error *err)
{
    *out = NULL;
    if (clb_config_bool(clb_args_config(args), CLB_SET_run_raw))
        return COLIBRI_OK;
    return clb_open_chat_format(clb_args_config(args), clb_args_log(args), engine, out, err);
}

int clb_open_chat_format(const clb_config *config, const clb_log *log, const clb_engine *engine, const clb_chat_format **out,
                         clb_error *err)
{
    const char *given = clb_config_str(config, CLB_SET_model_chat_template);
    *out = NULL;
    if (*given)
        CLB_TRY(clb_chat_open(given, engine->gguf, out, err));
    const int rc = *given ? COLIBRI_OK : clb_chat_detect(engine->gguf, out, err);
    if (rc)
        return rc == COLIBRI_E_NOT_FOUND ? COLIBRI_OK : rc;
    if (clb_chat_note(*out))
        clb_logf(log, COLIBRI_LOG_WARN, "%s", clb_chat_note(*out));
    return COLIBRI_OK;
}

int clb_read_input(const char *path, clb_buf *out, clb_error *err)
{
    const bool from_stdin = strcmp(path, "-") == 0;
    const int fd = from_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "cannot open %s", path);
    int rc = COLIBRI_OK;
    char block[1 << 16];
    while (rc == COLIBRI_OK) {
        const ssize_t n = read(fd, block, sizeof block);
        if (n == 0)
            break;
        if (n < 0)
            rc = clb_fail_errno(err, errno == EINTR ? COLIBRI_E_CANCELLED : COLIBRI_E_IO, errno, "cannot read %s",
                                from_stdin ? "standard input" : path);
        else if (out->n + (size_t)n > INPUT_MAX)
            rc = clb_fail(err, COLIBRI_E_LIMIT, "%s is larger than %zu MiB", path, INPUT_MAX >> 20);
        else
            rc = clb_buf_append(out, block, (size_t)n, err);
    }
    if (!from_stdin)
        close(fd);
    return rc;
}

int clb_check_prompt_size(const clb_engine *engine, size_t n, clb_error *err)
{
    if (n < (1u << 16) || engine->kv_choice.traits.evicts)
        return COLIBRI_OK;
    size_t longest = 1;
    for (uint32_t id = 0; id < clb_vocab_size(engine->vocab); id++) {
        const size_t bytes = clb_token_text(engine->vocab, id).n;
        longest = bytes > longest ? bytes : longest;
    }
    if (n / longest > engine->ctx)
        return clb_fail(err, COLIBRI_E_LIMIT,
                        "the prompt has %zu bytes, at least %zu tokens; the context holds %u: raise --ctx or choose a "
                        "--kv-strategy that evicts",
                        n, n / longest, engine->ctx);
    return COLIBRI_OK;
}

int clb_protect_system(const clb_engine *engine, clb_session *session, const clb_chat_format *chat, const char *system,
                       const clb_tokens *ids, clb_error *err)
{
    /* What two conversations have in common that differ from the user's first letter on. */
    clb_tokens other[2] = {{0}};
    int rc = COLIBRI_OK;
    for (int i = 0; i < 2 && !rc; i++) {
        const clb_message m[2] = {{"system", system}, {"user", i ? "b" : "A"}};
        rc = clb_chat_tokenize(chat, engine->vocab, m, 2, 1, &other[i], err);
    }
    size_t n = 0;
    while (!rc && n < ids->n && n < other[0].n && n < other[1].n && ids->ids[n] == other[0].ids[n] &&
           ids->ids[n] == other[1].ids[n])
        n++;
    clb_tokens_free(&other[0]);
    clb_tokens_free(&other[1]);
    return rc ? rc : clb_session_protect(session, (uint32_t)n, err);
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0.0;
}

struct use_list {
    FILE *f;
    json_t *array;
};

static void print_use(void *ctx, const char *kind, const char *what, const char *component, const char *plugin_id,
                      const char *path)
{
    const struct use_list *u = ctx;
    path = *path ? path : "built-in";
    if (u->array)
        json_array_append_new(u->array, json_pack("{s:s, s:s, s:s, s:s, s:s}", "kind", kind, "for", what, "component",
                                                  component, "plugin", plugin_id, "path", path));
    else
        fprintf(u->f, "  %-14s %-18s %-24s %s\n", kind, what, component, path);
}

static void print_load(FILE *f, const clb_load_report *r)
{
    char a[24], b[24];
    fprintf(f,
            "loading   %s in %.2f s, %.2f GB/s; %.0f %% of the threads' work reading, %.0f %% packing and checksums; huge pages %.0f %% "
            "of the memory, peak RSS %s\n",
            clb_human_bytes(r->bytes, a), (double)r->ns / 1e9, r->bytes_per_second / 1e9, 100 * r->read_share,
            r->ns ? 100 * (1 - r->read_share) : 0.0, 100 * clb_load_report_huge_share(r), clb_human_bytes(r->peak_rss, b));
}

static json_t *load_json(const clb_load_report *r)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:I, s:I, s:I}", "bytes", (json_int_t)r->bytes, "seconds", (double)r->ns / 1e9,
                     "bytes_per_second", r->bytes_per_second, "read_share", r->read_share, "anonymous_bytes",
                     (json_int_t)r->anon_bytes, "huge_page_bytes", (json_int_t)r->huge_bytes, "peak_rss_bytes",
                     (json_int_t)r->peak_rss);
}

/* How kernels were chosen: one line of --stats. */
static void print_selection(FILE *f, const clb_registry *reg)
{
    const clb_selection_stats s = clb_registry_selection(reg);
    if (!s.measure) {
        fputs("kernels   chosen by rank\n", f);
        return;
    }
    fprintf(f,
            "kernels   chosen by measuring: %u decisions measured in %.2f s, %u remembered, %u left to rank; %u differ from "
            "rank\n",
            s.n_measured, (double)s.ns / 1e9, s.n_remembered, s.n_by_rank, s.n_overturned);
}

static json_t *selection_json(const clb_registry *reg)
{
    const clb_selection_stats s = clb_registry_selection(reg);
    if (!s.measure)
        return json_pack("{s:s}", "select", "rank");
    json_t *const o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f}", "select", "measure", "measured", (int)s.n_measured,
                                "remembered", (int)s.n_remembered, "by_rank", (int)s.n_by_rank, "overturned",
                                (int)s.n_overturned, "seconds", (double)s.ns / 1e9);
    json_object_set_new(o, "cache_file", s.cache_file ? clb_json_text(s.cache_file) : json_null());
    return o;
}

void clb_print_stats(FILE *f, const clb_engine *e, const clb_session *session, const clb_generation *g, uint64_t seed)
{
    char a[24], b[24], c[24], d[24], types[CLB_KV_LAYOUT_TEXT];
    clb_store_stats s;
    clb_kv_stats kv;
    clb_store_get_stats(e->model->store, &s);
    clb_kv_seq_stats(clb_session_kv(session), &kv);
    fprintf(f, "\nmodel     %s, %s resident, loaded in %.2f s, %u threads, seed %llu\n", e->model->arch->name,
            clb_human_bytes(s.resident_bytes, a), (double)e->load_ns / 1e9, clb_pool_workers(e->pool),
            (unsigned long long)seed);
    print_load(f, &e->load);
    if (g)
        fprintf(f, "prompt    %u tokens (%u reused), %.2f tok/s\ngenerated %zu tokens, %.2f tok/s, finish: %s%s%s\n",
                g->n_prompt, g->n_reused, per_second(g->n_prompt - g->n_reused, g->prompt_ns), g->tokens.n,
                per_second(g->tokens.n, g->decode_ns), clb_finish_name(g->finish), g->stop ? ", stop string" : "", "");
    clb_print_store_stats(f, &s);
    fprintf(f,
            "kv        %s, strategy %s: %llu positions seen, %llu to %llu retained per layer and head, %llu evicted, %s\n",
            clb_kv_layout_text(&e->kv_layout, types), e->kv_choice.text, (unsigned long long)kv.seen, (unsigned long long)kv.kept_min,
            (unsigned long long)kv.kept_max, (unsigned long long)kv.evicted_sum, clb_human_bytes(kv.bytes, d));
    clb_kv_stats_print(f, e, session);
    clb_kv_share_print(f, e, g);
    if (s.bad_answers || kv.bad_answers)
        fprintf(f, "warning   answers replaced by the host: expert policy %llu, KV strategy %llu\n",
                (unsigned long long)s.bad_answers, (unsigned long long)kv.bad_answers);
    fprintf(f, "plan      budget %s: weights %s, expert slots %s, KV %s, buffers %s\n",
            clb_human_bytes(e->plan.budget, a), clb_human_bytes(e->plan.embedding_bytes + e->plan.dense_bytes, b),
            clb_human_bytes(e->plan.slot_bytes, c), clb_human_bytes(e->plan.kv_bytes, d),
            clb_human_bytes(e->plan.buffer_bytes, (char[24]){0}));
    clb_plan_stats_print(f, e, g);
    print_selection(f, e->registry);
    fputs("plugins in use\n", f);
    struct use_list use = {.f = f};
    clb_registry_uses(e->registry, print_use, &use);
}

json_t *clb_stats_json(const clb_engine *e, const clb_session *session, const clb_generation *g, uint64_t seed)
{
    clb_store_stats s;
    clb_kv_stats kv;
    clb_store_get_stats(e->model->store, &s);
    clb_kv_seq_stats(clb_session_kv(session), &kv);
    struct use_list use = {.array = json_array()};
    clb_registry_uses(e->registry, print_use, &use);
    json_t *out = json_pack("{s:s, s:f, s:i, s:I, s:I, s:o}", "architecture", e->model->arch->name, "load_seconds",
                            (double)e->load_ns / 1e9, "threads", (int)clb_pool_workers(e->pool), "seed",
                            (json_int_t)seed, "resident_bytes", (json_int_t)s.resident_bytes, "plugins", use.array);
    json_object_set_new(out, "kernels", selection_json(e->registry));
    json_object_set_new(out, "load", load_json(&e->load));
    clb_store_stats_json(out, &s);
    json_object_set_new(out, "plan", clb_plan_stats_json(e, g));
    json_object_set_new(out, "kv",
                        json_pack("{s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "types",
                                  clb_kv_layout_text(&e->kv_layout, (char[CLB_KV_LAYOUT_TEXT]){0}), "lossy",
                                  (int)clb_kv_layout_lossy(&e->kv_layout), "strategy", e->kv_choice.text, "seen",
                                  (json_int_t)kv.seen, "retained_min", (json_int_t)kv.kept_min, "retained_max",
                                  (json_int_t)kv.kept_max, "evicted", (json_int_t)kv.evicted_sum, "bytes",
                                  (json_int_t)kv.bytes, "bad_answers", (json_int_t)kv.bad_answers));
    clb_kv_stats_json(json_object_get(out, "kv"), e, session);
    json_object_set_new(json_object_get(out, "kv"), "sharing", clb_kv_share_json(e, g));
    if (g)
        json_object_set_new(out, "timings",
                            json_pack("{s:f, s:f, s:f, s:f}", "prompt_seconds", (double)g->prompt_ns / 1e9,
                                      "prompt_per_second", per_second(g->n_prompt - g->n_reused, g->prompt_ns),
                                      "decode_seconds", (double)g->decode_ns / 1e9, "decode_per_second",
                                      per_second(g->tokens.n, g->decode_ns)));
    return out;
}
