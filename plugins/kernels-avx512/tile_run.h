/* Template, used by tile32.h and tile256.h: a function per tile size, and pick_NAME, which calls the one of `n`
 * activation rows. Sizes are those of tile_next (simd.h). */

#define TILE_FUNCTION(n)                                                                                               \
    NOINLINE void CAT(tile##n##_, NAME)(const struct tile_args *ta)                                                    \
    {                                                                                                                  \
        CAT(tile_, NAME)(ta, n);                                                                                       \
    }
TILE_FUNCTION(1)
TILE_FUNCTION(2)
TILE_FUNCTION(3)
TILE_FUNCTION(4)
TILE_FUNCTION(5)
TILE_FUNCTION(6)
TILE_FUNCTION(7)
TILE_FUNCTION(8)
TILE_FUNCTION(10)
TILE_FUNCTION(12)
TILE_FUNCTION(14)
TILE_FUNCTION(16)
#undef TILE_FUNCTION

INLINE void CAT(pick_, NAME)(const struct tile_args *ta, uint32_t n)
{
    switch (n) {
    case 1:
        CAT(tile1_, NAME)(ta);
        break;
    case 2:
        CAT(tile2_, NAME)(ta);
        break;
    case 3:
        CAT(tile3_, NAME)(ta);
        break;
    case 4:
        CAT(tile4_, NAME)(ta);
        break;
    case 5:
        CAT(tile5_, NAME)(ta);
        break;
    case 6:
        CAT(tile6_, NAME)(ta);
        break;
    case 7:
        CAT(tile7_, NAME)(ta);
        break;
    case 8:
        CAT(tile8_, NAME)(ta);
        break;
    case 10:
        CAT(tile10_, NAME)(ta);
        break;
    case 12:
        CAT(tile12_, NAME)(ta);
        break;
    case 14:
        CAT(tile14_, NAME)(ta);
        break;
    default:
        CAT(tile16_, NAME)(ta);
        break;
    }
}
