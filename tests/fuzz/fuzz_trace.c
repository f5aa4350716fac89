/* Bytes as a trace of every format; what is accepted must survive being indexed, exported, read back and replayed.
 * Seeds: tests/fuzz/corpus/trace; the first byte says which format the rest is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"

static int count(void *ctx, const void *data, size_t n, clb_error *err)
{
    return clb_buf_append(ctx, data, n, err);
}

static void *create(const struct colibri_policy_config *config, char *why, size_t size)
{
    (void)config;
    (void)why;
    (void)size;
    static int self;
    return &self;
}

static void nothing(void *self)
{
    (void)self;
}

static double score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    return (double)(layer ^ expert);
}

static const struct colibri_expert_policy policy = {.struct_size = sizeof policy,
                                                    .name = "fuzz",
                                                    .create = create,
                                                    .destroy = nothing,
                                                    .reset = nothing,
                                                    .score = score};

static void use(const clb_trace *t)
{
    clb_error err;
    clb_replay_index x;
    clb_buf text = {0};
    clb_trace *again = NULL;
    if (t->n_rows > 4096 || (uint64_t)t->info.n_layers * t->info.n_experts > 1u << 20)
        return; /* sound, and slow to go through */
    if (clb_trace_export(t, CLB_TRACE_JSONL, &(struct clb_trace_sink){count, &text}, &err))
        abort();
    if (t->n_passes && clb_trace_import(text.data, text.n, CLB_TRACE_JSONL, NULL, &again, &err) == COLIBRI_OK &&
        (again->n_rows != t->n_rows ||
         memcmp(again->ids, t->ids, t->n_rows * t->info.n_layers * t->info.top_k * sizeof *t->ids) != 0))
        abort();
    if (t->n_passes && clb_replay_index_make(t, &x, &err) == COLIBRI_OK) {
        clb_replay_result r;
        const uint32_t all = t->info.n_layers * t->info.n_experts, least = clb_replay_least_slots(&t->info, false);
        const clb_replay_options o = {.policy = &policy, .n_slots = all / 3 > least ? all / 3 : least, .window = 1};
        if (clb_replay_run(&x, &o, &r, &err) || r.stats.hits + r.stats.misses != x.n_lookups)
            abort();
        clb_replay_result_free(&r);
        clb_replay_index_free(&x);
    }
    clb_trace_close(again);
    clb_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const enum clb_trace_format format = (enum clb_trace_format)(data[0] % 5);
    const clb_trace_import_options options = {.prefill = 3,
                                              .n_layers = data[0] & 0x40 ? 2 : 0,
                                              .n_experts = data[0] & 0x40 ? 5 : 0,
                                              .top_k = data[0] & 0x40 ? 2 : 0};
    clb_trace *t = NULL;
    clb_error err = {0};
    const int rc = clb_trace_import(data + 1, size - 1, format, &options, &t, &err);
    if (rc && (t || !*err.msg || strchr(err.msg, '\n')))
        abort();
    if (!rc)
        use(t);
    clb_trace_close(t);
    return 0;
}
