/* Calls into foreign libraries, and the numbers by which a library tells instances apart. */
#include <stdio.h>
#include <stdlib.h>

#include "plugin/foreign_private.h"
#include "plugin/fpstate.h"

bool clb_foreign_run(clb_foreign *f, clb_foreign_call *c, const clb_foreign_value *v, clb_foreign_result *result)
{
    union {
        uint32_t u32;
        uint64_t u64;
        float f32;
        double f64;
    } values[CLB_FOREIGN_MAX_ARGS];
    void *args[CLB_FOREIGN_MAX_ARGS];
    for (unsigned i = 0; i < c->signature.n; i++) {
        switch (c->signature.arg[i].as) {
        case CLB_FT_U32:
            values[i].u32 = (uint32_t)v[i].u64;
            break;
        case CLB_FT_F32:
            values[i].f32 = (float)v[i].f64;
            break;
        case CLB_FT_F64:
            values[i].f64 = v[i].is_float ? v[i].f64 : (double)v[i].u64;
            break;
        default:
            values[i].u64 = v[i].u64;
        }
        args[i] = &values[i];
    }
    if (!f->spec.thread_safe)
        pthread_mutex_lock(&f->lock);
    const clb_fpstate before = clb_fpstate_get();
    ffi_call(&c->cif, c->fn, result, args);
    const bool same = clb_fpstate_same(before, clb_fpstate_get());
    if (!same)
        clb_fpstate_set(before);
    if (!f->spec.thread_safe)
        pthread_mutex_unlock(&f->lock);
    return same;
}

uint32_t clb_foreign_take_number(clb_foreign *f, bool alone, const char *why_alone, char *why, size_t why_size)
{
    uint32_t number = 0, live = 0;
    pthread_mutex_lock(&f->instances);
    for (uint32_t i = 0; i < f->n_taken; i++)
        live += f->taken[i];
    while (number < f->n_taken && f->taken[number])
        number++;
    if (live && alone) {
        snprintf(why, why_size, "%s", why_alone);
        number = UINT32_MAX;
    } else if (number == f->n_taken) {
        uint8_t *const more = realloc(f->taken, number + 1);
        if (more) {
            f->taken = more;
            f->n_taken++;
        } else {
            snprintf(why, why_size, "out of memory");
            number = UINT32_MAX;
        }
    }
    if (number != UINT32_MAX)
        f->taken[number] = 1;
    pthread_mutex_unlock(&f->instances);
    return number;
}

void clb_foreign_give_number(clb_foreign *f, uint32_t number)
{
    pthread_mutex_lock(&f->instances);
    f->taken[number] = 0;
    pthread_mutex_unlock(&f->instances);
}
