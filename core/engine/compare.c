#include "engine/compare.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

void clb_compare_run_free(clb_compare_run *run)
{
    clb_tokens_free(&run->tokens);
    free(run->step_ns);
    free(run->hash);
    run->step_ns = run->hash = NULL;
}

uint64_t clb_compare_hash(const float *x, uint32_t n)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15) ^ n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        h = (h ^ bits) * UINT64_C(0xff51afd7ed558ccd); /* odd: no input is lost */
        h ^= h >> 32;
    }
    return h;
}

double clb_compare_kl(const float *ref, const float *x, uint32_t n, bool *same_top)
{
    uint32_t top_ref = 0, top_x = 0;
    for (uint32_t i = 1; i < n; i++) {
        top_ref = ref[i] > ref[top_ref] ? i : top_ref;
        top_x = x[i] > x[top_x] ? i : top_x;
    }
    *same_top = top_ref == top_x;
    double sum_ref = 0, sum_x = 0, cross = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double r = (double)ref[i] - (double)ref[top_ref], v = (double)x[i] - (double)x[top_x];
        const double p = exp(r);
        sum_ref += p;
        sum_x += exp(v);
        cross += p * (r - v);
    }
    const double kl = cross / sum_ref - log(sum_ref) + log(sum_x);
    return kl < 0 ? 0 : kl; /* rounding */
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* The kernel's highest mark starts anew; where that is not allowed, peaks are those of the whole process so far. */
static void reset_peak(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    const ssize_t n = write(fd, "5", 1);
    (void)n;
    close(fd);
}

static uint64_t peak_rss(void)
{
    char text[4096];
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, "VmHWM:");
    return at ? strtoull(at + strlen("VmHWM:"), NULL, 10) * 1024 : 0;
}

static void drop_pages(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) /* a copy that is not there; the store has complained */
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

void clb_compare_make_cold(clb_engine *e, const clb_config *config)
{
    const char *const *dirs;
    const size_t n_dirs = clb_config_list(config, CLB_SET_store_mirror, &dirs);
    clb_store_reset_experts(e->model->store);
    clb_store_unmap_pages(e->model->store);
    for (uint32_t i = 0; i < clb_gguf_n_shards(e->gguf); i++) {
        const char *const path = clb_gguf_shard_path(e->gguf, i), *const slash = strrchr(path, '/');
        drop_pages(path);
        for (size_t d = 0; d < n_dirs; d++) {
            clb_buf copy = {0};
            if (!clb_buf_printf(&copy, NULL, "%s/%s", dirs[d], slash ? slash + 1 : path))
                drop_pages(copy.data);
            clb_buf_free(&copy);
        }
    }
}

/* ---- one run ------------------------------------------------------------------------------------------------ */

static clb_compare_counters counters(const clb_engine *e)
{
    clb_store_stats s;
    clb_store_get_stats(e->model->store, &s);
    return (clb_compare_counters){
        .hits = s.hits,
        .late = s.late,
        .misses = s.misses,
        .bytes_read = s.expert_bytes_read + s.guess_bytes + s.layer_bytes_read,
        .stall_ns = s.stall_ns,
        .prefetches = s.guesses,
        .prefetch_useful = s.guess_useful,
        .prefetch_wasted = s.guess_wasted,
    };
}

static clb_compare_counters difference(const clb_compare_counters *b, const clb_compare_counters *a)
{
    return (clb_compare_counters){
        .hits = b->hits - a->hits,
        .late = b->late - a->late,
        .misses = b->misses - a->misses,
        .bytes_read = b->bytes_read - a->bytes_read,
        .stall_ns = b->stall_ns - a->stall_ns,
        .prefetches = b->prefetches - a->prefetches,
        .prefetch_useful = b->prefetch_useful - a->prefetch_useful,
        .prefetch_wasted = b->prefetch_wasted - a->prefetch_wasted,
    };
}

/* Notes the logits at hand as those of step run->tokens.n. */
static int see_logits(const clb_session *s, uint32_t n_vocab, const clb_compare_input *in, clb_compare_run *run,
                      clb_error *err)
{
    const float *const logits = clb_session_logits(s);
    run->hash[run->tokens.n] = clb_compare_hash(logits, n_vocab);
    return in->on_logits ? in->on_logits(in->ctx, (uint32_t)run->tokens.n, logits, err) : COLIBRI_OK;
}

static int run_steps(clb_session *s, clb_sampler *sampler, const clb_compare_input *in, clb_compare_run *out,
                     clb_error *err)
{
    const clb_engine *const e = clb_session_engine(s);
    for (uint32_t i = 0; i < in->n_tokens; i++) {
        uint32_t token;
        if (in->forced) {
            token = in->forced[i];
        } else {
            CLB_TRY(clb_sampler_sample(sampler, clb_session_logits(s), &token, err));
            clb_sampler_accept(sampler, token);
            if (!in->ignore_eog && clb_vocab_is_eog(e->vocab, token)) {
                out->ended = true;
                return COLIBRI_OK;
            }
        }
        const uint64_t t0 = clb_now_ns();
        CLB_TRY(clb_session_append(s, token, err));
        out->step_ns[i] = clb_now_ns() - t0;
        CLB_TRY(clb_tokens_push(&out->tokens, token, err));
        CLB_TRY(see_logits(s, e->model->hp.n_vocab, in, out, err));
    }
    return COLIBRI_OK;
}

int clb_compare_measure(clb_session *s, const clb_compare_input *in, clb_compare_run *out, clb_error *err)
{
    const clb_engine *const e = clb_session_engine(s);
    const bool keeps_all = !e->kv_choice.traits.evicts;
    *out = (clb_compare_run){.n_prompt = in->n_prompt};
    if (keeps_all && (uint64_t)in->n_prompt + in->n_tokens > e->ctx)
        return clb_fail(err, COLIBRI_E_LIMIT, "a prompt of %u tokens and %u more: the context holds %u (--ctx)",
                        in->n_prompt, in->n_tokens, e->ctx);
    clb_sampler *sampler = NULL;
    int rc = COLIBRI_OK;
    out->step_ns = calloc((size_t)in->n_tokens + 1, sizeof *out->step_ns);
    out->hash = calloc((size_t)in->n_tokens + 1, sizeof *out->hash);
    if (!out->step_ns || !out->hash)
        CLB_GO(CLB_NOMEM(err, "a run's times"));
    CLB_GO(clb_sampler_create(&in->sampling, e->model->hp.n_vocab, &sampler, err));
    for (uint32_t i = 0; i < in->n_prompt; i++)
        clb_sampler_accept(sampler, in->prompt[i]);
    clb_session_reset(s);
    clb_session_keep_apart(s);
    clb_store_reset_stats(e->model->store);
    reset_peak();
    const uint64_t t0 = clb_now_ns();
    CLB_GO(clb_session_feed(s, in->prompt, in->n_prompt, NULL, err));
    out->prompt_ns = clb_now_ns() - t0;
    out->in_prompt = counters(e);
    CLB_GO(see_logits(s, e->model->hp.n_vocab, in, out, err));
    CLB_GO(run_steps(s, sampler, in, out, err));
    const clb_compare_counters all = counters(e);
    out->in_steps = difference(&all, &out->in_prompt);
    out->peak_rss = peak_rss();
done:
    clb_sampler_destroy(sampler);
    if (rc) {
        clb_compare_run_free(out);
        *out = (clb_compare_run){0};
    }
    return rc;
}

const char *clb_compare_lossy(clb_registry *registry, const clb_config *config, char *out, size_t size)
{
    const char *const kv = clb_config_str(config, CLB_SET_kv_kv_strategy);
    const char *const policy = clb_config_str(config, CLB_SET_store_expert_policy);
    clb_kv_choice k;
    const bool known = !clb_kv_choice_parse(registry, config, NULL, &k, NULL);
    const bool evicts = known && k.traits.evicts, picks = known && k.picks_pages;
    clb_kv_choice_free(&k);
    const struct colibri_expert_policy *const p = clb_registry_expert_policy(registry, policy, NULL);
    if (clb_config_bool(config, CLB_SET_kernels_allow_inexact))
        snprintf(out, size, "inexact kernels are allowed");
    else if (evicts)
        snprintf(out, size, "KV strategy %.80s evicts", kv);
    else if (picks)
        snprintf(out, size, "KV strategy %.80s picks pages", kv);
    else if (p && !(p->flags & COLIBRI_POLICY_LOSSLESS))
        snprintf(out, size, "expert policy %.80s may change the routing", policy);
    else
        return NULL;
    return out;
}
