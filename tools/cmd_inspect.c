/* colibri inspect: what is in a model file. */
#include <string.h>

#include "command.h"
#include "inspect.h"

static const clb_flag flags[] = {
    {"metadata", 0, NULL, "print every key with its value; long arrays and strings are abbreviated", false},
    {"tensors", 0, NULL, "print every tensor with type, shape, size and place", false},
    {"full", 0, NULL, "with --metadata: no abbreviations", false},
    {"json", 0, NULL, "print JSON: the summary, with --metadata and --tensors those too", false},
    {0},
};

static const enum clb_setting settings[] = {CLB_SET_model_model, CLB_SET_COUNT};

static int model_path(const clb_args *args, const char **out, clb_error *err)
{
    const char *const *words;
    const size_t n = clb_args_positional(args, &words);
    const clb_config *config = clb_args_config(args);
    const char *model = clb_config_str(config, CLB_SET_model_model);
    if (n && strncmp(clb_config_origin(config, CLB_SET_model_model), "--", 2) == 0)
        return clb_fail(err, COLIBRI_E_USAGE, "two files are given, '%.80s' and by --model '%.80s'", words[0], model);
    *out = n ? words[0] : model;
    return **out ? COLIBRI_OK : clb_fail(err, COLIBRI_E_USAGE, "which file? Write colibri inspect FILE");
}

static int report(const clb_args *args, const clb_inspection *in, clb_error *err)
{
    const bool metadata = clb_args_has(args, "metadata"), tensors = clb_args_has(args, "tensors");
    const bool full = clb_args_has(args, "full");
    if (clb_args_has(args, "json"))
        return clb_inspect_print_json(in, metadata, tensors, full, err);
    if (metadata)
        CLB_TRY(clb_inspect_print_metadata(in->g, full, err));
    if (metadata && tensors)
        putchar('\n');
    if (tensors)
        clb_inspect_print_tensors(in);
    if (!metadata && !tensors)
        clb_inspect_print_summary(in);
    return COLIBRI_OK;
}

static int run(clb_args *args, clb_error *err)
{
    const char *path;
    clb_gguf *g = NULL;
    clb_inspection in = {0};
    if (clb_args_has(args, "full") && !clb_args_has(args, "metadata"))
        return clb_fail(err, COLIBRI_E_USAGE, "--full goes with --metadata");
    CLB_TRY(model_path(args, &path, err));
    int rc = COLIBRI_OK;
    CLB_GO(clb_gguf_open(path, NULL, NULL, &g, err));
    CLB_GO(clb_inspect(g, &in, err));
    CLB_GO(report(args, &in, err));
done:
    clb_inspection_free(&in);
    clb_gguf_close(g);
    return rc;
}

const clb_command clb_command_inspect = {
    .name = "inspect",
    .summary = "show what is in a model file",
    .usage = "colibri inspect FILE [flags]",
    .description = "Reads the header of a GGUF or packed file (all files of a split model, given the first one) and shows the "
                   "architecture, its "
                   "sizes, the tokenizer, and where the bytes are: by role and by tensor type. The model need not be "
                   "one that colibri can "
                   "run. No tensor data is read.\n"
                   "\n"
                   "'per token' counts the weights that one token touches: all but the embedding table (unless it is "
                   "the output matrix as "
                   "well) and the experts that the router does not choose.\n"
                   "\n"
                   "Control characters and bytes that are not UTF-8 are shown as \\n, \\xNN or \\uNNNN. In JSON, "
                   "strings that are not UTF-8 "
                   "become {\"hex\": ...}, integers above 2^63-1 and infinite or undefined floats become strings.",
    .examples = "colibri inspect model.gguf   # the summary\n"
                "colibri inspect model.gguf --tensors   # one line per tensor\n"
                "colibri inspect model.gguf --metadata --full   # every key, the vocabulary included\n"
                "colibri inspect model.gguf --json | jq .experts   # for scripts\n",
    .flags = flags,
    .settings = settings,
    .max_positional = 1,
    .run = run,
};
