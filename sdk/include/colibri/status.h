/* Status codes shared by the core, its plugins and its embedders.
 *
 * One table: the enum, the names and the process exit codes of the `colibri` tool derive from it.
 * Codes are append-only; a plugin returns one of them and never exits or aborts. */
#ifndef COLIBRI_STATUS_H
#define COLIBRI_STATUS_H

/* X(NAME, value, exit code of the tool, short meaning) */
#define COLIBRI_STATUS_MAP(X)                                                                                          \
    X(OK, 0, 0, "success")                                                                                             \
    X(USAGE, 1, 2, "wrong flag, key or argument")                                                                      \
    X(NOT_FOUND, 2, 3, "a file, key or id does not exist")                                                             \
    X(IO, 3, 4, "the operating system refused or cut short a read/write")                                              \
    X(FORMAT, 4, 5, "a file's bytes are not what its format says")                                                     \
    X(UNSUPPORTED, 5, 6, "valid, but this build cannot run it")                                                        \
    X(NOMEM, 6, 7, "memory or the memory budget is exhausted")                                                         \
    X(LIMIT, 7, 8, "a stated limit (context, size, count) is exceeded")                                                \
    X(PLUGIN, 8, 9, "a plugin was refused or misbehaved")                                                              \
    X(CANCELLED, 9, 130, "stopped on request")                                                                         \
    X(INTERNAL, 10, 70, "a bug in Colibri: please report it")                                                          \
    X(CHECK, 11, 1, "a comparison or check did not come out as demanded")                                              \
    X(BUSY, 12, 75, "too much is waiting already: try again later")

enum colibri_status {
#define COLIBRI_STATUS_ENUM(name, value, exit_code, text) COLIBRI_E_##name = (value),
    COLIBRI_STATUS_MAP(COLIBRI_STATUS_ENUM)
#undef COLIBRI_STATUS_ENUM
};

#define COLIBRI_OK COLIBRI_E_OK

#endif
