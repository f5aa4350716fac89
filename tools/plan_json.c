/* colibri plan --json. */
#include "json_out.h"
#include "plan_report.h"

static json_t *bytes(uint64_t v)
{
    return json_integer(v > INT64_MAX ? INT64_MAX : (json_int_t)v);
}

static json_t *case_json(const clb_predict_case *c)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "tokens_per_second", c->tokens_per_second, "milliseconds",
                     c->ns / 1e6, "hit_rate", c->hit, "drive_bytes", c->drive_bytes, "drive_milliseconds",
                     c->drive_ns / 1e6, "pack_milliseconds", c->pack_ns / 1e6);
}

static json_t *prediction_json(const clb_prediction *d)
{
    return json_pack(
        "{s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}, s:{s:i, s:f, s:f, s:f, s:f, s:o, s:o}}",
        "decode", "dense_bytes", d->dense_bytes, "expert_bytes", d->expert_bytes, "kv_bytes", d->kv_bytes,
        "dense_milliseconds", d->dense_ns / 1e6, "expert_milliseconds", d->expert_ns / 1e6, "kv_milliseconds",
        d->kv_ns / 1e6, "loop_milliseconds", d->loop_ns / 1e6, "expert_uses", d->expert_uses, "bytes_per_use",
        d->bytes_per_use, "stream_bytes", d->stream_bytes, "low", case_json(&d->decode_low), "high",
        case_json(&d->decode_high), "prefill", "rows", (int)d->chunk_rows, "experts", d->chunk_experts,
        "dense_milliseconds", d->chunk_dense_ns / 1e6, "expert_milliseconds", d->chunk_expert_ns / 1e6,
        "other_milliseconds", d->chunk_other_ns / 1e6, "low", case_json(&d->prefill_low), "high",
        case_json(&d->prefill_high));
}

static json_t *plan_json(const clb_plan *p)
{
    json_t *o = json_object();
    const struct {
        const char *name;
        uint64_t v;
    } sizes[] = {{"budget_bytes", p->budget},
                 {"available_bytes", p->available},
                 {"total_bytes", p->total_bytes},
                 {"process_bytes", p->base_bytes},
                 {"embedding_bytes", p->embedding_bytes},
                 {"dense_bytes", p->dense_bytes},
                 {"stream_bytes", p->stream_bytes},
                 {"expert_slot_bytes", p->slot_bytes},
                 {"kv_bytes", p->kv_bytes},
                 {"kv_strategy_bytes", p->kv_strategy_bytes},
                 {"buffer_bytes", p->buffer_bytes},
                 {"read_buffer_bytes", p->staging_bytes},
                 {"lora_bytes", p->lora_bytes},
                 {"mapped_bytes", p->mapped_bytes},
                 {"layers", p->n_layers},
                 {"resident_layers", p->resident_layers},
                 {"stream_slots", p->n_stream_slots},
                 {"layer_slot_bytes", p->layer_slot_bytes},
                 {"streamed_file_bytes", p->streamed_file_bytes},
                 {"experts", p->n_experts},
                 {"expert_slots", p->n_slots}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(o, sizes[i].name, bytes(sizes[i].v));
    json_object_set_new(o, "all_experts", json_boolean(p->all_experts));
    json_object_set_new(o, "budget_is_default", json_boolean(p->budget_is_default));
    json_object_set_new(o, "limited_by",
                        p->limited_by ? json_string(clb_memory_limit_text(p->limited_by)) : json_null());
    return o;
}

static json_t *row_json(const clb_plan_row *row)
{
    if (!row->fits)
        return json_pack("{s:o, s:b, s:o}", "budget_bytes", bytes(row->budget), "fits", 0, "reason",
                         clb_json_text(row->why_not));
    return json_pack("{s:o, s:b, s:o, s:o}", "budget_bytes", bytes(row->budget), "fits", 1, "plan",
                     plan_json(&row->plan), "prediction", prediction_json(&row->prediction));
}

static json_t *rates_json(const clb_rates *r)
{
    json_t *kernels = json_array();
    for (uint32_t i = 0; i < r->n_kernels; i++) {
        const clb_rate_kernel *k = &r->kernel[i];
        json_array_append_new(kernels,
                              json_pack("{s:s, s:f, s:f, s:f, s:s}", "type", k->name, "decode_bytes_per_second",
                                        k->decode_bytes_per_second, "prefill_macs_per_second",
                                        k->prefill_macs_per_second, "pack_bytes_per_second", k->pack_bytes_per_second,
                                        "source", clb_rate_source_text(k->source)));
    }
    return json_pack("{s:o, s:{s:f, s:b, s:s}, s:{s:f, s:s}, s:f}", "kernels", kernels, "drive", "bytes_per_second",
                     r->drive_bytes_per_second, "direct", (int)r->drive_direct, "source",
                     clb_rate_source_text(r->drive_source), "loop", "nanoseconds", r->loop_ns, "source",
                     clb_rate_source_text(r->loop_source), "seconds_measuring", (double)r->spent_ns / 1e9);
}

static json_t *kv_json(const clb_engine *e)
{
    const clb_plan_input *in = &e->plan_input;
    const clb_kv_layout *l = &e->kv_layout;
    return json_pack("{s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:o, s:o}", "type_k", clb_kv_type_name(l->k_type), "type_v",
                     clb_kv_type_name(l->v_type), "turn_k", (int)l->turn_k, "turn_v", (int)l->turn_v, "recent",
                     (json_int_t)l->recent, "block_size", (json_int_t)l->page_tokens, "positions",
                     (json_int_t)in->kv_positions, "bytes_per_position",
                     bytes((uint64_t)l->n_layers * l->n_kv_heads * clb_kv_position_bytes(l)), "recent_bytes",
                     bytes(in->n_sequences * clb_kv_recent_bytes(l, in->kv_positions, in->max_rows)));
}

int clb_plan_print_json(const clb_plan_report *r, clb_error *err)
{
    json_t *weights = json_array(), *rows = json_array();
    char type[16];
    for (uint32_t i = 0; i < r->n_roles; i++)
        json_array_append_new(weights,
                              json_pack("{s:s, s:s, s:o}", "role", r->role[i].role, "type",
                                        clb_gguf_type_name(r->role[i].type, type), "bytes", bytes(r->role[i].bytes)));
    for (uint32_t i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, row_json(&r->rows[i]));
    json_t *o = json_pack("{s:o, s:s, s:i, s:o, s:o, s:o}", "model", clb_json_text(r->path), "architecture",
                          r->engine->model->arch->name, "threads", (int)clb_pool_workers(r->engine->pool), "weights",
                          weights, "rates", rates_json(&r->rates), "hit_rates",
                          r->trace ? clb_json_text(r->trace) : json_string("assumed"));
    if (!r->n_rows)
        json_object_update_new(o, row_json(&r->now));
    json_object_set_new(o, "what_if", rows);
    json_object_set_new(o, "kv", kv_json(r->engine));
    return clb_json_print(o, err);
}
