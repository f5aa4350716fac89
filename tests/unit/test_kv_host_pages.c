/* Page selection in the host: bounds are those of the keys that attention reads, a token attends to what was chosen,
 * what is incomplete and what the recent window needs, and to nothing else; and choices that are none. */
#include "support/kv_host.h"

static struct kvh h;
static uint8_t picked[KVH_LAYERS][KVH_KV_HEADS][64];
static uint32_t n_use_expected, calls;
static enum pick_how {
    PICK,
    PICK_ERROR,
    PICK_NONE,
    PICK_TOO_MANY,
    PICK_FLAG,
    PICK_BEYOND,
    PICK_LAST_LAYER_LIES
} pick_how;

static void *rows_of(const clb_kv_seq *seq, uint32_t layer, uint32_t head)
{
    return &seq->heads[layer * KVH_KV_HEADS + head];
}

/* Smallest and largest of every element over a page, from rows read one by one; the bounds are exactly those. */
static void check_bounds(const struct colibri_kv_pages *pages)
{
    for (uint32_t p = 0; p < pages->n_pages; p++) {
        float low[KVH_DIM], high[KVH_DIM], k[KVH_DIM];
        double exact[KVH_DIM];
        for (uint32_t i = p * KVH_PAGE; i < (p + 1) * KVH_PAGE; i++) {
            clb_kv_read_k(h.cache, rows_of(h.seq, pages->layer, pages->kv_head), i, k);
            kvh_rotated(&h.layout, KVH_K, pages->layer, pages->kv_head, i, i, exact);
            for (uint32_t d = 0; d < KVH_DIM; d++) {
                kvh_near(k[d], exact[d], h.layout.k_type == COLIBRI_TYPE_F32 ? 3e-6 : 0.02);
                low[d] = i % KVH_PAGE == 0 || k[d] < low[d] ? k[d] : low[d];
                high[d] = i % KVH_PAGE == 0 || k[d] > high[d] ? k[d] : high[d];
            }
        }
        assert_memory_equal(pages->k_min + p * KVH_DIM, low, sizeof low);
        assert_memory_equal(pages->k_max + p * KVH_DIM, high, sizeof high);
    }
}

static int pick(void *self, const struct colibri_kv_pages *pages, uint8_t *use)
{
    const uint32_t l = pages->layer, head = pages->kv_head, position = clb_kv_seq_position(h.seq);
    uint8_t *const mine = picked[l][head];
    float q[KVH_DIM], cs[KVH_ROT];
    (void)self;
    calls++;
    assert_int_equal(pages->n_use, n_use_expected);
    assert_int_equal(pages->page_tokens, KVH_PAGE);
    assert_int_equal(pages->n_pages, position / KVH_PAGE);
    assert_int_equal(pages->n_heads, KVH_GROUP);
    for (uint32_t g = 0; g < KVH_GROUP; g++) { /* the query of this head, rotated */
        clb_kv_angles(&h.layout, position, cs);
        for (uint32_t d = 0; d < KVH_DIM; d++)
            q[d] = kvh_value(KVH_Q, l, head * KVH_GROUP + g, position, d);
        clb_kv_rotate(&h.layout, q, cs);
        assert_memory_equal(pages->q + g * KVH_DIM, q, sizeof q);
    }
    check_bounds(pages);
    for (uint32_t p = 0; p < pages->n_pages; p++)
        assert_int_equal(use[p], 0);
    memset(mine, 0, sizeof picked[l][head]);
    for (uint32_t k = 0; k < pages->n_use; k++)
        mine[(position * 7 + l * 3 + head + k * 5) % pages->n_pages] = 1; /* fewer if they meet */
    memcpy(use, mine, pages->n_pages);
    switch (pick_how) {
    case PICK_ERROR:
        return COLIBRI_E_INTERNAL;
    case PICK_NONE:
        memset(use, 0, pages->n_pages);
        break;
    case PICK_TOO_MANY:
        memset(use, 1, pages->n_use + 1);
        break;
    case PICK_FLAG:
        use[0] = 2;
        break;
    case PICK_BEYOND:
        use[pages->n_pages] = 1;
        break;
    case PICK_LAST_LAYER_LIES:
        if (l + 1 == KVH_LAYERS && head + 1 == KVH_KV_HEADS)
            memset(use, 0, pages->n_pages);
        break;
    default:
        break;
    }
    return COLIBRI_OK;
}

static void start(uint32_t type, uint32_t budget)
{
    h.layout = kvh_layout(type, type);
    h.layout.recent = clb_kv_type_quantized(type) ? 32 : 0;
    h.strategy = kvh_strategy();
    h.strategy.flags |= COLIBRI_KV_FLAG_KEEPS_ALL;
    h.strategy.needs = COLIBRI_KV_NEED_PAGE_MINMAX;
    h.strategy.triggers = 0;
    h.strategy.select = NULL;
    h.strategy.on_evict = NULL;
    h.strategy.pick_pages = pick;
    pick_how = PICK;
    calls = 0;
    n_use_expected = budget / KVH_PAGE;
    kvh_open(&h, budget, 0);
}

/* The one row of a generated token, of which `attended` says what it must look at: NULL for everything. */
static void token(bool chosen)
{
    static struct kvh_result r;
    static double p[KVH_MOST];
    clb_error err;
    const uint32_t n = clb_kv_seq_position(h.seq), full = n / KVH_PAGE;
    /* copies are read from here on: those pages count in any case */
    const uint32_t copies = h.layout.recent && n + 1 > h.layout.recent ? (n + 1 - h.layout.recent) / 16 * 16 : 0;
    assert_ok(clb_kv_begin(h.seq, 1, &err), &err);
    for (uint32_t l = 0; l < KVH_LAYERS; l++) {
        float q[KVH_HEADS * KVH_DIM], cs[KVH_ROT];
        clb_kv_angles(&h.layout, n, cs);
        for (uint32_t g = 0; g < KVH_HEADS; g++) {
            for (uint32_t d = 0; d < KVH_DIM; d++)
                q[g * KVH_DIM + d] = kvh_value(KVH_Q, l, g, n, d);
            clb_kv_rotate(&h.layout, q + g * KVH_DIM, cs);
        }
        kvh_write_row(&h, l, 0, 0);
        clb_kv_pick(h.seq, l, q);
        for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
            struct kvh_head *x = &h.head[l][head];
            x->n = 0;
            const uint32_t first_copy_page = h.layout.recent ? copies / KVH_PAGE : UINT32_MAX;
            for (uint32_t i = 0; i <= n; i++)
                if (!chosen || i / KVH_PAGE >= full || i / KVH_PAGE >= first_copy_page || picked[l][head][i / KVH_PAGE])
                    x->position[x->n++] = i;
            for (uint32_t i = copies; h.layout.recent && i <= n; i++)
                assert_int_equal(x->position[x->n - 1 - (n - i)], i);
            assert_int_equal(clb_kv_view_of(h.seq, l, head).n_before, x->n - 1);
            kvh_attend(&h, l, head, 0, &r);
            for (uint32_t g = 0; g < KVH_GROUP; g++) {
                double out[KVH_DIM] = {0};
                kvh_probs(&h, l, head * KVH_GROUP + g, n, n, x->n, p);
                for (uint32_t i = 0; i < x->n; i++)
                    for (uint32_t d = 0; d < KVH_DIM; d++)
                        out[d] += p[i] * (double)kvh_value(KVH_V, l, head, x->position[i], d);
                for (uint32_t d = 0; d < KVH_DIM; d++)
                    kvh_near(r.out[g][d], out[d], h.layout.k_type == COLIBRI_TYPE_F32 ? 3e-6 : 4e-3);
            }
        }
    }
    clb_kv_end(h.seq, 1, COLIBRI_PHASE_DECODE, false);
}

static void prompt(uint32_t n)
{
    clb_error err;
    assert_ok(clb_kv_begin(h.seq, n, &err), &err);
    for (uint32_t l = 0; l < KVH_LAYERS; l++)
        for (uint32_t i = 0; i < n; i++)
            kvh_write_row(&h, l, i, 0);
    clb_kv_end(h.seq, n, COLIBRI_PHASE_PREFILL, false);
}

static void tokens_attend_to_what_was_chosen(void **state)
{
    (void)state;
    const uint32_t types[] = {COLIBRI_TYPE_F32, COLIBRI_TYPE_F16, COLIBRI_TYPE_Q8_0};
    for (int t = 0; t < 3; t++) {
        start(types[t], 70); /* four pages */
        prompt(61);
        for (uint32_t k = 0; clb_kv_seq_position(h.seq) < 80; k++) /* up to four complete pages: all of them */
            token(false);
        assert_int_equal(calls, 0);
        for (uint32_t k = 0; k < 90; k++) {
            token(true);
            if (k % 20 == 7)
                prompt(1 + k % 11);
        }
        assert_int_equal(calls, 90 * KVH_LAYERS * KVH_KV_HEADS);
        clb_error err; /* bounds of pages that are written again are made again */
        if (!h.layout.recent) {
            assert_ok(clb_kv_seq_truncate(h.seq, 90, &err), &err);
            assert_ok(clb_kv_begin(h.seq, 30, &err), &err);
            for (uint32_t l = 0; l < KVH_LAYERS; l++)
                for (uint32_t i = 0; i < 30; i++)
                    kvh_write_row(&h, l, i, 5000); /* other tokens, taken back */
            clb_kv_end(h.seq, 30, COLIBRI_PHASE_PREFILL, false);
            pick_how = PICK;
            assert_ok(clb_kv_begin(h.seq, 1, &err), &err);
            clb_kv_abort(h.seq);
            assert_ok(clb_kv_seq_truncate(h.seq, 90, &err), &err);
            prompt(40);
            token(true);
        }
        assert_int_equal(h.n_faults, 0);
        kvh_close(&h);
    }
}

/* A bad choice: the layer is attended in full, one bad answer is counted for the token however many pages were asked
 * for. */
static void bad_choices(void **state)
{
    (void)state;
    for (int how = PICK_ERROR; how <= PICK_BEYOND; how++) {
        start(COLIBRI_TYPE_F32, 50);
        prompt(150);
        pick_how = (enum pick_how)how;
        for (uint32_t k = 0; k < CLB_KV_BAD_ANSWERS_MOST; k++) {
            clb_kv_stats st;
            token(false);
            clb_kv_seq_stats(h.seq, &st);
            assert_int_equal(st.bad_answers, k + 1);
            assert_int_equal(calls, k + 1); /* after the first one of a token nobody is asked again */
        }
        assert_int_equal(h.n_faults, 1);
        if (!strstr(h.fault, "pick_pages"))
            fail_msg("way %d reported as: %s", how, h.fault);
        pick_how = PICK; /* too late */
        token(false);
        assert_int_equal(calls, CLB_KV_BAD_ANSWERS_MOST);
        kvh_close(&h);
    }
    /* a head's good choice does not stand beside a bad one of its layer; layers before it keep theirs */
    start(COLIBRI_TYPE_F32, 50);
    prompt(150);
    pick_how = PICK_LAST_LAYER_LIES;
    clb_error err;
    assert_ok(clb_kv_begin(h.seq, 1, &err), &err);
    for (uint32_t l = 0; l < KVH_LAYERS; l++) {
        float q[KVH_HEADS * KVH_DIM], cs[KVH_ROT];
        clb_kv_angles(&h.layout, 150, cs);
        for (uint32_t g = 0; g < KVH_HEADS; g++) {
            for (uint32_t d = 0; d < KVH_DIM; d++)
                q[g * KVH_DIM + d] = kvh_value(KVH_Q, l, g, 150, d);
            clb_kv_rotate(&h.layout, q + g * KVH_DIM, cs);
        }
        kvh_write_row(&h, l, 0, 0);
        clb_kv_pick(h.seq, l, q);
    }
    for (uint32_t head = 0; head < KVH_KV_HEADS; head++) {
        assert_true(clb_kv_view_of(h.seq, 0, head).n_before < 150);
        assert_int_equal(clb_kv_view_of(h.seq, KVH_LAYERS - 1, head).n_before, 150);
    }
    clb_kv_end(h.seq, 1, COLIBRI_PHASE_DECODE, false);
    assert_int_equal(h.n_faults, 1);
    kvh_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_attend_to_what_was_chosen),
        cmocka_unit_test(bad_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
