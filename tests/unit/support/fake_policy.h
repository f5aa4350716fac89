/* A scripted expert policy: it answers well or lies in one way, and checks what the host tells it. It keeps its own account
 * of what is resident and what was used when, and from it knows what the host's LRU fallback must choose. */
#ifndef CLB_TESTS_SUPPORT_FAKE_POLICY_H
#define CLB_TESTS_SUPPORT_FAKE_POLICY_H

#include "colibri/expert_policy.h"
#include "support.h"

enum fake_answer {
    FAKE_RANDOM,       /* any candidate */
    FAKE_ALWAYS_FIRST, /* candidate 0, for ever */
    FAKE_ALWAYS_LAST,
    FAKE_OUT_OF_RANGE, /* lies from here on */
    FAKE_FAR_OUT_OF_RANGE,
    FAKE_FAILS,        /* a status, with a valid index written */
    FAKE_SILENT,       /* OK, nothing written */
    FAKE_SCORE,        /* score(): least recently used, from its own account */
    FAKE_SCORE_NAN,
    FAKE_SCORE_ONE_NAN, /* only for one expert in three */
    FAKE_SCORE_INF,    /* +inf for all: not a lie, ties go to the lower number */
    FAKE_ANSWERS
};

typedef struct fake_policy {
    struct colibri_expert_policy table;
    enum fake_answer answer;
    int admit_every;          /* 0: admit all; n: BYPASS except every n-th (1: never bypass; -1: always bypass) */
    bool refuse_create;

    uint32_t n_layers, n_experts;
    struct fake_expert {
        bool resident, needed;
        uint64_t last_use;
        uint32_t uses;
    } *experts;               /* [n_layers * n_experts] */
    uint32_t expect_layer, expect_expert; /* the victim that must leave next; UINT32_MAX: any */
    bool expecting;
    uint64_t clock;
    test_rand rng;

    uint64_t n_creates, n_destroys, n_resets, n_steps, n_routes, n_asked, n_lies, n_inserts, n_evicts, n_bypassed;
    uint64_t n_union, n_hits, n_misses;
    uint32_t phase;                         /* of the step */
    uint64_t phase_hits[3], phase_misses[3];
    uint64_t violations;      /* host broke its promise; what, for the first one */
    const char *violation;
} fake_policy;

/* Fills the table. The policy's `self` is the fake itself, so that tests see what happened. */
void fake_policy_init(fake_policy *fake, enum fake_answer answer);
/* Gives it an admit(): see admit_every. A host sets slots aside for policies that have one. */
void fake_policy_admits(fake_policy *fake, int every);
void fake_policy_free(fake_policy *fake);
/* True if the answer is one that the host must count as bad. */
bool fake_policy_lies(enum fake_answer answer);

#endif
