/* Whether reading ahead goes on depends on what passes take with and without it, and on nothing else. */
#include "store/pays.h"
#include "support.h"

struct clock {
    uint64_t now;
    test_rand rng;
};

/* n passes; those with read-ahead take `with` ns, the others `without`, each up to a tenth more; every 50th is a hiccup. */
static uint32_t run(clb_pays *p, struct clock *c, uint32_t n, uint64_t with, uint64_t without)
{
    uint32_t on = 0;
    for (uint32_t i = 0; i < n; i++) {
        clb_pays_begin(p, c->now);
        const uint64_t ns = p->on ? with : without;
        on += p->on;
        c->now += ns + test_rand_below(&c->rng, (uint32_t)(ns / 10)) + (i % 50 == 49 ? 20 * ns : 0);
        clb_pays_end(p, c->now);
        c->now += test_rand_below(&c->rng, 1000000000); /* somebody reads the answer */
    }
    return on;
}

static void what_costs_is_turned_off(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        clb_pays p;
        struct clock c = {.now = 1, .rng = {seed}};
        clb_pays_init(&p);
        run(&p, &c, 200, 1300000, 1000000);
        assert_true(p.ratio > 1.1 && p.ratio < 1.5);
        const uint32_t on = run(&p, &c, 10000, 1300000, 1000000);
        assert_true(on < 700); /* only trials, and these become rare */
    }
}

static void what_pays_stays_on(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        clb_pays p;
        struct clock c = {.now = 1, .rng = {seed}};
        clb_pays_init(&p);
        const uint32_t on = run(&p, &c, 10000, 800000, 1000000);
        assert_true(p.ratio < 0.95);
        assert_true(on > 9300);
    }
}

/* A drift that lasts through a trial hits both sides alike. */
static void drifts_do_not_decide(void **state)
{
    (void)state;
    clb_pays p;
    struct clock c = {.now = 1, .rng = {1}};
    clb_pays_init(&p);
    uint64_t ns = 1000000;
    while (p.ratio <= 0) {
        clb_pays_begin(&p, c.now);
        c.now += ns;
        ns -= 4000; /* faster and faster */
        clb_pays_end(&p, c.now);
    }
    assert_true(p.ratio > 0.999 && p.ratio < 1.001);
    assert_true(p.on);
}

static void it_changes_its_mind(void **state)
{
    (void)state;
    clb_pays p;
    struct clock c = {.now = 1, .rng = {3}};
    clb_pays_init(&p);
    run(&p, &c, 3000, 1300000, 1000000);
    assert_false(p.on);
    run(&p, &c, 5000, 700000, 1000000);
    const uint32_t on = run(&p, &c, 5000, 700000, 1000000);
    assert_true(on > 4500);
}

/* A pass that never ends counts for nothing. */
static void broken_passes_do_not_count(void **state)
{
    (void)state;
    clb_pays p;
    struct clock c = {.now = 1, .rng = {4}};
    clb_pays_init(&p);
    run(&p, &c, 32, 1000, 1000);
    assert_false(p.holding);
    for (uint32_t i = 0; i < 400; i++) {
        clb_pays_begin(&p, c.now);
        p.began = 0;
        clb_pays_end(&p, c.now + 1);
    }
    assert_int_equal(p.n, 0);
    assert_true(p.on && p.ratio <= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_costs_is_turned_off), cmocka_unit_test(what_pays_stays_on), cmocka_unit_test(drifts_do_not_decide),
        cmocka_unit_test(it_changes_its_mind),      cmocka_unit_test(broken_passes_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
