/* Deliberately wrong kernels: the checks must catch every one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mistakes.h"
#include "ops/ops.h"

static void lazy_softmax(float *x, size_t n)
{
    clb_ref_softmax(x, n);
    if (n > 16) /* multiplying by the reciprocal instead of dividing */
        x[n - 1] = x[n - 1] * (1.0f + 0x1p-23f);
}

static void short_attention(const struct colibri_attention_args *a)
{
    struct colibri_attention_args b = *a;
    b.n_kv -= a->n_kv > 512; /* loses the last position of a second segment */
    clb_ref_attention(&b);
}

/* The last positions one too early: from recent pages that do not have it. */
static void early_recent(const struct colibri_attention_args *a)
{
    struct colibri_attention_args b = *a;
    b.recent_begin -= (a->k_recent || a->v_recent) && a->recent_begin > a->recent_first;
    clb_ref_attention(&b);
}

/* A first part that no position has gone into, where a call has no segment to do. */
static void empty_segment(const struct colibri_attention_args *a)
{
    if (a->stages == COLIBRI_ATTN_SEGMENTS && a->segment_begin >= a->segment_end)
        memset(a->parts, 0, colibri_attn_part_floats(a->v_dim) * sizeof(float));
    else
        clb_ref_attention(a);
}

/* Values of one type by what suits the other. */
static void mixed_types(const struct colibri_attention_args *a)
{
    clb_ref_attention(a);
    if ((a->stages & COLIBRI_ATTN_COMBINE) && a->k_type == COLIBRI_TYPE_F32 && a->v_type == COLIBRI_TYPE_Q4_0)
        a->out[a->v_dim - 1] += a->out[0] * 0x1p-20f;
}

/* Lines of 16 values, and what does not fill one without the last. */
static void odd_values(const struct colibri_attention_args *a)
{
    clb_ref_attention(a);
    if ((a->stages & COLIBRI_ATTN_COMBINE) && a->v_dim == 1)
        a->out[0] = 0.0f;
}

/* Keys in Q8_0 widened to F16: an element has up to 19 significant bits. */
static void rounding_keys(const struct colibri_attention_args *a)
{
    struct colibri_attention_args b = *a;
    if (a->k_type != COLIBRI_TYPE_Q8_0) {
        clb_ref_attention(&b);
        return;
    }
    const uint32_t seen = a->n_kv + a->n_rows - 1, n = a->k_recent && a->recent_begin < seen ? a->recent_begin : seen;
    colibri_f16 *const rows = malloc((n + 1) * (size_t)a->k_dim * sizeof(*rows));
    const void **const pages = malloc((n / a->page_tokens + 1) * sizeof(*pages));
    if (!rows || !pages)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t blocks = a->k_dim / 32;
        const struct colibri_q8_0 *const k =
            (const struct colibri_q8_0 *)a->k_pages[i / a->page_tokens] + (size_t)(i % a->page_tokens) * blocks;
        pages[i / a->page_tokens] = rows + (size_t)(i - i % a->page_tokens) * a->k_dim;
        for (uint32_t d = 0; d < a->k_dim; d++)
            rows[(size_t)i * a->k_dim + d] =
                colibri_f32_f16(colibri_f16_f32(k[d / 32].d) * (float)k[d / 32].qs[d % 32]);
    }
    b.k_type = COLIBRI_TYPE_F16;
    b.k_pages = pages;
    clb_ref_attention(&b);
    free(rows);
    free(pages);
}

static void rounding_add(float *y, const float *x, size_t n)
{
    clb_vecops_reference()->add(y, x, n);
#if defined(__x86_64__)
    fp_control_set(0x7f80); /* towards zero */
#else
    fp_control_set(0xc00000);
#endif
}

static uint32_t scale_calls;

static void counting_scale(float *y, float s, size_t n)
{
    scale_calls++;
    clb_vecops_reference()->scale(y, s, n);
}

/* ---- one mistake at a time ----------------------------------------------------------------------------------------
 */

/* Runs in a child, so that a mistake cannot hurt the next one. A right kernel must have no failure; a wrong one must
 * have some, and every one of them must be the one that the mistake is there for: so each check is known to work, and
 * to be the only one that would have seen it. Prints the result; returns 1 if it is not as expected. */
static int judge(const char *name, const char *expect, const struct options *o, const struct colibri_matmul *m,
                 const struct colibri_vecops *v, const struct mistake *mistake)
{
    fflush(stdout);
    int fd[2];
    const pid_t pid = pipe(fd) ? -1 : fork();
    if (pid < 0) {
        perror("colibri-kernelcheck: fork");
        exit(1);
    }
    if (pid == 0) {
        crash_handler_install();
        static struct report rep;
        rep = (struct report){.o = o, .quiet = true, .expect = expect ? expect : "no failure"};
        if (mistake)
            state_also(mistake->state, mistake->state_bytes);
        if (m)
            check_matmul(&rep, m);
        else
            check_vecops_component(&rep, v);
        if (write(fd[1], &rep, sizeof(rep)) != sizeof(rep))
            _exit(2);
        _exit(0);
    }
    close(fd[1]);
    struct report rep;
    int status = 0;
    const bool complete = read(fd[0], &rep, sizeof(rep)) == sizeof(rep);
    close(fd[0]);
    if (waitpid(pid, &status, 0) != pid || !complete || !WIFEXITED(status) || WEXITSTATUS(status)) {
        printf("MISSED: %s: the check itself ended (status %d)\n", name, status);
        return 1;
    }
    if (expect && rep.failures && !rep.unexpected) {
        printf("ok: %-22s refused in %u of %u cases: \"%s\"\n", name, rep.failures, rep.cases, expect);
        return 0;
    }
    if (!expect && !rep.failures) {
        printf("ok: %-22s accepted in %u cases\n", name, rep.cases);
        return 0;
    }
    printf("MISSED: %s: %u failures, %u of them not \"%s\"%s%s\n", name, rep.failures, rep.unexpected,
           expect ? expect : "", rep.unexpected ? ", but " : "", rep.other);
    return 1;
}

static struct colibri_matmul table_of(const struct mistake *k)
{
    const struct fmt *const f = fmt_find(k->type);
    return (struct colibri_matmul){
        .struct_size = sizeof(struct colibri_matmul),
        .gguf_type = k->type,
        .layout = f->layout,
        .min_x = 1,
        .name = k->name,
        .act = f->act,
        .scratch_bytes = k->scratch_bytes,
        .run = k->run,
    };
}

static int judge_all(const struct options *o, const struct mistake *list)
{
    const struct colibri_cpu_bits cpu = cpu_bits();
    int missed = 0;
    for (const struct mistake *k = list; k->name; k++) {
        if (o->filter && !strstr(k->name, o->filter))
            continue;
        if (k->cpu & ~cpu.w[0]) {
            printf("skip: %s: this CPU cannot make the mistake\n", k->name);
            continue;
        }
        const struct colibri_matmul m = table_of(k);
        missed += judge(k->name, k->expect, o, &m, NULL, k);
    }
    return missed;
}

/* Tables with one field wrong. */
static int judge_tables(const struct options *o)
{
    enum field { NAME, NAME_CHARS, RUN, MIN_X, SCRATCH, ULP, CPU, FOREIGN, TYPE, LAYOUT, ACT, ACT_NULL, SIZE };
    static const struct {
        const char *name, *expect;
        enum field field;
    } wrong[] = {
        {"table-name", "name is empty", NAME},
        {"table-name-chars", "name is empty", NAME_CHARS},
        {"table-run", "run is NULL", RUN},
        {"table-min-x", "min_x is 0", MIN_X},
        {"table-scratch", "scratch_bytes is", SCRATCH},
        {"table-ulp", "max_ulp is", ULP},
        {"table-cpu-unknown", "have no name", CPU},
        {"table-cpu-foreign", "another architecture", FOREIGN},
        {"table-type", "gguf_type 12345", TYPE},
        {"table-layout", "layout is", LAYOUT},
        {"table-act", "act is \"q8x32\"", ACT},
        {"table-act-null", "act is \"(NULL)\"", ACT_NULL},
        {"table-size", "struct_size is", SIZE},
    };
    int missed = 0;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (o->filter && !strstr(wrong[i].name, o->filter))
            continue;
        struct colibri_matmul m = table_of(&mistakes_result[0]);
        switch (wrong[i].field) {
        case NAME:
            m.name = NULL;
            break;
        case NAME_CHARS:
            m.name = "My Kernel";
            break;
        case RUN:
            m.run = NULL;
            break;
        case MIN_X:
            m.min_x = 0;
            break;
        case SCRATCH:
            m.scratch_bytes = ((size_t)64 << 20) + 1;
            break;
        case ULP:
            m.max_ulp = 1;
            break;
        case CPU:
            m.cpu[0] = UINT64_C(1) << 63;
            break;
        case FOREIGN:
#if defined(__x86_64__)
            m.cpu[1] = COLIBRI_CPU1(NEON);
#else
            m.cpu[0] = COLIBRI_CPU0(AVX2);
#endif
            break;
        case TYPE:
            m.gguf_type = 12345;
            break;
        case LAYOUT:
            m.layout = COLIBRI_LAYOUT_ROWS;
            break;
        case ACT:
            m.act = COLIBRI_ACT_Q8X32;
            break;
        case ACT_NULL:
            m.act = NULL;
            break;
        case SIZE:
            m.struct_size = offsetof(struct colibri_matmul, run);
            break;
        }
        missed += judge(wrong[i].name, wrong[i].expect, o, &m, NULL, NULL);
    }
    return missed;
}

static int judge_vecops(const struct options *o)
{
    const struct colibri_vecops right = *clb_vecops_reference();
    struct {
        const char *name, *expect, *member;
        struct colibri_vecops v;
    } tables[] = {{"vecops-right", NULL, NULL, right},
                  {"lazy-softmax", "reference", ".softmax", right},
                  {"short-attention", "", ".attention", right},
                  {"early-recent", "", ".attention", right},
                  {"rounding-keys", "", ".attention", right},
                  {"empty-segment", "", ".attention", right},
                  {"mixed-types", "", ".attention-edges", right},
                  {"odd-values", "", ".attention-edges", right},
                  {"rounding-add", "floating-point control", ".elementwise", right},
                  {"counting-scale", "changed writable data", ".elementwise", right},
                  {"vecops-empty", "offers no operation", NULL, {0}}};
    static const struct mistake counter = {
        .name = "counter", .state = &scale_calls, .state_bytes = sizeof(scale_calls)};
    tables[1].v.softmax = lazy_softmax;
    tables[2].v.attention = short_attention;
    tables[3].v.attention = early_recent;
    tables[4].v.attention = rounding_keys;
    tables[5].v.attention = empty_segment;
    tables[6].v.attention = mixed_types;
    tables[7].v.attention = odd_values;
    tables[8].v.add = rounding_add;
    tables[9].v.scale = counting_scale;
    tables[10].v.struct_size = sizeof(right);
    tables[10].v.name = "empty";
    int missed = 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (o->filter && !strstr(tables[i].name, o->filter))
            continue;
        struct options wide = *o;
        wide.filter = tables[i].member;
        if (tables[i].member && wide.work < 1000000)
            wide.work = 1000000; /* a second segment needs more than 512 positions */
        missed += judge(tables[i].name, tables[i].expect, &wide, NULL, &tables[i].v, &counter);
    }
    return missed;
}

int self_test(const struct options *o)
{
    return judge_all(o, mistakes_result) + judge_all(o, mistakes_memory) + judge_all(o, mistakes_call) +
           judge_tables(o) + judge_vecops(o);
}
