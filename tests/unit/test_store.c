/* The expert store under policies that answer well, badly or not at all, and under a file that ends too early. What is computed
 * must be the same bytes throughout, and the store's own account must add up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/internal.h"
#include "support/fake_policy.h"
#include "support/rig.h"

#define MODEL TEST_DATA("arch/qwen3moe.gguf")
#define N_IDS 40u

static uint32_t ids[N_IDS];
static float *baseline; /* [N_IDS][n_vocab], every expert resident */
static size_t n_vocab;

static int make_baseline(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    const test_rig_options o = {0};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    test_rig_ids(&rig, ids, N_IDS, 5);
    n_vocab = rig.model->hp.n_vocab;
    baseline = test_rig_logits(&rig, ids, N_IDS, 0);
    test_rig_close(&rig);
    return 0;
}

static int free_baseline(void **state)
{
    (void)state;
    free(baseline);
    return 0;
}

/* Slots and the map from experts to slots agree; nothing is pinned or on its way. Returns the number of resident experts. */
static uint32_t check_slots(const clb_store *store)
{
    const clb_experts *x = store->experts;
    const clb_cache *c = x->cache;
    uint32_t resident = 0, mapped = 0;
    for (uint32_t p = 0; p < c->n_pools; p++) {
        uint32_t first, n;
        clb_cache_pool_range(c, p, &first, &n);
        for (uint32_t s = first; s < first + n; s++) {
            const clb_cache_slot *slot = &c->slots[s];
            assert_int_equal(slot->pins, 0);
            assert_int_not_equal(slot->state, CLB_SLOT_LOADING);
            if (slot->state == CLB_SLOT_FREE)
                continue;
            assert_int_equal(c->pool_of[slot->layer], p);
            assert_int_equal(clb_cache_find(c, slot->layer, slot->expert), s);
            assert_false(slot->transit); /* bypassed ones are gone */
            resident++;
        }
    }
    for (uint32_t i = 0; i < x->n_layers * x->n_experts; i++)
        mapped += c->slot_of[i] != CLB_NO_SLOT;
    assert_int_equal(mapped, resident);
    return resident;
}

static clb_store_stats stats_of(const test_rig *rig)
{
    clb_store_stats s;
    clb_store_get_stats(rig->model->store, &s);
    return s;
}

static void check_logits(test_rig *rig, uint32_t chunk)
{
    float *logits = test_rig_logits(rig, ids, N_IDS, chunk);
    if (memcmp(logits, baseline, N_IDS * n_vocab * sizeof(float)) != 0)
        fail_msg("chunks of %u: the logits are not the bytes of the run with every expert resident", chunk);
    free(logits);
}

static void check_fake(const fake_policy *fake)
{
    if (fake->violations)
        fail_msg("%llu times, first: %s", (unsigned long long)fake->violations, fake->violation);
}

struct lines {
    uint32_t misbehaved;
    char first[512];
};

static void keep_line(void *ctx, int level, const char *line)
{
    struct lines *l = ctx;
    if (!strstr(line, "misbehaved"))
        return;
    assert_int_equal(level, COLIBRI_LOG_WARN);
    if (!l->misbehaved++)
        snprintf(l->first, sizeof l->first, "%s", line);
}

/* Runs prompts and steps; the account of the fake, of the store and of the slots must agree. Returns the misses. */
static uint64_t run_policy(enum fake_answer answer, int admit_every, uint32_t slots)
{
    clb_error err;
    test_rig rig;
    fake_policy fake;
    struct lines lines = {0};
    const clb_log log = {.level = COLIBRI_LOG_WARN, .write = keep_line, .ctx = &lines};
    fake_policy_init(&fake, answer);
    fake_policy_admits(&fake, admit_every);
    const test_rig_options o = {.policy = &fake.table, .slots = slots, .log = &log};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    assert_int_equal(fake.n_creates, 1);
    static const uint32_t chunks[] = {0, 3};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        check_logits(&rig, chunks[i]);
        check_slots(rig.model->store);
    }
    check_fake(&fake);
    const clb_store_stats s = stats_of(&rig);
    const uint32_t resident = check_slots(rig.model->store);
    assert_int_equal(s.hits + s.misses, fake.n_union);
    assert_int_equal(s.hits, fake.n_hits);
    assert_int_equal(s.misses, fake.n_misses);
    for (uint32_t p = 0; p < CLB_STEP_PHASES; p++) {
        assert_int_equal(s.phase[p].hits, fake.phase_hits[p]);
        assert_int_equal(s.phase[p].misses, fake.phase_misses[p]);
    }
    /* chunks of 3 leave one row, which is a decode pass */
    assert_true(s.phase[COLIBRI_PHASE_PREFILL].misses &&
                s.phase[COLIBRI_PHASE_DECODE].hits + s.phase[COLIBRI_PHASE_DECODE].misses);
    assert_int_equal(s.evictions, fake.n_inserts - resident);
    assert_int_equal(s.bypassed, fake.n_bypassed);
    assert_int_equal(fake.n_inserts + fake.n_bypassed, s.misses);
    assert_int_equal(fake.n_evicts, fake.n_inserts - resident);
    const clb_expert_layer *l = &rig.model->expert_layers[0];
    uint64_t bytes = 0;
    for (int p = 0; p < CLB_PARTS; p++)
        bytes += l->part[p].row_bytes * l->part[p].n_rows;
    assert_int_equal(s.expert_bytes_read, s.misses * bytes);
    assert_string_equal(s.policy, "fake");
    if (fake_policy_lies(answer)) {
        assert_true(fake.n_lies > 0);
        assert_int_equal(s.bad_answers, fake.n_lies);
        assert_int_equal(lines.misbehaved, 1);
        assert_true(test_contains(lines.first, "fake"));
    } else {
        assert_int_equal(s.bad_answers, 0);
        assert_int_equal(lines.misbehaved, 0);
    }
    test_rig_close(&rig);
    assert_int_equal(fake.n_destroys, 1);
    fake_policy_free(&fake);
    return s.misses;
}

static const uint32_t slot_counts[] = {1, 2, 5, 13};
#define N_COUNTS (sizeof slot_counts / sizeof *slot_counts)

/* A lie is replaced by the host's LRU choice: as many misses as with a policy that answers LRU. */
static void every_answer_gives_the_same_logits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_COUNTS; i++) {
        const uint64_t lru = run_policy(FAKE_SCORE, 0, slot_counts[i]);
        for (int answer = 0; answer < FAKE_ANSWERS; answer++) {
            const uint64_t misses = run_policy((enum fake_answer)answer, 0, slot_counts[i]);
            assert_true(misses > 0);
            if (fake_policy_lies((enum fake_answer)answer))
                assert_int_equal(misses, lru);
        }
    }
}

static void bypassed_experts_leave_at_once(void **state)
{
    (void)state;
    for (size_t i = 1; i < N_COUNTS; i++) { /* with one slot there is none to set aside */
        run_policy(FAKE_RANDOM, -1, slot_counts[i]);
        run_policy(FAKE_RANDOM, 2, slot_counts[i]);
        run_policy(FAKE_OUT_OF_RANGE, 3, slot_counts[i]);
        run_policy(FAKE_SCORE_NAN, 2, slot_counts[i]);
    }
}

/* Fewer slots than the union: several waves per layer, each expert leased once. */
static void slots_fewer_than_the_union(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    fake_policy fake;
    fake_policy_init(&fake, FAKE_RANDOM);
    const test_rig_options o = {.policy = &fake.table, .slots = 2};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    float *logits = test_rig_logits(&rig, ids, N_IDS, 0); /* one pass: the union of 40 rows */
    assert_memory_equal(logits, baseline, N_IDS * n_vocab * sizeof(float));
    free(logits);
    assert_true(fake.n_union > 2u * rig.model->n_moe_layers * 2); /* or this tests nothing */
    check_fake(&fake);
    test_rig_close(&rig);
    fake_policy_free(&fake);
}

/* ---- leases by hand ---- */

static void route_by_hand(clb_store *store, const uint32_t *experts, const uint32_t *rows, uint32_t n)
{
    const float gates[16] = {0};
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .layer = 0,
                                        .n_rows = n,
                                        .top_k = 1,
                                        .ids = experts,
                                        .gates = gates,
                                        .n_union = n,
                                        .union_ids = experts,
                                        .union_rows = rows};
    clb_store_step(store, COLIBRI_PHASE_DECODE, n, 1);
    clb_store_route(store, &route);
}

/* As many of ids[n] as can be had at once, however they arrive. */
static uint32_t acquire_all(clb_store *store, const uint32_t *experts, uint32_t n, uint32_t expected, clb_lease *out)
{
    static const uint32_t rows[] = {1, 1, 1, 1, 1};
    static const float gates[] = {.5f, .5f, .5f, .5f, .5f};
    clb_error err;
    uint32_t got = 0;
    while (got < expected) {
        uint32_t more, left[5], n_left = 0;
        for (uint32_t i = 0; i < n; i++) {
            bool have = false;
            for (uint32_t j = 0; j < got; j++)
                have = have || out[j].expert == experts[i];
            if (!have)
                left[n_left++] = experts[i];
        }
        assert_ok(clb_store_acquire(store, 0, left, rows, gates, n_left, out + got, &more, &err), &err);
        assert_true(more > 0);
        got += more;
    }
    return got;
}

/* The three matrices of an expert as they lie in the file. */
static void check_bytes(const test_rig *rig, const clb_lease *lease)
{
    clb_error err;
    const clb_expert_layer *l = &rig->model->expert_layers[0];
    for (int p = 0; p < CLB_PARTS; p++) {
        const size_t n = (size_t)(l->part[p].row_bytes * l->part[p].n_rows);
        char *want = malloc(n);
        assert_non_null(want);
        assert_ok(clb_gguf_read(rig->gguf, l->source[p].tensors[0], l->source[p].offset + lease->expert * l->source[p].stride,
                                want, n, &err), &err);
        assert_memory_equal(lease->part[p], want, n);
        free(want);
    }
}

static void leased_experts_stay(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    fake_policy fake;
    fake_policy_init(&fake, FAKE_ALWAYS_FIRST);
    const test_rig_options o = {.policy = &fake.table, .slots = 3};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    clb_store *store = rig.model->store;
    static const uint32_t experts[] = {7, 2, 5, 0, 3}, rows[] = {1, 1, 1, 1, 1};
    static const float gates[] = {.5f, .5f, .5f, .5f, .5f};
    clb_lease held[5], more[5];
    uint32_t n_held, n_more;
    route_by_hand(store, experts, rows, 5);
    n_held = acquire_all(store, experts, 2, 2, held);
    assert_int_equal(n_held, 2);
    /* one slot is left for three experts */
    n_more = acquire_all(store, experts + 2, 3, 1, more);
    assert_int_equal(n_more, 1);
    for (uint32_t i = 0; i < 2; i++)
        check_bytes(&rig, &held[i]);
    check_bytes(&rig, &more[0]);
    assert_true(held[0].slot != held[1].slot && held[0].slot != more[0].slot && held[1].slot != more[0].slot);
    /* all leased: an error that says so, and nothing lost */
    clb_lease none[5];
    uint32_t n_none = 9;
    assert_fails(clb_store_acquire(store, 0, experts + 3, rows, gates, 2, none, &n_none, &err), &err, COLIBRI_E_INTERNAL,
                 "every expert slot is leased");
    assert_int_equal(n_none, 0);
    clb_store_release(store, 0, more, n_more);
    assert_ok(clb_store_acquire(store, 0, experts + 3, rows, gates, 1, more, &n_more, &err), &err);
    assert_int_equal(n_more, 1);
    assert_int_equal(more[0].expert, 0);
    for (uint32_t i = 0; i < 2; i++)
        check_bytes(&rig, &held[i]);
    check_bytes(&rig, &more[0]);
    clb_store_release(store, 0, more, n_more);
    clb_store_release(store, 0, held, n_held);
    check_slots(store);
    check_fake(&fake);
    test_rig_close(&rig);
    fake_policy_free(&fake);
}

/* A caller that asks for part of the union first: what the rest of it needs and is resident stays, leased or not. */
static void needed_experts_stay(void **state)
{
    (void)state;
    for (int answer = FAKE_RANDOM; answer <= FAKE_ALWAYS_LAST; answer++) {
        clb_error err;
        test_rig rig;
        fake_policy fake;
        fake_policy_init(&fake, (enum fake_answer)answer);
        const test_rig_options o = {.policy = &fake.table, .slots = 2};
        assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
        clb_store *store = rig.model->store;
        static const uint32_t rows[] = {1, 1, 1}, first[] = {4, 6}, all[] = {1, 2, 6};
        static const float gates[] = {.5f, .5f, .5f};
        clb_lease leases[3];
        uint32_t n;
        route_by_hand(store, first, rows, 2);
        n = acquire_all(store, first, 2, 2, leases);
        assert_int_equal(n, 2);
        clb_store_release(store, 0, leases, n); /* 4 and 6 are resident */
        route_by_hand(store, all, rows, 3);
        assert_ok(clb_store_acquire(store, 0, all, rows, gates, 2, leases, &n, &err), &err);
        assert_int_equal(n, 1); /* 4 left for 1; nothing may leave for 2 */
        assert_int_equal(leases[0].expert, 1);
        assert_true(clb_cache_find(store->experts->cache, 0, 6) != CLB_NO_SLOT);
        clb_store_release(store, 0, leases, n);
        const uint64_t misses = stats_of(&rig).misses;
        assert_ok(clb_store_acquire(store, 0, all + 2, rows, gates, 1, leases, &n, &err), &err);
        assert_int_equal(n, 1);
        assert_int_equal(stats_of(&rig).misses, misses);
        clb_store_release(store, 0, leases, n);
        check_slots(store);
        check_fake(&fake);
        test_rig_close(&rig);
        fake_policy_free(&fake);
    }
}

/* ---- counters and cold caches ---- */

static void resets(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    fake_policy fake;
    fake_policy_init(&fake, FAKE_OUT_OF_RANGE);
    const test_rig_options o = {.policy = &fake.table, .slots = 6};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    clb_store *store = rig.model->store;
    check_logits(&rig, 1);
    const clb_store_stats before = stats_of(&rig);
    const uint32_t resident = check_slots(store);
    assert_true(before.hits && before.misses && before.evictions && before.bad_answers && before.expert_bytes_read);
    clb_store_reset_stats(store);
    clb_store_stats s = stats_of(&rig);
    assert_int_equal(s.hits + s.misses + s.evictions + s.bad_answers + s.expert_bytes_read + s.read_ns + s.policy_ns, 0);
    for (uint32_t p = 0; p < CLB_STEP_PHASES; p++)
        assert_int_equal(s.phase[p].hits + s.phase[p].misses + s.phase[p].late, 0);
    assert_int_equal(s.load_bytes, before.load_bytes);
    assert_int_equal(s.resident_bytes, before.resident_bytes);
    assert_int_equal(s.slot_bytes, before.slot_bytes);
    assert_int_equal(check_slots(store), resident); /* contents stay */
    clb_store_reset_experts(store);
    assert_int_equal(fake.n_resets, 1);
    assert_int_equal(check_slots(store), 0);
    check_logits(&rig, 1); /* from cold, the same history: the same figures */
    s = stats_of(&rig);
    assert_int_equal(s.hits, before.hits);
    assert_int_equal(s.misses, before.misses);
    assert_int_equal(s.evictions, before.evictions);
    check_fake(&fake);
    test_rig_close(&rig);
    fake_policy_free(&fake);
}

/* Guesses that were called off keep their slots until the drive is through with them. If that is a whole pool, whoever needs
 * a slot waits for one. */
static void a_pool_full_of_guesses_that_were_called_off(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    const test_rig_options o = {.slots = 4};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    clb_store *store = rig.model->store;
    clb_cache *c = store->experts->cache;
    const struct colibri_route nobody = {.struct_size = sizeof nobody, .layer = 1};
    uint32_t slots[4];
    for (uint32_t i = 0; i < 4; i++) {
        slots[i] = clb_cache_place(c, 1, i, COLIBRI_CAUSE_PREFETCH);
        if (slots[i] == CLB_NO_SLOT) { /* half of the pool waits for its turn: which comes, and nobody wants them */
            clb_cache_route(c, &nobody);
            slots[i] = clb_cache_place(c, 1, i, COLIBRI_CAUSE_PREFETCH);
        }
        assert_int_not_equal(slots[i], CLB_NO_SLOT);
        assert_ok(clb_expert_fetch(store, slots[i], CLB_IO_PREFETCH, &err), &err);
    }
    assert_int_equal(c->slots[slots[0]].state, CLB_SLOT_LOADING); /* nothing was collected */
    assert_int_equal(clb_cache_place(c, 0, 0, COLIBRI_CAUSE_DEMAND), CLB_NO_SLOT);
    check_logits(&rig, 1);
    check_slots(store);
    test_rig_close(&rig);
}

static void preloaded_experts_never_miss(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    fake_policy fake;
    fake_policy_init(&fake, FAKE_RANDOM);
    const test_rig_options o = {.policy = &fake.table};
    assert_ok(test_rig_open(&rig, MODEL, &o, &err), &err);
    const clb_store_stats opened = stats_of(&rig);
    assert_int_equal(fake.n_inserts, opened.n_experts);
    assert_int_equal(check_slots(rig.model->store), opened.n_experts);
    assert_int_equal(opened.n_slots, opened.n_experts);
    check_logits(&rig, 3);
    clb_store_stats s = stats_of(&rig);
    assert_int_equal(s.misses + s.evictions + s.expert_bytes_read + fake.n_asked, 0);
    assert_int_equal(s.hits, fake.n_union);
    clb_store_reset_experts(rig.model->store); /* cold, and room for all: each used expert is read once */
    check_logits(&rig, 3);
    s = stats_of(&rig);
    assert_int_equal(s.misses, check_slots(rig.model->store));
    assert_int_equal(s.evictions + fake.n_asked, 0);
    check_fake(&fake);
    test_rig_close(&rig);
    fake_policy_free(&fake);
}

static void a_policy_may_refuse_to_start(void **state)
{
    (void)state;
    clb_error err;
    test_rig rig;
    fake_policy fake;
    fake_policy_init(&fake, FAKE_RANDOM);
    fake.refuse_create = true;
    const test_rig_options o = {.policy = &fake.table, .slots = 4};
    assert_fails(test_rig_open(&rig, MODEL, &o, &err), &err, COLIBRI_E_PLUGIN, "the fake does not feel like it");
    test_rig_close(&rig);
    assert_int_equal(fake.n_destroys, 0);
    fake_policy_free(&fake);
}

/* ---- a file that gets shorter ---- */

struct victim_file {
    test_dir dir;
    char path[PATH_MAX];
    char *bytes;
    size_t n;
};

static void copy_model(struct victim_file *f)
{
    test_dir_create(&f->dir);
    test_dir_file(&f->dir, "model.gguf", f->path);
    f->bytes = test_read_file(MODEL, &f->n);
    test_write_file(f->path, f->bytes, f->n);
}

static void restore(const struct victim_file *f)
{
    FILE *file = fopen(f->path, "r+be"); /* the same inode: the store has it open */
    assert_non_null(file);
    assert_int_equal(fwrite(f->bytes, 1, f->n, file), f->n);
    assert_int_equal(fclose(file), 0);
}

static void remove_model(struct victim_file *f)
{
    test_dir_remove(&f->dir);
    free(f->bytes);
}

static void reads_fail_cleanly(void **state)
{
    (void)state;
    struct victim_file file;
    copy_model(&file);
    for (size_t i = 0; i < N_COUNTS; i++)
        for (uint32_t part = 0; part < CLB_PARTS; part++) {
            clb_error err;
            test_rig rig;
            fake_policy fake;
            fake_policy_init(&fake, FAKE_RANDOM);
            fake_policy_admits(&fake, i % 2 ? 2 : 0);
            const test_rig_options o = {.policy = &fake.table, .slots = slot_counts[i]};
            assert_ok(test_rig_open(&rig, file.path, &o, &err), &err);
            const uint32_t last = rig.model->n_moe_layers - 1, n_layers = rig.model->hp.n_layers;
            const clb_gguf_tensor *t = rig.model->expert_layers[last].source[part].tensors[0];
            clb_kv_seq *kv = test_rig_sequence(&rig);
            float *logits = calloc(N_IDS * n_vocab, sizeof *logits);
            assert_non_null(logits);
            clb_span span = {.kv = kv, .tokens = ids, .n = 10, .n_logits = 10};
            assert_ok(clb_forward_run(rig.forward, &span, 1, logits, &err), &err);
            clb_kv_stats kv_before, kv_after;
            clb_kv_seq_stats(kv, &kv_before);

            assert_int_equal(truncate(file.path, (off_t)(t->offset + t->n_bytes / 3)), 0);
            span = (clb_span){.kv = kv, .tokens = ids + 10, .n = 20, .n_logits = 20};
            for (int again = 0; again < 3; again++) {
                clb_store_reset_experts(rig.model->store); /* nothing resident: it must read */
                assert_fails(clb_forward_run(rig.forward, &span, 1, logits + 10 * n_vocab, &err), &err, COLIBRI_E_IO, file.path);
                assert_true(test_contains(err.msg, "expert ") && test_contains(err.msg, " of layer "));
                check_slots(rig.model->store);
                clb_kv_seq_stats(kv, &kv_after);
                assert_int_equal(kv_after.seen, 10);
                assert_int_equal(kv_after.kept_sum, kv_before.kept_sum);
                assert_int_equal(kv_after.bytes, kv_before.bytes);
                for (uint32_t l = 0; l < n_layers; l++)
                    assert_int_equal(clb_kv_seq_positions(kv, l, 0, NULL, 0), 10);
            }

            restore(&file);
            assert_ok(clb_forward_run(rig.forward, &span, 1, logits + 10 * n_vocab, &err), &err);
            span = (clb_span){.kv = kv, .tokens = ids + 30, .n = 10, .n_logits = 10};
            assert_ok(clb_forward_run(rig.forward, &span, 1, logits + 30 * n_vocab, &err), &err);
            assert_memory_equal(logits, baseline, N_IDS * n_vocab * sizeof(float));
            check_slots(rig.model->store);
            clb_kv_seq_destroy(kv);
            free(logits);
            test_rig_close(&rig);
            fake_policy_free(&fake);
        }
    remove_model(&file);
}

/* The file is cut while weights are loaded: opening fails with the tensor's place, and everything built so far is given back. */
static void cut_file(void *ctx)
{
    const struct victim_file *f = ctx;
    assert_int_equal(truncate(f->path, (off_t)(f->n - f->n / 4)), 0);
}

static void loading_fails_cleanly(void **state)
{
    (void)state;
    struct victim_file file;
    copy_model(&file);
    for (uint32_t slots = 0; slots < 4; slots += 3) {
        clb_error err;
        test_rig rig;
        const test_rig_options o = {.slots = slots, .before_load = cut_file, .hooks_ctx = &file};
        assert_fails(test_rig_open(&rig, file.path, &o, &err), &err, COLIBRI_E_IO, file.path);
        test_rig_close(&rig);
        restore(&file);
    }
    remove_model(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_gives_the_same_logits),
        cmocka_unit_test(bypassed_experts_leave_at_once),     cmocka_unit_test(slots_fewer_than_the_union),
        cmocka_unit_test(leased_experts_stay),                cmocka_unit_test(needed_experts_stay),
        cmocka_unit_test(resets),
        cmocka_unit_test(a_pool_full_of_guesses_that_were_called_off),
        cmocka_unit_test(preloaded_experts_never_miss),       cmocka_unit_test(a_policy_may_refuse_to_start),
        cmocka_unit_test(reads_fail_cleanly),                 cmocka_unit_test(loading_fails_cleanly),
    };
    return cmocka_run_group_tests(tests, make_baseline, free_baseline);
}
