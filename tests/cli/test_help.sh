#!/bin/bash
# Help, man pages and completion of every command; signals.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI

run 0 "$c"
cp "$WORK/out" "$WORK/overview"
run 0 "$c" --help
cmp -s "$WORK/out" "$WORK/overview" || fail "'colibri' and 'colibri --help' differ"
run 0 "$c" --version
grep -qxE 'colibri [0-9]+\.[0-9]+\.[0-9]+' "$WORK/out" || fail "--version: $(cat "$WORK/out")"
commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]\S*\).*/\1/p' "$WORK/overview")
[ -n "$commands" ] || fail "the overview lists no command"
for source in "$SOURCE_DIR"/tools/cmd_*.c; do
    name=$(basename "$source" .c)
    grep -qx "${name#cmd_}" <<<"$commands" || fail "the overview lacks ${name#cmd_}"
done
refuse 2 "unknown command 'confih'; did you mean 'config'?" "$c" help confih
refuse 2 "unknown command 'confih'" "$c" --man confih
refuse 2 "unexpected argument 'x'" "$c" --version x
refuse 2 "--completion needs the shell's name: bash" "$c" --completion zsh

# Tabs and controls never; no line wider than the terminal, but for examples and unbreakable words.
too_wide() {
    awk -v w="$1" '/^[A-Z]/ { examples = /^Examples:/ }
        length($0) > w && !(examples && !/^  # /) && NF > 2 { print; bad = 1 } END { exit !bad }' "$WORK/out"
}
for command in $commands; do
    for columns in 60 80 200; do
        run 0 env COLUMNS=$columns "$c" "$command" --help
        too_wide $((columns > 120 ? 120 : columns)) && fail "'$command --help' is wider than $columns columns"
    done
    grep -qP '[^\x20-\x7e]' "$WORK/out" && fail "'$command --help' has bytes that are not printable ASCII"
    for part in "colibri $command - " "Usage:" "Flags:" "Exit codes:" "--print-config" "--config FILE"; do
        out "$part"
    done
    grep -q '^Examples:' "$WORK/out" || fail "'$command --help' shows no example"
    cp "$WORK/out" "$WORK/help"
    run 0 env COLUMNS=200 "$c" help "$command"
    cmp -s "$WORK/out" "$WORK/help" || fail "'help $command' and '$command --help' differ"
    # Each flag once: a command's own must not hide a setting's.
    repeated=$(sed -n '/^Flags:/,/^Examples:/s/^  \(-., \)\?    *\(--[][a-z-]*\).*/\2/p; s/^  -., \(--[][a-z-]*\).*/\1/p' "$WORK/help" | grep -v '^--set$' | sort | uniq -d)
    [ -z "$repeated" ] || fail "'$command' has these flags twice: $repeated"
    short=$(sed -n 's/^  \(-.\), --.*/\1/p' "$WORK/help" | sort | uniq -d)
    [ -z "$short" ] || fail "'$command' has these short flags twice: $short"
    # The summary is one line, the same in the overview.
    grep -qE "^  $command +[^ ]" "$WORK/overview" || fail "the overview says nothing about $command"
    # Examples of a man page or help must use this program's own flags.
    for flag in $(sed -n '/^Examples:/,/^Exit codes:/s/^  \(colibri .*\)/\1/p' "$WORK/help" | grep -oE -- ' --[a-z][a-z-]*' | sort -u); do
        grep -qE -- "(^|[ \[])$flag([ =,;]|\$)|--\[no-\]${flag#--}|--\[no-\]${flag#--no-}" "$WORK/help" ||
            grep -qE -- "also $flag" "$WORK/help" || fail "an example of '$command' uses $flag, which it does not have"
    done
done
run 0 "$c" config --threads 4 --help --nonsense
out "Usage:"

# Man pages: roff without warnings, where a formatter is installed.
checked=
for page in "" colibri.ini $commands; do
    run 0 "$c" --man $page
    cp "$WORK/out" "$WORK/page"
    if command -v groff >/dev/null; then
        checked+=g
        run 0 groff -man -ww -z -Tutf8 "$WORK/page"
        [ -s "$WORK/err" ] && fail "--man $page: groff: $(head -3 "$WORK/err")"
    fi
    if command -v mandoc >/dev/null; then
        checked+=m
        # No date on purpose: two builds of a version print the same page.
        mandoc -Tlint -Wstyle "$WORK/page" 2>&1 | grep -vE 'missing date|filename/section mismatch' >"$WORK/lint" &&
            fail "--man $page: mandoc: $(head -3 "$WORK/lint")"
    fi
done
[ -n "$checked" ] || echo "note: neither groff nor mandoc is installed, so the man pages were only printed"
if [ -d "$BINARY_DIR/share/man/man1" ]; then
    for command in $commands; do
        run 0 "$c" --man "$command"
        cmp -s "$WORK/out" "$BINARY_DIR/share/man/man1/colibri-$command.1" || fail "the built page of $command is not the current one"
    done
fi

# Completion, in a real bash.
run 0 "$c" --completion bash
cp "$WORK/out" "$WORK/completion"
complete_words() {
    bash --norc -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _colibri; printf "%s\n" "${COMPREPLY[@]}"' - "$WORK/completion" "$@"
}
[ "$(complete_words colibri conf)" = config ] || fail "completion of 'conf': $(complete_words colibri conf)"
[ "$(complete_words colibri config --thr)" = --threads ] || fail "completion of '--thr'"
[ "$(complete_words colibri config --no-ml)" = --no-mlock ] || fail "completion of '--no-ml'"
[ "$(complete_words colibri config --mode m)" = mmap ] || fail "completion of '--mode m'"
[ "$(complete_words colibri config --config /etc/hostn)" = /etc/hostname ] || [ ! -e /etc/hostname ] || fail "completion of a file"

# The first SIGINT asks, the second ends the process.
mkfifo "$WORK/fifo"
exec 9<>"$WORK/fifo"
# Not "&": that would start it with SIGINT ignored.
python=$(command -v python3) || skip "the rest needs python3"
"$python" - "$c" "$WORK/fifo" <<'PY' || fail "signals"
import os, signal, subprocess, sys, time
p = subprocess.Popen([sys.argv[1], "config", "check", sys.argv[2]], stderr=subprocess.PIPE)
def waiting():
    with open(f"/proc/{p.pid}/wchan") as f, open(f"/proc/{p.pid}/stat") as s:
        return s.read().rsplit(")", 1)[1].split()[0] == "S"
for _ in range(200):
    with open(f"/proc/{p.pid}/status") as f:
        caught = int([l for l in f if l.startswith("SigCgt")][0].split()[1], 16)
    if caught & 1 << (signal.SIGINT - 1) and waiting():
        break
    time.sleep(0.01)
p.send_signal(signal.SIGINT)
time.sleep(0.3)
assert p.poll() is None, f"the first SIGINT ended it: {p.returncode}"
p.send_signal(signal.SIGTERM)
assert p.wait(10) == -signal.SIGTERM, p.returncode
PY
finish
