#!/bin/bash
# colibri plugins: list, info, why, cpu, paths and check, on folders made here; and the note that the SDK macro writes.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
bad=$BINARY_DIR/tests/plugins-bad
[ -e "$bad/good.so" ] || { echo "$bad/good.so is missing: build the tests first"; exit 1; }
dir=$WORK/plugins
mkdir -p "$dir"
install() { # install NAME [AS]
    cp "$bad/$1.so" "$dir/${2:-$1}.so"
    chmod 0644 "$dir/${2:-$1}.so"
}
# json EXPRESSION: a Python expression over d, the last run's output.
json() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), d' "$WORK/out" "$1" 2>"$WORK/json.err" || fail "JSON: $1: $(tail -c 600 "$WORK/json.err")"
}
# Everything the tool finds by itself is denied, so that a build tree with plugins and one without give the same.
export COLIBRI_PLUGIN_PATH=$dir

# ---- list
install good
install inexact
install lies
install good-newer a-newer
printf 'no object\n' >"$dir/text.so"
chmod 0644 "$dir/text.so"
install good open
chmod 0666 "$dir/open.so"
run 0 "$c" plugins list
head -1 "$WORK/out" | grep -qE '^KIND +ID +VERSION +RANK +STATE$' || fail "header: $(head -1 "$WORK/out")"
grep -qE '^kernel,expert-policy +test\.good +1\.10\.0 +100 +available$' "$WORK/out" || fail "the newer test.good"
grep -qE '^kernel,expert-policy +test\.good +1\.2\.3 +100 +shadowed: shadowed by .*/a-newer\.so$' "$WORK/out" || fail "the older test.good"
grep -qE '^kernel +test\.lies +1\.0\.0 +50 +available$' "$WORK/out" || fail "listing must load nothing: test.lies is found out only by loading"
grep -qE '^- +text\.so +- +- +rejected: not an ELF file$' "$WORK/out" || fail "text.so"
grep -qE '^- +open\.so +- +- +rejected: .*mode 0666' "$WORK/out" || fail "open.so"
grep -qE '^cpu: ' "$WORK/out" || fail "cpu line"
out "path: $dir"
grep -qE '^[0-9]+ plugins, 2 rejected' "$WORK/out" || fail "totals: $(tail -1 "$WORK/out")"
err "open.so refused"
cp "$WORK/out" "$WORK/list"
run 0 "$c" plugins
cmp -s "$WORK/list" "$WORK/out" || fail "'plugins' and 'plugins list' differ"
run 0 "$c" plugins list --json
json 'sorted(d) == ["cpu", "paths", "plugins"]'
json '[p["state"] for p in d["plugins"] if p["id"] == "test.good"] == ["available", "shadowed"]'
json '[p for p in d["plugins"] if p["id"] == "test.inexact"][0]["kinds"] == ["kernel"]'
json 'all(p["reason"] for p in d["plugins"] if p["state"] == "rejected")'
json 'any(p["path"] == "'"$dir"'" and p["searched"] and p["origin"] == "COLIBRI_PLUGIN_PATH" for p in d["paths"])'
run 0 "$c" plugins list --all
grep -q 'linked in' "$WORK/out" || fail "--all shows the linked-in plugins"
run 0 "$c" plugins --deny 'test.*'
grep -qE 'test\.inexact .* rejected: denied by "test\.\*"' "$WORK/out" || fail "deny"
run 0 "$c" plugins --set plugins.deny=test.goood
err "no plugin is called 'test.goood'; did you mean 'test.good'?"
rm "$dir/text.so" "$dir/open.so" "$dir/a-newer.so"

# ---- info
run 0 "$c" plugins info test.good
for text in "id:      test.good" "version: 1.2.3" "rank:    100" "path:    $dir/good.so" "origin:  COLIBRI_PLUGIN_PATH" "state:   loaded" \
    "matmul        good.q4_0  (Q4_0, rank 100, exact)" "good.q4_0.batch  (Q4_0, rank 100, exact, from 8 rows)" "good.vec  (rank 100, exact: add)" \
    "expert-policy good-policy"; do
    out "$text"
done
run 0 "$c" plugins info good --json # the end of the id is enough
json 'd["id"] == "test.good" and [x["name"] for x in d["components"]] == ["good.q4_0", "good.q4_0.batch", "good.vec", "good-policy"]'
run 0 "$c" plugins info test.lies
out "state:   rejected: its descriptor differs from the note in its file"
refuse 3 "did you mean 'test.good'?" "$c" plugins info test.god
run 0 "$c" plugins info lru
out "expert-policy lru"

# ---- why
run 0 "$c" plugins why q4_0 --cpu-mask all --quiet
out "plugin test.good"
out "not exact (up to 4 ULP) and allow-inexact is off"
out "chosen: good.q4_0"
run 0 "$c" plugins why Q4_0 --cpu-mask all --allow-inexact --json --quiet
json 'd["chosen"] == "inexact.q4_0" and any(s["rule"] == "rank" for s in d["steps"])'
run 0 "$c" plugins why q4_0 --cpu-mask all --prefer twin.q4_0 --quiet
out "chosen: twin.q4_0"
run 0 "$c" plugins why rms_norm --cpu-mask all --quiet
out "chosen: reference"
run 0 "$c" plugins why test.lies --quiet
out "chosen: nothing"
out "one of them lies"
run 3 "$c" plugins why q4_00 --quiet
err "did you mean 'Q4_0'?"

# ---- cpu and paths
run 0 "$c" plugins cpu --cpu-mask all
out "usable:  none"
run 0 "$c" plugins cpu --json
json 'd["cores"] >= 1 and 1 <= d["default_threads"] <= d["threads"] and set(d["usable"]) <= set(d["known"])'
run 2 "$c" plugins cpu --cpu-mask avx512z
err "did you mean 'avx512f'?"
if command -v taskset >/dev/null; then
    run 0 taskset -c "$(taskset -cp $$ | sed 's/.*: *\([0-9]*\).*/\1/')" "$c" plugins cpu --json
    json 'd["cores"] == 1 and d["threads"] == 1 and d["default_threads"] == 1'
fi
mkdir -m 0777 "$WORK/open"
chmod 0777 "$WORK/open"
run 0 env COLIBRI_PLUGIN_PATH="$dir::relative:$WORK/open:$dir/:/nonexistent" "$c" plugins paths
out "$dir  (COLIBRI_PLUGIN_PATH)  3 files"
out "(empty)  (COLIBRI_PLUGIN_PATH)  not searched: an empty component"
out "relative  (COLIBRI_PLUGIN_PATH)  not searched: not an absolute path"
out "$WORK/open  (COLIBRI_PLUGIN_PATH)  not searched: the folder is writable by everybody (mode 0777): chmod go-w"
out "$dir/  (COLIBRI_PLUGIN_PATH)  not searched: the same folder as $dir"
out "/nonexistent  (COLIBRI_PLUGIN_PATH)  not searched: does not exist"
run 2 "$c" plugins paths --set plugins.path=relative/dir
err 'relative/dir'
run 0 "$c" plugins paths --json --set plugins.path="$WORK/open"
json 'any(p["path"].endswith("/open") and not p["searched"] and p["origin"] == "config" for p in d["paths"])'

# ---- the plugin folder is found from the executable, wherever the tree is moved to
mkdir -p "$WORK/moved/bin"
cp "$c" "$WORK/moved/bin/colibri"
run 0 env -u COLIBRI_PLUGIN_PATH "$WORK/moved/bin/colibri" plugins paths
out "$WORK/moved/"

# ---- check
sanitized=
run 0 "$c" plugins check "$bad/good.so" || { grep -q 'BAD *constructors' "$WORK/out" && sanitized=1; }
[ -n "$sanitized" ] && failures=$((failures - 1)) # the sanitizer's own constructor, not the plugin's
[ -n "$sanitized" ] || out "exactly one symbol: colibri_plugin_test_good"
# caught TEXT PLUGIN: check ends with 9 and says why.
caught() {
    run 9 "$c" plugins check --timeout 5 "$bad/$2.so" && grep '^BAD' "$WORK/out" | grep -qF -- "$1" ||
        fail "check $2: $(grep '^BAD' "$WORK/out")"
}
caught "2 exported symbols" exports
caught "it imports clb_core_secret" exports
caught "indirect functions" ifunc
caught "RPATH" rpath
caught "executable stack" execstack
caught "libgomp.so.1" openmp
caught "undefined symbol: nobody_has_this_function" undefined
caught "one of them lies" lies
caught "points to no note" wild_descriptor
caught "does not export colibri_plugin_test_no_symbol" no_symbol
caught "its init failed: the licence server does not answer" init_fails
caught "its init changed the floating-point control state" fp_init
caught "loading it changed the floating-point control state" fp_load
caught "its get has changed the floating-point control state" fp_get
caught "run is NULL" bad_tables
caught "another table each time" unstable
caught "offers no usable one" empty
caught "mistakes" endless
caught "names must be compared whole" any_iface
caught "a second host" once
caught "threads" thread
caught "signal handler" handler
caught "it ended the process in init" exit
[ -n "$sanitized" ] || caught "it crashed in init: Segmentation fault" crash
[ -n "$sanitized" ] || caught "constructors" constructor
start=$SECONDS
run 9 "$c" plugins check --timeout 1 "$bad/hang.so" && out "it hung in init: stopped after 1 seconds"
[ $((SECONDS - start)) -lt 10 ] || fail "a hanging plugin held the check for $((SECONDS - start)) s"
pgrep -f "plugins check --timeout 1 $bad/hang.so" >/dev/null && fail "a hanging child is left behind"
run 9 "$c" plugins check --json "$bad/lies.so"
json 'd["ok"] is False and any(not x["pass"] and "lies" in x["detail"] for x in d["checks"])'
refuse 3 "no such file" "$c" plugins check "$WORK/none.so"
# Several files: all are examined, whatever the first ones were like.
run 9 "$c" plugins check "$bad/lies.so" "$bad/hang.so" --timeout 1 && out "lies" && out "it hung in init" &&
    err "2 of 2 files failed"
run 9 "$c" plugins check --json "$bad/lies.so" "$bad/lies.so"
[ "$(grep -o "\"ok\"" "$WORK/out" | wc -l)" = 2 ] || fail "not two JSON objects"
run 9 "$c" plugins check "$WORK"
out "not a regular file"
cp "$bad/good.so" "$WORK/w.so"
chmod 0666 "$WORK/w.so"
run 9 "$c" plugins check "$WORK/w.so"
out "chmod go-w"
grep -q 'mapped' "$WORK/out" && fail "a file that others may write was loaded"

# Cut anywhere, it is refused or (cut behind what counts) judged; never a crash.
size=$(wc -c <"$bad/good.so")
for ((n = 0; n < size; n += 256)); do
    head -c "$n" "$bad/good.so" >"$WORK/cut.so"
    chmod 0644 "$WORK/cut.so"
    code=0
    "$c" plugins check "$WORK/cut.so" >"$WORK/out" 2>"$WORK/err" || code=$?
    [ "$code" = 9 ] || [ "$code" = 0 ] || fail "check of the first $n bytes ended with $code: $(cat "$WORK/err")"
done

# ---- other CPUs: what this build offers is filtered, and what is loaded there runs there
if command -v qemu-x86_64 >/dev/null && [ "$(uname -m)" = x86_64 ] && [ -z "$sanitized" ]; then
    run 0 qemu-x86_64 -cpu Nehalem "$c" plugins cpu --json
    json '"sse4_2" in d["usable"] and not {"avx", "avx2", "f16c", "fma", "avx512f"} & set(d["usable"])'
    run 0 qemu-x86_64 -cpu Haswell "$c" plugins cpu --json
    json '{"avx2", "f16c", "fma"} <= set(d["usable"]) and not [x for x in d["usable"] if x.startswith("avx512")]'
    for model in Nehalem Haswell; do
        for name in q4_0 q4_k f16 rms_norm attention lru full; do
            run 0 qemu-x86_64 -cpu "$model" "$c" plugins why "$name" --quiet
        done
    done
fi

# ---- the note of the SDK macro, from every compiler here, in every build that could lose it
cat >"$WORK/macro.c" <<'C'
#include "colibri/kernel.h"
static const void *get(const char *iface, uint32_t index) { (void)iface; (void)index; return NULL; }
COLIBRI_PLUGIN_DEFINE(test_macro, NULL, get, .id = "test.macro", .kinds = COLIBRI_KIND_KERNEL, .version = "1.0.0",
                      .cpu = {COLIBRI_CPU0(AVX512F), COLIBRI_CPU1(SVE2)}, .summary = "note", .license = "MIT");
C
note_ok() { # note_ok FILE READELF WHAT
    "$2" -Sl "$1" 2>/dev/null | grep -qE '\.note\.colibri +NOTE' || fail "$3: .note.colibri is no SHT_NOTE section"
    # readelf is an independent reader: it must find owner and size where the note says they are.
    "$2" -n "$1" 2>"$WORK/warnings" | grep -qE 'Colibri +0x00000140' || fail "$3: readelf does not read the note"
    [ ! -s "$WORK/warnings" ] || fail "$3: $(head -1 "$WORK/warnings")"
}
built=0
for cc in gcc clang aarch64-linux-gnu-gcc; do
    command -v "$cc" >/dev/null || continue
    readelf=readelf strip=strip
    case $cc in aarch64-*) readelf=aarch64-linux-gnu-readelf strip=aarch64-linux-gnu-strip ;; esac
    command -v "$readelf" >/dev/null || continue
    for flags in "-O0" "-O2" "-O2 -flto" "-O2 -ffunction-sections -fdata-sections -Wl,--gc-sections" "-O2 -g -fsanitize=address"; do
        # shellcheck disable=SC2086
        "$cc" $flags -fPIC -shared -fvisibility=hidden -I"$SOURCE_DIR/sdk/include" "$WORK/macro.c" -o "$WORK/macro.so" \
            -Wl,--version-script="$SOURCE_DIR/cmake/colibri-plugin.map" 2>"$WORK/cc.err" || continue # no LTO plugin, no sanitizer
        note_ok "$WORK/macro.so" "$readelf" "$cc $flags"
        "$strip" --strip-all "$WORK/macro.so" && note_ok "$WORK/macro.so" "$readelf" "$cc $flags, stripped"
        built=$((built + 1))
        case $flags in *sanitize*) continue ;; esac
        chmod 0644 "$WORK/macro.so"
        run 9 "$c" plugins check "$WORK/macro.so"
        case $cc in
        aarch64-*) [ "$(uname -m)" = aarch64 ] || out "built for another machine" ;;
        *) [ "$(uname -m)" = x86_64 ] && out "test.macro 1.0.0" && out "not loaded: this CPU or its mask lacks" ;;
        esac
    done
done
[ "$built" -gt 0 ] || echo "no compiler: the note macro was not tried"

# ---- a copy that broke off keeps nobody from working
cut=$WORK/cut
mkdir -p "$cut"
head -c 9000 "$BINARY_DIR/lib/colibri/plugins/expert-policy-lfu.so" >"$cut/expert-policy-lfu.so"
chmod 0644 "$cut/expert-policy-lfu.so"
run 9 "$c" plugins check "$cut/expert-policy-lfu.so"
out "truncated: it has 9000 bytes, its segments need"
COLIBRI_PLUGIN_PATH=$cut run 0 "$c" run -m "$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf" --raw -n 2 "once"
COLIBRI_PLUGIN_PATH=$cut run 0 "$c" plugins list --all
out "truncated"

# ---- usage
refuse 2 "did you mean 'list'?" "$c" plugins lits
refuse 2 "'info' needs one ID" "$c" plugins info
refuse 2 "--timeout goes with 'check'" "$c" plugins list --timeout 3
refuse 2 "a number of seconds" "$c" plugins check --timeout never "$bad/good.so"
refuse 2 "unexpected argument" "$c" plugins paths more
finish
