/* Inside of foreign*.c: signatures, calls, and what a policy and a matrix product keep. */
#ifndef CLB_PLUGIN_FOREIGN_PRIVATE_H
#define CLB_PLUGIN_FOREIGN_PRIVATE_H

#include <ffi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "colibri/expert_policy.h"
#include "colibri/kernel.h"
#include "plugin/foreign.h"

/* ---- signatures of policies: foreign_signature.c ------------------------------------------------------------ */

/* Which functions may ask for an argument. */
#define CLB_FOREIGN_IN_SCORE 1u
#define CLB_FOREIGN_IN_USE   2u
#define CLB_FOREIGN_IN_RESET 4u
#define CLB_FOREIGN_IN_ALL   7u

/* X(name, type, functions). The manual explains them: docs/foreign.md. */
#define CLB_FOREIGN_ARGUMENTS(X)                                                                                       \
    X(layer, u32, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                           \
    X(expert, u32, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                          \
    X(number, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                          \
    X(now, u64, CLB_FOREIGN_IN_SCORE | CLB_FOREIGN_IN_USE)                                                             \
    X(uses, u64, CLB_FOREIGN_IN_SCORE)                                                                                 \
    X(uses_here, u64, CLB_FOREIGN_IN_SCORE)                                                                            \
    X(last_use, u64, CLB_FOREIGN_IN_SCORE)                                                                             \
    X(age, u64, CLB_FOREIGN_IN_SCORE)                                                                                  \
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
    X(n_layers, u32, CLB_FOREIGN_IN_ALL)                                                                               \
    X(n_experts, u32, CLB_FOREIGN_IN_ALL)                                                                              \
    X(n_slots, u32, CLB_FOREIGN_IN_ALL)                                                                                \
    X(top_k, u32, CLB_FOREIGN_IN_ALL)                                                                                  \
    X(instance, u32, CLB_FOREIGN_IN_ALL)

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
    ffi_closure
        *closure; /* create of a policy, run of a product: the functions that get no context from their caller */
    ffi_cif closure_cif;
    union {
        struct {
            struct colibri_expert_policy table;
            clb_foreign_call score, on_use, reset;
            pthread_mutex_t lock;      /* one call into the library at a time */
            pthread_mutex_t instances; /* guards the two below */
            uint8_t *taken;            /* [n_taken]: numbers of the live instances */
            uint32_t n_taken;
        } policy;
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
/* A call changed the floating-point state, which has been put back: said once. */
void clb_foreign_complain(clb_foreign *f, const char *what);

/* Fill f->policy or f->sgemm from the loaded library. */
int clb_foreign_policy_load(clb_foreign *f, clb_error *err);
int clb_foreign_sgemm_load(clb_foreign *f, clb_error *err);
/* USAGE unless it names a convention. */
int clb_foreign_sgemm_convention(const char *signature, bool *fortran, clb_error *err);

#endif
