/* Inside of foreign*.c: signatures, calls, and what a policy and a matrix product keep. */
#ifndef CLB_PLUGIN_FOREIGN_PRIVATE_H
#define CLB_PLUGIN_FOREIGN_PRIVATE_H

#include <ffi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "colibri/expert_policy.h"
#include "colibri/kernel.h"
#include "colibri/kv_strategy.h"
#include "plugin/foreign.h"

/* ---- signatures of policies: foreign_signature.c ------------------------------------------------------------ */

/* Which functions may ask for an argument. */
#define CLB_FOREIGN_IN_SCORE 1u
#define CLB_FOREIGN_IN_USE   2u
#define CLB_FOREIGN_IN_RESET 4u
#define CLB_FOREIGN_IN_ALL   7u /* of an expert policy */
#define CLB_FOREIGN_IN_KV    8u /* the score of a KV strategy */
#define CLB_FOREIGN_IN_KV_RESET 16u
#define CLB_FOREIGN_IN_KV_ALL (CLB_FOREIGN_IN_KV | CLB_FOREIGN_IN_KV_RESET)

/* X(name, type, functions). The manual explains them: docs/foreign.md. */
#define CLB_FOREIGN_ARGUMENTS(X)                                                                                       \
    X(layer, u32, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE | CLB_FOREIGN_IN_KV)                                       \
    X(expert, u32, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                          \
    X(number, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                          \
    X(now, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                             \
    X(uses, u64, CLB_FOREIGN_IN_SCORE)                                                                                 \
    X(uses_here, u64, CLB_FOREIGN_IN_SCORE)                                                                            \
    X(last_use, u64, CLB_FOREIGN_IN_SCORE)                                                                             \
    X(age, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_KV)                                                              \
    X(inserted, u64, CLB_FOREIGN_IN_SCORE)                                                                             \
    X(prefetched, u32, CLB_FOREIGN_IN_SCORE)                                                                           \
    X(layers_ahead, u32, CLB_FOREIGN_IN_SCORE)                                                                         \
    X(gate_last, f32, CLB_FOREIGN_IN_SCORE)                                                                            \
    X(gate_average, f64, CLB_FOREIGN_IN_SCORE)                                                                         \
    X(gate, f32, CLB_FOREIGN_IN_USE)                                                                                   \
    X(row, u32, CLB_FOREIGN_IN_USE)                                                                                    \
    X(router_rank, u32, CLB_FOREIGN_IN_USE)                                                                            \
    X(phase, u32, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                           \
    X(expert_bytes, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                    \
    X(n_layers, u32, CLB_FOREIGN_IN_ALL | CLB_FOREIGN_IN_KV_ALL)                                                       \
    X(n_experts, u32, CLB_FOREIGN_IN_ALL)                                                                              \
    X(n_slots, u32, CLB_FOREIGN_IN_ALL)                                                                                \
    X(top_k, u32, CLB_FOREIGN_IN_ALL)                                                                                  \
    X(instance, u32, CLB_FOREIGN_IN_ALL | CLB_FOREIGN_IN_KV_ALL)                                                       \
    X(kv_head, u32, CLB_FOREIGN_IN_KV)                                                                                 \
    X(position, u32, CLB_FOREIGN_IN_KV)                                                                                \
    X(rank, u32, CLB_FOREIGN_IN_KV)                                                                                    \
    X(n_kept, u32, CLB_FOREIGN_IN_KV)                                                                                  \
    X(n_keep, u32, CLB_FOREIGN_IN_KV)                                                                                  \
    X(n_prompt, u32, CLB_FOREIGN_IN_KV)                                                                                \
    X(n_system, u32, CLB_FOREIGN_IN_KV)                                                                                \
    X(next_position, u64, CLB_FOREIGN_IN_KV)                                                                           \
    X(prob_sum, f32, CLB_FOREIGN_IN_KV)                                                                                \
    X(prob_max, f32, CLB_FOREIGN_IN_KV)                                                                                \
    X(prob_last, f32, CLB_FOREIGN_IN_KV)                                                                               \
    X(n_last, u32, CLB_FOREIGN_IN_KV)                                                                                  \
    X(key_norm, f32, CLB_FOREIGN_IN_KV)                                                                                \
    X(value_norm, f32, CLB_FOREIGN_IN_KV)                                                                              \
    X(budget, u32, CLB_FOREIGN_IN_KV_ALL)                                                                              \
    X(n_kv_heads, u32, CLB_FOREIGN_IN_KV_ALL)

enum clb_foreign_argument {
#define CLB_FOREIGN_ENUM(name, type, functions) CLB_ARG_##name,
    CLB_FOREIGN_ARGUMENTS(CLB_FOREIGN_ENUM)
#undef CLB_FOREIGN_ENUM
        CLB_ARG_COUNT
};

enum clb_foreign_type { CLB_FT_VOID, CLB_FT_U32, CLB_FT_U64, CLB_FT_F32, CLB_FT_F64 };

#define CLB_FOREIGN_MAX_ARGS 32u

typedef struct clb_foreign_signature {
    enum clb_foreign_type result;
    unsigned n;
    struct {
        enum clb_foreign_argument what;
        enum clb_foreign_type as;
    } arg[CLB_FOREIGN_MAX_ARGS];
} clb_foreign_signature;

/* "double(u32 layer, u64 age)" for one of CLB_FOREIGN_IN_*. USAGE. */
int clb_foreign_parse(const char *text, unsigned function, clb_foreign_signature *out, clb_error *err);
bool clb_foreign_asks(const clb_foreign_signature *s, enum clb_foreign_argument what);

/* ---- one section --------------------------------------------------------------------------------------------- */

typedef void (*clb_foreign_fn)(void);

/* A function and how libffi calls it. */
typedef struct clb_foreign_call {
    clb_foreign_fn fn;
    clb_foreign_signature signature;
    ffi_cif cif;
    ffi_type *types[CLB_FOREIGN_MAX_ARGS];
} clb_foreign_call;

struct clb_foreign {
    clb_foreign_spec spec; /* strings are copies */
    _Atomic(const clb_log *) log;
    atomic_bool complained; /* about the floating-point state: said once */
    void *handle;
    bool closed; /* closures are made: never freed */
    pthread_mutex_t lock;      /* one call into the library at a time */
    pthread_mutex_t instances; /* guards the two below */
    uint8_t *taken;            /* [n_taken]: numbers of the live instances */
    uint32_t n_taken;
    ffi_closure
        *closure; /* create of a policy, run of a product: the functions that get no context from their caller */
    ffi_cif closure_cif;
    union {
        struct {
            struct colibri_expert_policy table;
            clb_foreign_call score, on_use, reset;
        } policy;
        struct {
            struct colibri_kv_strategy table;
            clb_foreign_call score, reset;
        } kv;
        struct {
            struct colibri_matmul table;
            clb_foreign_call gemm;
            bool fortran;
        } sgemm;
    };
    char source[256];
    clb_foreign *next; /* retired */
};

/* Looks up a function of the loaded library: it must lie in an executable segment. */
int clb_foreign_find(clb_foreign *f, const char *symbol, clb_foreign_fn *out, clb_error *err);
/* libffi's view of a parsed signature, and the function behind it. */
int clb_foreign_bind(clb_foreign *f, const char *symbol, clb_foreign_call *call, clb_error *err);
/* A C function pointer that calls handler(cif, result, args, f). */
int clb_foreign_closure(clb_foreign *f, ffi_type *result, ffi_type **args, unsigned n,
                        void (*handler)(ffi_cif *cif, void *result, void **args, void *f), void **code, clb_error *err);
/* One value of the vocabulary, as the natural type of its row: integers in u64, the others in f64. */
typedef struct clb_foreign_value {
    bool is_float;
    uint64_t u64;
    double f64;
} clb_foreign_value;
typedef union clb_foreign_result { /* a float or a double, as the signature says */
    uint64_t room;
    float f32;
    double f64;
} clb_foreign_result;
/* Calls with the arguments that the signature asks for, in its order; alone, unless the section says thread-safe. false: the
 * floating-point state had to be put back. (foreign_call.c) */
bool clb_foreign_run(clb_foreign *f, clb_foreign_call *call, const clb_foreign_value *values, clb_foreign_result *result);
/* The lowest number that no live instance has; UINT32_MAX: refused, and why. alone: only if there is no other instance. */
uint32_t clb_foreign_take_number(clb_foreign *f, bool alone, const char *why_alone, char *why, size_t why_size);
void clb_foreign_give_number(clb_foreign *f, uint32_t number);

/* A call changed the floating-point state, which has been put back: said once. */
void clb_foreign_complain(clb_foreign *f, const char *what);

/* Fill f->policy, f->kv or f->sgemm from the loaded library. */
int clb_foreign_policy_load(clb_foreign *f, clb_error *err);
int clb_foreign_kv_load(clb_foreign *f, clb_error *err);
int clb_foreign_sgemm_load(clb_foreign *f, clb_error *err);
/* USAGE unless it names a convention. */
int clb_foreign_sgemm_convention(const char *signature, bool *fortran, clb_error *err);

#endif
