/* The `colibri` executable: finds the subcommand, hands it its settings, and turns its status into one line and an exit
 * code. */
#include "commands.h"
#include "help.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int unknown_command(const char *name, clb_error *err)
{
    const char *names[256];
    size_t n = 0;
    for (; clb_commands[n] && n < sizeof names / sizeof *names; n++)
        names[n] = clb_commands[n]->name;
    const long at = clb_nearest(name, names, n);
    if (at >= 0)
        return clb_fail(err, COLIBRI_E_USAGE, "unknown command '%.80s'; did you mean '%s'?", name, names[at]);
    return clb_fail(err, COLIBRI_E_USAGE, "unknown command '%.80s' ('colibri --help' lists them)", name);
}

static int help_or_man(int argc, char **argv, bool man, clb_error *err)
{
    if (argc > 1)
        return clb_fail(err, COLIBRI_E_USAGE, "unexpected argument '%.80s'", argv[1]);
    if (!argc) {
        (man ? clb_man_overview : clb_help_overview)(stdout);
        return COLIBRI_OK;
    }
    if (man && !strcmp(argv[0], "colibri.ini")) {
        clb_man_ini(stdout);
        return COLIBRI_OK;
    }
    const clb_command *command = clb_command_find(argv[0]);
    if (!command)
        return unknown_command(argv[0], err);
    (man ? clb_man_command : clb_help_command)(stdout, command);
    return COLIBRI_OK;
}

/* "colibri", "colibri help run", and the flags before a command. */
static int without_command(int argc, char **argv, clb_error *err)
{
    const char *word = argc ? argv[0] : "--help";
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help"))
        return help_or_man(argc ? argc - 1 : 0, argv + 1, false, err);
    if (!strcmp(word, "--man"))
        return help_or_man(argc - 1, argv + 1, true, err);
    if (!strcmp(word, "--version")) {
        if (argc > 1)
            return clb_fail(err, COLIBRI_E_USAGE, "unexpected argument '%.80s'", argv[1]);
        puts("colibri " COLIBRI_VERSION);
        return COLIBRI_OK;
    }
    if (!strcmp(word, "--completion")) {
        if (argc != 2 || strcmp(argv[1], "bash") != 0)
            return clb_fail(err, COLIBRI_E_USAGE, "--completion needs the shell's name: bash");
        clb_completion_bash(stdout);
        return COLIBRI_OK;
    }
    if (*word == '-') {
        static const char *const names[] = {"--help", "--man", "--version", "--completion"};
        const long at = clb_nearest(word, names, 4);
        if (at >= 0)
            return clb_fail(err, COLIBRI_E_USAGE, "unknown flag '%.80s'; did you mean '%s'?", word, names[at]);
        return clb_fail(err, COLIBRI_E_USAGE, "flag '%.80s' before the command: write colibri COMMAND [flags]", word);
    }
    return unknown_command(word, err);
}

static int with_command(const clb_command *command, int argc, char **argv, clb_term *term, clb_error *err)
{
    clb_args args;
    int rc = COLIBRI_OK;
    CLB_GO(clb_args_parse(&args, command, argc, argv, err));
    if (args.help) {
        clb_help_command(stdout, command);
        goto done;
    }
    const int level = clb_args_level(&args);
    term->progress = level > COLIBRI_LOG_ERROR;
    args.log = clb_term_log(term, level);
    CLB_GO(clb_args_load(&args, err));
    if (!args.print_config)
        rc = command->run(&args, err);
    else if (clb_flag_find(command->flags, "json") && clb_args_has(&args, "json"))
        rc = clb_print_config_json(stdout, args.config, command, err);
    else
        clb_print_config(stdout, args.config, command);
done:
    clb_args_free(&args);
    return rc;
}

/* Output that never reached its file must not look like success. */
static int close_stdout(int rc, clb_error *err)
{
    const int failed_before = ferror(stdout);
    errno = 0;
    const int flushed = fflush(stdout), number = errno;
    if (!rc && flushed)
        return clb_fail_errno(err, COLIBRI_E_IO, number, "cannot write standard output");
    if (!rc && failed_before)
        return clb_fail(err, COLIBRI_E_IO, "cannot write standard output");
    /* Network file systems report a full disk at close. A stdout that was never open is no output at all. */
    if (!rc && close(STDOUT_FILENO) && errno != EBADF)
        return clb_fail_errno(err, COLIBRI_E_IO, errno, "cannot write standard output");
    return rc;
}

/* With a standard stream closed, the next file opened would become it, and what is printed would go into that file. What
 * takes its place here fails like a closed one: nothing can be read from the first, nothing written to the others. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free number: fd */
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    setlocale(LC_CTYPE, ""); /* for line editing; numbers stay as in C */
    clb_interrupt_install();
    const clb_command *command = argc > 1 ? clb_command_find(argv[1]) : NULL;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "colibri%s%s", command ? " " : "", command ? command->name : "");
    clb_term term;
    clb_term_init(&term, stderr, prefix, true);
    clb_error err = {0};
    int rc = command ? with_command(command, argc - 2, argv + 2, &term, &err)
                     : without_command(argc > 1 ? argc - 1 : 0, argv + 1, &err);
    rc = close_stdout(rc, &err);
    clb_term_clear(&term);
    if (rc)
        clb_term_error(&term, *err.msg ? err.msg : clb_status_text(rc));
    return clb_status_exit_code(rc);
}
