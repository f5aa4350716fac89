/* Vector operations behind the trampoline: a table whose members call the plugin's, one by one, and report what a call
 * broke. The checks of the results need not know. */
#include "call.h"

static const struct colibri_vecops *real;
static struct report *report;

#define WRAP(member, params, ...)                                                                                      \
    static void wrap_##member params                                                                                   \
    {                                                                                                                  \
        struct call_verdict v;                                                                                         \
        CHECKED_CALL(&v, real->member, __VA_ARGS__);                                                                   \
        call_report(report, &v, "");                                                                                   \
    }
WRAP(rms_norm, (float *y, const float *x, const float *w, size_t n, float eps), y, x, w, n, eps)
WRAP(rope, (float *x, const float *cs, size_t n_rot, int neox), x, cs, n_rot, neox)
WRAP(softmax, (float *x, size_t n), x, n)
WRAP(swiglu, (float *y, const float *g, const float *u, size_t n), y, g, u, n)
WRAP(add, (float *y, const float *x, size_t n), y, x, n)
WRAP(axpy, (float *y, const float *x, float s, size_t n), y, x, s, n)
WRAP(axpy_x16, (float *y, const float *x, size_t stride, const float *s, uint32_t n_s, size_t n), y, x, stride, s, n_s,
     n)
WRAP(scale, (float *y, float s, size_t n), y, s, n)
WRAP(act_q8x32, (const float *x, struct colibri_act_q8x32 *out, size_t n), x, out, n)
WRAP(act_q8x256, (const float *x, struct colibri_act_q8x256 *out, size_t n), x, out, n)
WRAP(f32_to_f16, (const float *x, colibri_f16 *out, size_t n), x, out, n)
WRAP(f16_to_f32, (const colibri_f16 *x, float *out, size_t n), x, out, n)
WRAP(attention, (const struct colibri_attention_args *args), args)

/* Members behind the ones above, of later versions, are taken over as they are. */
struct colibri_vecops wrap_vecops(struct report *r, const struct colibri_vecops *v)
{
    real = v;
    report = r;
    struct colibri_vecops t = {0};
    memcpy(&t, v, v->struct_size < sizeof(t) ? v->struct_size : sizeof(t));
#define USE(member)                                                                                                    \
    if (t.member)                                                                                                      \
        t.member = wrap_##member;
    USE(rms_norm)
    USE(rope)
    USE(softmax)
    USE(swiglu)
    USE(add)
    USE(axpy)
    USE(scale)
    USE(act_q8x32)
    USE(act_q8x256)
    USE(f32_to_f16)
    USE(attention)
    USE(axpy_x16)
    USE(f16_to_f32)
    return t;
}

/* A function of the table, to find its plugin's memory by. */
static void (*any_member(const struct colibri_vecops *t))(void)
{
    void (*const members[])(void) = {
        (void (*)(void))t->rms_norm,   (void (*)(void))t->rope,      (void (*)(void))t->softmax,
        (void (*)(void))t->swiglu,     (void (*)(void))t->add,       (void (*)(void))t->axpy,
        (void (*)(void))t->scale,      (void (*)(void))t->act_q8x32, (void (*)(void))t->act_q8x256,
        (void (*)(void))t->f32_to_f16, (void (*)(void))t->attention, (void (*)(void))t->axpy_x16,
        (void (*)(void))t->f16_to_f32,
    };
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        if (members[i])
            return members[i];
    return NULL;
}

void check_vecops_component(struct report *r, const struct colibri_vecops *v)
{
    const uint32_t before = r->cases;
    if (!check_vecops_table(r, v))
        return;
    struct colibri_vecops known = {0};
    memcpy(&known, v, v->struct_size < sizeof(known) ? v->struct_size : sizeof(known));
    void (*const member)(void) = any_member(&known);
    if (!member) {
        case_fail(r, "offers no operation");
        return;
    }
    struct state *const state = state_watch(member);
    const struct colibri_vecops wrapped = wrap_vecops(r, &known);
    check_vecops(r, &wrapped);
    if (r->cases == before + 1 && !r->failures)
        r->cases = before; /* nothing but the table: the filter meant another component */
    state_compare(r, state, v->name);
}
