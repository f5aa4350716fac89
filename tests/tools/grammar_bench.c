/* Times of masks: follows a text token by token in a grammar, asking for the mask before each token.
 *
 *     grammar_bench VOCAB.gguf GRAMMAR.gbnf TEXT [REPEATS]
 *
 * A fresh grammar for each repeat ("cold": as a server meets a new schema), then further matchers of the last one
 * ("warm"). Times of the thread's CPU clock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void die(const clb_error *err)
{
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static clb_buf read_file(const char *path)
{
    clb_buf b = {0};
    clb_error err = {0};
    FILE *f = fopen(path, "rb");
    char piece[4096];
    size_t n;
    if (!f) {
        perror(path);
        exit(1);
    }
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        if (clb_buf_append(&b, piece, n, &err))
            die(&err);
    fclose(f);
    return b;
}

static void print_counts(clb_grammar *g, const clb_token_tree *tree, const clb_tokens *ids, uint64_t *mask,
                         uint32_t n_vocab)
{
    clb_error err = {0};
    clb_matcher *m;
    if (clb_matcher_create(g, tree, &m, &err))
        die(&err);
    for (size_t i = 0; i < ids->n; i++) {
        unsigned n = 0;
        if (clb_matcher_mask(m, mask, &err))
            die(&err);
        for (uint32_t t = 0; t < n_vocab; t++)
            n += (unsigned)(mask[t / 64] >> (t % 64) & 1);
        printf("%u\n", n);
        if (clb_matcher_accept(m, ids->ids[i], &err))
            die(&err);
    }
    clb_matcher_destroy(m);
}

struct figures {
    double *masks, *accepts;
    size_t n;
};

static void follow(clb_grammar *g, const clb_token_tree *tree, const clb_tokens *ids, uint64_t *mask, struct figures *f)
{
    clb_error err = {0};
    clb_matcher *m;
    if (clb_matcher_create(g, tree, &m, &err))
        die(&err);
    for (size_t i = 0; i < ids->n; i++) {
        const double t0 = now_us();
        if (clb_matcher_mask(m, mask, &err))
            die(&err);
        const double t1 = now_us();
        if (clb_matcher_accept(m, ids->ids[i], &err))
            die(&err);
        const double t2 = now_us();
        f->masks[f->n] = t1 - t0;
        f->accepts[f->n++] = t2 - t1;
    }
    clb_matcher_destroy(m);
}

static void print(const char *label, struct figures *f)
{
    double sum = 0, accepts = 0;
    for (size_t i = 0; i < f->n; i++) {
        sum += f->masks[i];
        accepts += f->accepts[i];
    }
    qsort(f->masks, f->n, sizeof *f->masks, by_value);
    printf("%s: mask mean %.1f us, median %.1f, p99 %.1f, max %.1f; accept mean %.2f us (%zu tokens)\n", label,
           sum / (double)f->n, f->masks[f->n / 2], f->masks[f->n * 99 / 100], f->masks[f->n - 1],
           accepts / (double)f->n, f->n);
    f->n = 0;
}

int main(int argc, char **argv)
{
    clb_error err = {0};
    clb_gguf *file;
    clb_vocab *vocab;
    clb_token_tree *tree;
    clb_tokens ids = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: grammar_bench VOCAB.gguf GRAMMAR.gbnf TEXT [REPEATS]\n");
        return 2;
    }
    const int repeats = argc > 4 ? atoi(argv[4]) : 5;
    if (clb_gguf_open(argv[1], NULL, NULL, &file, &err) || clb_vocab_load(file, &vocab, &err))
        die(&err);
    clb_gguf_close(file);
    clb_buf gbnf = read_file(argv[2]), text = read_file(argv[3]);
    if (text.n && text.data[text.n - 1] == '\n')
        text.n--;
    if (clb_tokenize(vocab, text.data, text.n, 0, &ids, &err))
        die(&err);
    const double t0 = now_us();
    if (clb_token_tree_create(vocab, &tree, &err))
        die(&err);
    printf("%u tokens in the vocabulary, tree made in %.1f ms; text of %zu tokens\n", clb_vocab_size(vocab),
           (now_us() - t0) / 1e3, ids.n);
    uint64_t *mask = calloc(clb_vocab_size(vocab) / 64 + 1, sizeof *mask);
    if (mask && getenv("COLIBRI_BENCH_COUNTS")) {
        clb_grammar *counted;
        if (clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &counted, &err))
            die(&err);
        print_counts(counted, tree, &ids, mask, clb_vocab_size(vocab));
        return 0;
    }
    struct figures f = {.masks = calloc(ids.n * (size_t)repeats + 1, sizeof(double)),
                        .accepts = calloc(ids.n * (size_t)repeats + 1, sizeof(double))};
    if (!mask || !f.masks || !f.accepts)
        return 1;
    clb_grammar *g = NULL;
    double parse = 0;
    for (int i = 0; i < repeats; i++) {
        clb_grammar_release(g);
        const double p0 = now_us();
        if (clb_grammar_parse((clb_str){gbnf.data, gbnf.n}, &g, &err))
            die(&err);
        parse += now_us() - p0;
        follow(g, tree, &ids, mask, &f);
    }
    printf("parse %.2f ms\n", parse / repeats / 1e3);
    print("cold", &f);
    for (int i = 0; i < repeats; i++)
        follow(g, tree, &ids, mask, &f);
    print("warm", &f);
    return 0;
}
