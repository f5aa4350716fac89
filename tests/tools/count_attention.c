/* Runs the attention of the NEON plugin for tests/neon-count.sh, which counts instructions between its marks:
 *   count_attention PLUGIN.so QUERIES ...
 * For each type of keys and values, head dimension and number of queries of one row: mark 0, a segment of 512
 * positions, mark 1; then a line "TYPE-DIMENSION QUERIES MULTIPLY-ADDS". */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "colibri/kernel.h"
#include "colibri/numerics.h"

#define POSITIONS COLIBRI_ATTN_SEGMENT
#define MAX_QUERY 1024u

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

static void count(const struct colibri_vecops *v, uint32_t type, const char *name, uint32_t dim, uint32_t queries)
{
    void *const kv = zeros((size_t)POSITIONS * dim * sizeof(float));
    const void *const page[1] = {kv};
    float *const q = zeros((size_t)queries * dim * sizeof(float)), *const out =
                                                                       zeros((size_t)queries * dim * sizeof(float));
    float *const weights = zeros((size_t)queries * POSITIONS * sizeof(float));
    float *const parts = zeros(queries * colibri_attn_part_floats(dim) * sizeof(float));
    const struct colibri_attention_args a = {
        .struct_size = sizeof a,
        .n_heads = queries,
        .k_dim = dim,
        .v_dim = dim,
        .n_kv = POSITIONS,
        .page_tokens = POSITIONS,
        .k_type = type,
        .v_type = type,
        .k_pages = page,
        .v_pages = page,
        .q = q,
        .q_stride = dim,
        .scale = 1.0f,
        .out = out,
        .out_stride = dim,
        .n_rows = 1,
        .stages = COLIBRI_ATTN_SEGMENTS | COLIBRI_ATTN_COMBINE,
        .segment_end = 1,
        .q_row_stride = (size_t)queries * dim,
        .out_row_stride = (size_t)queries * dim,
        .weights = weights,
        .parts = parts,
    };
    v->attention(&a); /* warms nothing up but the emulator */
    mark(0);
    v->attention(&a);
    mark(1);
    fprintf(stderr, "%s-%u %u %llu\n", name, dim, queries, 2ULL * POSITIONS * dim * queries);
    free(kv);
    free(q);
    free(out);
    free(weights);
    free(parts);
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{COLIBRI_TYPE_F16, "f16"}, {COLIBRI_TYPE_Q8_0, "q8_0"}, {COLIBRI_TYPE_Q4_0, "q4_0"}};
    void *const object = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    const struct colibri_plugin *const plugin = object ? dlsym(object, "colibri_plugin_colibri_kernels_neon") : NULL;
    const struct colibri_vecops *const v = plugin ? plugin->get(COLIBRI_IFACE_VECOPS, 0) : NULL;
    if (!v || !v->attention) {
        fprintf(stderr, "usage: count_attention kernels-neon.so QUERIES ...\n");
        return 2;
    }
    for (uint32_t dim = 64; dim <= 128; dim *= 2)
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
            for (int k = 2; k < argc; k++) {
                const uint32_t queries = (uint32_t)strtoul(argv[k], NULL, 10);
                if (queries < 1 || queries > MAX_QUERY)
                    return 2;
                count(v, types[i].type, types[i].name, dim, queries);
            }
    return 0;
}
