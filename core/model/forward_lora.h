/* Adapters in the forward pass: which rows use which, and what is added where. */
#ifndef CLB_MODEL_FORWARD_LORA_H
#define CLB_MODEL_FORWARD_LORA_H

#include "model/compute.h"
#include "model/lora.h"

struct clb_forward;

typedef struct clb_forward_lora {
    const clb_lora **active; /* of this pass, without repetition, in order of id */
    uint32_t n, rank;        /* rank: sum of the adapters' largest ones */
    float *scale;            /* [n][max_rows]: of each row, alpha and rank in it; 0: the row does not use it */
    float *t[2];             /* [n_places][rank]: A x of a product, or of gate and up */
    size_t cap_active, cap_scale, cap_t;
    clb_job *jobs;
    clb_delta *deltas; /* of a step's jobs */
    uint32_t *first;   /* [jobs + 1] units of work of what is added */
    size_t cap_jobs, cap_deltas, cap_first;
} clb_forward_lora;

/* Bytes that passes of max_rows rows need for each rank of the adapters that they use. */
uint64_t clb_forward_lora_bytes(const clb_hparams *hp, uint32_t max_rows);
void clb_forward_lora_free(clb_forward_lora *lora);
/* What this pass's spans use; memory for n_places places (rows, or row-expert pairs). */
int clb_forward_lora_begin(struct clb_forward *f, clb_error *err);
/* Some adapter of this pass changes the weight. */
bool clb_forward_lora_changes(const struct clb_forward *f, uint32_t il, enum clb_lora_target target);
/* y[row] += of a product that is done: acts' rows [0, n_rows), which must have floats. */
int clb_forward_lora_add(struct clb_forward *f, uint32_t il, enum clb_lora_target target, clb_acts *acts, float *y,
                         size_t stride, clb_error *err);
/* For a dense gated feed-forward: computes what is to be added inside, and puts it into the job. */
int clb_forward_lora_glu(struct clb_forward *f, uint32_t il, clb_glu_job *job, clb_error *err);
/* The same for the jobs of experts[n], whose places are those of the pass. */
int clb_forward_lora_experts(struct clb_forward *f, uint32_t il, clb_glu_job *jobs, const uint32_t *experts, uint32_t n,
                             clb_error *err);
/* After the down products of experts: jobs[i] is experts[i]'s, its y is what is added to. */
int clb_forward_lora_down(struct clb_forward *f, uint32_t il, const clb_job *jobs, const uint32_t *experts, uint32_t n,
                          clb_error *err);

#endif
