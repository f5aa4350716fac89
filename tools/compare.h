/* colibri compare: what its files share. */
#ifndef CLB_TOOLS_COMPARE_H
#define CLB_TOOLS_COMPARE_H

#include "engine/compare.h"
#include "model_run.h"

typedef struct clb_prompt {
    char *id, *topic, *text;
    size_t n; /* bytes of text */
    bool raw; /* continued as it is, without the chat template */
    clb_tokens ids;
} clb_prompt;

typedef struct clb_prompts {
    clb_prompt *v;
    uint32_t n;
} clb_prompts;

/* A file that starts with '{' has one JSON object per line (prompt; id, topic, raw); any other file is one prompt. n ==
 * 0: the built-in prompts. Errors: FORMAT with file and line, USAGE for an empty prompt. */
int clb_prompts_read(const char *const *files, size_t n, clb_prompts *out, clb_error *err);
/* Fills the ids. Each prompt goes through the model's chat template unless it is raw. */
int clb_prompts_tokenize(clb_prompts *prompts, clb_args *args, const clb_engine *engine, clb_error *err);
void clb_prompts_free(clb_prompts *prompts);
/* "default.jsonl" of examples/prompts, put in by the build. */
extern const unsigned char clb_default_prompts[];
extern const size_t clb_default_prompts_size;

/* "expert-policy=frequency-weighted:half-life=16,store.expert-slots=80" into assignments. A comma starts a new one
 * where a setting's name and '=' follow; otherwise it belongs to the value. Flags' names and aliases are turned into
 * section.key; what names no setting or none of `command` is USAGE. Append to out[*n]; at most `cap` of them. */
int clb_split_assignments(const char *list, const clb_command *command, const char *origin, char **out, size_t *n,
                          size_t cap, clb_error *err);

#define CLB_SIDE_ASSIGNMENTS 64
typedef struct clb_side {
    char name; /* 'A' */
    char *assignments[CLB_SIDE_ASSIGNMENTS];
    size_t n_assignments;
    clb_config *config;
    char lossy[160];    /* "": not */
    clb_engine *engine; /* NULL: not open */
    clb_session *session;
    /* What it was opened with; plan pointers are gone. */
    bool known;
    clb_plan plan;
    uint64_t resident; /* of the process when it was planned */
    char policy[80], predictor[80], strategy[80], arch[40];
    uint32_t threads, ctx;
    double load_seconds; /* of the last opening */
} clb_side;

typedef struct clb_comparison {
    clb_args *args;
    clb_side side[CLB_SIDES];
    clb_prompts prompts;
    uint32_t n_tokens, rounds;
    uint64_t seed;
    bool warm, ignore_eog, gate;
    bool together; /* both engines are open; else one after the other, a pass over all prompts each */
    bool together_asked, in_turn_asked;
    uint64_t room;   /* bytes that both engines together may take */
    char lossy[200]; /* why logits may differ; "": they must not */
    bool interrupted;
    clb_compare_run *runs;
    size_t n_runs;
    clb_compare_summary summary;
} clb_comparison;

/* Settings that the sides do not share, in the order of the table, then parameters: calls see(name, a, b). */
void clb_compare_differences(const clb_comparison *c,
                             void (*see)(void *ctx, const char *name, const char *a, const char *b), void *ctx);

/* Opens A, and B beside it if that is asked for or fits the smaller of the two budgets (c->together). */
int clb_compare_open_sides(clb_comparison *c, clb_error *err);
/* Opens a side unless it is open, for runs in turn. */
int clb_compare_open(clb_comparison *c, uint32_t side, clb_error *err);
void clb_compare_close_side(clb_side *side);
int clb_compare_all_runs(clb_comparison *c, clb_error *err);

/* What makes the figures less than they look: at most CLB_COMPARE_WARNINGS texts, for both reports. */
#define CLB_COMPARE_WARNINGS 2
size_t clb_compare_warnings(const clb_comparison *c, const char *out[CLB_COMPARE_WARNINGS]);

void clb_compare_print(const clb_comparison *c);
int clb_compare_print_json(const clb_comparison *c, clb_error *err);

#endif
