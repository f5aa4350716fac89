/* Architecture descriptors: what distinguishes one decoder-only transformer from another, as data.
 *
 * Each architecture is one file core/model/arch/<name>.c that defines `const struct clb_arch clb_arch_<name>`; the
 * build makes the list from the file names. The forward pass is shared. */
#ifndef CLB_MODEL_ARCH_H
#define CLB_MODEL_ARCH_H

#include "model/hparams.h"

enum clb_presence { CLB_ABSENT = 0, CLB_OPTIONAL = 1, CLB_REQUIRED = 2 };

typedef struct clb_arch {
    const char *name; /* general.architecture */
    bool rope_neox;   /* pairs (i, i + n/2) instead of (2i, 2i + 1) */
    enum clb_qk_norm qk_norm;
    enum clb_presence qkv_bias; /* attn_{q,k,v}.bias */
    enum clb_presence out_bias; /* attn_output.bias */
    bool output_required;       /* false: a missing output matrix means tied to token_embd */
    bool moe_required;          /* a file without experts is not of this architecture */
    bool norm_topk;
    /* Last word on the hyper-parameters: keys that only this architecture has. May be NULL. */
    int (*configure)(const clb_gguf *g, const struct clb_arch *self, clb_hparams *hp, clb_error *err);
} clb_arch;

/* UNSUPPORTED, naming the nearest and all known ones, if there is none. */
int clb_arch_find(clb_str name, const clb_arch **out, clb_error *err);

extern const clb_arch *const clb_archs[]; /* generated; ends with NULL */

#endif
