#!/bin/sh
# Builds Colibri and lets the embedded mixture-of-experts model write: first recall from its context, then prose.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
# shellcheck disable=SC2086
need $PACKAGES_BUILD
echo "Building, about a minute (log: build.log)"
cmake --preset release -DCOLIBRI_TESTS=OFF >build.log 2>&1 || { cat build.log; exit 1; }
cmake --build --preset release >>build.log 2>&1 || { tail -n 40 build.log; exit 1; }
rm -f build.log

model=examples/tiny-moe/tiny-moe-q4_k_m.gguf
say() { printf '\n$ colibri %s\n' "$*"; }
say run -m $model --temperature 0 '"Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"'
build/release/bin/colibri run -m $model --temperature 0 \
    "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
say run -m $model --raw --temp 0.7 --top-p 0.9 --repeat-penalty 1.15 --seed 7 -n 80 --stats '"In the beginning"'
build/release/bin/colibri run -m $model --raw --temp 0.7 --top-p 0.9 --repeat-penalty 1.15 --seed 7 -n 80 --stats \
    "In the beginning"
