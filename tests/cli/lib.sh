# Shared by the scripts in this folder: `. "$(dirname "$0")/lib.sh"`. Each check prints what went wrong and goes on; `finish`
# gives the exit code. The caller's settings are kept out.
set -u
: "${COLIBRI:?path of the executable}" "${SOURCE_DIR:?}" "${BINARY_DIR:?}"
"$COLIBRI" --version >/dev/null || { echo "$COLIBRI does not run: build it first"; exit 1; }
for variable in $(compgen -e | grep '^COLIBRI_'); do unset "$variable"; done
WORK=$(mktemp -d) || exit 1
trap '[ "$BASHPID" = "$$" ] && rm -rf "$WORK"' EXIT # a background child that is killed early would run it too
export XDG_CONFIG_HOME=$WORK/xdg HOME=$WORK/home COLUMNS=80
unset LANG LANGUAGE LC_ALL
umask 022
failures=0

fail() {
    echo "FAIL: $*"
    failures=$((failures + 1))
}

# run CODE COMMAND...: runs it without a terminal; stdout in $WORK/out, stderr in $WORK/err.
run() {
    local want=$1 code=0
    shift
    "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
    if [ "$code" != "$want" ]; then
        fail "'$*' ended with $code instead of $want: $(head -c 500 "$WORK/err")"
        return 1
    fi
}

# refuse CODE TEXT COMMAND...: the exit code, and exactly one line on stderr, which contains TEXT. (Lines on progress do not
# count: a busy machine has some.)
refuse() {
    local want=$1 text=$2
    shift 2
    run "$want" "$@" || return 1
    sed -i -E '/: [0-9]+ %, [0-9]+ s, [0-9]+ s left$/d' "$WORK/err"
    [ "$(wc -l <"$WORK/err")" = 1 ] || fail "'$*' wrote $(wc -l <"$WORK/err") lines on stderr: $(cat "$WORK/err")"
    grep -qF -- "$text" "$WORK/err" || fail "'$*' said '$(cat "$WORK/err")', not '$text'"
}

# out TEXT / err TEXT: the last run's stdout or stderr contains this line part.
out() {
    grep -qF -- "$1" "$WORK/out" || fail "stdout lacks '$1': $(head -c 500 "$WORK/out")"
}
err() {
    grep -qF -- "$1" "$WORK/err" || fail "stderr lacks '$1': $(head -c 500 "$WORK/err")"
}

skip() {
    echo "skipped: $*"
    exit 77
}

finish() {
    [ "$failures" = 0 ] || { echo "$failures failed"; exit 1; }
    exit 0
}
