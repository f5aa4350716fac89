#!/bin/bash
# The command line of every command, shown by the one that needs no model: layers, origins, mistakes, exit codes.
. "$(dirname "$0")/lib.sh"
c=$COLIBRI
mkdir -p "$XDG_CONFIG_HOME/colibri" "$WORK/model" "$HOME"
user=$XDG_CONFIG_HOME/colibri/colibri.ini beside=$WORK/model/colibri.ini extra=$WORK/extra.ini

# Layers: later wins, and each value says where it comes from.
printf '[cpu]\nthreads = 2\n[sampling]\nseed = 2\ntop-k = 2\n[model]\nctx = 2\nbatch = 2\n' >"$user"
printf '[sampling]\nseed = 3\ntop-k = 3\n[model]\nctx = 3\nbatch = 3\n' >"$beside"
printf '[sampling]\ntop-k = 4\n[model]\nctx = 4\nbatch = 4\n' >"$extra"
export COLIBRI_CTX=5 COLIBRI_BATCH=5
run 0 "$c" config --print-config -m "$WORK/model/m.gguf" --config "$extra" --batch 6 --set kv.kv-budget=7 --no-mlock --raw
out "threads = 2 ; $user:2"
out "seed = 3 ; $beside:2"
out "top-k = 4 ; $extra:2"
out "ctx = 5 ; COLIBRI_CTX"
out "batch = 6 ; --batch"
out "kv-budget = 7 ; --set"
out "mlock = no ; --no-mlock"
out "raw = yes ; --raw"
out "model = $WORK/model/m.gguf ; --model"
out "min-p = 0.05 ; default"
# What it prints is an INI file with the same values.
cp "$WORK/out" "$WORK/printed.ini"
unset COLIBRI_CTX COLIBRI_BATCH
run 0 env XDG_CONFIG_HOME="$WORK/none" "$c" config --print-config --config "$WORK/printed.ini"
diff <(sed 's/;.*//' "$WORK/printed.ini") <(sed 's/;.*//' "$WORK/out") >/dev/null || fail "--print-config does not read back"
# The model may be named by any layer.
run 0 env COLIBRI_MODEL="$WORK/model/m.gguf" "$c" config get seed
out 3
# The file beside the model is the user's own when the user names it.
printf '[plugins]\nprefer = mine\n' >"$beside"
refuse 2 "$beside:2: plugins.prefer: not allowed in a file beside a model" "$c" config -m "$WORK/model/m.gguf"
run 0 "$c" config get prefer -m "$WORK/model/m.gguf" --config "$beside"
out mine
refuse 2 "not allowed in a file beside a model" "$c" config check --beside-model "$beside"
run 0 "$c" config check "$beside"
out "$beside: ok, 1 setting"
rm "$beside" "$user"

# JSON.
run 0 "$c" config list --json -t 3 --set expert-policy.lfu.decay=0.5
if command -v python3 >/dev/null; then
    python3 - "$WORK/out" <<'PY' || fail "config list --json"
import json, sys
d = json.load(open(sys.argv[1]))
s = {x["section"] + "." + x["key"]: x for x in d["settings"]}
assert s["cpu.threads"]["value"] == 3 and s["cpu.threads"]["origin"] == "--threads", s["cpu.threads"]
assert s["memory.mlock"]["value"] is False and s["plugins.path"]["value"] == []
assert s["sampling.top-p"]["value"] == 0.95 and s["plugins.path"]["flag"] is None
assert d["parameters"] == [{"kind": "expert-policy", "name": "lfu", "key": "decay", "value": "0.5", "origin": "--set"}]
PY
fi
run 0 "$c" config --print-config --json --seed 18446744073709551615
out '"value": "18446744073709551615"'

# Values in every spelling of a flag.
for args in "-t 5" "--threads 5" "--threads=5" "--set threads=5" "--set cpu.threads=5" "--set=cpu.threads=5"; do
    # shellcheck disable=SC2086
    run 0 "$c" config get threads $args
    out 5
done
run 0 "$c" config get model --model-path=x
out x
run 0 "$c" config get presence-penalty --presence-penalty -1.5
out -1.5
run 0 "$c" config get mlock --mlock
out yes
run 0 "$c" config get mlock --mlock=off
out off
run 0 "$c" config -- get threads
out 0
value=/$(head -c 4100 /dev/zero | tr '\0' x)
printf '[model]\nmodel = %s\n' "$value" >"$WORK/long.ini"
run 0 "$c" config get model --config "$WORK/long.ini"
[ "$(cat "$WORK/out")" = "$value" ] || fail "a value of 4 kB was changed"

# Mistakes: one line, the nearest name, the exit code of the status table.
refuse 2 "colibri: unknown command 'confg'; did you mean 'config'?" "$c" confg
refuse 2 "colibri: unknown flag '--hlp'; did you mean '--help'?" "$c" --hlp
refuse 2 "colibri: flag '--threads' before the command" "$c" --threads 4 config
refuse 2 "colibri config: unknown flag '--thread'; did you mean '--threads'?" "$c" config --thread 4
refuse 2 "unknown flag '-x'" "$c" config -x
refuse 2 "-t takes a value, so it stands alone" "$c" config -t4
refuse 2 "-t takes a value, so it stands alone" "$c" config -vt 4
refuse 2 "--threads needs a value: --threads N" "$c" config --threads
refuse 2 "'--json' is a flag" "$c" config --model --json
refuse 2 "--json takes no value" "$c" config --json=yes
refuse 2 "--no-mlock takes no value" "$c" config --no-mlock=no
refuse 2 "unknown flag '--no-threads'" "$c" config --no-threads
refuse 2 "--threads: '4x' is not a whole number; allowed: 0 to 1024" "$c" config --threads 4x
refuse 2 "--mlock: 'maybe' is not yes or no" "$c" config --mlock=maybe
refuse 2 "--mode: 'mmpa' is none of auto|mmap|read; did you mean 'mmap'?" "$c" config --mode mmpa
refuse 2 "--threads: given twice" "$c" config --threads 4 -t 4
refuse 2 "--set cpu.threads: already given by --threads" "$c" config --threads 4 --set cpu.threads=4
refuse 2 "--mlock: already given by --no-mlock" "$c" config --no-mlock --mlock
refuse 2 "--config: given twice" "$c" config --config /dev/null --config /dev/null
refuse 2 "--set cpu.thread: unknown setting 'cpu.thread'; did you mean 'cpu.threads'?" "$c" config --set cpu.thread=4
refuse 2 "write section.key=value" "$c" config --set threads
refuse 2 "exclude each other" "$c" config -v -q
refuse 2 "unexpected argument 'c'" "$c" config a b c
refuse 2 "unknown action 'lst'; did you mean 'list'?" "$c" config lst
refuse 2 "'check' needs one FILE" "$c" config check
refuse 2 "unknown setting 'thread'; did you mean 'cpu.threads'?" "$c" config get thread
refuse 2 "unknown environment variable COLIBRI_THREAD; did you mean COLIBRI_THREADS?" env COLIBRI_THREAD=4 "$c" config
refuse 2 "COLIBRI_THREADS: 'all' is not a whole number" env COLIBRI_THREADS=all "$c" config
run 0 env COLIBRI_TEST_X=1 COLIBRI_PLUGIN_PATH=/x "$c" config
refuse 3 "--config: cannot open $WORK/none.ini" "$c" config --config "$WORK/none.ini"
refuse 3 "cannot open $WORK/none.ini" "$c" config check "$WORK/none.ini"
refuse 2 "is not a regular file" "$c" config --config "$WORK"
printf '[cpu]\nthreads = 1\nthreads = 2\n' >"$WORK/bad.ini"
refuse 2 "colibri config: $WORK/bad.ini:3: cpu.threads: given twice, first in line 2" "$c" config check "$WORK/bad.ini"
printf '[cpu]\nthreads\n' >"$WORK/bad.ini"
refuse 5 "$WORK/bad.ini:2: neither [section] nor key = value" "$c" config check "$WORK/bad.ini"
printf '[cpu]\nmask = \0\n' >"$WORK/bad.ini"
refuse 5 "$WORK/bad.ini:2: NUL byte" "$c" config check "$WORK/bad.ini"
printf '[cpu]\nmask = \033[2J\n' >"$WORK/bad.ini"
refuse 5 "control character 0x1b" "$c" config check "$WORK/bad.ini"
refuse 8 "larger than" "$c" config check /dev/zero
printf '[cpu]\nthreads = 1\n' >"$user"
chmod o+w "$user"
refuse 2 "$user can be written by every user" "$c" config
rm "$user"
# Hostile bytes of the command line stay on one line and away from the terminal.
refuse 2 "unknown flag '--a\\x1b\\nb'" "$c" config "--a"$'\033'$'\n'"b"

# Every file of the examples is right.
for ini in "$SOURCE_DIR"/examples/ini/*.ini "$SOURCE_DIR"/examples/ini/serve/*.ini; do
    run 0 "$c" config check "$ini"
done
# The commented file shows every setting, and its lines are right once they are not comments.
run 0 "$c" config template
diff "$WORK/out" "$SOURCE_DIR/examples/ini/colibri.ini" || fail "run: colibri config template >examples/ini/colibri.ini"
sed 's/^;\([a-z][a-z-]* *=\)/\1/' "$WORK/out" >"$WORK/all.ini"
run 0 "$c" config --print-config
sed 's/ *;.*//' "$WORK/out" >"$WORK/defaults"
run 0 "$c" config --print-config --config "$WORK/all.ini"
grep -F '; default' "$WORK/out" && fail "the template lacks these settings"
sed 's/ *;.*//' "$WORK/out" | diff "$WORK/defaults" - || fail "the template shows other defaults"

# Output that is lost is an error; a reader that goes away is none.
code=0
"$c" config list >/dev/full 2>"$WORK/err" || code=$?
[ $code = 4 ] || fail "a full disk gave exit code $code"
err "colibri config: cannot write standard output: No space left on device"
"$c" config list 2>"$WORK/err" | true
[ -s "$WORK/err" ] && fail "a closed pipe said: $(cat "$WORK/err")"
finish
