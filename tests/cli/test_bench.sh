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

# sequences side by side
run 0 "${bench[@]}" -p 5 -n 3 -s 1,4 -r 2 --json --split
json '[(t["test"], t.get("n_streams")) for t in d] == [("pp5", None), ("tg3", None), ("tg3 x 4", 4)]'
json 'all(abs(d[2]["samples_ts"][i] * d[2]["samples_ns"][i] / 1e9 - 12) < 1e-6 for i in range(2)) and d[2]["split"]["passes"] == 3'
json '"bandwidth_share" in d[1] and "bandwidth_share" not in d[2] and d[2]["token_p50_ms"] > 0'
run 0 "${bench[@]}" -p 0 -n 3 -s 2 -d 40 -r 1 --batch 16
out '| tg3 x 2 @ 40 |'
# each of them reads its own context, which counts
run 0 "${bench[@]}" -p 0 -n 1 -s 1,8 -d 100 -r 1 --expert-slots 60 --reset-cache --json
json '0 < d[1]["drive_bytes_per_token"] < 2 * d[0]["drive_bytes_per_token"]'
printf 'tg 2 0 3\ntg 2 5 1\nquit\n' >"$WORK/lines"
from_lines() {
    "${bench[@]}" --stdin -p 4 -n 4 -d 5 -s 3 <"$WORK/lines"
}
run 0 from_lines
[ "$(grep -c '^tg 2 ' "$WORK/out")" = 2 ] || fail "streams on standard input: $(cat "$WORK/out")"
printf 'tg 2 0 4\n' >"$WORK/lines"
refuse 2 'made room for 3' from_lines
printf 'pp 2 0 2\n' >"$WORK/lines"
refuse 2 'expected' from_lines
refuse 2 'at least 1' "${bench[@]}" -s 0
refuse 2 '--streams does not apply to --sustained' "${bench[@]}" --sustained 1 -s 2

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

# texts, formats, cold starts, sweeps
printf 'Say hello.' >"$WORK/hello.txt"
printf 'Count to ten, please.' >"$WORK/count.txt"
run 0 "${bench[@]}" --texts -n 4 -r 2
for text in short-answer code long-summary; do out "| $text |"; done
grep -q '| pp512 |' "$WORK/out" && fail "random tokens were measured without being asked for"
run 0 "${bench[@]}" --text "$WORK/hello.txt" --text "$WORK/count.txt" -n 5 -r 3 --format jsonl --expert-slots 40 --reset-cache
[ "$(wc -l <"$WORK/out")" = 2 ] || fail "not one line per test: $(cat "$WORK/out")"
head -1 "$WORK/out" >"$WORK/one" && mv "$WORK/one" "$WORK/out"
json 'd["test"] == "hello" and d["n_gen"] == 5 and d["n_prompt"] > 3 and d["ttft_ms"] > 0 and d["gen_median_ts"] > 0'
json '0 < d["token_p50_ms"] <= d["token_p99_ms"] and 0 <= d["hit_rate"] < 1 and d["drive_bytes_per_token"] > 0'
run 0 "${bench[@]}" -p 6 -n 4 -r 2 --format csv
[ "$(wc -l <"$WORK/out")" = 3 ] || fail "CSV: $(cat "$WORK/out")"
awk -F, 'NF != 18 { exit 1 }' "$WORK/out" || fail "CSV with other columns: $(cat "$WORK/out")"
run 0 "${bench[@]}" --text "$WORK" -n 2 --repeat 1
out '| count |'
# texts that cannot be measured, before a model is loaded
mkdir "$WORK/none" "$WORK/texts"
: >"$WORK/empty"
printf ' \n\t\n' >"$WORK/blank"
printf 'ab\0c' >"$WORK/nul"
printf 'na\xefve' >"$WORK/latin1"
cp "$WORK/hello.txt" "$WORK/texts/a.txt"
cp "$WORK/nul" "$WORK/texts/b.txt"
texts=("$c" bench -m "$WORK/missing.gguf")
refuse 2 "'$WORK/hello.txt': a file or folder of texts is given by --text PATH" "${texts[@]}" --texts "$WORK/hello.txt"
refuse 2 '--texts takes no value' "${texts[@]}" --texts="$WORK/hello.txt"
refuse 2 'is empty' "${texts[@]}" --text ''
refuse 3 "cannot open $WORK/missing.txt: No such file" "${texts[@]}" --text "$WORK/missing.txt"
refuse 3 "the folder $WORK/none has no *.txt" "${texts[@]}" --text "$WORK/none"
refuse 2 "$WORK/empty is empty" "${texts[@]}" --text "$WORK/empty"
refuse 2 "$WORK/blank has nothing but blanks" "${texts[@]}" --text "$WORK/blank"
refuse 5 "$WORK/nul is no text: byte 2 is NUL" "${texts[@]}" --text "$WORK/nul"
refuse 5 "$WORK/latin1 is no text: byte 2 is not UTF-8" "${texts[@]}" --text "$WORK/hello.txt" --text "$WORK/latin1"
refuse 5 "$WORK/texts/b.txt is no text" "${texts[@]}" --text "$WORK/texts"
refuse 3 'missing.gguf' "${texts[@]}" --text "$WORK/hello.txt"
# too long: none is measured
yes 'The fox ran home.' | head -c 40000 >"$WORK/long"
run 8 "${bench[@]}" --text "$WORK/hello.txt" --text "$WORK/long" -n 2 -r 1
err 'long: '
err 'raise --ctx'
grep -q hello "$WORK/out" && fail "a text was measured before another one was refused"
from_pipe() { "${bench[@]}" --text - -n 2 -r 1 <"$WORK/hello.txt"; }
run 0 from_pipe
printf '# mine\n[cpu]\npin = off\nthreads = 77\n\n[model]\nctx = 100\n' >"$WORK/my.ini"
run 0 "$c" bench -m "$model" --sweep threads=1..2 -p 8 -n 4 -r 1 --format json --write-ini "$WORK/my.ini"
json '[p["threads"] for p in d["sweep"]] == [1, 2] and d["best_threads"] in (1, 2)'
grep -qxE 'threads = [12]' "$WORK/my.ini" || fail "the INI file was not changed: $(cat "$WORK/my.ini")"
[ "$(grep -c . "$WORK/my.ini")" = 6 ] || fail "the INI file lost or gained lines: $(cat "$WORK/my.ini")"
run 0 "$c" bench -m "$model" --sweep threads=1..1 -p 4 -n 0 -r 1 --write-ini "$WORK/new.ini"
[ "$(cat "$WORK/new.ini")" = "$(printf '[cpu]\nthreads = 1')" ] || fail "a new INI file: $(cat "$WORK/new.ini")"
# a file of another system, private, behind a link, with a comment at the line and a section given twice
printf '\xef\xbb\xbf[cpu]\r\n  threads=9 ; mine\r\nthreadsafe-name = x\r\n[model]\r\nctx = 100\r\n[cpu]\r\nthreads = 8\r\n; end' >"$WORK/private.ini"
chmod 600 "$WORK/private.ini"
ln -s private.ini "$WORK/link.ini"
: >"$WORK/link.ini.new"
run 0 "$c" bench -m "$model" --sweep threads=1..1 -p 4 -n 0 -r 1 --write-ini "$WORK/link.ini"
printf '\xef\xbb\xbf[cpu]\r\nthreads = 1 ; mine\r\nthreadsafe-name = x\r\n[model]\r\nctx = 100\r\n[cpu]\r\n; end\r\n' |
    cmp -s - "$WORK/private.ini" || fail "the INI file became $(od -c "$WORK/private.ini")"
[ -L "$WORK/link.ini" ] || fail "the link to the INI file was replaced"
[ "$(stat -c %a "$WORK/private.ini")" = 600 ] || fail "the INI file has other permissions: $(stat -c %a "$WORK/private.ini")"
run 0 "${bench[@]}" --sustained 0.01
out 'of the first'
refuse 2 'write threads=A..B' "$c" bench -m "$model" --sweep threads=3
refuse 2 'exclude each other' "${bench[@]}" --sustained 1 --sweep threads=1..2
refuse 2 '--write-ini needs --sweep' "${bench[@]}" --write-ini "$WORK/x.ini"
refuse 2 'must be md, csv, json or jsonl' "${bench[@]}" --format xml
refuse 2 'texts do not apply' "${bench[@]}" --texts --sustained 1
refuse 3 'cannot open' "${bench[@]}" --text "$WORK/none.txt"
refuse 8 'raise --ctx' "${bench[@]}" --text "$WORK/hello.txt" --ctx 16

printf 'pp 7\ntg 2 5\nquit\n' >"$WORK/in"
"${bench[@]}" --stdin <"$WORK/in" >"$WORK/out" 2>"$WORK/err" || fail "--stdin ended with $?: $(cat "$WORK/err")"
sed 's/[0-9.]*$//' "$WORK/out" | tr '\n' ';' | grep -qx 'ready;pp 7 ;tg 2 ;' || fail "--stdin said $(cat "$WORK/out")"
printf 'pp 0\n' | "${bench[@]}" --stdin >"$WORK/out" 2>"$WORK/err" && fail "'pp 0' was accepted"
err 'expected "pp N [DEPTH]"'
finish
