/* colibri compare: two settings against each other, in the engine. */
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "compare.h"
#include "compare_kv.h"

static const clb_flag flags[] = {
    {"a", 0, "SETTINGS", "baseline: key=value[,key=value] on top of the other settings (nothing unless given)", true},
    {"b", 0, "SETTINGS", "what is compared with it, written the same way", true},
    {"file", 'f', "FILE", "prompts: JSON lines, or a text that is one prompt (built-in ones unless given)", true},
    {"tokens", 'n', "N", "tokens to generate per prompt at most (64 unless given)", false},
    {"rounds", 0, "R", "how often each prompt runs on each side (2 unless given)", false},
    {"reset-cache", 0, NULL, "a cold cache before every prompt (this is what is done without --warm)", false},
    {"warm", 0, NULL, "keep the cache from prompt to prompt", false},
    {"together", 0, NULL, "keep both engines open, each with the whole budget", false},
    {"in-turn", 0, NULL, "keep one engine open at a time", false},
    {"ignore-eos", 0, NULL, "go on after end-of-generation tokens", false},
    {"gate", 0, NULL, "fail unless B is faster, see below", false},
    {"json", 'j', NULL, "print one JSON object with everything measured", false},
    {"strategies", 0, "LIST", "KV strategies, with parameters as in kv-strategy: full,h2o,ada/snapkv:window=32", true},
    {"budgets", 0, "LIST", "what each may keep: shares of an item's length, or positions (50%,25% unless given)", true},
    {"task", 0, "KIND=FILE", "what they are tried on: text=, recall= or passkey=FILE, or with modes: recall:ask-later=FILE",
     true},
    {"items", 0, "N", "items of each task at most (all unless given)", false},
    {"baseline", 0, "NAME", "strategy that the others are compared with (full unless given)", false},
    {"see-question", 0, NULL, "strategies first drop when the whole prompt is read", false},
    {"chunk", 0, "N", "tokens of a prompt between two looks of the strategies (64 unless given)", false},
    {"jsonl", 0, "FILE", "write a line for every result as it comes", false},
    {"continue", 0, NULL, "--jsonl FILE has results already: run what is missing", false},
    {"from", 0, "FILE", "run nothing, report what --jsonl has written (may be given again)", true},
    {"html", 0, "FILE", "write a page with figures and tables", false},
    {"markdown", 0, NULL, "print the tables as Markdown", false},
    {"force", 0, NULL, "write over FILEs that exist", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SAMPLING_SETTINGS, CLB_SET_run_raw, CLB_SET_model_chat_template, CLB_SET_COUNT};

#define MAX_TOKENS 1048576u
#define MAX_ROUNDS 1000u

static int parse_count(clb_args *args, const char *flag, uint32_t initial, uint32_t most, uint32_t *out, clb_error *err)
{
    const char *const text = clb_args_value(args, flag);
    *out = initial;
    if (!text)
        return COLIBRI_OK;
    char *end;
    const unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
    if (v < 1 || v > most || *end)
        return clb_fail(err, COLIBRI_E_USAGE, "--%s %s: must be a whole number between 1 and %u", flag, text, most);
    *out = (uint32_t)v;
    return COLIBRI_OK;
}

static int exclude(clb_args *args, const char *a, const char *b, clb_error *err)
{
    if (clb_args_has(args, a) && clb_args_has(args, b))
        return clb_fail(err, COLIBRI_E_USAGE, "--%s and --%s exclude each other", a, b);
    return COLIBRI_OK;
}

static int configure(clb_comparison *c, uint32_t which, const char *flag, clb_error *err)
{
    clb_side *const s = &c->side[which];
    const char *const *lists;
    char origin[16];
    s->name = (char)('A' + which);
    snprintf(origin, sizeof origin, "--%s", flag);
    const size_t n = clb_args_values(c->args, flag, &lists);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_split_assignments(lists[i], c->args->command, origin, s->assignments, &s->n_assignments,
                                      CLB_SIDE_ASSIGNMENTS, err));
    return clb_args_config_with(c->args, (const char *const *)s->assignments, s->n_assignments, origin, &s->config,
                                err);
}

static int set_up(clb_comparison *c, clb_error *err)
{
    clb_args *const args = c->args;
    CLB_TRY(exclude(args, "reset-cache", "warm", err));
    CLB_TRY(exclude(args, "together", "in-turn", err));
    CLB_TRY(parse_count(args, "tokens", 64, MAX_TOKENS, &c->n_tokens, err));
    CLB_TRY(parse_count(args, "rounds", 2, MAX_ROUNDS, &c->rounds, err));
    c->warm = clb_args_has(args, "warm");
    c->together_asked = clb_args_has(args, "together");
    c->in_turn_asked = clb_args_has(args, "in-turn");
    c->ignore_eog = clb_args_has(args, "ignore-eos");
    c->gate = clb_args_has(args, "gate");
    c->seed = clb_config_u64(clb_args_config(args), CLB_SET_sampling_seed);
    if (c->seed == 0) /* both sides must draw alike, and another day's comparison, too */
        c->seed = 1;
    if (!clb_args_has(args, "a") && !clb_args_has(args, "b"))
        return clb_fail(err, COLIBRI_E_USAGE, "nothing to compare: say what differs with --a and --b");
    CLB_TRY(configure(c, CLB_SIDE_A, "a", err));
    CLB_TRY(configure(c, CLB_SIDE_B, "b", err));
    const char *const *files;
    const size_t n = clb_args_values(args, "file", &files);
    CLB_TRY(clb_prompts_read(files, n, &c->prompts, err));
    if (c->prompts.n == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "no prompts in %s", n ? files[0] : "the built-in list");
    return COLIBRI_OK;
}

static int verdict(const clb_comparison *c, clb_error *err)
{
    const clb_compare_summary *const s = &c->summary;
    if (!*c->lossy && s->differs)
        return clb_fail(err, COLIBRI_E_CHECK,
                        "A and B must give equal logits, and do not: prompt %.80s, round %u, %s at position %u of the "
                        "continuation",
                        c->prompts.v[s->prompt].id, s->round + 1, s->tokens_differ ? "other token" : "other logits",
                        s->step);
    if (c->interrupted)
        return clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request after %u pairs", s->n_pairs);
    if (c->gate && s->gate.too_few)
        return clb_fail(err, COLIBRI_E_CHECK, "--gate: %u prompt%s too few to judge by: give at least %u (-f)",
                        s->gate.n, s->gate.n == 1 ? " is" : "s are", CLB_COMPARE_ENOUGH);
    if (c->gate && !s->gate.passed)
        return clb_fail(err, COLIBRI_E_CHECK, "--gate: B does not pass");
    return COLIBRI_OK;
}

/* Which of the two comparisons is asked for; flags of the other one are errors. */
static int choose(clb_args *args, bool *strategies, clb_error *err)
{
    static const char *const sides[] = {"a",           "b",    "file",     "tokens",  "rounds",
                                        "reset-cache", "warm", "together", "in-turn", "gate"};
    static const char *const grid[] = {"budgets", "task",     "items", "baseline", "see-question", "chunk",
                                       "jsonl",   "continue", "html",  "markdown", "force"};
    const char *const *const wrong =
        (*strategies = clb_args_has(args, "strategies") || clb_args_has(args, "from")) ? sides : grid;
    const size_t n = *strategies ? sizeof sides / sizeof *sides : sizeof grid / sizeof *grid;
    for (size_t i = 0; i < n; i++)
        if (clb_args_has(args, wrong[i]))
            return clb_fail(err, COLIBRI_E_USAGE,
                            *strategies ? "--%s belongs to comparisons of two settings, not to those of KV strategies"
                                        : "--%s belongs to comparisons of KV strategies (--strategies)",
                            wrong[i]);
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    bool strategies;
    CLB_TRY(choose(args, &strategies, err));
    if (strategies)
        return clb_compare_kv(args, err);
    clb_comparison *const c = calloc(1, sizeof *c);
    if (!c)
        return CLB_NOMEM(err, "comparison");
    c->args = args;
    int rc = COLIBRI_OK;
    CLB_GO(set_up(c, err));
    CLB_GO(clb_compare_open_sides(c, err));
    CLB_GO(clb_compare_all_runs(c, err));
    CLB_GO(clb_compare_summarize(c->runs, c->n_runs, c->prompts.n, c->seed, &c->summary, err));
    if (clb_args_has(args, "json"))
        CLB_GO(clb_compare_print_json(c, err));
    else
        clb_compare_print(c);
    rc = verdict(c, err);
done:
    for (size_t i = 0; i < c->n_runs; i++)
        clb_compare_run_free(&c->runs[i]);
    free(c->runs);
    for (int i = CLB_SIDES; i-- > 0;) {
        clb_compare_close_side(&c->side[i]);
        for (size_t k = 0; k < c->side[i].n_assignments; k++)
            free(c->side[i].assignments[k]);
        clb_config_destroy(c->side[i].config);
    }
    clb_prompts_free(&c->prompts);
    free(c);
    return rc;
}

const struct clb_command clb_command_compare = {
    .name = "compare",
    .summary = "run two settings against each other",
    .usage =
        "colibri compare -m MODEL [--a SETTINGS] --b SETTINGS [-f FILE] [-n N] [flags]\n"
        "colibri compare -m MODEL --strategies LIST --task KIND=FILE [--budgets LIST] [--html FILE] [flags]\n"
        "colibri compare --from FILE [--html FILE] [flags]",
    .description =
        "Runs every prompt under settings A and B in turns and compares speed, latencies, hit rates and bytes read, "
        "with "
        "confidence intervals over the prompts and a verdict on B: win, loss or tie. SETTINGS is a list like that of "
        "--set, key=value,key=value, where a key is section.key or a flag's name; it goes on top of everything else "
        "that "
        "is configured. Without --a, A is what is configured. What policies learn is kept nowhere, and nothing learned "
        "is "
        "read, unless --expert-profile names a file.\n\n"
        "Cold (--reset-cache): before each prompt the expert slots are emptied, the policy forgets, and the model's "
        "files "
        "leave the page cache. Warm (--warm): each side keeps its cache, after one prompt that is not counted.\n\n"
        "Both engines stay open if they fit into the smaller of the two budgets (or with --together): then A and B "
        "take turns "
        "prompt by prompt. Otherwise (or with --in-turn) they take turns pass by pass. In every other round the order "
        "is "
        "reversed.\n\n"
        "Memory budgets, policies, predictors, threads and kernels must not change results: tokens and all logits of A "
        "and B "
        "are compared bit by bit, and a difference ends the command with exit code 1. Settings that are lossy (KV "
        "strategies "
        "that evict, inexact kernels) are named; then both sides are fed A's tokens, and how far the logits are apart "
        "is "
        "shown instead.\n\n"
        "--gate: exit code 1 unless B wins in generation over at least six prompts, is at least 3 % faster there "
        "(median over prompts) in all "
        "runs, in "
        "those where A came first and in those where B came first, and its time to first token and 99 % latency are at "
        "most "
        "20 % longer. Otherwise the exit code says nothing about who won.\n\n"
        "KV strategies: with --strategies, every strategy runs at every budget on every item of the tasks, against the "
        "full "
        "cache and each other: recall, needles, perplexity and divergence, bytes and speed, paired over items. Modes of "
        "a task, as in recall:ask-later+at-once=FILE: ask-later (strategies have chosen before they see the question), "
        "at-once (what they choose from is read in one pass, which --batch must hold), decode (texts: the scored half is "
        "fed token by token, as if it were generated). The "
        "engine is opened once. --jsonl keeps every "
        "result, so that a grid that takes hours can be stopped and taken up again (--continue) or reported again "
        "(--from).",
    .examples =
        "colibri compare -m moe.gguf --max-memory 4G --a expert-policy=lru --b expert-policy=lfu   # two policies, "
        "cold\n"
        "colibri compare -m moe.gguf --b expert-slots=80 --warm -f my-prompts.jsonl --rounds 4   # fewer slots, warm\n"
        "colibri compare -m model.gguf --a threads=1 --b threads=2 --gate --json   # is it worth it? for scripts\n"
        "colibri compare -m model.gguf --strategies sliding-window,important-tokens --budgets 50%,25% --task "
        "recall=recall.jsonl "
        "--jsonl grid.jsonl --html grid.html   # which tokens should stay?",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
