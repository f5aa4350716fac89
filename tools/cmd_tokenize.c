/* colibri tokenize: text to ids and back. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "base/escape.h"
#include "json_out.h"
#include "text/chat.h"
#include "text/vocab.h"

static const clb_flag flags[] = {
    {"file", 'f', "FILE", "read the text (or with --decode the ids) from FILE; - is standard input", false},
    {"ids", 0, NULL, "print the ids only, on one line", false},
    {"count", 0, NULL, "print the number of tokens only", false},
    {"json", 'j', NULL, "print JSON", false},
    {"decode", 'd', NULL, "the way back: the arguments are ids, the output is their text", false},
    {"special", 0, NULL, "recognise special tokens written in the text; with --decode print them", false},
    {"no-bos", 0, NULL, "add no BOS or EOS, whatever the vocabulary says", false},
    {"chat", 0, NULL, "the text is a user's message: tokenize the prompt that the chat template makes of it", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_SET_model_model, CLB_SET_COUNT};

#define TEXT_MAX ((size_t)256 << 20)

static int read_stream(FILE *f, const char *name, clb_buf *out, clb_error *err)
{
    char block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, f)) > 0) {
        if (out->n + n > TEXT_MAX)
            return clb_fail(err, COLIBRI_E_LIMIT, "%s is larger than %zu MiB", name, TEXT_MAX >> 20);
        CLB_TRY(clb_buf_append(out, block, n, err));
    }
    return ferror(f) ? clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot read %s", name) : COLIBRI_OK;
}

static int read_file(const char *path, clb_buf *out, clb_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_stream(stdin, "standard input", out, err);
    FILE *f = fopen(path, "rbe");
    if (!f)
        return clb_fail_errno(err, errno == ENOENT ? COLIBRI_E_NOT_FOUND : COLIBRI_E_IO, errno, "cannot open %s", path);
    const int rc = read_stream(f, path, out, err);
    fclose(f);
    return rc;
}

/* The arguments joined by spaces, or --file, or standard input. */
static int read_input(clb_args *args, clb_buf *out, clb_error *err)
{
    const char *const *words, *file = clb_args_value(args, "file");
    const size_t n = clb_args_positional(args, &words);
    CLB_TRY(clb_buf_append(out, "", 0, err));
    if (n && file)
        return clb_fail(err, COLIBRI_E_USAGE, "text is given twice, as an argument and with --file");
    if (n > 1 && !clb_args_has(args, "decode"))
        return clb_fail(err, COLIBRI_E_USAGE, "%zu arguments: put the text in quotes", n);
    if (!n && !file && isatty(STDIN_FILENO))
        return clb_fail(err, COLIBRI_E_USAGE, "no text: give it as an argument, with --file, or on standard input");
    if (!n)
        return read_file(file ? file : "-", out, err);
    for (size_t i = 0; i < n; i++)
        CLB_TRY(clb_buf_printf(out, err, "%s%s", i ? " " : "", words[i]));
    return COLIBRI_OK;
}

/* "1 2,3 [4]" -> ids */
static int parse_ids(const clb_vocab *v, const char *text, size_t n, clb_tokens *out, clb_error *err)
{
    for (size_t i = 0; i < n;) {
        if (isspace((unsigned char)text[i]) || strchr(",[]", text[i])) {
            i++;
            continue;
        }
        uint64_t id = 0;
        size_t k = i;
        for (; k < n && text[k] >= '0' && text[k] <= '9'; k++)
            id = id > UINT32_MAX ? id : id * 10 + (uint64_t)(text[k] - '0');
        if (k == i || (k < n && !isspace((unsigned char)text[k]) && !strchr(",[]", text[k]))) {
            char shown[40];
            return clb_fail(err, COLIBRI_E_USAGE, "not a list of token ids: '%s'",
                            clb_escape((clb_str){text + i, n - i < 24 ? n - i : 24}, shown, sizeof shown));
        }
        if (id >= clb_vocab_size(v))
            return clb_fail(err, COLIBRI_E_USAGE, "token %.*s is outside the vocabulary of %u",
                            k - i < 20 ? (int)(k - i) : 20, text + i, clb_vocab_size(v));
        CLB_TRY(clb_tokens_push(out, (uint32_t)id, err));
        i = k;
    }
    return COLIBRI_OK;
}

/* A terminal gets no control characters from a model's file, except line ends and tabs. */
static void print_text(const char *p, size_t n)
{
    if (!isatty(STDOUT_FILENO)) {
        fwrite(p, 1, n, stdout);
        return;
    }
    for (size_t i = 0; i < n;) {
        char out[CLB_ESCAPE_MAX];
        size_t out_n;
        const size_t len = clb_escape_step(p + i, n - i, out, &out_n, NULL);
        if (p[i] == '\n' || p[i] == '\t' || p[i] == '\\')
            putchar(p[i]);
        else
            fwrite(out, 1, out_n, stdout);
        i += len;
    }
    if (n && p[n - 1] != '\n')
        putchar('\n');
}

static int decode(clb_args *args, const clb_vocab *v, const clb_buf *input, clb_error *err)
{
    clb_tokens ids = {0};
    clb_buf text = {0};
    int rc = COLIBRI_OK;
    CLB_GO(parse_ids(v, input->data, input->n, &ids, err));
    CLB_GO(clb_buf_append(&text, "", 0, err));
    CLB_GO(clb_detokenize(v, ids.ids, ids.n, clb_args_has(args, "special"), &text, err));
    if (clb_args_has(args, "json"))
        CLB_GO(clb_json_print(
            json_pack("{s:o, s:I}", "text", clb_json_bytes(text.data, text.n), "count", (json_int_t)ids.n), err));
    else
        print_text(text.data, text.n);
done:
    clb_tokens_free(&ids);
    clb_buf_free(&text);
    return rc;
}

static int print_table(const clb_vocab *v, const clb_tokens *ids, clb_error *err)
{
    clb_buf piece = {0};
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < ids->n; i++) {
        piece.n = 0;
        CLB_GO(clb_buf_append(&piece, "", 0, err));
        CLB_GO(clb_token_bytes(v, ids->ids[i], true, &piece, err));
        const bool control = clb_vocab_is_control(v, ids->ids[i]);
        printf("%8u  %s", ids->ids[i], control ? "" : "\"");
        for (size_t k = 0; k < piece.n;) {
            char out[CLB_ESCAPE_MAX];
            size_t n;
            k += clb_escape_step(piece.data + k, piece.n - k, out, &n, NULL);
            fwrite(out, 1, n, stdout);
        }
        printf("%s\n", control ? "" : "\"");
    }
    printf("%zu token%s\n", ids->n, ids->n == 1 ? "" : "s");
done:
    clb_buf_free(&piece);
    return rc;
}

static int print_json(const clb_vocab *v, const clb_tokens *ids, clb_error *err)
{
    json_t *list = json_array();
    clb_buf piece = {0};
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < ids->n; i++) {
        piece.n = 0;
        CLB_GO(clb_buf_append(&piece, "", 0, err));
        CLB_GO(clb_token_bytes(v, ids->ids[i], true, &piece, err));
        json_t *item =
            json_pack("{s:I, s:o}", "id", (json_int_t)ids->ids[i], "piece", clb_json_bytes(piece.data, piece.n));
        if (item && !clb_is_utf8((clb_str){piece.data, piece.n})) { /* a part of a character: its bytes */
            json_t *bytes = json_array();
            for (size_t k = 0; k < piece.n; k++)
                json_array_append_new(bytes, json_integer((unsigned char)piece.data[k]));
            json_object_set_new(item, "bytes", bytes);
        }
        if (item && clb_vocab_is_control(v, ids->ids[i]))
            json_object_set_new(item, "control", json_true());
        json_array_append_new(list, item);
    }
    if (json_array_size(list) != ids->n)
        CLB_GO(CLB_NOMEM(err, "JSON output"));
    CLB_GO(clb_json_print(json_pack("{s:O, s:I}", "tokens", list, "count", (json_int_t)ids->n), err));
done:
    json_decref(list);
    clb_buf_free(&piece);
    return rc;
}

static int print_ids(const clb_tokens *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%u", i ? " " : "", ids->ids[i]);
    putchar('\n');
    return COLIBRI_OK;
}

/* As `colibri run` and `chat` do it. */
static int tokenize_chat(const clb_gguf *g, const clb_vocab *v, const clb_buf *input, clb_tokens *out, clb_error *err)
{
    const clb_chat_format *format;
    const clb_message message = {"user", input->data};
    if (memchr(input->data, '\0', input->n))
        return clb_fail(err, COLIBRI_E_USAGE, "a message with NUL bytes");
    CLB_TRY(clb_chat_detect(g, &format, err));
    const int rc = clb_chat_tokenize(format, v, &message, 1, 1, out, err);
    clb_chat_free(format);
    return rc;
}

static int encode(clb_args *args, const clb_gguf *g, const clb_vocab *v, const clb_buf *input, clb_error *err)
{
    const uint32_t flag = (clb_args_has(args, "special") ? CLB_TOKENIZE_SPECIAL : 0) |
                          (clb_args_has(args, "no-bos") ? 0 : CLB_TOKENIZE_BOS);
    clb_tokens ids = {0};
    int rc = COLIBRI_OK;
    CLB_GO(clb_args_has(args, "chat") ? tokenize_chat(g, v, input, &ids, err)
                                      : clb_tokenize(v, input->data, input->n, flag, &ids, err));
    if (clb_tokens_double_bos(v, &ids))
        clb_logf(clb_args_log(args), COLIBRI_LOG_WARN,
                 "the text begins with a BOS token, and the vocabulary adds another one: use --no-bos");
    if (clb_args_has(args, "count"))
        printf("%zu\n", ids.n);
    else if (clb_args_has(args, "ids"))
        CLB_GO(print_ids(&ids));
    else
        CLB_GO(clb_args_has(args, "json") ? print_json(v, &ids, err) : print_table(v, &ids, err));
done:
    clb_tokens_free(&ids);
    return rc;
}

static int check_flags(const clb_args *args, clb_error *err)
{
    static const char *const not_with[][2] = {{"decode", "ids"},  {"decode", "count"}, {"decode", "no-bos"},
                                              {"decode", "chat"}, {"ids", "json"},     {"ids", "count"},
                                              {"count", "json"},  {"chat", "special"}, {"chat", "no-bos"}};
    for (size_t i = 0; i < sizeof not_with / sizeof *not_with; i++)
        if (clb_args_has(args, not_with[i][0]) && clb_args_has(args, not_with[i][1]))
            return clb_fail(err, COLIBRI_E_USAGE, "--%s and --%s do not go together", not_with[i][0], not_with[i][1]);
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    const char *path = clb_config_str(clb_args_config(args), CLB_SET_model_model);
    clb_gguf *g = NULL;
    clb_vocab *v = NULL;
    clb_buf input = {0};
    int rc = COLIBRI_OK;
    CLB_TRY(check_flags(args, err));
    if (!*path)
        return clb_fail(err, COLIBRI_E_USAGE, "which vocabulary? Write colibri tokenize -m MODEL");
    CLB_GO(clb_gguf_open(path, NULL, NULL, &g, err));
    rc = clb_vocab_load(g, &v, err);
    if (rc)
        goto failed;
    CLB_GO(read_input(args, &input, err));
    CLB_GO(clb_args_has(args, "decode") ? decode(args, v, &input, err) : encode(args, g, v, &input, err));
    goto done;
failed:
    clb_context(err, "%s", path);
done:
    clb_buf_free(&input);
    clb_vocab_free(v);
    clb_gguf_close(g);
    return rc;
}

const struct clb_command clb_command_tokenize = {
    .name = "tokenize",
    .summary = "turn text into token ids, or ids into text",
    .usage = "colibri tokenize -m MODEL [flags] [TEXT]\ncolibri tokenize -m MODEL --decode [--special] ID...",
    .description =
        "Shows how a model's vocabulary cuts a text: one line per token with its id and its piece. The text is the "
        "argument, --file, or standard input. Only the header of the model file is read.\n"
        "\n"
        "BOS and EOS are added as the vocabulary says. Special tokens that are written in the text, like <|im_end|>, "
        "are "
        "plain text unless --special is given. --chat shows the prompt that `colibri run` would make of the text.\n"
        "\n"
        "Pieces are quoted, control tokens are not. Control characters and bytes that are not UTF-8 (parts of a "
        "character) "
        "are shown as \\n, \\xNN or \\uNNNN; in JSON such a piece also has its \"bytes\".",
    .examples = "colibri tokenize -m model.gguf \"Hello world\"   # a table of ids and pieces\n"
                "colibri tokenize -m model.gguf --count -f book.txt   # how many tokens has this file?\n"
                "colibri tokenize -m model.gguf --ids --chat \"Hello\"   # the prompt of a chat\n"
                "colibri tokenize -m model.gguf --decode 9906 1917   # back to text\n",
    .flags = flags,
    .settings = settings,
    .max_positional = -1,
    .run = run,
};
