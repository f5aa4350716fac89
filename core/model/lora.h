/* LoRA adapters (Hu et al., 2021): y = W x + scale * B (A x), the base weights staying as they are.
 *
 * From GGUF files as convert_lora_to_gguf.py writes them: general.type "adapter", adapter.type "lora",
 * adapter.lora.alpha, and for a weight NAME the tensors NAME.lora_a [n_in, rank] and NAME.lora_b [rank, n_out], with a
 * third dimension for experts. The strength of an adapter is alpha / rank (1 if there is no alpha) times that of its
 * user.
 *
 * Adapters are kept as floats. A x uses the exact F32 kernels; B is added element by element in order of rank, adapters in order
 * of id: bits depend on the row and its set alone, as everywhere. */
#ifndef CLB_MODEL_LORA_H
#define CLB_MODEL_LORA_H

#include "gguf/identity.h"
#include "model/model.h"

enum clb_lora_target {
    CLB_LORA_Q,
    CLB_LORA_K,
    CLB_LORA_V,
    CLB_LORA_O,
    CLB_LORA_GATE, /* dense feed-forward or shared expert */
    CLB_LORA_UP,
    CLB_LORA_DOWN,
    CLB_LORA_ROUTER,
    CLB_LORA_EXPERT_GATE,
    CLB_LORA_EXPERT_UP,
    CLB_LORA_EXPERT_DOWN,
    CLB_LORA_TARGETS
};

typedef struct clb_lora_part {
    uint32_t rank;   /* 0: this weight is not changed */
    clb_matrix a;    /* [rank][n_in], F32; data: of expert 0 */
    size_t a_stride; /* floats from expert to expert */
    float *b;        /* [experts or 1][groups of 16 of n_out][rank][16], the last group filled with zeros */
    uint32_t n_out;
} clb_lora_part;

/* Floats of one expert's b. */
static inline size_t clb_lora_b_floats(const clb_lora_part *part)
{
    return (((size_t)part->n_out + 15) & ~(size_t)15) * part->rank;
}

struct clb_lora_source;

/* An open adapter. Immutable once read: [any-thread]. */
typedef struct clb_lora {
    char *name; /* general.name, or the file's */
    char *path;
    uint8_t identity[CLB_GGUF_IDENTITY]; /* of the file */
    uint32_t id; /* the owner's: different for each; adapters of a set are added in order of id */
    float alpha;
    uint32_t rank; /* the largest */
    uint32_t n_layers, n_parts;
    uint64_t bytes;       /* of memory */
    clb_lora_part *parts; /* [n_layers][CLB_LORA_TARGETS] */
    clb_gguf *file;       /* until it is read, with where parts lie in it: */
    struct clb_lora_source *sources; /* [n_layers][CLB_LORA_TARGETS] */
} clb_lora;

/* A file is opened in three steps, so that the engine computes on while it is read.
 *
 * Names, shapes and sizes: all but the parts' data, which is not read. Of the model it takes what binding has fixed.
 * FORMAT (not an adapter of this model: what differs), UNSUPPORTED (weights that cannot be changed, by name). [any-thread] */
int clb_lora_look(const clb_model *model, const char *path, clb_lora **out, clb_error *err);
/* The same of an open file, which is the adapter's from now on, or closed if this fails. */
int clb_lora_look_in(const clb_model *model, clb_gguf *file, const char *path, clb_lora **out, clb_error *err);
/* Formats and kernels. [engine-thread] */
int clb_lora_bind(clb_lora *lora, const clb_model *model, clb_error *err);
/* The data; closes the file. `cancelled` may be NULL. IO, NOMEM, CANCELLED. [any-thread] */
int clb_lora_read(clb_lora *lora, bool (*cancelled)(void *ctx), void *ctx, clb_error *err);
/* All of it, if it takes no more than max_bytes (0: no limit; else NOMEM, before anything is read). [engine-thread] */
int clb_lora_open(const clb_model *model, const char *path, uint64_t max_bytes, clb_lora **out, clb_error *err);
void clb_lora_close(clb_lora *lora);

static inline const clb_lora_part *clb_lora_part_of(const clb_lora *lora, uint32_t layer, enum clb_lora_target target)
{
    const clb_lora_part *p = &lora->parts[(size_t)layer * CLB_LORA_TARGETS + target];
    return p->rank ? p : NULL;
}

/* What a sequence uses. */
#define CLB_LORA_MOST 8u
typedef struct clb_lora_set {
    uint32_t n;
    struct {
        const clb_lora *lora;
        float scale; /* of the user */
    } use[CLB_LORA_MOST];
} clb_lora_set;

#endif
