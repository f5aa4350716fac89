/* Reading while others compute: requests, what has arrived, and turning it into what is multiplied.
 *
 * Bytes are read straight into the slot. Direct reads begin at any byte of the first page there (`lead`), and rows of a
 * GGUF must still be packed, so both are done in place: a group of 16 rows is copied to a small buffer and packed from
 * there to its final place, which never lies above it. Several workers share a matrix; the bytes that one worker's
 * first group would overwrite while another still needs them are put aside before they start. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/internal.h"

/* Groups of a matrix that one worker takes at a time: enough for it to be worth the way, few enough to share. */
#define RANGE_BYTES ((uint64_t)256 << 10)
/* How often somebody who waits for a slow drive asks whether to go on. */
#define PATIENCE_NS UINT64_C(100000000)

/* ---- opening ---- */

static int mirror_paths(const clb_store *store, char ***out, clb_error *err)
{
    const clb_store_options *o = &store->options;
    const uint32_t n = clb_gguf_n_shards(o->gguf);
    char **paths = calloc(n * o->n_mirror_dirs + 1, sizeof *paths);
    *out = paths;
    if (!paths)
        return CLB_NOMEM(err, "mirrors");
    for (uint32_t s = 0; s < n; s++)
        for (size_t d = 0; d < o->n_mirror_dirs; d++) {
            const char *path = clb_gguf_shard_path(o->gguf, s), *slash = strrchr(path, '/');
            clb_buf b = {0};
            CLB_TRY(clb_buf_printf(&b, err, "%s/%s", o->mirror_dirs[d], slash ? slash + 1 : path));
            paths[s * o->n_mirror_dirs + d] = b.data;
        }
    return COLIBRI_OK;
}

/* Slots have room for direct reads in steps of a page, which is what nearly every drive wants. */
static int fit_alignment(clb_store *store, clb_io_options *io, clb_error *err)
{
    const unsigned long long align = clb_io_align(store->io);
    if (align <= CLB_STORE_PAGE)
        return COLIBRI_OK;
    if (io->direct == CLB_IO_DIRECT_ON)
        return clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "--direct on: the drive wants direct reads in steps of %llu bytes, at most %u are possible "
                        "(use --direct off)",
                        align, CLB_STORE_PAGE);
    clb_logf(io->log, COLIBRI_LOG_INFO,
             "direct reads in steps of %llu bytes are too coarse: reading through the page cache", align);
    clb_io_close(store->io);
    store->io = NULL;
    io->direct = CLB_IO_DIRECT_OFF;
    return clb_io_open(io, &store->io, err);
}

int clb_store_open_io(clb_store *store, bool direct_fits, clb_error *err)
{
    const clb_store_options *o = &store->options;
    if (store->io || store->in_memory)
        return COLIBRI_OK;
    const uint32_t n = clb_gguf_n_shards(o->gguf);
    store->in_memory = clb_gguf_shard_fd(o->gguf, 0) < 0;
    if (store->in_memory)
        return COLIBRI_OK;
    if (!direct_fits && o->direct == CLB_IO_DIRECT_ON)
        return clb_fail(
            err, COLIBRI_E_UNSUPPORTED,
            "--direct on: the experts of this model are too small for direct reads of a GGUF file (pack it with "
            "`colibri pack`, or use --direct off)");
    clb_io_file *files = calloc(n, sizeof *files);
    char **mirrors = NULL;
    int rc = files ? mirror_paths(store, &mirrors, err) : CLB_NOMEM(err, "reading experts");
    for (uint32_t s = 0; s < n && !rc; s++)
        files[s] = (clb_io_file){.path = clb_gguf_shard_path(o->gguf, s),
                                 .fd = clb_gguf_shard_fd(o->gguf, s),
                                 .mirrors = (const char *const *)mirrors + s * o->n_mirror_dirs,
                                 .n_mirrors = (uint32_t)o->n_mirror_dirs};
    clb_io_options io = {.engine = o->io,
                         .direct = direct_fits ? o->direct : CLB_IO_DIRECT_OFF,
                         .files = files,
                         .n_files = n,
                         .cpus = o->io_cpus,
                         .log = o->log};
    if (!rc)
        rc = clb_io_open(&io, &store->io, err);
    if (!rc)
        rc = fit_alignment(store, &io, err);
    for (size_t i = 0; mirrors && mirrors[i]; i++)
        free(mirrors[i]);
    free(mirrors);
    free(files);
    return rc;
}

/* ---- reads ---- */

int clb_store_submit_matrix(clb_store *store, const clb_matrix *m, const clb_gguf_tensor *t, uint64_t offset, void *dst,
                            uint32_t tag, enum clb_io_priority priority, clb_error *err)
{
    const clb_read whole = clb_store_matrix_read(m, t, offset, dst);
    const clb_io_read read = {.file = t->shard,
                              .offset = t->offset + offset,
                              .size = whole.src_bytes,
                              .dst = dst,
                              .tag = tag,
                              .priority = (uint8_t)priority};
    return clb_io_submit(store->io, &read, 1, err);
}

static void deliver(clb_store *store, const clb_io_done *done, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (done[i].tag >= CLB_TAG_LAYERS)
            clb_layers_done(store, done[i].tag, done[i].status);
        else
            clb_expert_done(store, done[i].tag, done[i].status);
}

int clb_store_collect(clb_store *store, bool wait, clb_error *err)
{
    clb_io_done done[64];
    (void)err;
    for (;;) {
        const uint32_t n = clb_io_collect(store->io, done, 64, wait);
        deliver(store, done, n);
        if (n < 64)
            return COLIBRI_OK;
        wait = false;
    }
}

bool clb_store_cancelled(const clb_store *store)
{
    return store->options.cancelled && store->options.cancelled(store->options.cancelled_ctx);
}

int clb_store_wait(clb_store *store, clb_error *err)
{
    clb_io_done done[64];
    if (clb_store_cancelled(store))
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
    deliver(store, done, clb_io_collect_within(store->io, done, 64, PATIENCE_NS));
    return COLIBRI_OK;
}

void clb_store_failure(clb_store *store, uint32_t tag, clb_error *err)
{
    clb_error found;
    if (clb_io_error(store->io, tag, &found) != COLIBRI_E_NOT_FOUND)
        store->last_failure = found;
    *err = store->last_failure; /* only so many are kept: of the same file, at the same time */
}

/* ---- what has arrived ---- */

int clb_store_add_arrival(clb_store *store, const clb_arrival *a, clb_error *err)
{
    if (store->n_arrivals == store->cap_arrivals) {
        const size_t cap = store->cap_arrivals ? 2 * store->cap_arrivals : 64;
        void *p = realloc(store->arrivals, cap * sizeof *store->arrivals);
        if (!p)
            return CLB_NOMEM(err, "experts that arrive");
        store->arrivals = p;
        store->cap_arrivals = cap;
    }
    store->arrivals[store->n_arrivals++] = *a;
    return COLIBRI_OK;
}

bool clb_store_must_verify(const clb_store *store, const clb_gguf_tensor *t, uint8_t verified)
{
    if (store->options.verify == CLB_VERIFY_NEVER || (store->options.verify == CLB_VERIFY_FIRST && verified))
        return false;
    return clb_gguf_verify_unit(store->options.gguf, t) != 0;
}

bool clb_store_verify(clb_store *store, const clb_arrival *a, atomic_bool *failed, clb_error *err)
{
    clb_error mine;
    if (clb_gguf_verify_block(store->options.gguf, a->tensor, a->expert, a->base + a->lead, a->bytes, &mine) ==
        COLIBRI_OK) {
        *a->verified = 1;
        return true;
    }
    bool expected = false;
    if (atomic_compare_exchange_strong(failed, &expected, true))
        *err = mine;
    return false;
}

/* Groups [begin, end) of an arrival, or all of it. */
struct unit {
    const clb_arrival *a;
    uint32_t begin, end;
    uint8_t *tail; /* the a->lead bytes from end * group_stride on, as they were; NULL: nobody touches them */
};

struct conversion {
    clb_store *store;
    struct unit *units;
    size_t n_units;
    atomic_size_t next;
    atomic_bool failed;
    clb_error err;
};

static uint32_t groups_of(const clb_matrix *m)
{
    return (m->n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS;
}

/* Bytes [at, at + n) above base, of which those from `taken` on were put aside. */
static void gather(const struct unit *u, uint64_t at, uint64_t n, uint8_t *out)
{
    const uint64_t taken = u->tail ? u->end * u->a->m->group_stride : UINT64_MAX;
    const uint64_t below = at >= taken ? 0 : taken - at < n ? taken - at : n;
    memcpy(out, u->a->base + at, below);
    if (below < n)
        memcpy(out + below, u->tail + (at + below - taken), n - below);
}

static void pack_range(const struct unit *u, uint8_t *buf)
{
    const clb_matrix *m = u->a->m;
    for (uint32_t g = u->begin; g < u->end; g++) {
        const uint32_t left = m->n_rows - g * COLIBRI_GROUP_ROWS;
        const uint32_t rows = left < COLIBRI_GROUP_ROWS ? left : COLIBRI_GROUP_ROWS;
        gather(u, u->a->lead + g * m->group_stride, rows * m->row_bytes, buf);
        m->format->pack(buf, (size_t)m->row_bytes, rows, m->n_cols, u->a->base + g * m->group_stride);
    }
}

static void convert_worker(void *ctx, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct conversion *c = ctx;
    for (;;) {
        const size_t i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
        if (i >= c->n_units)
            return;
        const struct unit *u = &c->units[i];
        if (u->a->tensor && !clb_store_verify(c->store, u->a, &c->failed, &c->err))
            continue;
        if (u->a->m && u->a->plain && u->a->lead)
            memmove(u->a->base, u->a->base + u->a->lead, u->a->m->bytes);
        else if (u->a->m && !u->a->plain)
            pack_range(u, c->store->staging[worker]);
    }
}

static size_t count_units(const clb_store *store, size_t *tail_bytes, uint64_t *widest)
{
    size_t n = 0;
    *tail_bytes = 0;
    *widest = 0;
    for (size_t i = 0; i < store->n_arrivals; i++) {
        const clb_arrival *a = &store->arrivals[i];
        uint64_t units = 1;
        if (a->m && !a->plain) {
            const uint64_t each = a->m->group_stride < RANGE_BYTES ? RANGE_BYTES / a->m->group_stride : 1;
            units = (groups_of(a->m) + each - 1) / each;
            *widest = a->m->group_stride > *widest ? a->m->group_stride : *widest;
        }
        *tail_bytes += (size_t)((units - 1) * a->lead);
        n += (size_t)units;
    }
    return n;
}

static void cut_units(const clb_store *store, struct unit *units, uint8_t *tails)
{
    for (size_t i = 0; i < store->n_arrivals; i++) {
        const clb_arrival *a = &store->arrivals[i];
        if (!a->m || a->plain) {
            *units++ = (struct unit){.a = a};
            continue;
        }
        const uint32_t n_groups = groups_of(a->m);
        const uint32_t each = a->m->group_stride < RANGE_BYTES ? (uint32_t)(RANGE_BYTES / a->m->group_stride) : 1;
        for (uint32_t g = 0; g < n_groups; g += each) {
            const uint32_t end = n_groups - g < each ? n_groups : g + each;
            *units = (struct unit){.a = a, .begin = g, .end = end};
            if (end < n_groups && a->lead) {
                units->tail = tails;
                memcpy(tails, a->base + end * a->m->group_stride, a->lead);
                tails += a->lead;
            }
            units++;
        }
    }
}

int clb_store_convert(clb_store *store, clb_error *err)
{
    if (!store->n_arrivals)
        return COLIBRI_OK;
    const uint64_t t0 = clb_now_ns();
    size_t tail_bytes;
    uint64_t widest;
    struct conversion c = {.store = store};
    c.n_units = count_units(store, &tail_bytes, &widest);
    int rc = clb_store_reserve_staging(store, (size_t)widest, err);
    uint8_t *memory = NULL;
    if (!rc) {
        memory = malloc(c.n_units * sizeof *c.units + tail_bytes);
        rc = memory ? COLIBRI_OK : CLB_NOMEM(err, "experts that arrive");
    }
    if (!rc) {
        c.units = (struct unit *)(void *)memory;
        cut_units(store, c.units, memory + c.n_units * sizeof *c.units);
        clb_pool_run(store->options.pool, convert_worker, &c);
        if (atomic_load(&c.failed)) {
            if (err)
                *err = c.err;
            rc = c.err.code;
        }
    }
    free(memory);
    store->n_arrivals = 0;
    store->stats.pack_ns += clb_now_ns() - t0;
    return rc;
}

/* ---- experts ---- */

uint8_t *clb_expert_data(const clb_experts *x, uint32_t slot)
{
    const struct clb_slot_place *place = &x->places[x->cache->pool_of[x->cache->slots[slot].layer]];
    return x->arena + place->arena_at + (slot - place->first) * place->slot_bytes;
}

const clb_gguf_tensor *clb_expert_block(const clb_expert_layer *l)
{
    return l->block_bytes ? l->source[0].tensors[0] : NULL;
}

/* Where a part of an expert is in its file, and how long it is there. */
static uint64_t part_place(const clb_expert_layer *l, uint32_t p, uint32_t expert, uint64_t *bytes, uint32_t *shard)
{
    const clb_expert_source *from = &l->source[p];
    const clb_gguf_tensor *t = from->tensors[from->per_expert ? expert : 0];
    *bytes = t->packed ? l->part[p].bytes : l->part[p].row_bytes * l->part[p].n_rows;
    *shard = t->shard;
    return t->offset + from->offset + (from->per_expert ? 0 : expert * from->stride);
}

static uint64_t file_bytes(const clb_expert_layer *l)
{
    const clb_gguf_tensor *block = clb_expert_block(l);
    uint64_t sum = block ? block->block_bytes : 0, bytes;
    uint32_t shard;
    for (uint32_t p = 0; p < CLB_PARTS && !block; p++, sum += bytes)
        (void)part_place(l, p, 0, &bytes, &shard);
    return sum;
}

static int fetch_now(clb_store *store, uint32_t slot, clb_error *err)
{
    clb_experts *x = store->experts;
    const clb_cache_slot *s = &x->cache->slots[slot];
    clb_read reads[CLB_PARTS];
    uint32_t n;
    clb_expert_reads(&x->layers[s->layer], s->expert, clb_expert_data(x, slot), &x->part_at[s->layer * CLB_PARTS],
                     reads, &n);
    CLB_TRY(clb_store_read_now(store, reads, n, err));
    clb_cache_arrived(x->cache, slot);
    return COLIBRI_OK;
}

int clb_expert_fetch(clb_store *store, uint32_t slot, enum clb_io_priority priority, clb_error *err)
{
    clb_experts *x = store->experts;
    const clb_cache_slot *s = &x->cache->slots[slot];
    const clb_expert_layer *l = &x->layers[s->layer];
    clb_fetch *f = &x->fetches[slot];
    *f = (clb_fetch){0};
    if (priority == CLB_IO_DEMAND)
        store->stats.expert_bytes_read += file_bytes(l);
    else
        store->stats.guess_bytes += file_bytes(l);
    /* In memory; or all were there from the start, and somebody emptied the slots. Those have no room for direct reads,
     * even if streamed layers have brought a reader. */
    if (!store->io || !x->streamed)
        return fetch_now(store, slot, err);
    uint8_t *data = clb_expert_data(x, slot);
    clb_io_read reads[CLB_PARTS];
    uint32_t n = 0;
    const clb_gguf_tensor *block = clb_expert_block(l);
    if (block)
        reads[n++] = (clb_io_read){.file = block->shard,
                                   .offset = block->block_offset + s->expert * block->expert_stride,
                                   .size = block->block_bytes,
                                   .dst = data,
                                   .tag = slot * 4,
                                   .priority = (uint8_t)priority};
    for (uint32_t p = 0; p < CLB_PARTS && !block; p++) {
        clb_io_read *r = &reads[n++];
        *r = (clb_io_read){
            .dst = data + x->part_at[s->layer * CLB_PARTS + p], .tag = slot * 4 + p, .priority = (uint8_t)priority};
        r->offset = part_place(l, p, s->expert, &r->size, &r->file);
    }
    f->left = (uint8_t)n;
    const int rc = clb_io_submit(store->io, reads, n, err);
    if (rc)
        f->left = 0;
    return rc;
}

void clb_expert_promote(clb_store *store, uint32_t slot)
{
    for (uint32_t p = 0; store->io && p < CLB_PARTS; p++)
        clb_io_promote(store->io, slot * 4 + p);
}

void clb_expert_done(clb_store *store, uint32_t tag, int status)
{
    clb_experts *x = store->experts;
    const uint32_t slot = tag / 4;
    clb_cache_slot *s = &x->cache->slots[slot];
    clb_fetch *f = &x->fetches[slot];
    assert(f->left && s->state == CLB_SLOT_LOADING);
    f->left--;
    if (status == COLIBRI_OK) {
        f->arrived |= (uint8_t)(1u << tag % 4);
    } else if (status == COLIBRI_E_CANCELLED) {
        f->cancelled = true;
    } else {
        f->failed = true;
        if (!f->err)
            f->err = malloc(sizeof *f->err);
        if (f->err)
            clb_store_failure(store, tag, f->err);
    }
    if (f->left)
        return;
    if (!f->failed && !f->cancelled) {
        clb_cache_arrived(x->cache, slot);
        return;
    }
    if (s->pins) /* somebody wants it: the wave looks after it */
        return;
    free(f->err);
    *f = (clb_fetch){0};
    clb_cache_failed(x->cache, slot);
}

/* Queues the checksum of a packed expert at `block`, unless that is done or not wanted. */
static int check_block(clb_store *store, uint32_t layer, uint32_t expert, const uint8_t *block, clb_error *err)
{
    clb_experts *x = store->experts;
    const clb_expert_layer *l = &x->layers[layer];
    uint8_t *verified = &x->verified[(size_t)layer * x->n_experts + expert];
    if (!clb_store_must_verify(store, clb_expert_block(l), *verified))
        return COLIBRI_OK;
    const clb_arrival a = {.base = (uint8_t *)(uintptr_t)block, /* only read */
                           .tensor = clb_expert_block(l),
                           .expert = expert,
                           .bytes = l->block_bytes,
                           .verified = verified};
    return clb_store_add_arrival(store, &a, err);
}

/* When it is used: comparing all of them at start would read the whole file, which may be larger than memory. */
int clb_expert_check_mapped(clb_store *store, uint32_t layer, uint32_t expert, clb_error *err)
{
    const clb_experts *x = store->experts;
    const clb_expert_layer *l = &x->layers[layer];
    if (!l->block_bytes)
        return COLIBRI_OK;
    const uint8_t *gate = x->mapped[layer * CLB_PARTS] + expert * l->source[0].stride;
    return check_block(store, layer, expert, gate - l->part_at[0], err);
}

int clb_expert_convert(clb_store *store, uint32_t slot, clb_error *err)
{
    clb_experts *x = store->experts;
    const clb_cache_slot *s = &x->cache->slots[slot];
    const clb_expert_layer *l = &x->layers[s->layer];
    clb_fetch *f = &x->fetches[slot];
    uint8_t *data = clb_expert_data(x, slot);
    const uint32_t arrived = f->arrived;
    f->arrived = 0;
    const clb_gguf_tensor *block = clb_expert_block(l);
    if (!arrived)
        return COLIBRI_OK;
    if (block)
        return check_block(store, s->layer, s->expert, data, err);
    for (uint32_t p = 0; p < CLB_PARTS; p++) {
        if (!(arrived & 1u << p))
            continue;
        uint64_t bytes;
        uint32_t shard;
        const uint64_t at = part_place(l, p, s->expert, &bytes, &shard);
        const clb_arrival a = {.m = &l->part[p],
                               .base = data + x->part_at[s->layer * CLB_PARTS + p],
                               .lead = clb_io_lead(store->io, at),
                               .plain =
                                   l->part[p].format->layout == COLIBRI_LAYOUT_ROWS || l->source[p].tensors[0]->packed};
        if (a.plain && !a.lead)
            continue;
        CLB_TRY(clb_store_add_arrival(store, &a, err));
    }
    return COLIBRI_OK;
}
