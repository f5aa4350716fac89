#!/usr/bin/env bash
# slow
# Runs inside a memory cgroup of the budget and 5 %: not killed, resident memory under the budget, the same tokens as without
# any limit. Needs the right to make cgroups. COLIBRI_TEST_SMOLLM2 may name a larger, dense model.
SMOLLM2=${COLIBRI_TEST_SMOLLM2:-}
. "$(dirname "$0")/lib.sh"

v1=/sys/fs/cgroup/memory v2=/sys/fs/cgroup
GROUP=
if [ -e $v1/memory.limit_in_bytes ]; then
    GROUP=$v1/colibri-test-$$ LIMIT=memory.limit_in_bytes
elif grep -qw memory $v2/cgroup.subtree_control 2>/dev/null; then
    GROUP=$v2/colibri-test-$$ LIMIT=memory.max
fi
[ -n "$GROUP" ] || skip "there is no memory cgroup controller"
mkdir "$GROUP" 2>/dev/null || skip "no right to make a memory cgroup"
trap '[ "$BASHPID" = "$$" ] && { rmdir "$GROUP" 2>/dev/null; rm -rf "$WORK"; }' EXIT

oom_kills() {
    cat "$GROUP"/memory.oom_control "$GROUP"/memory.events 2>/dev/null | awk '$1 == "oom_kill" {n += $2} END {print n + 0}'
}

# uncached FILE: its pages leave the page cache, so that what is read counts in the group
uncached() {
    python3 -c 'import os, sys; f = os.open(sys.argv[1], os.O_RDONLY); os.fsync(f); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)' "$1"
}

# limited MIB ARGS...: stdout in $WORK/out, stderr in $WORK/err
limited() {
    local mib=$1 code=0 kills
    shift
    kills=$(oom_kills)
    uncached "$MODEL"
    echo $((mib * 1024 * 1024 / 100 * 105)) >"$GROUP/$LIMIT" || { fail "cannot set a limit of $mib MiB and 5 %"; return 1; }
    (
        echo "$BASHPID" >"$GROUP/cgroup.procs" && exec "$COLIBRI" "$@"
    ) >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
    [ "$code" = 0 ] || fail "$mib MiB, '$*': ended with $code: $(head -c 400 "$WORK/err")"
    [ "$(oom_kills)" = "$kills" ] || fail "$mib MiB, '$*': the kernel killed it"
    return $code
}

# least ARGS...: the budget that a refusal advises, in MiB
least() {
    "$COLIBRI" run -m "$MODEL" --raw --max-memory 1M "$@" x 2>&1 >/dev/null </dev/null | sed -nE 's/.*would fit: --max-memory ([0-9]+)M.*/\1/p'
}

# check TOKENS MORE ARGS...: with the least budget and with MORE MiB more
check() {
    local tokens=$1 more=$2 mib want
    shift 2
    local common=(run -m "$MODEL" --raw --temperature 0 -n "$tokens" --ignore-eos --json "$@" --file "$WORK/prompt")
    "$COLIBRI" "${common[@]}" >"$WORK/want" 2>"$WORK/err" </dev/null || { fail "'$*' without a limit: $(cat "$WORK/err")"; return; }
    mib=$(least "$@")
    [ -n "$mib" ] || { fail "'$*': no advice"; return; }
    for mib in $((mib + 2)) $((mib + more)); do # the group counts pages of the kernel's own, too
        limited "$mib" "${common[@]}" --max-memory "${mib}M" || continue
        python3 - "$WORK/out" "$WORK/want" "$mib" "$*" <<'PY' || fail "$mib MiB, '$*'"
import json, sys
got, want = (json.load(open(f)) for f in sys.argv[1:3])
budget = int(sys.argv[3]) << 20
plan = got["stats"]["plan"]
print(f'{sys.argv[4]}: budget {budget >> 20} MiB, planned {plan["planned_bytes"] / 2**20:.1f}, peak {plan["peak_rss_bytes"] / 2**20:.1f}')
assert got["tokens"] == want["tokens"], "other tokens than without a limit"
assert plan["planned_bytes"] <= plan["budget_bytes"] <= budget
assert plan["peak_rss_bytes"] <= budget, "more resident memory than the budget"
PY
    done
}

head -c 1500 "$SOURCE_DIR/tests/data/tiny-moe/prose.txt" >"$WORK/prompt"
cp "$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf" "$WORK/model.gguf"
MODEL=$WORK/model.gguf
check 24 3 --ctx 2048 --batch 64 -t 2
check 24 3 --ctx 2048 --batch 64 -t 2 --direct off
check 24 3 --ctx 2048 --batch 64 -t 2 --direct off --io pread
check 24 3 --ctx 2048 --batch 64 -t 2 --store-mode mmap
# strategies that drop most of the prompt, with sums and queries of their own, and a recent window
check 24 3 --ctx 2048 --batch 64 -t 2 --kv-strategy ada/h2o --kv-budget 6.25%
check 24 3 --ctx 2048 --batch 64 -t 2 --kv-strategy snapkv --kv-budget 6.25% --kv-type q8_0
if [ -n "$SMOLLM2" ]; then
    cp "$SMOLLM2" "$WORK/smollm2.gguf"
    MODEL=$WORK/smollm2.gguf
    check 12 20 --ctx 1024 --batch 64 -t 2
    check 12 20 --ctx 1024 --batch 64 -t 2 --direct off
    check 12 20 --ctx 2048 --batch 64 -t 2 --kv-strategy expected-attention --kv-budget 6.25%
    check 12 20 --ctx 2048 --batch 64 -t 2 --kv-strategy quest --kv-budget 6.25%
    check 12 60 --ctx 1024 --batch 64 -t 2 --prefetch-depth 4
fi
# a limit below --max-memory is the budget: said, and kept
MODEL=$WORK/model.gguf
limit=$(least --ctx 2048 --batch 64 -t 2)
limited $((limit + 8)) run -m "$MODEL" --raw --temperature 0 -n 8 --ctx 2048 --batch 64 -t 2 --max-memory 8G --file "$WORK/prompt"
err "that is what a cgroup's memory limit leaves"
finish
