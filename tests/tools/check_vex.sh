#!/usr/bin/env bash
# Checks that a plugin holds AVX-VNNI products and no EVEX instruction: a CPU with AVX-VNNI need not have AVX-512, and one
# wrong -m flag would make the compiler use it.
#     check_vex.sh PLUGIN.so WITH_EVEX.so
# The second object must be found to break the rule: else the check itself sees nothing.
set -u
command -v objdump >/dev/null || { echo "skip: no objdump"; exit 77; }

# Instructions whose first byte is 62, which in 64-bit code is EVEX and nothing else.
evex() { objdump -d --insn-width=15 "$1" | awk -F'\t' 'NF >= 3 && $2 ~ /^62 / { n++ } END { print n + 0 }'; }

vnni=$(objdump -d --no-show-raw-insn "$1" | grep -c vpdpbusd)
bad=$(evex "$1")
control=$(evex "$2")
echo "$1: $vnni vpdpbusd, $bad EVEX instructions; $2: $control EVEX instructions"
[ "$vnni" -gt 100 ] && [ "$bad" -eq 0 ] && [ "$control" -gt 100 ]
