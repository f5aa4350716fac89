/* The plugin contract: one ELF note, one exported symbol, tables of functions.
 *
 * A Colibri plugin is a shared object that carries the section `.note.colibri` and exports exactly one
 * symbol, `colibri_plugin_<ident>`, of type `struct colibri_plugin`. The host reads the note with plain
 * file reads; it decides from it alone whether the object is ever mapped. COLIBRI_PLUGIN_DEFINE writes the
 * note and the descriptor from one declaration, so that the two cannot disagree.
 *
 * Rules for every struct below: `struct_size` comes first, fields are only ever appended, and a reader
 * looks at a field only if the writer's struct_size covers it (COLIBRI_HAS). Elements of arrays that cross the border
 * (colibri_param, colibri_access, colibri_expert_ref, colibri_prediction) have no struct_size: both sides step by
 * sizeof, so they never change; a longer one would come with a new interface name.
 *
 * A plugin imports nothing from the core: everything it may call arrives in `struct colibri_host`.
 * It has no constructors, no IFUNCs, no global mutable state, starts no threads and never exits.
 * It is never unloaded once its entry has been called. */
#ifndef COLIBRI_PLUGIN_H
#define COLIBRI_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "colibri/cpu_bits.h"
#include "colibri/status.h"

/* Major: incompatible change, a plugin of another major is refused. Minor: additions only; a plugin built
 * against a later minor than the host's is refused, an earlier one is welcome. */
#define COLIBRI_ABI_MAJOR 1u
#define COLIBRI_ABI_MINOR 0u

/* True if `field` of `*ptr` was written by the side that made the struct. */
#define COLIBRI_HAS(ptr, field) \
    ((ptr)->struct_size >= offsetof(__typeof__(*(ptr)), field) + sizeof((ptr)->field))

/* What a plugin offers; a bit set in the note. */
#define COLIBRI_KIND_KERNEL 0x01u
#define COLIBRI_KIND_FORMAT 0x02u
#define COLIBRI_KIND_EXPERT_POLICY 0x04u
#define COLIBRI_KIND_PREDICTOR 0x08u
#define COLIBRI_KIND_KV_STRATEGY 0x10u
#define COLIBRI_KIND_ALL 0x1fu

/* Interface names for colibri_plugin.get(). `get` returns component number `index` of that interface,
 * NULL past the last one and NULL for any name it does not know. */
#define COLIBRI_IFACE_FORMAT "colibri.format/1"               /* struct colibri_format        */
#define COLIBRI_IFACE_MATMUL "colibri.matmul/1"               /* struct colibri_matmul        */
#define COLIBRI_IFACE_VECOPS "colibri.vecops/1"               /* struct colibri_vecops        */
#define COLIBRI_IFACE_EXPERT_POLICY "colibri.expert-policy/1" /* struct colibri_expert_policy */
#define COLIBRI_IFACE_PREDICTOR "colibri.predictor/1"         /* struct colibri_predictor     */
#define COLIBRI_IFACE_KV_STRATEGY "colibri.kv-strategy/1"     /* struct colibri_kv_strategy   */

enum colibri_log_level {
    COLIBRI_LOG_ERROR = 0,
    COLIBRI_LOG_WARN = 1,
    COLIBRI_LOG_INFO = 2,
    COLIBRI_LOG_DEBUG = 3,
    COLIBRI_LOG_HOST_MISBEHAVING = 4 /* the plugin caught the host breaking this contract */
};

/* Services of the host. Lives until the process ends. Functions are [thread-safe]. */
struct colibri_host {
    uint32_t struct_size;
    uint32_t abi_major, abi_minor;
    /* CPU bits the host lets plugins use (already masked by --cpu-mask). */
    struct colibri_cpu_bits cpu;
    /* printf-style formatting is the plugin's own business: msg is plain UTF-8, copied by the host. */
    void (*log)(const struct colibri_host *host, int level, const char *plugin_id, const char *msg);
    /* Optional services by name, NULL if absent. */
    const void *(*query)(const struct colibri_host *host, const char *iface);
};

#define COLIBRI_NOTE_NAME "Colibri" /* 8 bytes with its NUL */
#define COLIBRI_NOTE_TYPE 1u
#define COLIBRI_ID_MAX 64

/* A 64-bit word that needs only the 4-byte alignment of ELF notes: without it the compiler would put padding between
 * the note's header and its descriptor, and every other note reader would see shifted bytes. */
typedef uint64_t colibri_note_u64 __attribute__((aligned(4)));

/* The note's descriptor bytes, little-endian, 4-byte aligned in the file. */
struct colibri_note_desc {
    uint32_t desc_size; /* of this struct; a host reads what it knows and ignores a longer tail */
    uint16_t abi_major, abi_minor;
    uint32_t kinds;                     /* COLIBRI_KIND_* bits, at least one */
    int32_t rank;                       /* among plugins that pass the filter; higher is tried first */
    colibri_note_u64 cpu[COLIBRI_CPU_WORDS]; /* CPU bits without which the object must not even be mapped */
    char id[COLIBRI_ID_MAX];            /* reverse-DNS or short name: [a-z0-9._-], NUL-terminated */
    char version[16];                   /* semver, for people */
    char symbol[COLIBRI_ID_MAX + 16];   /* the exported symbol's name */
    char summary[96];                   /* one line for `colibri plugins` */
    char license[32];                   /* SPDX expression */
};

struct colibri_elf_note {
    uint32_t namesz, descsz, type;
    char name[8];
    struct colibri_note_desc desc;
};

#ifndef __cplusplus
_Static_assert(offsetof(struct colibri_elf_note, desc) == 20 && sizeof(struct colibri_note_desc) == 320,
               "the note's bytes are part of the ABI");
#endif

struct colibri_plugin {
    uint32_t struct_size;
    const struct colibri_elf_note *note;
    /* [main-thread] Called once per host before get(); may be called again by another host in the same
     * process and must then succeed again. Returns a colibri_status; on failure writes a reason. */
    int (*init)(const struct colibri_host *host, char *why, size_t why_size);
    /* [thread-safe] Component tables are constant and live as long as the object is mapped. */
    const void *(*get)(const char *iface, uint32_t index);
};

#define COLIBRI_EXPORT __attribute__((visibility("default")))

/* Clang's AddressSanitizer would put a red zone into the note section. */
#if defined(__clang__)
#define COLIBRI_NOTE_ATTR __attribute__((section(".note.colibri"), used, aligned(4), no_sanitize("address")))
#else
#define COLIBRI_NOTE_ATTR __attribute__((section(".note.colibri"), used, aligned(4)))
#endif

/* COLIBRI_PLUGIN_DEFINE(ident, .id = "...", .kinds = ..., ...) at file scope, in a translation unit that is
 * compiled for the baseline ISA. `ident` is the id with every character other than [a-z0-9] turned into '_';
 * fields are those of struct colibri_note_desc that the macro does not fill itself. `initfn` may be NULL. */
#define COLIBRI_PLUGIN_DEFINE(ident, initfn, getfn, ...)                                              \
    static const struct colibri_elf_note colibri_note_##ident COLIBRI_NOTE_ATTR = {                   \
            8, sizeof(struct colibri_note_desc), COLIBRI_NOTE_TYPE, COLIBRI_NOTE_NAME,                \
            {.desc_size = sizeof(struct colibri_note_desc), .abi_major = COLIBRI_ABI_MAJOR,           \
             .abi_minor = COLIBRI_ABI_MINOR, .symbol = "colibri_plugin_" #ident, __VA_ARGS__}};       \
    extern const struct colibri_plugin colibri_plugin_##ident;                                        \
    COLIBRI_EXPORT const struct colibri_plugin colibri_plugin_##ident = {                             \
        sizeof(struct colibri_plugin), &colibri_note_##ident, initfn, getfn}

#endif
