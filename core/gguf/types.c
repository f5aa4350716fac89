#include "gguf/gguf.h"

#include <stdio.h>

#include "colibri/blocks.h"

/* id, name, elements per block, bytes per block: every tensor type published with ggml that a file can hold today,
 * with or without a format plugin here, so that sizes can be checked and shown. Ids 4, 5, 31-33 and 36-38 were
 * withdrawn. */
#define TYPE_MAP(X)                                                                                                    \
    X(0, "F32", 1, 4)                                                                                                  \
    X(1, "F16", 1, 2)                                                                                                  \
    X(2, "Q4_0", 32, 18)                                                                                               \
    X(3, "Q4_1", 32, 20)                                                                                               \
    X(6, "Q5_0", 32, 22)                                                                                               \
    X(7, "Q5_1", 32, 24)                                                                                               \
    X(8, "Q8_0", 32, 34)                                                                                               \
    X(9, "Q8_1", 32, 40)                                                                                               \
    X(10, "Q2_K", 256, 84)                                                                                             \
    X(11, "Q3_K", 256, 110)                                                                                            \
    X(12, "Q4_K", 256, 144)                                                                                            \
    X(13, "Q5_K", 256, 176)                                                                                            \
    X(14, "Q6_K", 256, 210)                                                                                            \
    X(15, "Q8_K", 256, 292)                                                                                            \
    X(16, "IQ2_XXS", 256, 66)                                                                                          \
    X(17, "IQ2_XS", 256, 74)                                                                                           \
    X(18, "IQ3_XXS", 256, 98)                                                                                          \
    X(19, "IQ1_S", 256, 50)                                                                                            \
    X(20, "IQ4_NL", 32, 18)                                                                                            \
    X(21, "IQ3_S", 256, 110)                                                                                           \
    X(22, "IQ2_S", 256, 82)                                                                                            \
    X(23, "IQ4_XS", 256, 136)                                                                                          \
    X(24, "I8", 1, 1)                                                                                                  \
    X(25, "I16", 1, 2)                                                                                                 \
    X(26, "I32", 1, 4)                                                                                                 \
    X(27, "I64", 1, 8)                                                                                                 \
    X(28, "F64", 1, 8)                                                                                                 \
    X(29, "IQ1_M", 256, 56)                                                                                            \
    X(30, "BF16", 1, 2)                                                                                                \
    X(34, "TQ1_0", 256, 54)                                                                                            \
    X(35, "TQ2_0", 256, 66)                                                                                            \
    X(39, "MXFP4", 32, 17)                                                                                             \
    X(40, "NVFP4", 64, 36)                                                                                             \
    X(41, "Q1_0", 128, 18)

static const struct type_info {
    const char *name; /* NULL: unknown */
    uint16_t elems, bytes;
} types[] = {
#define ROW(id, name, elems, bytes) [id] = {name, elems, bytes},
    TYPE_MAP(ROW)
#undef ROW
};

#define N_TYPES (sizeof types / sizeof *types)

#define SAME(c_struct, n_bytes) _Static_assert(sizeof(struct c_struct) == (n_bytes), #c_struct)
SAME(colibri_q4_0, 18);
SAME(colibri_q4_1, 20);
SAME(colibri_q5_0, 22);
SAME(colibri_q5_1, 24);
SAME(colibri_q8_0, 34);
SAME(colibri_q2_k, 84);
SAME(colibri_q3_k, 110);
SAME(colibri_q4_k, 144);
SAME(colibri_q5_k, 176);
SAME(colibri_q6_k, 210);
SAME(colibri_iq4_nl, 18);
SAME(colibri_iq4_xs, 136);
SAME(colibri_mxfp4, 17);

bool clb_gguf_known_geometry(void *ctx, uint32_t type, uint32_t *block_elems, uint32_t *block_bytes)
{
    (void)ctx;
    if (type >= N_TYPES || !types[type].name)
        return false;
    *block_elems = types[type].elems;
    *block_bytes = types[type].bytes;
    return true;
}

const char *clb_gguf_type_name(uint32_t type, char buf[16])
{
    if (type < N_TYPES && types[type].name)
        return types[type].name;
    snprintf(buf, 16, "type %u", type);
    return buf;
}
