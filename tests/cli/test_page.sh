#!/usr/bin/env bash
# slow: the chat page in headless Chromium, where Playwright and Chromium are installed
. "$(dirname "$0")/lib.sh"
python=${PYTHON:-python3}
"$python" "$SOURCE_DIR/tests/page/test_page.py" "$COLIBRI" "$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf"
code=$?
[ "$code" = 77 ] && exit 77
[ "$code" = 0 ] || fail "the page's test ended with $code"
finish
