/* What the files that read tasks share. */
#ifndef CLB_TOOLS_COMPARE_KV_READING_H
#define CLB_TOOLS_COMPARE_KV_READING_H

#include "compare_kv_tasks.h"

/* Modes of a task, bits. */
#define CLB_KVC_ASK_LATER 1u
#define CLB_KVC_AT_ONCE   2u
#define CLB_KVC_DECODE    4u

/* Cases of one task, not yet in the grid. */
struct clb_kvc_found {
    clb_kvc_case *v;
    struct clb_kvc_found_name {
        char id[96], group[96];
        double length, depth;
    } * names;
    uint32_t n;
};

/* A task's file as it is read. */
struct clb_kvc_reading {
    const clb_kvc_task_options *o;
    enum clb_kvc_kind kind;
    uint32_t modes;
    const char *path, *base;
    char name[160]; /* of the task: base and modes */
    struct clb_kvc_found found;
    uint32_t too_long, too_short; /* left out: prompts, texts */
    size_t longest; /* bytes of the vocabulary's longest token; 0: not looked up yet */
};

/* Another item, empty, and what it is called. */
int clb_kvc_next_case(struct clb_kvc_reading *r, clb_kvc_case **v, struct clb_kvc_found_name **name, clb_error *err);
/* The last item has its tokens: false if they cannot be run, then it is dropped again. */
bool clb_kvc_fits(struct clb_kvc_reading *r, const clb_kvc_case *v);
/* Sets n_context to the tokens before the one that holds the first byte of the question, the last text of its kind in
 * the prompt. FORMAT. */
int clb_kvc_find_question(struct clb_kvc_reading *r, clb_kvc_case *v, const char *question, clb_error *err);
/* A string of an object; "" if there is none. */
const char *clb_kvc_text_of(const json_t *o, const char *key);

/* compare_kv_passkey.c */
int clb_kvc_read_passkey(struct clb_kvc_reading *r, const clb_buf *text, clb_error *err);

#endif
