/* Runs the matrix products of the NEON plugin for tests/neon-count.sh, which counts instructions between its marks:
 *   count_matmul PLUGIN.so ROWS ...
 * For each component and number of activation rows: mark 0, a product of 128 x 2048, mark 1; then a line
 * "name ROWS MULTIPLY-ADDS". A first product of each warms nothing up but the emulator. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "colibri/kernel.h"

#define COLS   2048u
#define GROUPS 8u
#define ROWS   (16u * GROUPS)
#define MAX_X  1024u

static size_t row_bytes(uint32_t type)
{
    switch (type) {
#define TYPE(id, name, elems)                                                                                          \
    case COLIBRI_TYPE_##id:                                                                                            \
        return COLS / (elems) * sizeof(struct colibri_##name);
        TYPE(Q4_0, q4_0, 32)
        TYPE(Q4_1, q4_1, 32)
        TYPE(Q5_0, q5_0, 32)
        TYPE(Q5_1, q5_1, 32)
        TYPE(Q8_0, q8_0, 32)
        TYPE(IQ4_NL, iq4_nl, 32)
        TYPE(MXFP4, mxfp4, 32)
        TYPE(Q2_K, q2_k, 256)
        TYPE(Q3_K, q3_k, 256)
        TYPE(Q4_K, q4_k, 256)
        TYPE(Q5_K, q5_k, 256)
        TYPE(Q6_K, q6_k, 256)
        TYPE(IQ4_XS, iq4_xs, 256)
#undef TYPE
    case COLIBRI_TYPE_F32:
        return 4 * COLS;
    default:
        return 2 * COLS;
    }
}

static size_t act_bytes(const char *act)
{
    return !strcmp(act, COLIBRI_ACT_Q8X32)    ? COLS / 32 * sizeof(struct colibri_act_q8x32)
           : !strcmp(act, COLIBRI_ACT_Q8X256) ? COLS / 256 * sizeof(struct colibri_act_q8x256)
                                              : COLS * sizeof(float);
}

static void *zeros(size_t bytes)
{
    void *const p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p)
        abort();
    return memset(p, 0, bytes);
}

static void mark(int n)
{
    close(-1000 - n); /* fails; the plugin sees it */
}

int main(int argc, char **argv)
{
    void *const object = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    const struct colibri_plugin *const plugin = object ? dlsym(object, "colibri_plugin_colibri_kernels_neon") : NULL;
    if (!plugin) {
        fprintf(stderr, "usage: count_matmul kernels-neon.so ROWS ...\n");
        return 2;
    }
    void *const w = zeros((size_t)ROWS * COLS * 4), *const x = zeros((size_t)MAX_X * COLS * 4);
    float *const y = zeros((size_t)MAX_X * ROWS * 4);
    const struct colibri_matmul *m;
    for (uint32_t i = 0; (m = plugin->get(COLIBRI_IFACE_MATMUL, i)); i++) {
        void *const scratch = zeros(m->scratch_bytes + 64);
        for (int k = 2; k < argc; k++) {
            const uint32_t n = (uint32_t)strtoul(argv[k], NULL, 10);
            if (n < 1 || n > MAX_X)
                return 2;
            const struct colibri_matmul_args a = {
                .struct_size = sizeof a,
                .n_rows = ROWS,
                .n_cols = COLS,
                .n_x = n,
                .group_end = GROUPS,
                .w = w,
                .group_stride = 16 * row_bytes(m->gguf_type),
                .x = x,
                .x_stride = act_bytes(m->act),
                .y = y,
                .y_stride = ROWS,
                .scratch = m->scratch_bytes ? scratch : NULL,
            };
            m->run(&a);
            mark(0);
            m->run(&a);
            mark(1);
            fprintf(stderr, "%s %u %llu\n", m->name, n, (unsigned long long)ROWS * COLS * n);
        }
        free(scratch);
    }
    return 0;
}
