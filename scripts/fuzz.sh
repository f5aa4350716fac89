#!/usr/bin/env bash
# Builds the fuzzers (Clang) and runs each for a while from its seed corpus, one per core at a time.
# What a run finds new stays under build/fuzz/work, an input that fails under build/fuzz/crash-*.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
usage: scripts/fuzz.sh [--seconds N] [--seed N] [NAME...]

  --seconds N  how long each fuzzer runs (default 20)
  --seed N     where its random numbers start (default: another one each time)
  NAME         fuzzers without 'fuzz_' (default: all)

example: scripts/fuzz.sh --seconds 600 gguf lora
TEXT
}

seconds=20 seed=0
while [ $# -gt 0 ]; do
    case $1 in
    --seconds | --seed)
        if ! [[ ${2:-} =~ ^[0-9]+$ ]]; then
            echo "fuzz.sh: $1 needs a number" >&2
            exit 2
        fi
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        usage >&2
        exit 2
        ;;
    *) break ;;
    esac
done

fuzz_one() {
    local name=$1 corpus=tests/fuzz/corpus/$1 log=build/fuzz/fuzz_$1.log
    local inputs=("build/fuzz/work/$name")
    mkdir -p "${inputs[0]}"
    if [ -d "$corpus" ]; then inputs+=("$corpus"); fi
    if build/fuzz/fuzz/fuzz_"$name" -max_total_time="$seconds" -seed="$seed" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix=build/fuzz/ "${inputs[@]}" >"$log" 2>&1; then
        echo "fuzz_$name: $(tail -n 1 "$log")"
    else
        tail -n 60 "$log"
        return 1
    fi
}

cmake --preset fuzz -DCOLIBRI_TESTS=ON -DCOLIBRI_WERROR=ON >/dev/null
cmake --build --preset fuzz --target fuzzers
if [ $# = 0 ]; then
    set -- build/fuzz/fuzz/fuzz_*
    set -- "${@##*/fuzz_}"
fi
for name in "$@"; do
    if ! [ -x "build/fuzz/fuzz/fuzz_$name" ]; then
        echo "fuzz.sh: no fuzzer '$name'; there are: $(cd build/fuzz/fuzz && echo fuzz_* | sed 's/fuzz_//g')" >&2
        exit 2
    fi
done
export -f fuzz_one
export seconds seed
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz_one "$1"' fuzz
