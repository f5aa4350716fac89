/* What the host of KV strategies shows of keys and values: as they came, rotated, before rotation, at the places that
 * renumbering gives them; against a text known in double precision. */
#include "support/kv_host.h"

static struct kvh h;
static uint64_t rows_seen;
static double tolerance; /* of an element of a row */

static void check_row(const struct colibri_kv_view *view, uint32_t i)
{
    const clb_kv_layout *l = &h.layout;
    const uint32_t p = view->positions[i];
    float k[KVH_DIM], pre[KVH_DIM], v[KVH_DIM];
    double want[KVH_DIM];
    view->read_k(view, i, k);
    view->read_k_pre(view, i, pre);
    view->read_v(view, i, v);
    kvh_rotated(l, KVH_K, view->layer, view->kv_head, p, kvh_compact(&h) ? i : p, want);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        kvh_near(k[d], want[d], tolerance);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        kvh_near(pre[d], kvh_value(KVH_K, view->layer, view->kv_head, p, d), tolerance);
    for (uint32_t d = 0; d < KVH_DIM; d++)
        kvh_near(v[d], kvh_value(KVH_V, view->layer, view->kv_head, p, d), tolerance);
    rows_seen++;
}

static int look_at_rows(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    assert_int_equal(view->n, h.head[view->layer][view->kv_head].n);
    assert_memory_equal(view->positions, h.head[view->layer][view->kv_head].position, view->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < view->n; i++)
        check_row(view, i);
    float row[3][KVH_DIM];
    memset(row, 0xff, sizeof row); /* an index that is not there reads as zeros */
    view->read_k(view, view->n, row[0]);
    view->read_k_pre(view, UINT32_MAX, row[1]);
    view->read_v(view, view->n + 100, row[2]);
    for (uint32_t d = 0; d < 3 * KVH_DIM; d++)
        assert_true(row[d / KVH_DIM][d % KVH_DIM] == 0);
    return kvh_select(self, view, keep);
}

/* Quantized blocks of 32: half a step; a rotation or the turn mixes the errors of two or of all elements. */
static double allowed(const clb_kv_layout *l)
{
    switch (l->k_type) {
    case COLIBRI_TYPE_F32:
        return 3e-6;
    case COLIBRI_TYPE_F16:
        return 1.0 / 1024;
    case COLIBRI_TYPE_Q8_0:
        return l->turn_k ? 0.04 : 2 * (0.5 / 127 + 1.0 / 2048);
    default:
        return l->turn_k ? 0.5 : 0.27;
    }
}

static void rows_as_written(void **state)
{
    (void)state;
    const uint32_t types[] = {COLIBRI_TYPE_F32, COLIBRI_TYPE_F16, COLIBRI_TYPE_Q8_0, COLIBRI_TYPE_Q4_0};
    for (uint32_t round = 0; round < 32; round++) {
        const bool quantized = round % 4 >= 2;
        h.layout = kvh_layout(types[round % 4], types[round % 4]);
        h.layout.rope_neox = round / 4 % 2;
        h.layout.turn_k = h.layout.turn_v = quantized && round / 16;
        h.layout.recent = quantized && round % 8 < 4 ? 32 : 0;
        h.strategy = kvh_strategy();
        h.strategy.select = look_at_rows;
        h.strategy.needs = COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_K_PRE_ROPE | COLIBRI_KV_NEED_V;
        h.strategy.positions = round / 8 % 2 ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        tolerance = allowed(&h.layout);
        rows_seen = 0;
        kvh_open(&h, 30, 3);
        const uint32_t chunk[] = {40, 1, 9, 33};
        for (uint32_t k = 0; clb_kv_seq_position(h.seq) < 300; k++) {
            if (k % 5 == 3)
                kvh_aborted_pass(&h, 4);
            kvh_pass(&h, chunk[k % 4], k % 4 ? COLIBRI_PHASE_DECODE : COLIBRI_PHASE_PREFILL, false);
            kvh_check_positions(&h);
        }
        assert_int_equal(h.n_faults, 0);
        assert_true(rows_seen > 1000);
        kvh_close(&h);
    }
}

/* ORIGINAL: what a strategy reads of an F32 cache are the very bits that were written, and a row that has moved in
 * every selection is as it was. Before rotation: they do not drift either, a row is turned back once however old it is.
 */
static int look_at_bits(void *self, const struct colibri_kv_view *view, uint8_t *keep)
{
    float k[KVH_DIM], want[KVH_DIM], cs[KVH_ROT];
    for (uint32_t i = 0; i < view->n; i++) {
        view->read_k(view, i, k);
        for (uint32_t d = 0; d < KVH_DIM; d++)
            want[d] = kvh_value(KVH_K, view->layer, view->kv_head, view->positions[i], d);
        if (kvh_compact(&h)) { /* stored as it came, rotated by its place now */
            clb_kv_angles(&h.layout, i, cs);
            clb_kv_rotate(&h.layout, want, cs);
            assert_memory_equal(k, want, sizeof k);
            view->read_k_pre(view, i, k);
            for (uint32_t d = 0; d < KVH_DIM; d++)
                want[d] = kvh_value(KVH_K, view->layer, view->kv_head, view->positions[i], d);
        } else {
            clb_kv_angles(&h.layout, view->positions[i], cs);
            clb_kv_rotate(&h.layout, want, cs);
        }
        assert_memory_equal(k, want, sizeof k);
        rows_seen++;
    }
    return kvh_select(self, view, keep);
}

static void nothing_drifts(void **state)
{
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        h.layout = kvh_layout(COLIBRI_TYPE_F32, COLIBRI_TYPE_F32);
        h.strategy = kvh_strategy();
        h.strategy.select = look_at_bits;
        h.strategy.needs = COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_K_PRE_ROPE;
        h.strategy.positions = compact ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        rows_seen = 0;
        kvh_open(&h, 20, 4);
        for (uint32_t k = 0; k < 460; k++)
            kvh_pass(&h, 1, k < 100 ? COLIBRI_PHASE_PREFILL : COLIBRI_PHASE_DECODE, false);
        assert_true(rows_seen > 5000 && h.n_faults == 0);
        kvh_close(&h);
    }
}

/* What attention makes of renumbered rows: kept positions count 0, 1, 2, ..., the rows of the pass go on from there,
 * and queries turn with them. */
static void attention_by_rank(void **state)
{
    (void)state;
    static struct kvh_result r;
    static double p[KVH_MOST];
    for (uint32_t round = 0; round < 4; round++) {
        const bool compact = round % 2;
        h.layout = kvh_layout(COLIBRI_TYPE_F32, COLIBRI_TYPE_F32);
        h.layout.rope_neox = round / 2;
        h.strategy = kvh_strategy();
        h.strategy.positions = compact ? COLIBRI_KV_POS_COMPACT : COLIBRI_KV_POS_ORIGINAL;
        kvh_open(&h, 25, 2);
        for (uint32_t k = 0; k < 12; k++) {
            enum { ROWS = 7 };
            clb_error err;
            kvh_pass(&h, 24, COLIBRI_PHASE_PREFILL, false);
            assert_ok(clb_kv_begin(h.seq, ROWS, &err), &err);
            for (uint32_t layer = 0; layer < KVH_LAYERS; layer++)
                for (uint32_t i = 0; i < ROWS; i++)
                    kvh_write_row(&h, layer, i, 0);
            for (uint32_t layer = 0; layer < KVH_LAYERS; layer++)
                for (uint32_t head = 0; head < KVH_KV_HEADS; head++)
                    for (uint32_t i = 0; i < ROWS; i++) {
                        struct kvh_head *x = &h.head[layer][head];
                        const uint32_t before = x->n, position = clb_kv_seq_position(h.seq) + i;
                        assert_int_equal(clb_kv_view_of(h.seq, layer, head).n_before, before);
                        for (uint32_t j = 0; j <= i; j++)
                            x->position[before + j] = clb_kv_seq_position(h.seq) + j;
                        kvh_attend(&h, layer, head, i, &r);
                        for (uint32_t g = 0; g < KVH_GROUP; g++) {
                            double out[KVH_DIM] = {0};
                            kvh_probs(&h, layer, head * KVH_GROUP + g, position, compact ? before + i : position,
                                      before + i + 1, p);
                            for (uint32_t j = 0; j < before + i + 1; j++)
                                for (uint32_t d = 0; d < KVH_DIM; d++)
                                    out[d] += p[j] * (double)kvh_value(KVH_V, layer, head, x->position[j], d);
                            for (uint32_t d = 0; d < KVH_DIM; d++)
                                kvh_near(r.out[g][d], out[d], 3e-6);
                        }
                    }
            clb_kv_abort(h.seq);
            kvh_pass(&h, ROWS, COLIBRI_PHASE_PREFILL, false);
        }
        clb_kv_stats st;
        clb_kv_seq_stats(h.seq, &st);
        assert_true(st.selections >= 40 && st.evicted_sum > 1000);
        kvh_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_as_written),
        cmocka_unit_test(nothing_drifts),
        cmocka_unit_test(attention_by_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
