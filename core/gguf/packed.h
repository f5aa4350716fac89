/* Packed files (.colibri): what their keys are called, and what reader and writer both compute.
 *
 * The structure is that of GGUF version 3 with the magic "CLBR" and an alignment of 4096; docs/packed.md describes it.
 * A packed file consists of runs: consecutive blocks of equal size, each with a checksum. */
#ifndef CLB_GGUF_PACKED_H
#define CLB_GGUF_PACKED_H

#include "colibri/format.h"
#include "gguf/gguf.h"

#define CLB_PACKED_MAGIC     "CLBR"
#define CLB_PACKED_VERSION   1u
#define CLB_PACKED_ALIGNMENT 4096u
#define CLB_PACKED_PART      64u /* parts of an expert's block begin at multiples of this */
/* Bytes that one checksum of a plain tensor covers, or one group of 16 rows if that is more: small enough to be
 * compared while it lies in a cache, large enough that the list of checksums does not matter. */
#define CLB_PACKED_UNIT ((uint64_t)256 << 10)

/* Keys. The arrays have one element for each tensor (layouts, runs), each run (run_*, block_bytes), each block
 * (checksums), each tensor type with packed tensors (types, marks). */
#define CLB_PACKED_KEYS            "colibri.packed."
#define CLB_PACKED_KEY_HEADER      "colibri.packed.header_checksum"  /* u64, the first key: its place is fixed */
#define CLB_PACKED_KEY_VERSION     "colibri.packed.version"          /* u32 */
#define CLB_PACKED_KEY_CHECKSUM    "colibri.packed.checksum"         /* string: "xxh3-64" */
#define CLB_PACKED_KEY_LAYOUTS     "colibri.packed.layouts"          /* u8[]: bits below */
#define CLB_PACKED_KEY_RUNS        "colibri.packed.runs"             /* u32[]: number of the tensor's run */
#define CLB_PACKED_KEY_RUN_OFFSETS "colibri.packed.run_offsets"      /* u64[]: in the data section */
#define CLB_PACKED_KEY_RUN_BYTES   "colibri.packed.run_bytes"        /* u64[] */
#define CLB_PACKED_KEY_BLOCK_BYTES "colibri.packed.block_bytes"      /* u64[] */
#define CLB_PACKED_KEY_CHECKSUMS   "colibri.packed.checksums"        /* u64[], in the order of runs and blocks */
#define CLB_PACKED_KEY_TYPES       "colibri.packed.types"            /* u32[] */
#define CLB_PACKED_KEY_MARKS       "colibri.packed.marks"            /* u64[]: clb_packed_mark of each type */
#define CLB_PACKED_KEY_SOURCE      "colibri.packed.source_alignment" /* u32: general.alignment of the GGUF file */

#define CLB_PACKED_X16     1u /* groups of 16 rows */
#define CLB_PACKED_EXPERTS 2u /* one block per expert */

/* Where the header checksum's value lies: magic, version, counts, length and text of the key, type. */
#define CLB_PACKED_HEADER_AT (24u + 8u + (sizeof CLB_PACKED_KEY_HEADER - 1) + 4u)
/* XXH3-64 of the header, the value of its own checksum taken as 0. */
uint64_t clb_packed_header_sum(const unsigned char *header, size_t size);
uint64_t clb_packed_sum(const void *bytes, size_t size);

/* Bytes of n_rows rows in the file: whole groups if x16. */
static inline uint64_t clb_packed_rows_bytes(uint64_t row_bytes, uint64_t n_rows, bool x16)
{
    return row_bytes * (x16 ? (n_rows + COLIBRI_GROUP_ROWS - 1) / COLIBRI_GROUP_ROWS * COLIBRI_GROUP_ROWS : n_rows);
}

static inline uint64_t clb_packed_round(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Block of a plain tensor's run. */
static inline uint64_t clb_packed_unit(uint64_t row_bytes, bool x16)
{
    const uint64_t group = row_bytes * COLIBRI_GROUP_ROWS;
    return !x16 ? CLB_PACKED_UNIT : group >= CLB_PACKED_UNIT ? group : CLB_PACKED_UNIT / group * group;
}

/* A fingerprint of the format's packed layout: the checksum of a group packed from known rows. Formats may come from
 * plugins; a file packed by one must not be multiplied by another that orders the bytes differently. */
int clb_packed_mark(const struct colibri_format *format, uint64_t *out, clb_error *err);

#endif
