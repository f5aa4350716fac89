/* Expert policy s3-fifo: scripted victims, and the paper's algorithm on plain arrays. */
#include "support/policy_cache.h"

static const struct colibri_expert_policy *s3;

typedef struct fifo {
    uint32_t e[4 * PC_MOST_ALL], n; /* oldest first */
} fifo;

static fifo small, main_queue, ghost;
static uint32_t uses[PC_MOST_ALL], small_slots, main_slots;

static void drop(fifo *f, uint32_t at)
{
    memmove(f->e + at, f->e + at + 1, (--f->n - at) * sizeof f->e[0]);
}

static uint32_t find(const fifo *f, uint32_t e)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->e[i] == e)
            return i;
    return UINT32_MAX;
}

static void rule_reset(pc_run *run)
{
    small.n = main_queue.n = ghost.n = 0;
    small_slots = run->n_slots / 10 > 1 ? run->n_slots / 10 : 1;
    main_slots = run->n_slots > small_slots ? run->n_slots - small_slots : 1;
}

static void rule_insert(pc_run *run, uint32_t e)
{
    const uint32_t at = find(&ghost, e);
    (void)run;
    if (at != UINT32_MAX) {
        ghost.e[at] = UINT32_MAX; /* its place stays: ghosts age by the number of those that came after */
        main_queue.e[main_queue.n++] = e;
    } else {
        small.e[small.n++] = e;
    }
    uses[e] = 0;
}

static void rule_hit(pc_run *run, uint32_t e)
{
    (void)run;
    uses[e] = uses[e] < 3 ? uses[e] + 1 : 3;
}

static void rule_evict(pc_run *run, uint32_t e)
{
    (void)run;
    if (find(&small, e) != UINT32_MAX) {
        drop(&small, find(&small, e));
        ghost.e[ghost.n++] = e;
        if (ghost.n > main_slots)
            drop(&ghost, 0);
    } else {
        drop(&main_queue, find(&main_queue, e));
    }
}

static uint32_t evict_small(const bool *candidate)
{
    for (uint32_t i = 0; i < small.n;) {
        const uint32_t e = small.e[i];
        if (!candidate[e]) {
            i++;
        } else if (uses[e] > 1) {
            drop(&small, i);
            main_queue.e[main_queue.n++] = e;
            uses[e] = 0;
        } else {
            return e;
        }
    }
    return UINT32_MAX;
}

static uint32_t evict_main(const bool *candidate)
{
    for (uint32_t round = 0; round < 4; round++) {
        const uint32_t n = main_queue.n;
        uint32_t at = 0;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t e = main_queue.e[at];
            if (!candidate[e]) {
                at++;
            } else if (uses[e] == 0) {
                return e;
            } else {
                uses[e]--;
                drop(&main_queue, at);
                main_queue.e[main_queue.n++] = e;
            }
        }
    }
    return UINT32_MAX;
}

static uint32_t rule_victim(pc_run *run, const bool *candidate)
{
    (void)run;
    uint32_t e;
    if (small.n >= small_slots || main_queue.n == 0) {
        e = evict_small(candidate);
        return e != UINT32_MAX ? e : evict_main(candidate);
    }
    e = evict_main(candidate);
    e = e != UINT32_MAX ? e : evict_small(candidate);
    return e != UINT32_MAX ? e : evict_main(candidate);
}

static const pc_rule rule = {
    .reset = rule_reset, .hit = rule_hit, .insert = rule_insert, .evict = rule_evict, .victim = rule_victim};

static void against_arrays(void **state)
{
    (void)state;
    pc_random_test(s3, &rule, NULL, 12);
}

static void scripted(void **state)
{
    (void)state;
    assert_string_equal(pc_script(s3, 3, "ABCD"), "A");
    assert_string_equal(pc_script(s3, 3, "ABCAD"), "A");       /* one use is not enough to stay */
    assert_string_equal(pc_script(s3, 3, "ABCAAD"), "B");      /* two are: A moves on */
    assert_string_equal(pc_script(s3, 3, "ABCDADEF"), "ABCD"); /* A, a ghost, came back to the main queue */
}

static int load(void **state)
{
    (void)state;
    s3 = test_component("expert-policy-s3_fifo", "colibri_expert_policy_s3_fifo", COLIBRI_IFACE_EXPERT_POLICY);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scripted), cmocka_unit_test(against_arrays)};
    return cmocka_run_group_tests(tests, load, NULL);
}
