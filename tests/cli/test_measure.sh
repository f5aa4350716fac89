#!/bin/bash
# kernels.select=measure: what is chosen, remembered, reported and refused. The kernels that spin tell slow from fast on
# any machine; models are run with the real ones.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
bad=$BINARY_DIR/tests/plugins-bad
[ -e "$bad/measure-spin.so" ] || { echo "$bad/measure-spin.so is missing: build the tests first"; exit 1; }
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
json() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), d' "$WORK/out" "$1" 2>"$WORK/json.err" || fail "JSON: $1: $(tail -c 600 "$WORK/json.err")"
}
unset XDG_CACHE_HOME
dir=$WORK/plugins
mkdir -p "$dir" "$HOME"
cp "$bad/measure-spin.so" "$dir/"
chmod 0644 "$dir/measure-spin.so"
cache=$HOME/.cache/colibri/kernels
export COLIBRI_PLUGIN_PATH=$dir
why() { # why CODE FLAGS...: the fakes alone, one thread
    local code=$1
    shift
    run "$code" "$c" plugins why q4_0 --deny 'colibri.kernels*' --threads 1 "$@"
}
measure=(--set kernels.select=measure)

# ---- rank is the default, and writes nothing
why 0
out "chosen: slow.q4_0"
why 0 --json
json 'd["select"] == "rank" and "measured" not in d'
[ ! -e "$HOME/.cache" ] || fail "choosing by rank made a cache"

# ---- measured, then remembered
why 0 "${measure[@]}"
out "chosen: fast.q4_0"
grep -qE '^rows +kernel for 1 row at a time, 2048 x 2048 weights, 1 thread, measured now$' "$WORK/out" || fail "heading"
grep -qE '^ +time +fast\.q4_0: [0-9.]+ ms, [0-9.]+ GB/s of weights, [0-9.]+ GMAC/s$' "$WORK/out" || fail "time of the fast one"
grep -qE '^ +time +no slow\.q4_0: [0-9.]+ ms' "$WORK/out" || fail "time of the slow one"
grep -qE 'fast\.q4_0 takes [0-9.]+ % less time than slow\.q4_0, which rank prefers: fast\.q4_0$' "$WORK/out" || fail "conclusion"
[ "$(stat -c %a "$cache" 2>&1)" = 600 ] || fail "the file: $(stat -c %a "$cache" 2>&1)"
cp "$cache" "$WORK/first"
why 0 "${measure[@]}"
out "chosen: fast.q4_0"
out "measured on 20"
cmp -s "$cache" "$WORK/first" || fail "times that were remembered were written again"
why 0 "${measure[@]}" --json
json 'd["chosen"] == "fast.q4_0" and d["select"] == "measure" and [m["n_x"] for m in d["measured"]] == [1, 4, 16, 64]'
json 'all(m["times"] == "remembered" and m["threads"] == 1 and m["rows"] == m["cols"] == 2048 and m["format"] == "Q4_0" for m in d["measured"])'
json 'all(m["chosen"] == "fast.q4_0" and m["by_rank"] == "slow.q4_0" for m in d["measured"])'
json 'all(x["ms"] > 0 and x["plugin"] == "test.measure" for m in d["measured"] for x in m["candidates"])'
json '[x["component"] for x in d["measured"][3]["candidates"]] == ["slow.q4_0", "middle.q4_0", "fast.q4_0", "batch.q4_0"]'
why 0 "${measure[@]}" --prefer slow.q4_0
out "chosen: slow.q4_0"
out "nothing to measure"
why 0 "${measure[@]}" --allow-inexact
out "chosen: lossy.q4_0"
out "only exact ones are measured"

# ---- the file: elsewhere, nowhere, damaged, not ours, not writable
rm -rf "$HOME/.cache"
why 0 "${measure[@]}" --set kernels.cache-file=none
out "measured now"
[ ! -e "$HOME/.cache" ] || fail "cache-file=none wrote something"
why 0 "${measure[@]}" --set kernels.cache-file="$WORK/some/where/times"
[ -f "$WORK/some/where/times" ] || fail "cache-file=FILE was not written"
XDG_CACHE_HOME=$WORK/xdg-cache why 0 "${measure[@]}"
[ -f "$WORK/xdg-cache/colibri/kernels" ] || fail "XDG_CACHE_HOME was not honoured"
head -c 300 "$WORK/first" >"$WORK/some/where/times"
why 0 "${measure[@]}" --set kernels.cache-file="$WORK/some/where/times"
[ "$(grep -c 'remembered kernel times ignored' "$WORK/err")" = 1 ] || fail "a damaged file: $(cat "$WORK/err")"
out "measured now"
why 0 "${measure[@]}" --set kernels.cache-file="$WORK/some/where/times"
out "measured on 20"
echo "my diary" >"$WORK/diary"
why 0 "${measure[@]}" --set kernels.cache-file="$WORK/diary"
err "and not remembered"
[ "$(cat "$WORK/diary")" = "my diary" ] || fail "a file that is not ours was overwritten"
why 0 "${measure[@]}" --set kernels.cache-file=/dev/null
[ -c /dev/null ] || fail "/dev/null is gone"
why 0 "${measure[@]}" --set kernels.cache-file=/proc/nowhere/times
out "chosen: fast.q4_0"

# ---- settings
refuse 2 "kernels.select" "$c" plugins why q4_0 --set kernels.select=fastest
printf '[kernels]\nselect = measure\n' >"$WORK/colibri.ini"
run 2 "$c" config check --beside-model "$WORK/colibri.ini"

# ---- a model: the same tokens, and --stats says how
unset COLIBRI_PLUGIN_PATH
go=(run -m "$model" --raw --temperature 0 -n 12 --threads 2 --stats "once upon a time there was a small bird and it sang")
run 0 "$c" "${go[@]}"
err "kernels   chosen by rank"
cp "$WORK/out" "$WORK/by-rank"
remembered() { # a slow machine measures a part at each start
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        run 0 "$c" "${go[@]}" "${measure[@]}" --set kernels.cache-file="$WORK/model-times"
        grep -q "chosen by measuring: 0 decisions measured .* 0 left to rank" "$WORK/err" && return
    done
    fail "something is measured at every start: $(cat "$WORK/err")"
}
for times in measured remembered; do
    [ "$times" = measured ] || remembered
    run 0 "$c" "${go[@]}" "${measure[@]}" --set kernels.cache-file="$WORK/model-times"
    cmp -s "$WORK/out" "$WORK/by-rank" || fail "other text with kernels $times"
    err "kernels   chosen by measuring"
    if [ -s "$WORK/model-times" ] && [ "$times" = remembered ]; then
        err "chosen by measuring: 0 decisions measured"
    fi
done
run 0 "$c" "${go[@]}" --json "${measure[@]}" --set kernels.cache-file="$WORK/model-times"
json 'd["stats"]["kernels"]["select"] == "measure" and d["stats"]["kernels"]["measured"] == 0'
run 0 "$c" "${go[@]}" "${measure[@]}" --set kernels.cache-file=none --max-memory 512M
cmp -s "$WORK/out" "$WORK/by-rank" || fail "other text within 512M"
finish
