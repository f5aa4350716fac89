/* Template, used by tile32.h and tile256.h: run_NAME cuts a product into tiles of 4, 2 or 1 activation rows. Three
 * rows are a tile of four with one row twice: cheaper than reading the weights again. */

NOINLINE void CAT(tile4_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t, uint32_t count)
{
    CAT(tile_, NAME)(a, g, t, count, 4);
}
NOINLINE void CAT(tile2_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t)
{
    CAT(tile_, NAME)(a, g, t, 2, 2);
}
NOINLINE void CAT(tile1_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t)
{
    CAT(tile_, NAME)(a, g, t, 1, 1);
}

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    const uint32_t step = token_block(a, 4);
    for (uint32_t t0 = 0; t0 < a->n_x; t0 += step) {
        const uint32_t t1 = a->n_x - t0 < step ? a->n_x : t0 + step;
        for (uint32_t g = a->group_begin; g < a->group_end; g++) {
            for (uint32_t t = t0; t < t1;) {
                const uint32_t left = t1 - t;
                if (left >= 3) {
                    const uint32_t count = left < 4 ? left : 4;
                    CAT(tile4_, NAME)(a, g, t, count);
                    t += count;
                } else if (left == 2) {
                    CAT(tile2_, NAME)(a, g, t);
                    t += 2;
                } else {
                    CAT(tile1_, NAME)(a, g, t);
                    t += 1;
                }
            }
        }
    }
}
