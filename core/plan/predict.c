#include "plan/predict.h"

#include <math.h>

#include "plan/internal.h"

/* Parallel loops of a pass (docs/performance.md): for each layer, and around them. */
#define LOOPS_PER_LAYER 6.0
#define LOOPS_AROUND    2.0

/* Share of a prompt's time that products take; the rest are attention and row operations (docs/performance.md, 512 rows
 * of OLMoE). */
#define PREFILL_PRODUCTS 0.88

struct sums {
    double bytes, decode_ns, macs_ns; /* macs_ns: for one row */
    double file_bytes, pack_ns;
};

static void add(const clb_rates *rates, const clb_matrix *m, const clb_gguf_tensor *t, double times, struct sums *s)
{
    const clb_rate_kernel *k = clb_rates_kernel(rates, m);
    const double file = (double)clb_plan_file_bytes(m, t);
    s->bytes += times * (double)m->bytes;
    s->decode_ns += times * (double)m->bytes * 1e9 / k->decode_bytes_per_second;
    s->macs_ns += times * (double)m->n_rows * m->n_cols * 1e9 / k->prefill_macs_per_second;
    s->file_bytes += times * file;
    s->pack_ns += k->pack_bytes_per_second > 0 && !t->packed ? times * file * 1e9 / k->pack_bytes_per_second : 0;
}

/* Dense matrices of all layers and the output matrix; of the streamed layers apart, too. */
static void sum_dense(const clb_predict_input *in, struct sums *all, struct sums *streamed)
{
    const clb_model *model = in->model;
    for (uint32_t l = 0; l < model->hp.n_layers; l++) {
        const clb_layer *y = &model->layers[l];
        const clb_weight *const w[] = {&y->q, &y->k, &y->v, &y->o, &y->gate, &y->up, &y->down, &y->router};
        for (size_t i = 0; i < sizeof w / sizeof *w; i++) {
            if (!w[i]->tensor)
                continue;
            add(in->rates, &w[i]->m, w[i]->tensor, 1, all);
            if (l >= in->plan->resident_layers)
                add(in->rates, &w[i]->m, w[i]->tensor, 1, streamed);
        }
    }
    const clb_weight *output = model->output.tensor ? &model->output : &model->token_embd;
    add(in->rates, &output->m, output->tensor, 1, all);
}

/* One use of an expert of an average layer. */
static void sum_expert(const clb_predict_input *in, struct sums *one)
{
    const clb_model *model = in->model;
    for (uint32_t l = 0; l < model->n_moe_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            add(in->rates, &model->expert_layers[l].part[p], model->expert_layers[l].source[p].tensors[0],
                1.0 / model->n_moe_layers, one);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Time of a pass: a layer's missing experts are read while those that are there are multiplied, streamed layers while
 * anything is; what was read is packed by the workers. */
static void finish(double dense_ns, double expert_ns, double expert_bytes, double expert_pack, double stream_bytes,
                   double stream_pack, double drive, double rows, clb_predict_case *c)
{
    const double expert_drive = expert_bytes * 1e9 / drive, stream_drive = stream_bytes * 1e9 / drive;
    c->drive_bytes = expert_bytes + stream_bytes;
    c->drive_ns = expert_drive + stream_drive;
    c->pack_ns = expert_pack + stream_pack;
    c->ns = later(dense_ns + stream_pack + later(expert_ns + expert_pack, expert_drive), c->drive_ns);
    c->tokens_per_second = c->ns > 0 ? rows * 1e9 / c->ns : 0;
}

static double hit_rate(const clb_predict_input *in, bool high)
{
    const clb_plan *p = in->plan;
    const clb_hparams *hp = &in->model->hp;
    if (p->all_experts || !p->n_experts)
        return 1;
    const double share = (double)p->n_slots / p->n_experts;
    if (in->curve)
        return clb_hit_curve_at(in->curve, share * in->curve->n_blocks);
    return clb_hit_rate_zipf(hp->n_experts, hp->top_k, share * hp->n_experts, high ? CLB_TYPICAL_SKEW : 0);
}

static void predict_decode(const clb_predict_input *in, const struct sums *dense, const struct sums *streamed,
                           const struct sums *expert, clb_prediction *out)
{
    const clb_hparams *hp = &in->model->hp;
    const clb_kv_layout *kv = &in->plan_input->kv;
    double fastest = 0; /* of the kernels: about what memory gives */
    for (uint32_t i = 0; i < in->rates->n_kernels; i++)
        fastest = later(fastest, in->rates->kernel[i].decode_bytes_per_second);
    out->expert_uses = (double)in->model->n_moe_layers * hp->top_k;
    out->bytes_per_use = expert->file_bytes;
    out->dense_bytes = dense->bytes;
    out->expert_bytes = out->expert_uses * expert->bytes;
    out->kv_bytes = (double)kv->n_layers * kv->n_kv_heads * (double)clb_kv_position_bytes(kv) * in->n_kv;
    out->dense_ns = dense->decode_ns;
    out->expert_ns = out->expert_uses * expert->decode_ns;
    out->kv_ns = out->kv_bytes * 1e9 / fastest;
    out->loop_ns = in->rates->loop_ns * (LOOPS_PER_LAYER * hp->n_layers + LOOPS_AROUND);
    out->stream_bytes = streamed->file_bytes;
    clb_predict_case *const cases[] = {&out->decode_low, &out->decode_high};
    for (int i = 0; i < 2; i++) {
        cases[i]->hit = hit_rate(in, i == 1);
        const double misses = out->expert_uses * (1 - cases[i]->hit);
        finish(out->dense_ns + out->kv_ns + out->loop_ns, out->expert_ns, misses * expert->file_bytes,
               misses * expert->pack_ns, streamed->file_bytes, streamed->pack_ns, in->rates->drive_bytes_per_second, 1,
               cases[i]);
    }
}

static void predict_prefill(const clb_predict_input *in, const struct sums *dense, const struct sums *streamed,
                            const struct sums *expert, clb_prediction *out)
{
    const clb_hparams *hp = &in->model->hp;
    const clb_plan *p = in->plan;
    const clb_weight *output = in->model->output.tensor ? &in->model->output : &in->model->token_embd;
    const double rows = in->plan_input->max_rows;
    struct sums last = {0};
    add(in->rates, &output->m, output->tensor, 1,
        &last); /* only the last row of a prompt goes through the output matrix */
    out->chunk_rows = in->plan_input->max_rows;
    const double products = rows * (dense->macs_ns - last.macs_ns), experts = rows * out->expert_uses * expert->macs_ns;
    out->chunk_other_ns = (products + experts) * (1 / PREFILL_PRODUCTS - 1);
    out->chunk_dense_ns = products + last.decode_ns;
    out->chunk_expert_ns = experts;
    if (hp->n_experts)
        out->chunk_experts =
            in->model->n_moe_layers * hp->n_experts * (1 - pow(1 - (double)hp->top_k / hp->n_experts, rows));
    /* A chunk goes through the layers once: with fewer slots than it needs experts, LRU has always just thrown out what
     * comes next, and the best that a policy can do is to leave as many alone as there are slots. */
    const double best = p->n_experts ? (double)p->n_slots / p->n_experts : 1;
    const double shares[] = {p->all_experts || !p->n_experts ? 1 : 0, p->all_experts || !p->n_experts ? 1 : best};
    clb_predict_case *const cases[] = {&out->prefill_low, &out->prefill_high};
    for (int i = 0; i < 2; i++) {
        cases[i]->hit = shares[i];
        const double misses = out->chunk_experts * (1 - shares[i]);
        finish(out->chunk_dense_ns + out->chunk_other_ns, out->chunk_expert_ns, misses * expert->file_bytes,
               misses * expert->pack_ns, streamed->file_bytes, streamed->pack_ns, in->rates->drive_bytes_per_second,
               rows, cases[i]);
    }
}

void clb_predict(const clb_predict_input *in, clb_prediction *out)
{
    struct sums dense = {0}, streamed = {0}, expert = {0};
    *out = (clb_prediction){0};
    sum_dense(in, &dense, &streamed);
    if (in->model->n_moe_layers)
        sum_expert(in, &expert);
    predict_decode(in, &dense, &streamed, &expert, out);
    predict_prefill(in, &dense, &streamed, &expert, out);
    out->needs_drive = out->decode_low.drive_bytes > 0 || out->prefill_low.drive_bytes > 0;
}
