/* Template, used by tile32.h and tile256.h: run_NAME. Products of less than PANEL_FROM activation rows take the codes
 * straight from the packed blocks, in tiles of 1 to 4 of nearly equal size; for more rows the codes are unpacked once
 * (gemm.h). The limits are where the instruction counts cross (docs/kernels.md). Straight products use sdot, also in
 * the i8mm components. */

#define DOTPROD CAT(clb_neon_dotprod_, NAME)
void DOTPROD(const struct colibri_matmul_args *a);

static const struct gemm_format CAT(format_, NAME) = {KIND, sizeof(BLOCK), CAT(panel_, NAME)};

#if !MMLA
#define TILE(n)                                                                                                        \
    NOINLINE void CAT(tile##n##_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t)                   \
    {                                                                                                                  \
        CAT(tile_, NAME)(a, g, t, n);                                                                                  \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
#undef TILE

void DOTPROD(const struct colibri_matmul_args *a)
{
    static void (*const tile[4])(const struct colibri_matmul_args *, uint32_t, uint32_t) = {
        CAT(tile1_, NAME), CAT(tile2_, NAME), CAT(tile3_, NAME), CAT(tile4_, NAME)};
    const uint32_t parts = parts_of(a->n_x, 4);
    for (uint32_t g = a->group_begin; g < a->group_end; g++) {
        for (uint32_t i = 0, t = 0; i < parts; i++) {
            const uint32_t next = part_begin(a->n_x, parts, i + 1);
            tile[next - t - 1](a, g, t);
            t = next;
        }
    }
}

#endif

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    if (a->n_x < PANEL_FROM)
        DOTPROD(a);
    else
        GEMM(a, &CAT(format_, NAME));
}

#undef DOTPROD
#undef PANEL_FROM
