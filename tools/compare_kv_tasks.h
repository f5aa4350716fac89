/* What KV strategies are tried on: files turned into items with tokens. */
#ifndef CLB_TOOLS_COMPARE_KV_TASKS_H
#define CLB_TOOLS_COMPARE_KV_TASKS_H

#include "compare_kv.h"
#include "engine/engine.h"
#include "text/chat.h"

#define CLB_KVC_MOST_ITEMS 100000u /* of a file */

/* One item, ready to run. */
typedef struct clb_kvc_case {
    uint32_t item; /* of the grid */
    enum clb_kvc_kind kind;
    clb_tokens ids, answer;
    char *key;           /* what must stand in the generated text (passkey) */
    uint32_t n_generate; /* tokens (passkey) */
    char sort[24];       /* "kind" of a recall item, if its line has one */
    uint32_t n_context;  /* tokens before the question, or of a text before what is fed by tokens; 0: all is one prompt */
    bool at_once;        /* the prompt, or what comes before the question, is read in one pass */
} clb_kvc_case;

typedef struct clb_kvc_cases {
    clb_kvc_case *v;
    uint32_t n;
} clb_kvc_cases;

typedef struct clb_kvc_task_options {
    const clb_engine *engine;
    const clb_chat_format *chat; /* NULL: prompts are continued as they are */
    uint32_t most_items;         /* per task; 0: all. They are spread evenly over the file */
    uint32_t text_tokens;        /* of a piece of a text */
    const clb_log *log;
    bool (*cancelled)(void *ctx); /* NULL: reading is not stopped. CANCELLED */
    void *cancelled_ctx;
} clb_kvc_task_options;

/* assignment: "recall=FILE", or with modes "recall:ask-later+at-once=FILE". Adds the task and its items to the grid and the cases to the list. What does not fit the
 * context is left out with a warning; USAGE if nothing is left. Other errors: USAGE, FORMAT with file and line; LIMIT:
 * more than CLB_KVC_MOST_ITEMS.
 *   text: a text, cut into pieces; or JSON lines {"text", "id", "group"}, each cut into pieces.
 *   recall: JSON lines {"prompt", "answer", "id", "distance"}; the answer with its leading space, if any;
 * "question": the end of the prompt that asks.
 *   passkey: one JSON object {"filler": FILE beside it, "intro", "needle": "... {key} ...", "question",
 * "answer_prefix", "lengths", "depths", "repeats", "seed"}.
 * Modes, which are part of the task's name:
 *   ask-later (recall, passkey): strategies have chosen before they see the question.
 *   at-once (recall, passkey): what strategies choose from is read in one pass.
 *   decode (text): the scored half is fed token by token. */
int clb_kvc_load_task(clb_kvc *c, const char *assignment, const clb_kvc_task_options *options, clb_kvc_cases *out,
                      clb_error *err);
void clb_kvc_cases_free(clb_kvc_cases *cases);
/* USAGE if an item that is read in one pass is longer than --batch. all: they all are (--see-question). */
int clb_kvc_check_passes(const clb_kvc *c, const clb_kvc_cases *cases, const clb_engine *engine, bool all,
                         clb_error *err);
/* Tokens of the longest pass that a mode or --see-question asks for. */
uint32_t clb_kvc_pass_of(const clb_kvc_case *item);

/* "xxh3:..." of n bytes, of a whole file, or, of one larger than 256 MiB, of its size and samples ("xxh3-samples:...").
 */
void clb_kvc_hash(const void *data, size_t n, char out[40]);
int clb_kvc_hash_file(const char *path, char out[40], clb_error *err);

#endif
