#!/bin/bash
# What may be wrong with the files of colibri compare --strategies and colibri evaluate: task files, results, pages. One line
# that says what, before anything is computed; nothing that was there is lost.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
cd "$WORK" || exit 1
model=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
words() { printf 'the red fox ran over old stone walls %.0s' $(seq "$1"); }
item() { printf '{"id": "%s", "prompt": "%s", "answer": " fox"}\n' "$1" "$(words "$2")"; }
passkey() { # extra members
    printf '{"intro": "Read. ", "filler": "filler.txt", "needle": " The key is {key}. ", "question": "The key?", "depths": [50], %s}' "$1"
}
words 40 >filler.txt
item a 8 >items.jsonl
item b 9 >>items.jsonl
grid=("$c" compare -m "$model" --ctx 256 --threads 1 --strategies streaming)
eval=("$c" evaluate -m "$model" --ctx 256 --threads 1)

# ---- task files ----
: >empty
mkdir folder
item long 400 >long.jsonl
printf '{"prompt": "%s", "answer": " x"}\n' "$(head -c 3000000 /dev/zero | tr '\0' a)" >huge.jsonl
printf '{"prompt": %s1%s, "answer": " x"}\n' "$(printf '[%.0s' $(seq 3000))" "$(printf ']%.0s' $(seq 3000))" >deep.jsonl
printf '{"prompt": "a\0b", "answer": " x"}\n' >nul.jsonl
printf '{"prompt": "\377", "answer": " x"}\n' >utf8.jsonl
printf '{"prompt": 7, "answer": " x"}\n' >type.jsonl
printf '%s{"prompt": "cut' "$(item a 8)" >cut.jsonl
passkey '"lengths": [16777216]' >far.json
passkey '"lengths": [100, 101, 102], "repeats": 50000' >repeats.json
passkey '"lengths": ['"$(seq -s, 16 255)"'], "repeats": 1000' >product.json
passkey '"lengths": [100], "repeats": 4611686018427387904' >overflow.json
for command in grid eval; do
    declare -n run_it=$command
    refuse 2 "empty is empty: no items" "${run_it[@]}" --task recall=empty
    refuse 4 "cannot read folder: Is a directory" "${run_it[@]}" --task recall=folder
    refuse 3 "cannot open none: No such file" "${run_it[@]}" --task text=none
    refuse 2 "long.jsonl: all items are longer than the context of 256" "${run_it[@]}" --task recall=long.jsonl
    refuse 2 "huge.jsonl: all items are longer than the context of 256" "${run_it[@]}" --task recall=huge.jsonl
    refuse 5 "deep.jsonl, line 1: " "${run_it[@]}" --task recall=deep.jsonl
    refuse 5 "nul.jsonl, line 1: " "${run_it[@]}" --task recall=nul.jsonl
    refuse 5 "utf8.jsonl, line 1: " "${run_it[@]}" --task recall=utf8.jsonl
    refuse 5 'type.jsonl, line 1: needs "prompt" and "answer"' "${run_it[@]}" --task recall=type.jsonl
    refuse 5 "cut.jsonl, line 1: " "${run_it[@]}" --task recall=cut.jsonl
    refuse 2 "far.json: all items are longer than the context of 256" "${run_it[@]}" --task passkey=far.json
    refuse 5 '"repeats" (1 to 1000)' "${run_it[@]}" --task passkey=repeats.json
    refuse 8 "lengths x depths x repeats are more than 100000 items" "${run_it[@]}" --task passkey=product.json
    refuse 5 '"repeats" (1 to 1000)' "${run_it[@]}" --task passkey=overflow.json
done

# Reading a file that takes long stops on request.
passkey '"lengths": ['"$(seq -s, 160 250)"'], "repeats": 1000' >slow.json
"${grid[@]}" --task passkey=slow.json >/dev/null 2>slow.err &
sleep 1
kill -TERM $! # a job in the background ignores SIGINT
wait $!
[ $? = 130 ] || fail "interrupted while tasks are read: $(cat slow.err)"
[ "$(grep -c 'stopped on request' slow.err)" = 1 ] || fail "interrupted while tasks are read: $(cat slow.err)"

# ---- a budget that one item is too short for shows before the others are run ----
{ item a 8; printf '{"id": "short", "prompt": "the", "answer": " fox"}\n'; } >short.jsonl
refuse 2 "streaming at 50%, item short of short.jsonl: " "${grid[@]}" --task recall=short.jsonl --jsonl short-results.jsonl
[ ! -e short-results.jsonl ] || fail "results of a grid that never began"
refuse 2 "streaming at 50%, item short of short.jsonl: " "${eval[@]}" --task recall=short.jsonl --kv-strategy streaming --budget 50%

# ---- results ----
run 0 "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl
cp r.jsonl kept.jsonl
refuse 3 "cannot open none" "${grid[@]}" --task recall=none --jsonl r.jsonl --force
cmp -s r.jsonl kept.jsonl || fail "--force lost results to a mistake in another flag"
refuse 3 "cannot open none" "${grid[@]}" --task recall=none --jsonl r.jsonl --continue
cmp -s r.jsonl kept.jsonl || fail "--continue changed results although nothing was run"
: >r.jsonl # killed before the header was out
run 0 "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl --continue
head -c 100 kept.jsonl >r.jsonl # ... in the middle of it
run 0 "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl --continue
[ "$(grep -c '"result"' r.jsonl)" = 6 ] || fail "$(grep -c '"result"' r.jsonl) results instead of 6"
run 0 "$c" compare --from r.jsonl
for n in $(seq 2 7); do # ... anywhere else
    { head -n "$n" kept.jsonl; printf '{"record":"res'; } >r.jsonl
    run 0 "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl --continue
    [ "$(grep -c '"result"' r.jsonl)" = 6 ] || fail "line $n: $(grep -c '"result"' r.jsonl) results instead of 6"
done
exec 9<r.jsonl
if flock -n 9; then # another run has it
    refuse 4 "r.jsonl: another run is writing to it" "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl --continue
    refuse 4 "r.jsonl: another run is writing to it" "${grid[@]}" --task recall=items.jsonl --jsonl r.jsonl --force
fi
exec 9<&-

# A strategy from a system library has no file of its own to be known by.
run 0 "${grid[@]},newest" --task recall=items.jsonl --jsonl foreign.jsonl --set foreign.newest.library=libm.so.6 \
    --set foreign.newest.symbol=fabs --set "foreign.newest.signature=double(f64 position)" --set foreign.newest.kind=kv-strategy
grep -qF '"code":"newest=libm.so.6"' foreign.jsonl || fail "what a foreign strategy is known by: $(head -c 900 foreign.jsonl)"

# A drive that is full: what is complete is shown, the error is said once.
if [ -w /dev/full ]; then
    refuse 4 "cannot write to /dev/full" "${grid[@]}" --task recall=items.jsonl --jsonl /dev/full --force
    refuse 4 "/dev/full" "${eval[@]}" --task recall=items.jsonl --jsonl /dev/full --force
    run 4 "${grid[@]}" --task recall=items.jsonl --html /dev/full --force
    out "exact match"
fi

# ---- pages: what cannot be written shows before anything is run ----
: >page.html
refuse 2 "page.html exists; --force replaces it" "${grid[@]}" --task recall=items.jsonl --html page.html --jsonl p.jsonl
refuse 4 "cannot create none/page.html" "${grid[@]}" --task recall=items.jsonl --html none/page.html --jsonl p.jsonl
refuse 4 "folder" "${grid[@]}" --task recall=items.jsonl --html folder --force --jsonl p.jsonl
[ ! -e p.jsonl ] || fail "a grid began whose page cannot be written"
finish
