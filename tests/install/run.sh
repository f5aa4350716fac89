#!/usr/bin/env bash
# Installs a build tree into an empty prefix, moves it, and uses what was installed from outside: the executable, the man
# pages, an embedding program (CMake and pkg-config), and out-of-tree plugins.
#   tests/install/run.sh BUILD_DIR
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
export CMAKE_GENERATOR=Ninja # make is not among the packages
model=$source_dir/examples/tiny-moe/tiny-moe-q4_k_m.gguf
question="Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"

fail() { echo "install test: $*" >&2; exit 1; }
expect() { grep -q -- "$1" <<<"$2" || fail "expected \"$1\" in: $2"; }

cmake --install "$build_dir" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved" # nothing may depend on where it was installed first
prefix=$work/moved
export COLIBRI=$prefix/bin/colibri
lib=$(dirname "$(find "$prefix" -name libcolibri.so)")

expect "colibri" "$("$COLIBRI" --version)"
expect "7316" "$("$COLIBRI" run -m "$model" --temperature 0 "$question")"
plugins=$("$COLIBRI" run -m "$model" --temperature 0 -n 1 --stats x 2>&1)
expect "$lib/colibri/plugins/" "$plugins"
if grep -q ' built-in$' <<<"$plugins"; then fail "a built-in plugin served although plugins are installed: $plugins"; fi
for page in colibri.1 colibri-run.1 colibri.ini.5; do
    [ -n "$(find "$prefix" -name "$page*")" ] || fail "man page $page is not installed"
done
if readelf -d "$COLIBRI" "$lib"/colibri/plugins/*.so | grep -E 'RPATH|RUNPATH'; then fail "RPATH in an installed file"; fi
bad=$(nm -D --defined-only "$lib/libcolibri.so" | awk '$2 ~ /[TDBR]/ {print $3}' | grep -v '^colibri_' | grep -v '^COLIBRI_0' || true)
[ -z "$bad" ] || fail "libcolibri exports $bad"

# embedding, through CMake and through pkg-config
cmake -S "$source_dir/examples/embed" -B "$work/embed" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/embed" >/dev/null
expect "7316" "$("$work/embed/ask" "$model" "$question")"
export PKG_CONFIG_PATH=$lib/pkgconfig
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror "$source_dir/examples/embed/main.c" $(pkg-config --cflags --libs colibri) -o "$work/ask"
expect "7316" "$(LD_LIBRARY_PATH=$lib "$work/ask" "$model" "$question")"

# out-of-tree plugins, each built against the installed package and used by the installed executable
for example in "$source_dir"/examples/plugins/*/; do
    name=$(basename "$example")
    cmake -S "$example" -B "$work/$name" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$work/$name" >/dev/null
    so=$(find "$work/$name" -name '*.so' | head -n 1)
    [ -n "$so" ] || fail "$name built no plugin"
    "$COLIBRI" plugins check "$so" >/dev/null || fail "$name does not pass colibri plugins check"
    kind=${name%%-*-*} # kv-strategy-x, expert-policy-x
    case $name in
    expert-policy-*) flag="--expert-policy ${name#expert-policy-} --expert-slots 20" ;;
    kv-strategy-*) flag="--kv-strategy ${name#kv-strategy-} --kv-budget 64" ;;
    *) fail "do not know how to use $name ($kind)" ;;
    esac
    # shellcheck disable=SC2086
    used=$(COLIBRI_PLUGIN_PATH=$(dirname "$so") "$COLIBRI" run -m "$model" --temperature 0 -n 8 --stats $flag "$question" 2>&1)
    expect "$so" "$used"
done
echo "install test: 1 passed, 0 failed"
