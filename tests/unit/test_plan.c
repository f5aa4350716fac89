/* The planner: the sum is the sum of real sizes, a plan uses the budget and never exceeds it, and what a refusal
 * advises is accepted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plan/memory.h"
#include "plan/plan.h"
#include "support/engine.h"
#include "support/rig.h"
#include "support/synth.h"

#define MIB      (UINT64_C(1) << 20)
#define TINY_MOE TEST_EXAMPLE("tiny-moe/tiny-moe-q4_k_m.gguf")
#define RESIDENT (7 * MIB + 123456)

/* A bound model and an input with plain values. */
struct bench {
    test_rig rig;
    clb_plan_input in;
};

static void open_bench(struct bench *b, const char *path)
{
    clb_error err;
    const test_rig_options o = {0};
    assert_ok(test_rig_open(&b->rig, path, &o, &err), &err);
    const clb_hparams *hp = &b->rig.model->hp;
    b->in = (clb_plan_input){.model = b->rig.model,
                             .kv = {.n_layers = hp->n_layers,
                                    .n_heads = hp->n_heads,
                                    .n_kv_heads = hp->n_kv_heads,
                                    .k_dim = hp->k_dim,
                                    .v_dim = hp->v_dim,
                                    .k_type = COLIBRI_TYPE_F16,
                                    .v_type = COLIBRI_TYPE_F16,
                                    .page_tokens = 32},
                             .kv_positions = 4096,
                             .ctx = 4096,
                             .kv_follows_ctx = true,
                             .n_sequences = 1,
                             .max_rows = 64,
                             .n_workers = 2,
                             .resident = RESIDENT};
}

static uint64_t up(uint64_t v, uint64_t step)
{
    return (v + step - 1) / step * step;
}

/* Sums over the tensors of the file, by name. */
static void file_sizes(const clb_gguf *g, uint64_t *experts, uint64_t *embedding, uint64_t *dense_matrices)
{
    *experts = *embedding = *dense_matrices = 0;
    for (uint64_t i = 0; i < clb_gguf_n_tensors(g); i++) {
        const clb_gguf_tensor *t = clb_gguf_tensor_at(g, i);
        if (strstr(t->name.p, "_exps."))
            *experts += t->n_bytes;
        else if (strncmp(t->name.p, "token_embd", 10) == 0 || strcmp(t->name.p, "output.weight") == 0)
            *embedding += t->n_bytes;
        else if (t->ne[1] > 1)
            *dense_matrices += t->n_bytes;
    }
}

static void sizes_are_the_real_ones(void **state)
{
    (void)state;
    static const char *const paths[] = {TINY_MOE, TEST_DATA("arch/qwen3moe.gguf"), TEST_DATA("arch/llama3.gguf")};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        clb_error err;
        struct bench b;
        clb_plan plan;
        open_bench(&b, paths[i]);
        b.in.budget = 1024 * MIB;
        assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
        uint64_t experts, embedding, dense;
        file_sizes(b.rig.gguf, &experts, &embedding, &dense);
        /* packed matrices are the file's bytes, but for a padded last group of rows; vectors become floats */
        assert_in_range(plan.embedding_bytes, embedding, embedding + embedding / 100);
        assert_in_range(plan.dense_bytes, dense, dense + dense / 20 + 65536);
        assert_int_equal(plan.n_experts, b.rig.model->n_moe_layers * b.rig.model->hp.n_experts);
        assert_in_range(plan.slot_bytes, experts, experts + plan.n_experts * 3 * 4096);
        assert_int_equal(plan.kv_bytes, clb_kv_bytes(&b.in.kv, 4096));
        assert_true(plan.all_experts == (plan.n_experts && plan.n_slots == plan.n_experts));
        assert_int_equal(plan.total_bytes, plan.base_bytes + plan.embedding_bytes + plan.dense_bytes + plan.kv_bytes +
                                               plan.buffer_bytes + plan.staging_bytes + plan.slot_bytes);
        /* what was loaded is what was planned */
        clb_store_stats s;
        clb_store_get_stats(b.rig.model->store, &s);
        assert_int_equal(s.slot_bytes, plan.slot_bytes);
        assert_in_range(s.resident_bytes, plan.dense_bytes + plan.embedding_bytes,
                        plan.dense_bytes + plan.embedding_bytes + 64 * clb_gguf_n_tensors(b.rig.gguf));
        /* every sequence has its own KV cache and logits */
        const uint64_t kv = plan.kv_bytes, buffers = plan.buffer_bytes;
        clb_plan_free(&plan);
        b.in.n_sequences = 3;
        assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
        assert_int_equal(plan.kv_bytes, 3 * kv);
        assert_int_equal(plan.buffer_bytes, buffers + 2 * b.rig.model->hp.n_vocab * sizeof(float));
        clb_plan_free(&plan);
        test_rig_close(&b.rig);
    }
}

/* Buffers for passes in between are had only where nothing is read while running. */
static void a_second_set_of_buffers_comes_last(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan without, with;
    open_bench(&b, TINY_MOE);
    b.in.budget = 1024 * MIB;
    assert_ok(clb_plan_make(&b.in, &without, &err), &err);
    assert_true(without.all_experts && !without.aside_rows);
    b.in.aside_rows = 32;
    assert_ok(clb_plan_make(&b.in, &with, &err), &err);
    assert_true(with.all_experts);
    assert_int_equal(with.aside_rows, 32);
    const uint64_t more = with.total_bytes - without.total_bytes;
    assert_true(more > 0 && with.buffer_bytes - without.buffer_bytes == more);
    clb_plan_free(&with);
    for (uint64_t i = 0; i < 2; i++) { /* a byte too little for it, and exactly enough */
        b.in.budget = without.total_bytes + more - 1 + i;
        assert_ok(clb_plan_make(&b.in, &with, &err), &err);
        assert_true(with.all_experts);
        assert_int_equal(with.aside_rows, i ? 32 : 0);
        assert_int_equal(with.total_bytes, without.total_bytes + (i ? more : 0));
        clb_plan_free(&with);
    }
    b.in.budget = without.total_bytes - 1; /* experts come and go */
    assert_ok(clb_plan_make(&b.in, &with, &err), &err);
    assert_true(!with.all_experts && !with.aside_rows);
    clb_plan_free(&with);
    clb_plan_free(&without);
    test_rig_close(&b.rig);
}

static uint64_t advised(const clb_error *err, const char *flag)
{
    char format[64];
    const char *at = strstr(err->msg, flag);
    unsigned long long v = 0;
    snprintf(format, sizeof format, "%s %%llu", flag);
    if (at && sscanf(at, format, &v) != 1)
        fail_msg("advice without a number: %s", err->msg);
    return v;
}

/* Whether the input fits; frees the plan. Message in err if not. */
static bool fits(const clb_plan_input *in, clb_error *err)
{
    clb_plan plan;
    const int rc = clb_plan_make(in, &plan, err);
    if (rc) {
        assert_int_equal(rc, COLIBRI_E_NOMEM);
        assert_null(plan.class_slots);
        return false;
    }
    assert_true(plan.total_bytes <= in->budget);
    clb_plan_free(&plan);
    return true;
}

static void advised_budget_fits(const clb_plan_input *input)
{
    clb_error err;
    clb_plan_input in = *input;
    in.budget = 1;
    assert_false(fits(&in, &err));
    in.budget = advised(&err, "--max-memory") * MIB;
    if (!fits(&in, &err))
        fail_msg("the advised budget is refused: %s", err.msg);
    in.resident += MIB / 2; /* another run may find the process larger */
    if (!fits(&in, &err))
        fail_msg("the advised budget is refused in the next run: %s", err.msg);
    in.resident = input->resident;
    in.budget -= MIB + (input->resident % MIB > MIB / 2 || input->resident % MIB == 0 ? MIB : 0);
    assert_false(fits(&in, &err));
}

/* The advised context fits, and the next larger one (in steps of 256) does not. */
static uint32_t advised_ctx_fits(const clb_plan_input *input, uint64_t budget, uint32_t extra)
{
    clb_error err;
    clb_plan_input in = *input;
    in.budget = budget;
    in.kv_positions = in.ctx + extra;
    assert_false(fits(&in, &err));
    const uint64_t ctx = advised(&err, "--ctx");
    if (ctx == 0)
        return 0;
    assert_int_equal(ctx % 256, 0);
    assert_true(ctx < in.ctx);
    in.ctx = (uint32_t)ctx;
    in.kv_positions = in.ctx + extra;
    if (!fits(&in, &err))
        fail_msg("the advised context of %u is refused: %s", in.ctx, err.msg);
    return (uint32_t)ctx;
}

static void advice_fits(void **state)
{
    (void)state;
    static const char *const paths[] = {TINY_MOE, TEST_DATA("arch/qwen3moe.gguf"), TEST_DATA("arch/llama3.gguf")};
    uint32_t n_ctx = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct bench b;
        open_bench(&b, paths[i]);
        static const uint32_t pages[] = {16, 32, 48, 512, 4096}, contexts[] = {300, 4096, 40000};
        for (size_t p = 0; p < 5; p++)
            for (size_t c = 0; c < 3; c++)
                for (uint32_t n = 1; n <= 4; n += 3) {
                    b.in.kv.page_tokens = pages[p];
                    b.in.ctx = b.in.kv_positions = contexts[c];
                    b.in.n_sequences = n;
                    for (uint64_t odd = 0; odd < MIB; odd += 199999) {
                        b.in.resident = 7 * MIB + odd;
                        advised_budget_fits(&b.in);
                    }
                    b.in.resident = RESIDENT;
                    clb_error err;
                    clb_plan_input in = b.in;
                    in.budget = 1;
                    assert_false(fits(&in, &err));
                    const uint64_t least = advised(&err, "--max-memory");
                    for (uint64_t less = 2; less < 40 && less < least; less += 3) {
                        n_ctx += advised_ctx_fits(&b.in, (least - less) * MIB, 0) > 0;
                        n_ctx += advised_ctx_fits(&b.in, (least - less) * MIB, 700) > 0;
                    }
                }
        b.in.kv_follows_ctx = false; /* then a smaller context would not help, and is not advised */
        b.in.budget = 5 * MIB;
        clb_error err;
        assert_false(fits(&b.in, &err));
        assert_int_equal(advised(&err, "--ctx"), 0);
        test_rig_close(&b.rig);
    }
    assert_true(n_ctx > 100);
}

/* From the least budget up: never over it, and once a slot more would fit, it is there. */
static void budgets_are_used(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan plan;
    open_bench(&b, TINY_MOE);
    const uint32_t n_layers = b.rig.model->n_moe_layers, n_experts = b.rig.model->hp.n_experts,
                   top_k = b.rig.model->hp.top_k;
    uint32_t class_of[64], members[64] = {0};
    uint64_t bytes[64];
    assert_in_range(n_layers, 1, 64);
    const uint32_t n_classes = clb_store_classes(b.rig.model->expert_layers, n_layers, class_of, bytes);
    assert_true(n_classes > 1); /* Q4_K and Q6_K experts: or the split is not tested */
    for (uint32_t l = 0; l < n_layers; l++)
        members[class_of[l]] += n_experts;
    b.in.budget = 1;
    assert_false(fits(&b.in, &err));
    const uint64_t least = advised(&err, "--max-memory") * MIB;
    uint32_t before = 0;
    bool all = false;
    const uint64_t slack = clb_store_stream_slack(&b.rig.model->expert_layers[0]);
    for (b.in.budget = least; b.in.budget < least + 60 * MIB; b.in.budget += 333333) {
        assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
        assert_int_equal(plan.n_classes, n_classes);
        uint32_t n = 0;
        uint64_t sum = 0, biggest = 0;
        double low = 1.0, high = 0.0;
        for (uint32_t c = 0; c < n_classes; c++) {
            assert_in_range(plan.class_slots[c], top_k, members[c]);
            n += plan.class_slots[c];
            sum += plan.class_slots[c] * (bytes[c] + (plan.all_experts ? 0 : slack));
            biggest = bytes[c] + slack > biggest ? bytes[c] + slack : biggest;
            const double share = (double)plan.class_slots[c] / members[c];
            low = share < low ? share : low;
            high = share > high ? share : high;
        }
        assert_int_equal(n, plan.n_slots);
        assert_int_equal(sum, plan.slot_bytes);
        assert_true(plan.total_bytes <= plan.budget);
        assert_true(plan.n_slots >= before);
        before = plan.n_slots;
        if (!plan.all_experts)
            assert_true(plan.budget - plan.total_bytes < n_classes * biggest);
        if (low * members[0] > top_k + 1.0) /* above the floors: the same share of every class */
            assert_true(high - low < 2.0 / n_experts);
        all = all || plan.all_experts;
        clb_plan_free(&plan);
    }
    assert_true(all);
    test_rig_close(&b.rig);
}

static void slots_can_be_given(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan plan;
    open_bench(&b, TINY_MOE);
    b.in.budget = 1024 * MIB;
    const uint32_t n_experts = b.rig.model->n_moe_layers * b.rig.model->hp.n_experts;
    for (uint32_t n = 1; n <= n_experts + 3; n++) {
        b.in.expert_slots = n;
        const int rc = clb_plan_make(&b.in, &plan, &err);
        if (n < 2) { /* there are two sizes of experts, and each needs a slot */
            assert_fails(rc, &err, COLIBRI_E_USAGE, "at least 2");
            continue;
        }
        assert_ok(rc, &err);
        const uint32_t want = n > n_experts ? n_experts : n;
        assert_int_equal(plan.n_slots, want);
        assert_int_equal(plan.all_experts, want == n_experts);
        for (uint32_t c = 0; c < plan.n_classes; c++)
            assert_true(plan.class_slots[c] >= 1);
        clb_plan_free(&plan);
    }
    b.in.expert_slots = 100;
    advised_budget_fits(&b.in);
    test_rig_close(&b.rig);
}

/* Every layer its own slots: never more in total than asked for, the same number in all layers of a class. */
static void layers_can_have_their_own_slots(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan plan;
    open_bench(&b, TINY_MOE);
    const uint32_t n_layers = b.rig.model->n_moe_layers, n_experts = b.rig.model->hp.n_experts;
    uint32_t class_of[64], layers[64] = {0};
    uint64_t bytes[64];
    const uint32_t n_classes = clb_store_classes(b.rig.model->expert_layers, n_layers, class_of, bytes);
    for (uint32_t l = 0; l < n_layers; l++)
        layers[class_of[l]]++;
    assert_true(layers[0] > 1); /* or there is nothing to round */
    b.in.layer_pools = true;
    b.in.budget = 1024 * MIB;
    for (uint32_t n = 1; n <= n_layers * n_experts; n++) {
        b.in.expert_slots = n;
        const int rc = clb_plan_make(&b.in, &plan, &err);
        if (n < n_layers) {
            assert_fails(rc, &err, COLIBRI_E_USAGE, "one for each layer");
            continue;
        }
        assert_ok(rc, &err);
        assert_in_range(plan.n_slots, n > n_layers ? n - n_layers : n, n);
        for (uint32_t c = 0; c < n_classes; c++)
            assert_int_equal(plan.class_slots[c] % layers[c], 0);
        clb_plan_free(&plan);
    }
    b.in.expert_slots = 0;
    b.in.budget = 1;
    assert_false(fits(&b.in, &err));
    b.in.budget = advised(&err, "--max-memory") * MIB;
    for (; b.in.budget < 80 * MIB; b.in.budget += 333333) {
        assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
        assert_true(plan.total_bytes <= plan.budget);
        for (uint32_t c = 0; c < n_classes; c++) {
            assert_int_equal(plan.class_slots[c] % layers[c], 0);
            assert_true(plan.class_slots[c] / layers[c] >= b.rig.model->hp.top_k);
        }
        clb_plan_free(&plan);
    }
    test_rig_close(&b.rig);
}

/* The sum of a plan, and what its fields say about streaming. */
static void check_stream(const struct bench *b, const clb_plan *p)
{
    const clb_model *model = b->rig.model;
    assert_int_equal(p->n_layers, model->hp.n_layers);
    assert_in_range(p->resident_layers, 0, p->n_layers);
    assert_int_equal(p->total_bytes, p->base_bytes + p->embedding_bytes + p->dense_bytes + p->kv_bytes +
                                         p->kv_strategy_bytes + p->buffer_bytes + p->staging_bytes + p->slot_bytes +
                                         p->stream_bytes);
    assert_int_equal(p->stream_bytes, p->n_stream_slots * p->layer_slot_bytes);
    uint64_t streamed = 0, in_file = 0, biggest = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!clb_model_streams(l, p->n_layers, p->n_layers - p->resident_layers))
            continue;
        const clb_layer *y = &model->layers[l];
        const clb_weight *const w[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down, &y->router};
        uint64_t bytes = 0;
        for (size_t i = 0; i < sizeof w / sizeof *w; i++)
            if (w[i]->tensor) {
                bytes += w[i]->m.bytes;
                in_file += w[i]->m.row_bytes * w[i]->m.n_rows;
            }
        streamed += bytes;
        const uint64_t room = clb_plan_layer_bytes(model, l);
        assert_in_range(room, bytes, bytes + 8 * 3 * 4096); /* with the alignment of direct reads */
        biggest = room > biggest ? room : biggest;
    }
    assert_int_equal(p->layer_slot_bytes, biggest);
    const uint32_t n = p->n_layers - p->resident_layers;
    assert_in_range(p->n_stream_slots, n < 2 ? n : 2, n);
    const clb_model_sizes sizes = clb_model_get_sizes(model);
    assert_int_equal(p->dense_bytes + streamed, sizes.dense_bytes);
    assert_int_equal(p->streamed_file_bytes, in_file);
}

static void stream_model(const char *path)
{
    bool streamed = false;
    for (uint32_t depth = 0; depth < 4; depth++) {
        clb_error err;
        struct bench b;
        clb_plan plan;
        open_bench(&b, path);
        b.in.prefetch_depth = depth;
        b.in.budget = 1;
        assert_false(fits(&b.in, &err));
        uint32_t before = 0, slots = 0;
        for (b.in.budget = advised(&err, "--max-memory") * MIB; b.in.budget < 120 * MIB; b.in.budget += 222222) {
            assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
            assert_true(plan.total_bytes <= plan.budget);
            check_stream(&b, &plan);
            if (plan.n_stream_slots == slots) /* the first ones are bought with read-ahead */
                assert_true(plan.resident_layers >= before);
            before = plan.resident_layers;
            slots = plan.n_stream_slots;
            if (plan.resident_layers < plan.n_layers) {
                streamed = true;
                const uint32_t most = (depth ? depth : 1) + 1;
                assert_true(plan.n_stream_slots <= (most > 2 ? most : 2));
            }
            clb_plan_free(&plan);
        }
        assert_int_equal(before, b.rig.model->hp.n_layers);
        b.in.budget = 1024 * MIB;
        for (uint32_t n = 1; n <= b.rig.model->hp.n_layers; n++) {
            b.in.resident_layers = n;
            assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
            assert_int_equal(plan.resident_layers, n);
            check_stream(&b, &plan);
            clb_plan_free(&plan);
            advised_budget_fits(&b.in);
        }
        b.in.resident_layers = b.rig.model->hp.n_layers + 1;
        assert_fails(clb_plan_make(&b.in, &plan, &err), &err, COLIBRI_E_USAGE, "layers");
        b.in.mapped = true;
        b.in.resident_layers = 1;
        assert_fails(clb_plan_make(&b.in, &plan, &err), &err, COLIBRI_E_USAGE, "does not apply");
        test_rig_close(&b.rig);
    }
    assert_true(streamed);
}

/* From the least budget up: layers stay as soon as there is room. */
static void layers_are_streamed(void **state)
{
    (void)state;
    static const test_shape shapes[] = {{6, 512, 1536, 0, 0, 8, 2, 64, 4096}, {4, 512, 64, 4, 2, 32, 8, 64, 4096}};
    test_dir dir;
    char path[PATH_MAX];
    test_dir_create(&dir);
    test_dir_file(&dir, "model.gguf", path);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        test_write_model(path, &shapes[i]);
        stream_model(path);
        unlink(path);
    }
    test_dir_remove(&dir);
}

/* In mmap mode what the store finds usable in the file is not reserved a second time. */
static void mapped_weights_are_not_copied(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan read, mapped;
    open_bench(&b, TEST_DATA("arch/qwen3moe.gguf"));
    b.in.budget = 1024 * MIB;
    assert_ok(clb_plan_make(&b.in, &read, &err), &err);
    b.in.mapped = true;
    assert_ok(clb_plan_make(&b.in, &mapped, &err), &err);
    assert_int_equal(read.mapped_bytes, 0);
    assert_true(mapped.mapped_bytes > 0);
    assert_int_equal(mapped.n_experts, read.n_experts);
    assert_true(mapped.all_experts);
    assert_in_range(mapped.total_bytes + mapped.mapped_bytes, read.total_bytes - read.n_experts * UINT64_C(3) * 8192,
                    read.total_bytes);
    clb_plan_free(&read);
    clb_plan_free(&mapped);
    test_rig_close(&b.rig);
}

/* Absurd sizes end in a refusal, not in a sum that wrapped around to something small. */
static void sums_do_not_wrap(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    clb_plan plan;
    open_bench(&b, TINY_MOE);
    b.in.budget = UINT64_MAX;
    b.in.n_sequences = UINT32_MAX;
    b.in.kv_positions = 1u << 24;
    b.in.kv_follows_ctx = false;
    b.in.kv.n_layers = 60000;
    b.in.kv.n_kv_heads = 4096;
    b.in.kv.k_dim = b.in.kv.v_dim = 1024;
    assert_int_equal(clb_plan_make(&b.in, &plan, &err), COLIBRI_E_NOMEM);
    b.in.budget = 100 * MIB;
    assert_int_equal(clb_plan_make(&b.in, &plan, &err), COLIBRI_E_NOMEM);
    test_rig_close(&b.rig);
}

/* "the model needs at least 37 MiB (weights 2, experts 8, ...)": the parts add up to the sum. */
static void refusals_add_up(void **state)
{
    (void)state;
    clb_error err;
    struct bench b;
    open_bench(&b, TINY_MOE);
    b.in.budget = 1;
    for (uint32_t positions = 1000; positions < 60000; positions += 777) {
        b.in.kv_positions = b.in.ctx = positions;
        assert_false(fits(&b.in, &err));
        unsigned long long sum, parts[5];
        assert_int_equal(sscanf(err.msg,
                                "the model needs at least %llu MiB (weights %llu, experts %llu, KV cache %llu, "
                                "buffers %llu, process %llu)",
                                &sum, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4]),
                         6);
        assert_int_equal(sum, parts[0] + parts[1] + parts[2] + parts[3] + parts[4]);
        assert_in_range(advised(&err, "--max-memory"), sum, sum + 1);
    }
    test_rig_close(&b.rig);
}

/* The engine refuses before it reads a weight, and opens with what it advises; here with 8 MiB more, for what this very
 * process has grown by in between (test_memory_budget asks for the exact figure, in fresh processes). */
static void engines_follow_the_plan(void **state)
{
    (void)state;
    static const char *const flags[] = {"ctx=512", "batch=32", "threads=2"};
    clb_error err;
    test_engine e;
    char budget[64];
    const char *settings[] = {budget, flags[0], flags[1], flags[2], NULL};
    snprintf(budget, sizeof budget, "max-memory=1M");
    assert_fails(test_engine_open(&e, TINY_MOE, settings, NULL, &err), &err, COLIBRI_E_NOMEM,
                 "would fit: --max-memory");
    test_engine_close(&e);
    snprintf(budget, sizeof budget, "max-memory=%lluM", (unsigned long long)advised(&err, "--max-memory") + 8);
    assert_ok(test_engine_open(&e, TINY_MOE, settings, NULL, &err), &err);
    assert_false(e.engine->plan.all_experts);
    clb_store_stats s;
    clb_store_get_stats(e.engine->model->store, &s);
    assert_int_equal(s.n_slots, e.engine->plan.n_slots);
    assert_int_equal(s.slot_bytes, e.engine->plan.slot_bytes);
    test_engine_close(&e);
}

static void memory_is_found(void **state)
{
    (void)state;
    const uint64_t resident = clb_memory_resident();
    assert_in_range(resident, MIB, clb_memory_available() + resident);
    clb_error err;
    struct bench b;
    clb_plan plan;
    open_bench(&b, TEST_DATA("arch/llama.gguf"));
    b.in.resident = 0;
    b.in.budget = 0;
    assert_ok(clb_plan_make(&b.in, &plan, &err), &err);
    assert_true(plan.budget_is_default);
    assert_true(plan.base_bytes >= resident);
    assert_int_equal(plan.base_bytes, up(plan.base_bytes, MIB));
    clb_plan_free(&plan);
    test_rig_close(&b.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_the_real_ones),
        cmocka_unit_test(a_second_set_of_buffers_comes_last),
        cmocka_unit_test(advice_fits),
        cmocka_unit_test(budgets_are_used),
        cmocka_unit_test(slots_can_be_given),
        cmocka_unit_test(engines_follow_the_plan),
        cmocka_unit_test(memory_is_found),
        cmocka_unit_test(layers_can_have_their_own_slots),
        cmocka_unit_test(layers_are_streamed),
        cmocka_unit_test(mapped_weights_are_not_copied),
        cmocka_unit_test(sums_do_not_wrap),
        cmocka_unit_test(refusals_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
