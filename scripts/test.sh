#!/bin/sh
# Builds with warnings as errors and runs the test suite: `scripts/test.sh` all of it, `scripts/test.sh -L quick` a part
# (arguments go to ctest).
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
# shellcheck disable=SC2086
need $PACKAGES_BUILD $PACKAGES_TEST
cmake --preset release -DCOLIBRI_TESTS=ON -DCOLIBRI_WERROR=ON
cmake --build --preset release
ctest --preset release -j "$(nproc)" "$@"
