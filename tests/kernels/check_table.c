/* What can be said about a plugin's note and tables without calling a kernel. */
#include "check.h"

#include <stdio.h>

#define MAX_SCRATCH ((size_t)64 << 20) /* the engine refuses more */

static bool good_name(const char *name)
{
    const size_t n = name ? strnlen(name, COLIBRI_ID_MAX) : 0;
    return n && n < COLIBRI_ID_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

/* Bits that no header names would never be there; bits of another architecture neither. */
static void check_cpu(struct report *r, const char *what, const uint64_t cpu[COLIBRI_CPU_WORDS])
{
    uint64_t known[COLIBRI_CPU_WORDS] = {0};
#define BIT(id, bit, text) known[(bit) / 64] |= UINT64_C(1) << ((bit) % 64);
    COLIBRI_CPU_MAP(BIT)
#undef BIT
#if defined(__x86_64__)
    const unsigned foreign = 1;
#else
    const unsigned foreign = 0;
#endif
    for (unsigned w = 0; w < COLIBRI_CPU_WORDS; w++)
        if (cpu[w] & ~known[w])
            case_fail(r, "%s asks for CPU bits %#llx of word %u, which have no name: it would never be used", what,
                      (unsigned long long)(cpu[w] & ~known[w]), w);
    if (cpu[foreign] & known[foreign])
        case_fail(r, "%s asks for CPU bits of another architecture: it would never be used", what);
}

bool check_matmul_table(struct report *r, const struct colibri_matmul *m)
{
    const char *const name = m->name && m->name[0] ? m->name : "(no name)";
    const uint32_t before = r->failures;
    case_begin(r, name, 0, "table");
    if (!COLIBRI_HAS(m, run)) {
        case_fail(r, "struct_size is %u, which does not cover `run`", m->struct_size);
        return false;
    }
    if (!good_name(m->name))
        case_fail(r, "the name is empty, too long or not made of a-z 0-9 . _ -");
    if (!m->run)
        case_fail(r, "run is NULL");
    if (m->min_x < 1)
        case_fail(r, "min_x is 0: the smallest number of activation rows is 1");
    if (m->scratch_bytes > MAX_SCRATCH)
        case_fail(r, "scratch_bytes is %zu: at most 64 MiB per thread", m->scratch_bytes);
    if (m->max_ulp != COLIBRI_EXACT)
        case_fail(r, "max_ulp is %u: this program checks kernels that promise equal bits (COLIBRI_EXACT)", m->max_ulp);
    check_cpu(r, "the component", m->cpu);
    const struct fmt *const f = fmt_find(m->gguf_type);
    if (!f)
        case_fail(r, "gguf_type %u is unknown to this program", m->gguf_type);
    else if (m->layout != f->layout)
        case_fail(r, "layout is %u, format %s needs %u", m->layout, f->name, f->layout);
    else if (!m->act || strcmp(m->act, f->act) != 0)
        case_fail(r, "act is \"%s\", format %s needs \"%s\"", m->act ? m->act : "(NULL)", f->name, f->act);
    return r->failures == before;
}

bool check_vecops_table(struct report *r, const struct colibri_vecops *v)
{
    const char *const name = v->name && v->name[0] ? v->name : "(no name)";
    const uint32_t before = r->failures;
    case_begin(r, name, 0, "table");
    if (v->struct_size < offsetof(struct colibri_vecops, rms_norm)) {
        case_fail(r, "struct_size is %u, which covers no member", v->struct_size);
        return false;
    }
    if (!good_name(v->name))
        case_fail(r, "the name is empty, too long or not made of a-z 0-9 . _ -");
    if (v->max_ulp != COLIBRI_EXACT)
        case_fail(r, "max_ulp is %u: this program checks operations that promise equal bits (COLIBRI_EXACT)",
                  v->max_ulp);
    check_cpu(r, "the component", v->cpu);
    const uint32_t takes = COLIBRI_ATTN_TAKES_Q8_0 | COLIBRI_ATTN_TAKES_Q4_0 | COLIBRI_ATTN_TAKES_RECENT;
    if (v->attention_takes & ~takes)
        case_fail(r, "attention_takes has bits %#x, which have no name", v->attention_takes & ~takes);
    if (v->attention_takes && (!COLIBRI_HAS(v, attention) || !v->attention))
        case_fail(r, "attention_takes is %#x, but there is no attention", v->attention_takes);
    return r->failures == before;
}

/* ---- the plugin as a whole ----------------------------------------------------------------------------------------
 */

static const char *name_at(const struct colibri_plugin *p, const char *iface, uint32_t i)
{
    const void *const table = p->get(iface, i);
    return !table                                     ? NULL
           : strcmp(iface, COLIBRI_IFACE_MATMUL) == 0 ? ((const struct colibri_matmul *)table)->name
                                                      : ((const struct colibri_vecops *)table)->name;
}

/* Returns the number of components. */
static uint32_t check_get(struct report *r, const struct colibri_plugin *p, const char *iface)
{
    uint32_t n = 0;
    while (n < 10000 && p->get(iface, n))
        n++;
    if (n == 10000)
        case_fail(r, "get(\"%s\", 9999) is still a component: NULL is expected past the last one", iface);
    static const uint32_t past[] = {1, 2, 1000, 0x7fffffffu};
    for (size_t i = 0; n < 10000 && i < sizeof(past) / sizeof(past[0]); i++)
        if (p->get(iface, n + past[i]) || p->get(iface, UINT32_MAX))
            case_fail(r, "get(\"%s\", %u) is not NULL, although there are only %u components", iface, n + past[i], n);
    for (uint32_t i = 0; n < 10000 && i < n; i++) {
        if (p->get(iface, i) != p->get(iface, i))
            case_fail(r, "get(\"%s\", %u) gives another table when asked again", iface, i);
        for (uint32_t k = 0; k < i; k++) {
            const char *const a = name_at(p, iface, i), *const b = name_at(p, iface, k);
            if (a && b && strcmp(a, b) == 0)
                case_fail(r, "two components of %s are called %s", iface, a);
        }
    }
    return n;
}

void check_plugin(struct report *r, const struct loaded *l)
{
    const struct colibri_plugin *const p = l->plugin;
    char id[COLIBRI_ID_MAX];
    snprintf(id, sizeof(id), "%.63s", l->note.id);
    case_begin(r, id, 0, "note and tables");
    if (!good_name(id))
        case_fail(r, "the id is empty or not made of a-z 0-9 . _ -");
    if (!l->note.version[0] || !l->note.summary[0] || !l->note.license[0])
        case_fail(r, "version, summary or license is empty");
    if (!p->note || memcmp(&p->note->desc, &l->note, sizeof(l->note)) != 0)
        case_fail(r, "the note in memory is not the note of the file");
    uint64_t cpu[COLIBRI_CPU_WORDS];
    memcpy(cpu, l->note.cpu, sizeof(cpu));
    check_cpu(r, "the note", cpu);
    if (p->get("colibri.no-such-interface/1", 0))
        case_fail(r, "get() answers to an interface that it cannot know");
    const uint32_t kernels = check_get(r, p, COLIBRI_IFACE_MATMUL) + check_get(r, p, COLIBRI_IFACE_VECOPS);
    if ((l->note.kinds & COLIBRI_KIND_KERNEL) && !kernels)
        case_fail(r, "the note promises kernels and get() has none");
    if (!(l->note.kinds & COLIBRI_KIND_KERNEL) && kernels)
        case_fail(r, "get() has kernels, but the note lacks COLIBRI_KIND_KERNEL");
}
