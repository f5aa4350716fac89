/* The layout of .clbt files, shared by the reader and the writer; docs/traces.md says it in words. */
#ifndef CLB_REPLAY_TRACE_FORMAT_H
#define CLB_REPLAY_TRACE_FORMAT_H

#include "replay/bytes.h"
#include "replay/trace.h"

/* Header: magic, version, size of the whole header, n_layers, n_experts, top_k, gates, ahead_layers, ahead_top, length
 * of model, length of arch (u32 each but the magic), expert_bytes u64[n_layers], model, arch. */
#define CLB_TRACE_MAGIC      "CLBT"
#define CLB_TRACE_HEAD_FIXED 44u
/* Record: u32 tag, u32 size of the payload, payload. */
#define CLB_TRACE_RECORD 8u
#define CLB_TAG_UNIT     0x54494e55u /* "UNIT": label */
#define CLB_TAG_PASS     0x53534150u /* "PASS" */
#define CLB_TAG_RATES    0x45544152u /* "RATE": 6 x f64 */
#define CLB_TAG_END      0x20444e45u /* "END ": u64 units, passes, rows */
/* Pass: phase, n_rows, n_sequences, reserved 0 (u32 each), start_ns, took_ns (u64), then per row token u32 and sequence
 * u32, then ids (u8 if n_experts <= 256, else u16), gates (f16 or f32), guesses (u16 id, f16 logit). */
#define CLB_TRACE_PASS_FIXED 32u

static inline uint32_t clb_trace_id_bytes(const clb_trace_info *info)
{
    return info->n_experts <= 256 ? 1 : 2;
}
static inline uint32_t clb_trace_gate_bytes(const clb_trace_info *info)
{
    return info->gates == CLB_GATES_F32 ? 4 : info->gates == CLB_GATES_F16 ? 2 : 0;
}
/* Bytes of a pass's payload that every row takes. With the limits of trace.h: below 2^40. */
static inline uint64_t clb_trace_row_bytes(const clb_trace_info *info)
{
    const uint64_t layer = (uint64_t)info->top_k * (clb_trace_id_bytes(info) + clb_trace_gate_bytes(info)) +
                           (uint64_t)info->ahead_layers * info->ahead_top * 4;
    return 8 + layer * info->n_layers;
}

/* USAGE or FORMAT (as given): what a header may say. */
int clb_trace_check_info(const clb_trace_info *info, int status, clb_error *err);

#endif
