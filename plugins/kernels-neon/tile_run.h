/* Template, used by tile32.h and tile256.h: run_NAME. Up to 4 activation rows are multiplied with codes straight from
 * the packed blocks; for more of them the codes are unpacked once (gemm.h). */

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    static const struct gemm_format format = {KIND, sizeof(BLOCK), CAT(panel_, NAME)};
#if MMLA
    GEMM(a, &format);
#else
    if (a->n_x > 4) {
        GEMM(a, &format);
        return;
    }
    static void (*const tile[4])(const struct colibri_matmul_args *, uint32_t) = {
        CAT(tile1_, NAME), CAT(tile2_, NAME), CAT(tile3_, NAME), CAT(tile4_, NAME)};
    for (uint32_t g = a->group_begin; g < a->group_end; g++)
        tile[a->n_x - 1](a, g);
#endif
}
