#!/usr/bin/env bash
# colibri trace: recording, conversions there and back, what is refused.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
cd "$WORK" || exit 1

printf 'What is a telescope?\n\nName a colour.\n' >lines.txt
run 0 "$COLIBRI" trace -m "$MODEL" --prompts lines.txt --raw -n 8 --ignore-eos --temperature 0 -o a.clbt &&
    out "16 decoded tokens"
refuse 2 "--force" "$COLIBRI" trace -m "$MODEL" --prompts lines.txt -n 1 -o a.clbt
run 0 "$COLIBRI" trace info a.clbt --json
for part in '"n_layers": *5' '"n_experts": *32' '"top_k": *4' '"decode_passes": *16' '"label": *"lines.txt:3"' '"ends_early": *false'; do
    grep -qE "$part" "$WORK/out" || fail "info --json lacks $part: $(cat "$WORK/out")"
done
run 0 "$COLIBRI" trace info a.clbt && out "decode     16 passes, 16 tokens" && out "of a token's experts"

# The same tokens and choices whatever is resident, and the same trace but for times.
run 0 "$COLIBRI" trace -m "$MODEL" --prompts lines.txt --raw -n 8 --ignore-eos --temperature 0 --expert-slots 24 -o b.clbt
for f in a b; do
    run 0 "$COLIBRI" trace export $f.clbt --to jsonl -o $f.jsonl
    run 0 "$COLIBRI" trace export $f.clbt --to csv -o $f.csv
done
run 0 "$COLIBRI" trace export a.clbt --to csv -o - && cmp a.csv "$WORK/out" || fail "-o - is not standard output"
cmp a.csv b.csv || fail "the trace depends on what is resident"

# There and back.
run 0 "$COLIBRI" trace import a.jsonl -o c.clbt
run 0 "$COLIBRI" trace export c.clbt --to jsonl -o c.jsonl
cmp a.jsonl c.jsonl || fail "JSONL changed on its way through .clbt"
run 0 "$COLIBRI" trace import a.csv --experts 32 -o d.clbt
run 0 "$COLIBRI" trace export d.clbt --to csv -o d.csv
cmp a.csv d.csv || fail "CSV changed on its way through .clbt"
run 0 "$COLIBRI" trace export a.clbt --to oracleGeneral -o a.oracleGeneral
[ $(($(wc -c <a.oracleGeneral) % 24)) = 0 ] || fail "oracleGeneral is not made of 24-byte records"
run 0 "$COLIBRI" trace import a.oracleGeneral --layers 5 --experts 32 --top-k 4 -o e.clbt
run 0 "$COLIBRI" trace export e.clbt --to jsonl -o e.jsonl
sizes() { head -n 1 "$1" | grep -o '"expert_bytes":[^]]*'; }
[ -n "$(sizes a.jsonl)" ] && [ "$(sizes a.jsonl)" = "$(sizes e.jsonl)" ] ||
    fail "the layers' sizes changed on their way through oracleGeneral: $(sizes a.jsonl), $(sizes e.jsonl)"

# What cannot be completed leaves the old file, and nothing else.
for i in $(seq 100); do cat lines.txt; done >many.txt
run 0 "$COLIBRI" trace -m "$MODEL" -f many.txt --teacher-forced --prefill 64 --window 200 --max-windows 2 -o many.clbt
mkdir kept
echo old | tee kept/x.csv kept/x.jsonl kept/x.clbt kept/x.oracleGeneral >/dev/null
chmod 640 kept/x.csv
for to in csv jsonl oracleGeneral; do
    (failures=0; ulimit -f 8 && refuse 4 "cannot write" "$COLIBRI" trace export many.clbt --to $to -o kept/x.$to --force &&
        [ "$failures" = 0 ]) || fail "$to: a limit on file sizes"
done
run 0 "$COLIBRI" trace export many.clbt --to csv -o many.csv
(failures=0; ulimit -f 8 && refuse 4 "cannot write" "$COLIBRI" trace import many.csv --experts 32 -o kept/x.clbt --force &&
    [ "$failures" = 0 ]) || fail "import: a limit on file sizes"
[ "$(cat kept/* | sort -u)" = old ] || fail "an old file is gone"
[ "$(find kept -type f | wc -l)" = 4 ] || fail "left behind: $(ls -A kept)"
refuse 2 "--force" "$COLIBRI" trace export many.clbt --to csv -o kept/x.csv
run 0 "$COLIBRI" trace export many.clbt --to csv -o kept/x.csv --force
cmp kept/x.csv many.csv || fail "another CSV"
[ "$(stat -c %a kept/x.csv) $(stat -c %a many.csv)" = "640 644" ] || fail "permissions: $(ls -l kept/x.csv many.csv)"
run 0 "$COLIBRI" trace export many.clbt --to csv -o /dev/null --force
[ -c /dev/null ] || fail "/dev/null is no device any more"

# A text as it stands, in windows.
for i in $(seq 60); do echo "Line $i of a text that is long enough for two windows."; done >text.txt
run 0 "$COLIBRI" trace -m "$MODEL" -f text.txt --teacher-forced --window 40 --prefill 30 --max-windows 2 --ahead 2 -o w.clbt &&
    out "60 prompt tokens, 20 decoded tokens"
run 0 "$COLIBRI" trace info w.clbt && out "8 best of 2 layers ahead"

# Cut off: used as far as it is complete.
head -c $(($(wc -c <a.clbt) - 100)) a.clbt >cut.clbt
run 0 "$COLIBRI" trace info cut.clbt && err "ends early" && out "ends early"
head -c 20 a.clbt >head.clbt
refuse 5 "ends inside its header" "$COLIBRI" trace info head.clbt

refuse 2 "did you mean 'import'" "$COLIBRI" trace imports a.clbt
refuse 2 "needs one FILE" "$COLIBRI" trace info
refuse 2 "no prompts" "$COLIBRI" trace -m "$MODEL" -o x.clbt
refuse 2 "say with -o" "$COLIBRI" trace -m "$MODEL" -f text.txt
refuse 2 "goes with --teacher-forced" "$COLIBRI" trace -m "$MODEL" -f text.txt --window 4 -o x.clbt
refuse 2 "does not go with recording" "$COLIBRI" trace -m "$MODEL" -f text.txt --from csv -o x.clbt
refuse 2 "goes with recording" "$COLIBRI" trace info a.clbt --ahead 1
refuse 2 "--to csv, jsonl or oracleGeneral" "$COLIBRI" trace export a.clbt
refuse 5 "cannot tell" "$COLIBRI" trace info text.txt
refuse 5 "columns must be" "$COLIBRI" trace import text.txt --from csv -o x.clbt
[ ! -e x.clbt ] || fail "a refused command left x.clbt"
finish
