/* What `colibri inspect` knows about a model file, before it is printed as text or JSON. */
#ifndef CLB_TOOLS_INSPECT_H
#define CLB_TOOLS_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "gguf/gguf.h"

enum clb_role {
    CLB_ROLE_ATTENTION,
    CLB_ROLE_FFN,
    CLB_ROLE_EXPERTS,
    CLB_ROLE_SHARED,
    CLB_ROLE_ROUTER,
    CLB_ROLE_EMBEDDING,
    CLB_ROLE_OUTPUT,
    CLB_ROLE_OTHER,
    CLB_ROLE_COUNT
};

extern const char *const clb_role_names[CLB_ROLE_COUNT];
/* From the tensor's name, whatever the architecture. */
enum clb_role clb_role_of(clb_str tensor);

typedef struct clb_tally {
    uint64_t bytes, params, tensors;
} clb_tally;

typedef struct clb_type_tally {
    uint32_t type;
    clb_tally sum;
} clb_type_tally;

/* An integer hyper-parameter: absent (n == 0), one number, or one per layer. */
typedef struct clb_ints {
    uint64_t n;
    int64_t min, max;
} clb_ints;

typedef struct clb_inspection {
    const clb_gguf *g;
    uint64_t *spans;  /* per tensor: its size; for unknown types the room up to the next tensor */
    uint64_t unknown; /* tensors of unknown type */
    clb_tally total, roles[CLB_ROLE_COUNT];
    clb_type_tally *types; /* most bytes first */
    size_t n_types;
    uint64_t file_bytes;
    /* "" where the file does not say; any bytes */
    clb_str arch, name, tokenizer, pre;
    uint64_t n_vocab;
    bool has_template;
    clb_ints context, layers, width, heads, kv_heads, key_width, value_width, ffn, expert_ffn, experts, used, shared;
    uint64_t expert_layers, expert_min, expert_max; /* layers with routed experts; bytes of one expert in one layer */
    /* Read for one token: everything but the embeddings (unless they are the output matrix too) and the experts that
     * are not used. 0: unknown. */
    uint64_t token_bytes, token_params;
} clb_inspection;

int clb_inspect(const clb_gguf *g, clb_inspection *out, clb_error *err);
void clb_inspection_free(clb_inspection *in);

/* At most max bytes of s, not ending inside a UTF-8 sequence. */
size_t clb_inspect_cut(clb_str s, size_t max);

/* full: no abbreviations. */
void clb_inspect_print_summary(const clb_inspection *in);
int clb_inspect_print_metadata(const clb_gguf *g, bool full, clb_error *err);
void clb_inspect_print_tensors(const clb_inspection *in);
int clb_inspect_print_json(const clb_inspection *in, bool metadata, bool tensors, bool full, clb_error *err);

#define CLB_INSPECT_ITEMS 8   /* elements of a long array that are shown */
#define CLB_INSPECT_TEXT  200 /* bytes of a long string that are shown */

#endif
