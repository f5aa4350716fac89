/* A guess of which a part could not be read, or was called off, is read again as a whole when it is needed. What had
 * arrived of it must be left alone then: it lies where the drive is about to write. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/internal.h"
#include "store/io_internal.h"
#include "support/rig.h"
#include "support/synth.h"

static const uint32_t experts[] = {2};
static const uint32_t rows[] = {1};
static const float gates[] = {1.0F};

static char model[PATH_MAX];

static struct {
    clb_store *store;
    const struct colibri_format *format;
    uint32_t slot;
    atomic_uint packed, while_read;
} watched;

/* Is the part that lies at `at` being read? */
static bool is_read(const void *at)
{
    clb_store *store = watched.store;
    const clb_experts *x = store->experts;
    const uint8_t *data = clb_expert_data(x, watched.slot), *to = at;
    bool found = false;
    pthread_mutex_lock(&store->io->lock);
    for (uint32_t p = 0; p < CLB_PARTS; p++) {
        const uint8_t *part = data + x->part_at[p];
        if (to >= part && to < part + x->layers[0].part[p].bytes)
            found = clb_io_find(store->io, watched.slot * 4 + p) != CLB_IO_NONE;
    }
    pthread_mutex_unlock(&store->io->lock);
    return found;
}

static void pack(const void *from, size_t row_stride, uint32_t n_rows, uint32_t n_cols, void *group)
{
    watched.packed++;
    watched.while_read += is_read(group);
    watched.format->pack(from, row_stride, n_rows, n_cols, group);
}

/* Another reader, with faults, behind a store that has one. */
static void change_reader(const test_rig *rig, enum clb_io_engine engine, const clb_io_faults *faults)
{
    clb_error err;
    clb_store *store = rig->model->store;
    assert_non_null(store->io);
    clb_io_close(store->io);
    const clb_io_file file = {.path = clb_gguf_shard_path(rig->gguf, 0), .fd = clb_gguf_shard_fd(rig->gguf, 0)};
    const clb_io_options io = {
        .engine = engine, .direct = CLB_IO_DIRECT_OFF, .files = &file, .n_files = 1, .faults = faults};
    assert_ok(clb_io_open(&io, &store->io, &err), &err);
}

static clb_lease acquire(clb_store *store)
{
    clb_error err;
    clb_lease lease;
    uint32_t n = 0;
    const struct colibri_route route = {.struct_size = sizeof route,
                                        .n_rows = 1,
                                        .top_k = 1,
                                        .ids = experts,
                                        .gates = gates,
                                        .n_union = 1,
                                        .union_ids = experts,
                                        .union_rows = rows};
    clb_store_step(store, COLIBRI_PHASE_DECODE, 1, 1);
    clb_store_route(store, &route);
    assert_ok(clb_store_acquire(store, 0, experts, rows, gates, 1, &lease, &n, &err), &err);
    assert_int_equal(n, 1);
    return lease;
}

/* Until the drive is through with all that was asked of it, though nobody has looked. */
static void let_reads_end(clb_io *io)
{
    for (bool busy = true; busy;) {
        const struct timespec ms = {.tv_nsec = 1000000};
        nanosleep(&ms, NULL);
        pthread_mutex_lock(&io->lock);
        io->ops->reap(io);
        busy = io->in_flight || io->unissued || io->retry.head != CLB_IO_NONE;
        pthread_mutex_unlock(&io->lock);
    }
}

static void again(enum clb_io_engine engine, bool cancel)
{
    clb_error err;
    test_rig whole, rig;
    const test_rig_options all = {0}, few = {.slots = 3};
    /* Of three parts the second fails, or all are slow enough for the last to be called off. */
    const clb_io_faults faults = {.fail_first = cancel ? 0 : 2,
                                  .fail_count = cancel ? 0 : 1,
                                  .fail_errno = EIO,
                                  .bytes_per_second = cancel ? 100000 : 0};
    assert_ok(test_rig_open(&whole, model, &all, &err), &err);
    assert_ok(test_rig_open(&rig, model, &few, &err), &err);
    change_reader(&rig, engine, &faults);
    clb_store *store = rig.model->store;
    const clb_experts *x = store->experts;
    clb_expert_layer *layer = (clb_expert_layer *)(uintptr_t)&x->layers[0];
    struct colibri_format watching = *layer->part[0].format;
    assert_ptr_equal(layer->part[1].format, layer->part[0].format);
    assert_non_null(watching.pack);
    watched.store = store;
    watched.format = layer->part[0].format;
    watched.packed = watched.while_read = 0;
    watching.pack = pack;
    layer->part[0].format = layer->part[1].format = &watching;

    /* as a predictor would have it, in an earlier pass */
    watched.slot = clb_cache_place(x->cache, 0, experts[0], COLIBRI_CAUSE_PREFETCH);
    assert_int_not_equal(watched.slot, CLB_NO_SLOT);
    assert_ok(clb_expert_fetch(store, watched.slot, CLB_IO_PREFETCH, &err), &err);
    if (cancel)
        clb_io_cancel(store->io, watched.slot * 4 + 2);
    let_reads_end(store->io);
    assert_int_equal(x->cache->slots[watched.slot].state, CLB_SLOT_LOADING);

    const clb_lease lease = acquire(store), want = acquire(whole.model->store);
    assert_int_equal(lease.slot, watched.slot);
    assert_int_equal(x->cache->stats.late, 1);
    assert_int_equal(store->stats.expert_bytes_read, store->stats.guess_bytes); /* it was read again, once */
    assert_true(watched.packed > 0);
    assert_int_equal(watched.while_read, 0);
    for (uint32_t p = 0; p < CLB_PARTS; p++)
        assert_memory_equal(lease.part[p], want.part[p], layer->part[p].bytes);
    clb_store_release(store, 0, &lease, 1);
    clb_store_release(whole.model->store, 0, &want, 1);
    layer->part[0].format = layer->part[1].format = watched.format;
    test_rig_close(&rig);
    test_rig_close(&whole);
}

static void failed(void **state)
{
    (void)state;
    again(CLB_IO_PREAD, false);
    again(CLB_IO_AUTO, false);
}

static void called_off(void **state)
{
    (void)state;
    again(CLB_IO_PREAD, true);
    again(CLB_IO_AUTO, true);
}

int main(void)
{
    static const test_shape shape = {.n_layers = 1,
                                     .n_embd = 64,
                                     .n_ff = 96,
                                     .n_experts = 8,
                                     .top_k = 2,
                                     .n_heads = 2,
                                     .n_kv_heads = 1,
                                     .head_dim = 32,
                                     .ctx = 64};
    const struct CMUnitTest tests[] = {cmocka_unit_test(failed), cmocka_unit_test(called_off)};
    test_dir dir;
    test_dir_create(&dir);
    test_dir_file(&dir, "model.gguf", model);
    test_write_model(model, &shape);
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove(&dir);
    return failures;
}
