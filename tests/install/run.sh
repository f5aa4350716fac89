#!/usr/bin/env bash
# Installs a build tree into an empty prefix, moves it, and uses what was installed from outside: the executable, the man
# pages, an embedding program (CMake and pkg-config), out-of-tree plugins, and the manuals for authors of
# kernels and expert policies as they stand.
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
mkdir "$work/home"
export HOME=$work/home # nothing of the user's may have a part in this
unset XDG_CONFIG_HOME COLIBRI_PLUGIN_PATH
mv "$work/first" "$HOME/.local" # nothing may depend on where it was installed first
prefix=$HOME/.local
export COLIBRI=$prefix/bin/colibri
lib=$(dirname "$(find "$prefix" -name libcolibri.so)")

expect "colibri" "$("$COLIBRI" --version)"
expect "7316" "$("$COLIBRI" run -m "$model" --temperature 0 "$question")"
plugins=$("$COLIBRI" run -m "$model" --temperature 0 -n 1 --stats x 2>&1)
expect "$lib/colibri/plugins/" "$plugins"
if grep -q ' built-in$' <<<"$plugins"; then fail "a built-in plugin served although plugins are installed: $plugins"; fi
for page in colibri.1 colibri-run.1 colibri-kernelcheck.1 colibri-new-kernel.1 colibri.ini.5; do
    [ -n "$(find "$prefix" -name "$page*")" ] || fail "man page $page is not installed"
done
# the service names the executable where the installation was put, not where the build was configured for
expect "^ExecStart=$work/first/bin/colibri serve" "$(cat "$prefix/lib/systemd/system/colibri.service")"
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

# A model for Q4_0 kernels, and what it says with Colibri's own.
q4_0=$work/q4_0.gguf
python3 "$source_dir/tests/install/q4_0_model.py" "$model" "$q4_0"
nonsense() { "$COLIBRI" run -m "$q4_0" --temperature 0 -n 24 --stats "$question" 2>"$work/stats" "$@"; }
nonsense | od -c >"$work/expected"

# $1: the plugin, $2: what its components' names begin with. Checks, measures, and lets Colibri use it.
kernel() {
    "$prefix/bin/colibri-kernelcheck" --seed 1 "$1" >"$work/check" || fail "$(cat "$work/check")"
    "$prefix/bin/colibri-kernelcheck" --bench --json "$1" | python3 -c "import json, sys
for c in json.load(sys.stdin)['plugins'][0]['components']:
    assert c['name'].startswith('$2-') and c['stream_gb_s'] > 0 and c['gmac_s']['x64'] > 0, c" || fail "bench of $1"
    expect "chosen: $2-" "$(COLIBRI_PLUGIN_PATH=$(dirname "$1") "$COLIBRI" plugins why q4_0 --set "plugins.prefer=$3")"
    COLIBRI_PLUGIN_PATH=$(dirname "$1") nonsense --set "plugins.prefer=$3" | od -c >"$work/got"
    expect "$2-.* $1" "$(cat "$work/stats")"
    cmp "$work/expected" "$work/got" || fail "another text with $1"
}

# out-of-tree plugins, each built against the installed package and used by the installed executable
for example in "$source_dir"/examples/plugins/*/; do
    name=$(basename "$example")
    cmake -S "$example" -B "$work/$name" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$work/$name" >/dev/null
    so=$(find "$work/$name" -name '*.so' | head -n 1)
    [ -n "$so" ] || fail "$name built no plugin"
    "$COLIBRI" plugins check "$so" >/dev/null || fail "$name does not pass colibri plugins check"
    case $name in
    expert-policy-*) flag="--expert-policy ${name#expert-policy-} --expert-slots 20" ;;
    predictor-*) flag="--predictor ${name#predictor-} --expert-slots 60" ;;
    kv-strategy-neighbours) flag="--kv-strategy neighbours/h2o --kv-budget 64" ;;
    kv-strategy-*) flag="--kv-strategy ${name#kv-strategy-} --kv-budget 64" ;;
    kernel-*)
        ctest --test-dir "$work/$name" --output-on-failure >/dev/null || fail "ctest of $name"
        kernel "$so" example "org.example.$name"
        continue
        ;;
    *) fail "do not know how to use $name" ;;
    esac
    MODEL=$model ctest --test-dir "$work/$name" --output-on-failure >"$work/ctest" || fail "ctest of $name: $(cat "$work/ctest")"
    expect "100% tests passed" "$(cat "$work/ctest")"
    if grep -q Skipped "$work/ctest"; then fail "ctest of $name skipped its test: $(cat "$work/ctest")"; fi
    # shellcheck disable=SC2086
    used=$(COLIBRI_PLUGIN_PATH=$(dirname "$so") "$COLIBRI" run -m "$model" --temperature 0 -n 8 --stats $flag "$question" 2>&1)
    expect "$so" "$used"
done

# The manuals for authors: their commands are run in order, by a newcomer with an empty home, in a folder of his own.
# $1: the manual, $2: how many commands it has at least, $3: the model that it is given. The log goes to $work/manual.log.
manual() {
    awk '/^```sh$/ {on = 1; next} /^```$/ {on = 0} on' "$source_dir/docs/$1" >"$work/manual.sh"
    [ "$(wc -l <"$work/manual.sh")" -ge "$2" ] || fail "$1 has lost its commands"
    rm -rf "$work/newcomer"
    mkdir "$work/newcomer"
    (cd "$work/newcomer" && env -u CMAKE_GENERATOR PATH="$prefix/bin:$PATH" MODEL="$3" \
        bash -euxo pipefail "$work/manual.sh" >"$work/manual.log" 2>&1) || fail "$1: $(tail -n 30 "$work/manual.log")"
}
# The C of manual $1 must be that of example $2, line by line.
same_c() {
    local sources block= line
    sources=$(cat "$source_dir/examples/$2"/*.[ch])
    while IFS= read -r line; do
        case $line in
        '```c') block=$'\n' ;;
        '```')
            if [ -n "$block" ] && [[ $'\n'$sources$'\n' != *"$block"* ]]; then fail "$1: not in the example: $block"; fi
            block=
            ;;
        *) [ -z "$block" ] || block+=$line$'\n' ;;
        esac
    done <"$source_dir/docs/$1"
}

# A kernel: what the manual says about the choice must be true.
manual writing-a-kernel.md 20 "$q4_0"
same_c writing-a-kernel.md plugins/kernel-q4_0
chosen=$(grep -a '^chosen: ' "$work/manual.log")
[ "$(wc -l <<<"$chosen")" = 3 ] || fail "three choices expected: $chosen"
if grep -q -w avx2 /proc/cpuinfo; then expect "^chosen: avx" "$(sed -n 1p <<<"$chosen")"; fi
for line in 2 3; do expect "^chosen: my-kernels-" "$(sed -n ${line}p <<<"$chosen")"; done
expect "my-kernels-.* $lib/colibri/plugins/my-kernels.so" "$(grep -a 'kernel  *Q4_0' "$work/manual.log")"
rm "$HOME/.config/colibri/colibri.ini" "$lib/colibri/plugins/my-kernels.so"
kernel "$work/newcomer/my-kernels/build/my-kernels.so" my-kernels org.acme.my-kernels

# A KV strategy: made, built, checked, run, measured.
manual writing-a-kv-strategy.md 10 "$model"
if grep -aq Skipped "$work/manual.log"; then fail "the test of the manual was skipped"; fi
expect "strategy my-strategy:sinks=8: .* [1-9][0-9]* evicted" "$(cat "$work/manual.log")"
expect "chosen: my-strategy" "$(cat "$work/manual.log")"

# An expert policy, and a predictor: made, built, checked, simulated, run.
manual writing-an-expert-policy.md 20 "$model"
[ "$(grep -ac '100% tests passed' "$work/manual.log")" = 2 ] || fail "two tests expected: $(grep -a 'tests passed' "$work/manual.log")"
if grep -aq Skipped "$work/manual.log"; then fail "a test of the manual was skipped"; fi
[ "$(grep -aEc '^  my-policy +[0-9]+\.[0-9]+ ' "$work/manual.log")" -ge 6 ] || fail "my-policy was not simulated"
expect "^  my-policy:tokens=0 " "$(cat "$work/manual.log")"
expect "policy my-policy: 40 slots" "$(cat "$work/manual.log")"
expect "chosen: my-policy" "$(cat "$work/manual.log")"
same_c writing-an-expert-policy.md plugins/expert-policy-second-wind

# Foreign functions: the section of the manual, on the function of the manual.
mkdir "$work/foreign"
cc -O2 -shared -fPIC "$source_dir/examples/foreign/score.c" -o "$work/foreign/score.so"
awk '/^```ini$/ {on = 1; next} /^```$/ {if (on) exit} on' "$source_dir/docs/foreign.md" |
    sed "s|/home/ada|$work/foreign|" >"$work/foreign/my.ini"
expect "policy aged-frequency: 40 slots" "$("$COLIBRI" run --config "$work/foreign/my.ini" -m "$model" --expert-policy \
    aged-frequency --expert-slots 40 --temperature 0 -n 8 --stats "$question" 2>&1)"
same_c foreign.md foreign

echo "install test: 1 passed, 0 failed"
