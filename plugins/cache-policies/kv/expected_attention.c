/* expected-attention: those positions stay that queries like the recent ones can be expected to look at, times what
 * they would contribute.
 *
 * Source: Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
 * Distribution", arXiv:2510.00636. Queries are taken as normally distributed before rotation, with mean m and
 * covariance C; R is the rotation averaged over the next `future` positions. Then the expected attention to key k is
 * the softmax over the keys of
 *     scale * k . (R m) + scale^2 / 2 * k . (R C R') k
 * and the rank is (that + epsilon) * |v|. Defaults of its authors' code: 512 future positions, 4 sinks, epsilon 0. The
 * paper multiplies v by the output projection, their code does not. They take m and C from all queries of the prompt;
 * here they come from the last 128, while generating as after a prompt. */
#include <stdio.h>
#include <stdlib.h>

#include "colibri/kv_select.h"
#include "colibri/numerics.h"

enum { FUTURE, SINKS, COVARIANCE, V_NORM, EPSILON, MAX };

static const struct colibri_param params[] = {
    [FUTURE] = {"future", 1, 1048576, 512, 1, "coming positions over which the rotation is averaged"},
    [SINKS] = {"sinks", 0, 65536, 4, 1, "first positions that always stay"},
    [COVARIANCE] = {"covariance", 0, 1, 1, 1,
                    "1: use the covariance of the queries; 0: their mean alone (much cheaper)"},
    [V_NORM] = {"v-norm", 0, 1, 1, 1, "1: multiply by the norm of the value; 0: attention alone"},
    [EPSILON] = {"epsilon", 0, 1, 0, 0, "added to the attention before it is multiplied"},
    [MAX] = {"max", 0, 1, 0, 1, "of the query heads of a KV head: 1: the maximum, 0: the mean"},
};

/* So many keys in one go, element by element beside each other. */
typedef float quad __attribute__((vector_size(16), aligned(4)));
enum { QUADS = 4, AT_ONCE = 4 * QUADS };

struct expected {
    uint32_t dim, v_dim, n_rot, sinks, future, most;
    int neox, compact, covariance, v_norm, max;
    float epsilon, scale;
    const float *inv_freq;
    float *row, *cs, *mean, *keys, *cov; /* [dim or v_dim], [n_rot], [dim], [dim][AT_ONCE], [dim][dim] */
    float *logit;                        /* [max_positions], and room for AT_ONCE */
};

/* Behind the struct: what its pointers name. */
static size_t floats_of(const struct colibri_kv_config *config)
{
    const size_t dim = config->head_dim, row = dim > config->v_dim ? dim : config->v_dim;
    return row + config->n_rot + dim + AT_ONCE * dim + dim * dim + config->max_positions + AT_ONCE;
}

static uint64_t state_bytes(const struct colibri_kv_config *config)
{
    return sizeof(struct expected) + floats_of(config) * sizeof(float);
}

static void *create(const struct colibri_kv_config *config, char *why, size_t why_size)
{
    const size_t dim = config->head_dim, v_dim = config->v_dim, n_rot = config->n_rot;
    const size_t row = dim > v_dim ? dim : v_dim;
    struct expected *s = malloc(sizeof *s + floats_of(config) * sizeof(float));
    if (!s) {
        snprintf(why, why_size, "out of memory");
        return NULL;
    }
    *s = (struct expected){
        .dim = config->head_dim,
        .v_dim = config->v_dim,
        .n_rot = config->n_rot,
        .sinks = (uint32_t)colibri_kv_param(config, params, SINKS),
        .future = (uint32_t)colibri_kv_param(config, params, FUTURE),
        .most = config->max_positions,
        .neox = config->neox,
        .compact = config->positions == COLIBRI_KV_POS_COMPACT,
        .covariance = colibri_kv_param(config, params, COVARIANCE) != 0,
        .v_norm = colibri_kv_param(config, params, V_NORM) != 0,
        .max = colibri_kv_param(config, params, MAX) != 0,
        .epsilon = (float)colibri_kv_param(config, params, EPSILON),
        .scale = config->attention_scale,
        .inv_freq = config->inv_freq,
    };
    s->row = (float *)(s + 1);
    s->cs = s->row + row;
    s->mean = s->cs + n_rot;
    s->keys = s->mean + dim;
    s->cov = s->keys + AT_ONCE * dim;
    s->logit = s->cov + dim * dim;
    return s;
}

static void reset(void *self)
{
    (void)self;
}

/* Mean cosine and sine of each pair over the `future` positions from `next` on, as a geometric sum in closed form. */
static void average_rotation(const struct expected *s, double next)
{
    const double n = s->future;
    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        const double f = s->inv_freq[i], half = sin(f / 2);
        const double size = half != 0 ? sin(n * f / 2) / (n * half) : 1;
        const double middle = f * (next + (n - 1) / 2);
        s->cs[2 * i] = (float)(size * cos(middle));
        s->cs[2 * i + 1] = (float)(size * sin(middle));
    }
}

/* x[0], x[step], x[2 * step], ... as one vector. */
static void rotate(const struct expected *s, float *x, size_t step)
{
    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        float *const a = x + (s->neox ? i : 2 * i) * step;
        float *const b = x + (s->neox ? i + s->n_rot / 2 : 2 * i + 1) * step;
        const float c = s->cs[2 * i], d = s->cs[2 * i + 1], before = *a;
        *a = before * c - *b * d;
        *b = before * d + *b * c;
    }
}

/* Of the queries of one head: R m and R C R'. */
static void future_queries(const struct expected *s, const struct colibri_kv_view *view, uint32_t head)
{
    const size_t dim = s->dim;
    memcpy(s->mean, view->q_mean + head * dim, dim * sizeof(float));
    rotate(s, s->mean, 1);
    if (!s->covariance)
        return;
    memcpy(s->cov, view->q_cov + head * dim * dim, dim * dim * sizeof(float));
    for (size_t i = 0; i < dim; i++)
        rotate(s, s->cov + i * dim, 1);
    for (size_t i = 0; i < dim; i++)
        rotate(s, s->cov + i, dim);
    for (size_t i = 0; i < dim; i++) /* the upper half again as the lower one, whose rows are read in order */
        for (size_t d = i + 1; d < dim; d++)
            s->cov[d * dim + i] = s->cov[i * dim + d];
}

/* Logits of the keys in s->keys, each by its own chain of additions: neither its neighbours nor the CPU show. The
 * covariance counts by half of it: this is where the time goes. */
static void logits(const struct expected *s, float *out)
{
    const uint32_t dim = s->dim;
    const quad *const keys = (const quad *)(const void *)s->keys;
    quad linear[QUADS] = {0}, square[QUADS] = {0};
    for (uint32_t d = 0; d < dim; d++)
        for (uint32_t n = 0; n < QUADS; n++)
            linear[n] += keys[d * QUADS + n] * s->mean[d];
    for (uint32_t d = 0; s->covariance && d < dim; d++) {
        const quad *const x = keys + d * QUADS;
        const float *const row = s->cov + (size_t)d * dim;
        quad a = {0}, b = {0}, e = {0}, f = {0}; /* by name, so that they stay in registers */
        float c;
        for (uint32_t i = 0; i < d; i++) {
            c = row[i];
            a += keys[i * QUADS] * c;
            b += keys[i * QUADS + 1] * c;
            e += keys[i * QUADS + 2] * c;
            f += keys[i * QUADS + 3] * c;
        }
        c = row[d];
        square[0] += (a + 0.5f * x[0] * c) * x[0];
        square[1] += (b + 0.5f * x[1] * c) * x[1];
        square[2] += (e + 0.5f * x[2] * c) * x[2];
        square[3] += (f + 0.5f * x[3] * c) * x[3];
    }
    for (uint32_t n = 0; n < QUADS; n++) {
        const quad sum = s->covariance ? s->scale * linear[n] + s->scale * s->scale * square[n] : s->scale * linear[n];
        memcpy(out + 4 * n, &sum, sizeof sum);
    }
}

/* Adds the expected attention of one query head to out[from .. n). */
static void add_head(const struct expected *s, const struct colibri_kv_view *view, uint32_t from, float *out)
{
    float best = -INFINITY, sum = 0;
    for (uint32_t at = from; at < view->n; at += AT_ONCE) {
        for (uint32_t r = 0; r < AT_ONCE; r++) {
            if (at + r < view->n)
                view->read_k(view, at + r, s->row);
            for (uint32_t d = 0; d < s->dim; d++)
                s->keys[d * AT_ONCE + r] = s->row[d];
        }
        logits(s, s->logit + at);
    }
    for (uint32_t i = from; i < view->n; i++) {
        s->logit[i] = colibri_kv_number(s->logit[i]);
        if (s->logit[i] == INFINITY)
            s->logit[i] = -INFINITY; /* overflow: nothing is known */
        best = s->logit[i] > best ? s->logit[i] : best;
    }
    for (uint32_t i = from; i < view->n; i++) {
        s->logit[i] = s->logit[i] > -INFINITY ? colibri_expf(s->logit[i] - best) : 0.0f;
        sum += s->logit[i];
    }
    for (uint32_t i = from; sum > 0 && i < view->n; i++) {
        const float p = s->logit[i] / sum;
        out[i] = s->max ? (p > out[i] ? p : out[i]) : out[i] + p / (float)view->n_heads;
    }
}

static void score(void *self, const struct colibri_kv_view *view, float *out)
{
    const struct expected *s = self;
    const struct colibri_kv_ends ends = colibri_kv_ends_of(view, s->sinks, 1);
    if (view->n > s->most)
        return; /* the host takes scores that are left out for a fault */
    for (uint32_t i = 0; i < view->n; i++)
        out[i] = 0;
    average_rotation(s, s->compact ? (double)view->n_keep : (double)view->next_position);
    for (uint32_t head = 0; view->n_last && head < view->n_heads; head++) {
        future_queries(s, view, head);
        add_head(s, view, ends.first, out);
    }
    for (uint32_t i = ends.first; s->v_norm && i < view->n; i++) {
        float sum = 0;
        view->read_v(view, i, s->row);
        for (uint32_t d = 0; d < s->v_dim; d++)
            sum += s->row[d] * s->row[d];
        out[i] = colibri_kv_number((out[i] + s->epsilon) * sqrtf(sum));
    }
    colibri_kv_mark_ends(view, ends, out);
}

static const struct colibri_kv_strategy strategy = {
    .struct_size = sizeof strategy,
    .flags = COLIBRI_KV_FLAG_PER_HEAD | COLIBRI_KV_FLAG_DETERMINISTIC,
    .needs = COLIBRI_KV_NEED_Q_STATS | COLIBRI_KV_NEED_K_POST_ROPE | COLIBRI_KV_NEED_V,
    .triggers = COLIBRI_KV_AT_PREFILL_END | COLIBRI_KV_AT_OVER_BUDGET,
    .window_w = 128,
    .positions = COLIBRI_KV_POS_ORIGINAL,
    .n_params = sizeof params / sizeof params[0],
    .name = "expected-attention",
    .summary = "keeps the tokens that queries like the recent ones can be expected to look at (lossy)",
    .source = "Expected Attention, arXiv:2510.00636",
    .params = params,
    .create = create,
    .destroy = free,
    .reset = reset,
    .score = score,
    .state_bytes = state_bytes,
};

static const void *get(const char *iface, uint32_t index)
{
    return index == 0 && !strcmp(iface, COLIBRI_IFACE_KV_STRATEGY) ? &strategy : NULL;
}

COLIBRI_PLUGIN_DEFINE(colibri_kv_strategy_expected_attention, NULL, get, .id = "colibri.kv-strategy.expected-attention",
                      .kinds = COLIBRI_KIND_KV_STRATEGY, .version = "1.0.0", .license = "MIT",
                      .summary = "KV strategy: keeps what queries like the recent ones would look at (lossy)");
