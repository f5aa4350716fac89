/* The smallest program around libcolibri: answers one question.
 *
 *   cc main.c $(pkg-config --cflags --libs colibri) -o ask && ./ask MODEL.gguf "What does \"lantern\" mean?"
 *
 * After an installation into /usr/local run `ldconfig` once. For another prefix set
 * PKG_CONFIG_PATH=PREFIX/lib/pkgconfig and LD_LIBRARY_PATH=PREFIX/lib, or use the CMakeLists.txt beside this file,
 * which needs CMAKE_PREFIX_PATH only. */
#include <colibri.h>
#include <stdio.h>

static int print(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    fwrite(text, 1, n, stdout);
    return fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.gguf QUESTION\n", argv[0]);
        return 2;
    }
    colibri_error err;
    colibri_options *options = NULL;
    colibri_engine *engine = NULL;
    colibri_session *session = NULL;
    char setting[4096];
    uint32_t ids[2048];
    size_t n = 0;
    snprintf(setting, sizeof setting, "model.model=%s", argv[1]);
    const char *role = "user", *question = argv[2], *finish = NULL;
    colibri_generate_options generate;
    colibri_generate_defaults(&generate);
    generate.on_text = print;

    int rc = colibri_options_create(&options, &err);
    if (!rc)
        rc = colibri_options_set(options, setting, &err);
    if (!rc)
        rc = colibri_engine_open(options, 1, &engine, &err);
    if (!rc)
        rc = colibri_session_create(engine, &session, &err);
    if (!rc)
        rc = colibri_chat_prompt(engine, &role, &question, 1, ids, 2048, &n, &err);
    if (!rc && n > 2048) {
        fprintf(stderr, "the question is too long\n");
        rc = COLIBRI_E_LIMIT;
    } else if (!rc) {
        rc = colibri_generate(session, ids, n, &generate, &finish, &err);
    }
    if (rc)
        fprintf(stderr, "%s: %s\n", colibri_status_name(rc), err.message);
    else
        printf("\n(%s)\n", finish);
    colibri_session_destroy(session);
    colibri_engine_close(engine);
    colibri_options_destroy(options);
    return rc ? 1 : 0;
}
