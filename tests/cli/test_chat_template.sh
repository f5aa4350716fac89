#!/usr/bin/env bash
# --chat-template: files, built-in formats, and what is wrong with them.
. "$(dirname "$0")/lib.sh"
MODEL=$SOURCE_DIR/examples/tiny-moe/tiny-moe-q4_k_m.gguf
ask() { # CODE FLAGS...
    local want=$1
    shift
    run "$want" "$COLIBRI" run -m "$MODEL" --threads 1 --max-memory 512M -n 4 --temperature 0 -q "$@"
}

ask 0 Hello && cp "$WORK/out" "$WORK/own"
# the model's own format by its name gives the same, another one something else
ask 0 --chat-template chatml Hello && { cmp -s "$WORK/own" "$WORK/out" || fail "chatml is not the model's own format"; }
ask 0 --json --chat-template llama2 Hello && cp "$WORK/out" "$WORK/llama2"
printf '[INST] {{ messages[0].content }} [/INST]' >"$WORK/t.jinja"
ask 0 --json --chat-template "$WORK/t.jinja" Hello
python3 - "$WORK/llama2" "$WORK/out" <<'PY' || fail "the file and the built-in format differ"
import json, sys
a, b = (json.load(open(p)) for p in sys.argv[1:])
sys.exit(a["tokens"] != b["tokens"] or a["usage"]["prompt_tokens"] != b["usage"]["prompt_tokens"])
PY
# from the environment, too
COLIBRI_CHAT_TEMPLATE=nowhere ask 3 Hello
err 'no chat template "nowhere": neither a file nor one of chatml'
ask 3 --chat-template "$WORK/none.jinja" Hello
err "cannot open chat template $WORK/none.jinja"
# a template that cannot be interpreted: the built-in format of its family, with a warning
printf '{%% for m in messages %%}<|im_start|>{{ m.content|no_such_filter }}{%% endfor %%}' >"$WORK/t.jinja"
ask 0 --chat-template "$WORK/t.jinja" Hello
cmp -s "$WORK/own" "$WORK/out" || fail "the built-in format does not stand in"
run 0 "$COLIBRI" run -m "$MODEL" --threads 1 --max-memory 512M -n 1 --chat-template "$WORK/t.jinja" Hello
err 'unknown filter "no_such_filter"'
err 'the built-in format "chatml" is used instead'
# one of no known family is an error, and so is what a template refuses
printf '{{ messages|no_such_filter }}' >"$WORK/t.jinja"
ask 6 --chat-template "$WORK/t.jinja" Hello
err 'unknown filter "no_such_filter"'
printf '{{ raise_exception("not today") }}' >"$WORK/t.jinja"
ask 2 --chat-template "$WORK/t.jinja" Hello
err 'refuses these messages: not today'
finish
