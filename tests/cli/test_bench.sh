#!/bin/bash
# colibri bench: tests, JSON under llama-bench's names, tests named on standard input, flags that exclude each other.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
json() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), d' "$WORK/out" "$1" 2>"$WORK/json.err" || fail "JSON: $1: $(tail -c 600 "$WORK/json.err")"
}
bench=("$c" bench -m "$model" --threads 2)

run 0 "${bench[@]}" -p 5,20 -n 0 -r 2 -d 0,3
for test in 'pp5 ' 'pp20 ' 'pp5 @ 3 ' 'pp20 @ 3 '; do out "| $test|"; done
run 0 "${bench[@]}" -p 9 -n 3 -r 2 --json --split
json '[(t["n_prompt"], t["n_gen"], t["n_depth"]) for t in d] == [(9, 0, 0), (0, 3, 0)]'
json 'all(len(t["samples_ts"]) == len(t["samples_ns"]) == 2 and t["avg_ts"] > 0 and t["stddev_ts"] >= 0 for t in d)'
json 'd[1]["bytes_per_token"] > d[1]["weight_bytes_per_token"] and d[1]["bandwidth_share"] > 0'
json 'all(t["split"]["passes"] >= 1 and t["n_threads"] == 2 for t in d)'

refuse 2 'nothing to measure' "${bench[@]}" -p 0 -n 0
refuse 2 'separated by commas' "${bench[@]}" -p 5,
refuse 2 'separated by commas' "${bench[@]}" -p -5
refuse 2 '--repetitions' "${bench[@]}" -r 0
refuse 2 '--split does not apply to tests with --n-depth' "${bench[@]}" -p 5 -n 0 -d 0,3 --split
for flag in --split --json --no-warmup --repetitions=2; do
    refuse 2 "${flag%=*} does not apply to --stdin" "${bench[@]}" --stdin "$flag"
done
run 8 "${bench[@]}" -p 100 -n 0 --ctx 64
err 'raise --ctx'

printf 'pp 7\ntg 2 5\nquit\n' >"$WORK/in"
"${bench[@]}" --stdin <"$WORK/in" >"$WORK/out" 2>"$WORK/err" || fail "--stdin ended with $?: $(cat "$WORK/err")"
sed 's/[0-9.]*$//' "$WORK/out" | tr '\n' ';' | grep -qx 'ready;pp 7 ;tg 2 ;' || fail "--stdin said $(cat "$WORK/out")"
printf 'pp 0\n' | "${bench[@]}" --stdin >"$WORK/out" 2>"$WORK/err" && fail "'pp 0' was accepted"
err 'expected "pp N [DEPTH]"'
finish
