/* Template, used by tile32.h and tile256.h: run_NAME. Up to DIRECT activation rows are multiplied straight from the
 * packed lines, more through panels. Needs tile_NAME(args, group, t, tile), unpack_panel_NAME(block, columns, panel),
 * panel_tile_NAME(scratch, group, t, x, first column, columns, tile), and widen_NAME(x, first column, columns, out) if
 * WIDE. */

NOINLINE void CAT(tile2_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t)
{
    CAT(tile_, NAME)(a, g, t, 2);
}
NOINLINE void CAT(tile1_, NAME)(const struct colibri_matmul_args *a, uint32_t g, uint32_t t)
{
    CAT(tile_, NAME)(a, g, t, 1);
}

#define PANEL_TILE_N(n)                                                                                                \
    NOINLINE void CAT(CAT(panel_tile##n, _), NAME)(struct panel_scratch * s, uint32_t g, uint32_t t,                   \
                                                   const void *const *x, uint32_t c, uint32_t cols)                    \
    {                                                                                                                  \
        CAT(panel_tile_, NAME)(s, g, t, x, c, cols, n);                                                                \
    }
PANEL_TILE_N(1)
PANEL_TILE_N(2)
PANEL_TILE_N(3)
#if VNNI
PANEL_TILE_N(4)
PANEL_TILE_N(5)
PANEL_TILE_N(6)
#endif
#undef PANEL_TILE_N

/* One panel times n activation rows; meanwhile the `next_size` bytes at `next` are asked for. */
static void CAT(panel_rows_, NAME)(struct panel_scratch *s, uint32_t g, uint32_t n, const void *const *x, uint32_t c,
                                   uint32_t cols, const char *next, size_t next_size)
{
    for (uint32_t t = 0; t < n;) {
        const uint32_t tile = even_part(n - t, PANEL_TILE);
        panel_prefetch(next, next_size, t / PANEL_TILE, (n + PANEL_TILE - 1) / PANEL_TILE);
        switch (tile) {
#if VNNI
        case 6:
            CAT(panel_tile6_, NAME)(s, g, t, x + t, c, cols);
            break;
        case 5:
            CAT(panel_tile5_, NAME)(s, g, t, x + t, c, cols);
            break;
        case 4:
            CAT(panel_tile4_, NAME)(s, g, t, x + t, c, cols);
            break;
#endif
        case 3:
            CAT(panel_tile3_, NAME)(s, g, t, x + t, c, cols);
            break;
        case 2:
            CAT(panel_tile2_, NAME)(s, g, t, x + t, c, cols);
            break;
        default:
            CAT(panel_tile1_, NAME)(s, g, t, x + t, c, cols);
        }
        t += tile;
    }
}

/* Groups [g0, g1) times n activation rows from t0 on. */
static void CAT(panel_pass_, NAME)(const struct colibri_matmul_args *a, uint32_t g0, uint32_t g1, uint32_t t0,
                                   uint32_t n)
{
    struct panel_scratch *const s = a->scratch;
    const size_t step = PANEL_COLS / BLOCK_COLS * sizeof(BLOCK); /* bytes of one panel's columns */
    const void *x[PANEL_TOKENS];
    gather_x(a, t0, n, (int)n, x);
    for (uint32_t g = g0; g < g1; g++)
        memset(s->acc[g - g0], 0, n * sizeof(s->acc[0][0]));
    for (uint32_t c = 0; c < a->n_cols; c += PANEL_COLS) {
        const uint32_t cols = a->n_cols - c < PANEL_COLS ? a->n_cols - c : PANEL_COLS;
#if WIDE
        for (uint32_t t = 0; t < n; t++)
            CAT(widen_, NAME)(x[t], c, cols, s->wide[t]);
#endif
        for (uint32_t g = g0; g < g1; g++) {
            const char *const w = (const char *)a->w + (size_t)g * a->group_stride + c / PANEL_COLS * step;
            const char *next = w;
            size_t next_size = 0;
            if (g + 1 < g1) {
                next = w + a->group_stride;
                next_size = cols / BLOCK_COLS * sizeof(BLOCK);
            } else if (c + PANEL_COLS < a->n_cols) {
                next = w - (size_t)(g - g0) * a->group_stride + step;
                next_size = (a->n_cols - c - PANEL_COLS < PANEL_COLS ? a->n_cols - c - PANEL_COLS : PANEL_COLS) /
                            BLOCK_COLS * sizeof(BLOCK);
            }
            CAT(unpack_panel_, NAME)((const BLOCK *)(const void *)w, cols, &s->w);
            CAT(panel_rows_, NAME)(s, g - g0, n, x, c, cols, next, next_size);
        }
    }
    for (uint32_t g = g0; g < g1; g++)
        for (uint32_t t = 0; t < n; t++) {
            store_rows(a, g, 0, t0 + t, _mm256_loadu_ps(s->acc[g - g0][t]));
            store_rows(a, g, 1, t0 + t, _mm256_loadu_ps(s->acc[g - g0][t] + 8));
        }
}

static void CAT(run_, NAME)(const struct colibri_matmul_args *a)
{
    if (a->n_x <= DIRECT) {
        for (uint32_t g = a->group_begin; g < a->group_end; g++) {
            uint32_t t = 0;
            for (; a->n_x - t >= 2; t += 2)
                CAT(tile2_, NAME)(a, g, t);
            if (t < a->n_x)
                CAT(tile1_, NAME)(a, g, t);
        }
        return;
    }
    const uint32_t step = even_part(a->n_x, PANEL_TOKENS);
    for (uint32_t t = 0; t < a->n_x; t += step)
        for (uint32_t g = a->group_begin; g < a->group_end; g += PANEL_GROUPS)
            CAT(panel_pass_, NAME)
    (a, g, a->group_end - g < PANEL_GROUPS ? a->group_end : g + PANEL_GROUPS, t, a->n_x - t < step ? a->n_x - t : step);
}
