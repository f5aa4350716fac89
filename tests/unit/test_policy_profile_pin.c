/* Expert policy profile-pin: scripted victims, the choice of the pinned by looking at all, and profiles, good and
 * hostile. */
#include "support/component.h"
#include "support/policy_twin.h"

static const struct colibri_expert_policy *pin;

/* ---- the rule, naively ---- */

static struct {
    double percent;
    uint64_t warmup, repin, half_life;
    uint32_t slots, top_k;
    uint64_t row, rows, now, tokens, since_halving, since_choice;
    bool chosen_once;
    uint64_t time[PH_ALL];
    uint32_t heat[PH_ALL];
    bool pinned[PH_ALL];
} x;

static void naive_reset(void *self)
{
    (void)self;
    x.row = x.rows = x.now = x.tokens = x.since_halving = x.since_choice = 0;
    x.chosen_once = false;
    memset(x.time, 0, sizeof x.time);
    memset(x.heat, 0, sizeof x.heat);
    memset(x.pinned, 0, sizeof x.pinned);
}

static void *naive_create(const struct colibri_policy_config *config, char *why, size_t n)
{
    (void)why;
    (void)n;
    double value[4];
    for (int i = 0; i < 4; i++)
        value[i] = config->params ? config->params[i] : pin->params[i].value;
    x.percent = value[0];
    x.warmup = (uint64_t)value[1];
    x.repin = (uint64_t)value[2];
    x.half_life = (uint64_t)value[3];
    x.slots = config->n_slots;
    x.top_k = config->top_k;
    naive_reset(NULL);
    return &x;
}

static void naive_destroy(void *self)
{
    (void)self;
}

static void choose(void)
{
    const uint32_t share = (uint32_t)(x.slots * x.percent / 100), room = x.slots - PH_LAYERS * x.top_k;
    bool chosen[PH_ALL] = {false};
    for (uint32_t n = 0; n < share && n < room; n++) {
        uint32_t best = PH_ALL;
        double most = 0;
        for (uint32_t i = 0; i < PH_ALL; i++) {
            const double worth = x.pinned[i] ? 1.25 * x.heat[i] + 4 : x.heat[i];
            if (!chosen[i] && (best == PH_ALL || worth > most)) {
                best = i;
                most = worth;
            }
        }
        if (x.heat[best] == 0)
            break;
        chosen[best] = true;
    }
    memcpy(x.pinned, chosen, sizeof chosen);
}

static void naive_step(void *self, const struct colibri_step *step)
{
    (void)self;
    x.tokens += x.rows;
    x.since_halving += x.rows;
    while (x.since_halving >= x.half_life) {
        x.since_halving -= x.half_life;
        x.tokens = (x.tokens + 1) / 2;
        for (uint32_t i = 0; i < PH_ALL; i++)
            x.heat[i] /= 2;
    }
    if (x.tokens >= x.warmup) {
        x.since_choice += x.rows;
        if (!x.chosen_once || x.since_choice >= x.repin) {
            choose();
            x.chosen_once = true;
            x.since_choice = 0;
        }
    }
    x.row += x.rows;
    x.rows = step->n_rows;
}

static void naive_route(void *self, const struct colibri_route *route)
{
    (void)self;
    for (uint32_t i = 0; i < route->n_rows * route->top_k; i++) {
        const uint32_t e = route->layer * PH_EXPERTS + route->ids[i];
        x.now = 1 + (x.row + i / route->top_k) * PH_LAYERS + route->layer;
        x.time[e] = x.now;
        x.heat[e]++;
    }
}

static void naive_insert(void *self, uint32_t layer, uint32_t expert, uint32_t cause)
{
    (void)self;
    if (cause == COLIBRI_CAUSE_PREFETCH)
        x.time[layer * PH_EXPERTS + expert] = x.now;
}

static double naive_score(void *self, uint32_t layer, uint32_t expert)
{
    (void)self;
    const uint32_t e = layer * PH_EXPERTS + expert;
    return (x.pinned[e] ? 1e9 : 0) + (double)x.time[e];
}

static const struct colibri_expert_policy naive = {.create = naive_create,
                                                   .destroy = naive_destroy,
                                                   .reset = naive_reset,
                                                   .on_step = naive_step,
                                                   .on_route = naive_route,
                                                   .on_insert = naive_insert,
                                                   .score = naive_score};

static void against_naive(void **state)
{
    (void)state;
    static const double params[][4] = {{0}, {100, 1, 1, 1000000}, {30, 50, 10, 100}, {50, 20, 7, 3}};
    for (int i = 0; i < 4; i++)
        twin_test(pin, &naive, i ? params[i] : NULL);
}

static void as_new(void **state)
{
    (void)state;
    twin_reset(pin, NULL);
}

static void scripted(void **state)
{
    (void)state;
    /* Half of 12 slots; layers 1 and 2 have their {0, 1} pinned, layer 0 the hottest two that then are left. */
    static const double params[] = {50, 4, 1, 1000000};
    static const uint8_t token[][PH_TOP_K] = {
        {0, 1}, {0, 1}, {0, 2}, {0, 3}, /* four tokens known: 0 (four uses) and 1 (two) are pinned */
        {4, 5},                         /* 2 and 3 leave: LRU would take 1 and 2 */
        {6, 7},                         /* 4 and 5 */
    };
    static const uint16_t expected[] = {2, 3, 4, 5};
    policy_host *h = ph_open(pin, params, 4, false);
    twin_script(h, token, 6);
    twin_victims(h, expected, 4);
    char text[128] = "";
    pin->explain(h->self, 0, 1, text, sizeof text);
    assert_string_equal(text, "profile-pin: pinned, heat 2 of 6 tokens");
    pin->explain(h->self, 0, 7, text, sizeof text);
    assert_string_equal(text, "profile-pin: not pinned, heat 1 of 6 tokens");
    /* 1 is pinned as if it had 2 * 1.25 + 4 = 6.5 uses: 6 is used 6 times more in vain, the seventh is enough (8). */
    static const uint8_t six[][PH_TOP_K] = {{6, 7}, {6, 7}, {6, 7}, {6, 7}, {6, 7}, {6, 7}, {6, 7}};
    twin_script(h, six, 5); /* 6 uses, known to the choice at the start of the next pass */
    twin_script(h, six, 1);
    pin->explain(h->self, 0, 1, text, sizeof text);
    assert_non_null(strstr(text, ": pinned"));
    twin_script(h, six, 1);
    pin->explain(h->self, 0, 1, text, sizeof text);
    assert_non_null(strstr(text, "not pinned"));
    pin->explain(h->self, 0, 6, text, sizeof text);
    assert_non_null(strstr(text, ": pinned"));
    ph_close(h);
}

enum { N_BYTES = 32 + 4 * PH_ALL + 8 };

/* What one run learned helps the next from its first token on. */
static void remembers(void **state)
{
    (void)state;
    static const double params[] = {50, 4, 1, 1000000};
    static const uint8_t taught[][PH_TOP_K] = {{0, 1}, {0, 1}, {0, 2}, {0, 3}, {0, 1}};
    static const uint8_t next[][PH_TOP_K] = {{0, 1}, {2, 3}, {4, 5}};
    uint8_t bytes[N_BYTES + 1] = {0}, again[N_BYTES];
    policy_host *h = ph_open(pin, params, 4, false);
    twin_script(h, taught, 5);
    assert_int_equal(pin->save(h->self, NULL, 0), N_BYTES);
    assert_int_equal(pin->save(h->self, bytes, N_BYTES - 1), N_BYTES); /* does not fit: nothing is written */
    assert_int_equal(bytes[0], 0);
    bytes[N_BYTES] = 0x77;
    assert_int_equal(pin->save(h->self, bytes, sizeof bytes), N_BYTES);
    assert_int_equal(bytes[N_BYTES], 0x77);
    assert_memory_equal(bytes, "CBPP\1\0\0\0", 8);
    assert_int_equal(bytes[24], 5); /* tokens, the last one too */
    assert_int_equal(bytes[32], 5); /* layer 0's 0 */
    assert_int_equal(bytes[36], 3);
    ph_close(h);

    h = ph_open(pin, params, 4, false);
    assert_int_equal(pin->load(h->self, bytes, N_BYTES), COLIBRI_OK);
    pin->save(h->self, again, sizeof again);
    assert_memory_equal(bytes, again, N_BYTES);
    twin_script(h, next, 3);
    static const uint16_t kept[] = {2, 3}; /* without the profile 0 and 1 */
    twin_victims(h, kept, 2);
    ph_reset(h); /* forgets the profile as well */
    twin_script(h, next, 3);
    static const uint16_t lost[] = {0, 1};
    twin_victims(h, lost, 2);
    ph_close(h);
}

static void put64(uint8_t *to, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

static void sign(uint8_t *bytes)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < N_BYTES - 8; i++)
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    put64(bytes + N_BYTES - 8, sum);
}

static void hostile(void **state)
{
    (void)state;
    static const uint8_t taught[][PH_TOP_K] = {{0, 1}, {0, 1}, {0, 2}};
    uint8_t good[N_BYTES], bad[N_BYTES + 8] = {0}, now[N_BYTES], before[N_BYTES];
    policy_host *h = ph_open(pin, NULL, 4, false);
    twin_script(h, taught, 3);
    pin->save(h->self, good, sizeof good);
    twin_script(h, taught, 3);
    pin->save(h->self, before, sizeof before);
    /* Any damaged bit, any wrong length. */
    for (uint32_t bit = 0; bit < 8 * N_BYTES; bit++) {
        memcpy(bad, good, N_BYTES);
        bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(pin->load(h->self, bad, N_BYTES), COLIBRI_OK);
    }
    memcpy(bad, good, N_BYTES);
    for (size_t n = 0; n < sizeof bad; n++)
        if (n != N_BYTES)
            assert_int_not_equal(pin->load(h->self, bad, n), COLIBRI_OK);
    assert_int_not_equal(pin->load(h->self, NULL, N_BYTES), COLIBRI_OK);
    /* A right checksum over nonsense: another version, shape or model, more uses than tokens, absurdly many tokens. */
    static const uint32_t at[] = {0, 4, 8, 12, 16, 20};
    for (uint32_t i = 0; i < 6; i++) {
        memcpy(bad, good, N_BYTES);
        bad[at[i]]++;
        sign(bad);
        assert_int_not_equal(pin->load(h->self, bad, N_BYTES), COLIBRI_OK);
    }
    memcpy(bad, good, N_BYTES);
    bad[32 + 4 * 7] = 4; /* of 3 tokens */
    sign(bad);
    assert_int_not_equal(pin->load(h->self, bad, N_BYTES), COLIBRI_OK);
    memcpy(bad, good, N_BYTES);
    put64(bad + 24, UINT64_MAX - 1);
    sign(bad);
    assert_int_not_equal(pin->load(h->self, bad, N_BYTES), COLIBRI_OK);
    /* None of that changed anything. */
    pin->save(h->self, now, sizeof now);
    assert_memory_equal(now, before, sizeof now);
    assert_int_equal(pin->load(h->self, good, N_BYTES), COLIBRI_OK);
    /* The most that is accepted does not overflow. */
    memset(bad + 24, 0xff, N_BYTES - 8 - 24);
    put64(bad + 24, UINT64_MAX / 4);
    memcpy(bad, good, 24);
    sign(bad);
    assert_int_equal(pin->load(h->self, bad, N_BYTES), COLIBRI_OK);
    twin_script(h, taught, 3);
    ph_close(h);
}

static int load(void **state)
{
    (void)state;
    pin = test_component("expert-policy-profile_pin", "colibri_expert_policy_profile_pin", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scripted),  cmocka_unit_test(against_naive), cmocka_unit_test(as_new),
        cmocka_unit_test(remembers), cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
