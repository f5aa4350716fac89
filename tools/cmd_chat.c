/* colibri chat: a conversation in the terminal. */
#include <ctype.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model_run.h"

static const clb_flag flags[] = {
    {"system", 0, "TEXT", "system message", false},
    {"no-history", 0, NULL, "neither read nor write the file of earlier input lines", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_ENGINE_SETTINGS, CLB_SAMPLING_SETTINGS, CLB_SET_run_predict,
                                            CLB_SET_model_chat_template, CLB_SET_COUNT};

#define HISTORY_LINES 1000

typedef struct chat {
    clb_args *args;
    clb_engine *engine;
    clb_session *session;
    const clb_chat_format *format;
    clb_message *messages; /* contents are owned, roles are literals */
    size_t n, cap;
    clb_generate_options options;
    clb_generation last; /* figures of the last answer; text and tokens freed */
    bool answered;
    bool tty;
    EditLine *editor;
    History *history;
    char *history_path;
} chat;

static int add_message(chat *c, const char *role, const char *text, size_t n, clb_error *err)
{
    if (c->n == c->cap) {
        const size_t cap = c->cap ? 2 * c->cap : 16;
        clb_message *p = realloc(c->messages, cap * sizeof *p);
        if (!p)
            return CLB_NOMEM(err, "conversation");
        c->messages = p;
        c->cap = cap;
    }
    char *copy = strndup(text ? text : "", n);
    if (!copy)
        return CLB_NOMEM(err, "conversation");
    c->messages[c->n++] = (clb_message){role, copy};
    return COLIBRI_OK;
}

static void drop_messages(chat *c, size_t keep)
{
    while (c->n > keep)
        free((void *)(uintptr_t)c->messages[--c->n].content);
}

static const char *prompt_text(EditLine *editor)
{
    (void)editor;
    return "> ";
}

/* $XDG_STATE_HOME or ~/.local/state, made if missing. */
static char *find_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    clb_buf path = {0};
    int rc = COLIBRI_OK;
    if (state && *state == '/')
        rc = clb_buf_printf(&path, NULL, "%s/colibri", state);
    else if (home && *home == '/')
        rc = clb_buf_printf(&path, NULL, "%s/.local/state/colibri", home);
    else
        return NULL;
    if (rc)
        return NULL;
    for (char *p = path.data + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(path.data, 0700); /* what exists already is fine; what cannot be made shows when the file is opened */
            *p = '/';
        }
    mkdir(path.data, 0700);
    return clb_buf_printf(&path, NULL, "/chat-history") ? NULL : path.data;
}

static int open_editor(chat *c, clb_error *err)
{
    c->tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!c->tty)
        return COLIBRI_OK;
    HistEvent ev;
    setlocale(LC_CTYPE, "");
    c->editor = el_init("colibri", stdin, stdout, stderr);
    c->history = history_init();
    if (!c->editor || !c->history)
        return CLB_NOMEM(err, "line editor");
    history(c->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(c->history, &ev, H_SETUNIQUE, 1);
    el_set(c->editor, EL_PROMPT, prompt_text);
    el_set(c->editor, EL_EDITOR, "emacs");
    el_set(c->editor, EL_HIST, history, c->history);
    el_set(c->editor, EL_SIGNAL, 0);
    el_source(c->editor, NULL);
    if (!clb_args_has(c->args, "no-history"))
        c->history_path = find_history_path();
    if (c->history_path)
        history(c->history, &ev, H_LOAD, c->history_path); /* none yet is fine */
    return COLIBRI_OK;
}

static void close_editor(chat *c)
{
    HistEvent ev;
    if (c->history_path) {
        const mode_t old = umask(077);
        history(c->history, &ev, H_SAVE, c->history_path);
        umask(old);
    }
    if (c->editor)
        el_end(c->editor);
    if (c->history)
        history_end(c->history);
    free(c->history_path);
}

/* One input line without its newline; *line is NULL at the end of input. Lines ending in a backslash go on. */
static int read_line(chat *c, clb_buf *line, bool *end, clb_error *err)
{
    line->n = 0;
    *end = false;
    char *own = NULL;
    size_t cap = 0;
    int rc = COLIBRI_OK;
    for (;;) {
        const char *text;
        size_t n;
        if (c->editor) {
            int count = 0;
            text = el_gets(c->editor, &count);
            n = text && count > 0 ? (size_t)count : 0;
        } else {
            const ssize_t count = getline(&own, &cap, stdin);
            text = count > 0 ? own : NULL;
            n = count > 0 ? (size_t)count : 0;
        }
        if (!n) {
            *end = line->n == 0;
            break;
        }
        while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
            n--;
        const bool more = n && text[n - 1] == '\\';
        rc = clb_buf_append(line, text, more ? n - 1 : n, err);
        if (rc || !more)
            break;
        rc = clb_buf_append(line, "\n", 1, err);
        if (rc)
            break;
    }
    if (c->editor && line->n && !*end && !rc) {
        HistEvent ev;
        history(c->history, &ev, H_ENTER, line->data);
    }
    free(own);
    return rc;
}

/* With context-shift: the oldest turns leave the conversation, whole ones and never the system message, until the prompt takes
 * no more than half of what the context has beside the protected start; so that this happens once in many turns. */
static int make_room(chat *c, clb_tokens *ids, clb_error *err)
{
    const uint32_t ctx = c->engine->ctx, most = c->options.max_tokens;
    const uint32_t room = most && most < ctx / 4 ? most : ctx / 4, start = clb_session_protected(c->session);
    const size_t first = clb_args_has(c->args, "system") ? 1 : 0, before = ids->n, n = c->n;
    if (!c->engine->context_shift || ids->n + room <= ctx)
        return COLIBRI_OK;
    const size_t goal = start < ctx ? start + (ctx - start) / 2 : ctx;
    while (ids->n > goal && c->n > first + 1) { /* the newest message stays */
        free((void *)(uintptr_t)c->messages[first].content);
        free((void *)(uintptr_t)c->messages[first + 1].content);
        memmove(c->messages + first, c->messages + first + 2, (c->n - first - 2) * sizeof *c->messages);
        c->n -= 2;
        ids->n = 0;
        CLB_TRY(clb_chat_tokenize(c->format, c->engine->vocab, c->messages, c->n, 1, ids, err));
    }
    if (c->n < n)
        fprintf(stderr, "(the context of %u tokens is full: forgot %zu earlier turn%s, %zu tokens)\n", ctx, (n - c->n) / 2,
                (n - c->n) / 2 == 1 ? "" : "s",
                before - ids->n);
    return COLIBRI_OK;
}

static int answer(chat *c, const clb_buf *line, clb_error *err)
{
    const char *system = clb_args_value(c->args, "system");
    size_t added = 0;
    clb_tokens ids = {0};
    int rc = COLIBRI_OK;
    if (memchr(line->data, 0, line->n))
        CLB_GO(clb_fail(err, COLIBRI_E_USAGE, "the message contains a NUL byte: it must be text"));
    CLB_GO(add_message(c, "user", line->data, line->n, err));
    added = 1;
    CLB_GO(clb_chat_tokenize(c->format, c->engine->vocab, c->messages, c->n, 1, &ids, err));
    if (system)
        CLB_GO(clb_protect_system(c->engine, c->session, c->format, system, &ids, err));
    CLB_GO(make_room(c, &ids, err));
    clb_generation_free(&c->last);
    rc = clb_session_generate(c->session, ids.ids, ids.n, &c->options, &c->last, err);
    c->answered = rc == COLIBRI_OK;
    if (c->last.text.n && c->last.text.data[c->last.text.n - 1] != '\n')
        putchar('\n');
    fflush(stdout);
    CLB_GO(rc);
    CLB_GO(add_message(c, "assistant", c->last.text.data, c->last.text.n, err));
    if (c->last.finish == CLB_FINISH_CONTEXT)
        fprintf(stderr, "(the context of %u tokens is full: /reset starts anew, --ctx makes it larger, --context-shift drops the oldest)\n",
                c->engine->ctx);
    if (c->last.finish == CLB_FINISH_CANCELLED && c->tty)
        fputs("(stopped)\n", stderr);
done:
    if (rc)
        drop_messages(c, c->n - added); /* the turn did not happen */
    clb_tokens_free(&ids);
    return rc;
}

static const char help_text[] = "/reset   forget the conversation\n"
                                "/stats   figures of the last answer and of the engine\n"
                                "/help    this list\n"
                                "/quit    leave (or Ctrl-D)\n"
                                "A backslash at the end of a line continues it. Ctrl-C stops an answer.\n";

/* A line that starts with '/' and a letter. False: not a command. */
static bool command(chat *c, const char *line, bool *quit)
{
    static const char *const names[] = {"/reset", "/stats", "/help", "/quit"};
    if (line[0] != '/' || !isalpha((unsigned char)line[1]))
        return false;
    if (strcmp(line, "/reset") == 0) {
        drop_messages(c, clb_args_has(c->args, "system") ? 1 : 0);
        clb_session_reset(c->session);
        c->answered = false;
        fputs("(forgotten)\n", stderr);
    } else if (strcmp(line, "/stats") == 0) {
        fflush(stdout);
        clb_print_stats(stderr, c->engine, c->session, c->answered ? &c->last : NULL, c->options.sampling.seed);
    } else if (strcmp(line, "/help") == 0) {
        fputs(help_text, stderr);
    } else if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *quit = true;
    } else {
        const long near = clb_nearest(line, names, sizeof names / sizeof *names);
        fprintf(stderr, "%s is not a command%s%s (/help lists them)\n", line, near >= 0 ? "; did you mean " : "",
                near >= 0 ? names[near] : "");
    }
    return true;
}

static int converse(chat *c, clb_error *err)
{
    clb_buf line = {0};
    bool end = false, quit = false;
    int rc = COLIBRI_OK;
    while (!quit && !rc) {
        rc = read_line(c, &line, &end, err);
        if (rc || end)
            break;
        if (clb_args_interrupted(c->args)) { /* Ctrl-C at the prompt: an empty line, as in a shell */
            if (!clb_args_rearm(c->args) || !c->tty)
                rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
            continue;
        }
        if (line.n == 0 || command(c, line.data, &quit))
            continue;
        rc = answer(c, &line, err);
        if (rc == COLIBRI_E_LIMIT && c->tty) { /* too long a message: the conversation goes on without it */
            fprintf(stderr, "%s\n", err->msg);
            rc = COLIBRI_OK;
        }
        if ((rc == COLIBRI_OK || rc == COLIBRI_E_CANCELLED) && clb_args_interrupted(c->args)) {
            rc = COLIBRI_OK;
            if (!clb_args_rearm(c->args) || !c->tty)
                rc = clb_fail(err, COLIBRI_E_CANCELLED, "stopped on request");
        }
    }
    clb_buf_free(&line);
    return rc;
}

static int run(clb_args *args, clb_error *err)
{
    const clb_config *config = clb_args_config(args);
    chat c = {.args = args,
              .options = {.sampling = clb_engine_sampler_params(config),
                          .max_tokens = (uint32_t)clb_config_u64(config, CLB_SET_run_predict),
                          .on_text = clb_print_text,
                          .cancelled = clb_run_interrupted,
                          .cancelled_ctx = args}};
    const char *system = clb_args_value(args, "system");
    int rc = COLIBRI_OK;
    CLB_GO(clb_open_engine(args, &c.engine, err));
    CLB_GO(clb_open_chat_format(config, clb_args_log(args), c.engine, &c.format, err));
    if (!c.format)
        CLB_GO(clb_fail(err, COLIBRI_E_UNSUPPORTED,
                        "the model has no chat template: `colibri run --raw` continues plain text, --chat-template gives one"));
    CLB_GO(clb_session_create(c.engine, &c.session, err));
    if (system)
        CLB_GO(add_message(&c, "system", system, strlen(system), err));
    CLB_GO(open_editor(&c, err));
    if (c.tty)
        fprintf(stderr, "%s, template %s, context %u. /help lists the commands.\n", c.engine->model->arch->name,
                clb_chat_name(c.format), c.engine->ctx);
    rc = converse(&c, err);
done:
    close_editor(&c);
    clb_chat_free(c.format);
    clb_generation_free(&c.last);
    drop_messages(&c, 0);
    free(c.messages);
    clb_session_destroy(c.session);
    clb_engine_close(c.engine);
    return rc;
}

const struct clb_command clb_command_chat = {
    .name = "chat",
    .summary = "talk with a model in the terminal",
    .usage = "colibri chat -m MODEL [flags]",
    .description = "Reads lines, answers each in the model's chat format, and keeps the conversation in the KV cache, "
                   "so that only new "
                   "tokens are computed. On a terminal lines can be edited and recalled (editline; ~/.editrc applies); "
                   "input from a "
                   "pipe is one message per line. Ctrl-C stops an answer, a second one leaves.\n\n"
                   "Commands: /reset forgets the conversation, /stats prints figures, /help, /quit.",
    .examples = "colibri chat -m model.gguf   # talk\n"
                "colibri chat -m model.gguf --system \"Answer in one sentence.\"   # with a system message\n"
                "printf 'Hello\\nWhat did I say?\\n' | colibri chat -m model.gguf   # two turns from a pipe",
    .flags = flags,
    .settings = settings,
    .max_positional = 0,
    .run = run,
};
