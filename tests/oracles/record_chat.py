"""Records how jinja2 renders chat templates, for the interpreter in core/text to be compared with.

Needs: pip install jinja2
Run:   python3 record_chat.py OUT.json TEMPLATE_DIR [MODEL.gguf ...]     (the latter also need: pip install gguf)

TEMPLATE_DIR holds templates as published with models (*.jinja); they are not part of the repository, so OUT.json keeps
their names, hashes and results only. From a GGUF file tokenizer.chat_template is taken. The set-up is that of
transformers (apply_chat_template): trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes,
raise_exception, strftime_now; tools and documents are none. Time stands still at NOW, in UTC.
"""
import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1735689600  # 2025-01-01 00:00 UTC

SYSTEM = {"role": "system", "content": "You are terse.\nAnswer in French. "}
USER = {"role": "user", "content": "  What is 2+2?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nQuatre. <|im_end|>"}
CONVERSATIONS = {
    "user": ([USER], True),
    "system": ([SYSTEM, USER], True),
    "turns": ([SYSTEM, USER, ANSWER, {"role": "user", "content": "And 3+3? \"é\" 日本"},
               {"role": "assistant", "content": "Six"}, {"role": "user", "content": "Merci"}], True),
    "answered": ([USER, ANSWER], False),
}


class Generation(jinja2.ext.Extension):
    """{% generation %} marks text for training; it changes nothing in the output."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                              extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def render(template, messages, add_generation_prompt, bos="<s>", eos="</s>"):
    """The text, or {"error": ...} if the template refuses."""
    try:
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt, bos_token=bos,
                               eos_token=eos, tools=None, documents=None)
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e)}
    except TypeError as e:
        return {"error": str(e)}


def record(env, text, bos="<s>", eos="</s>"):
    template = env.from_string(text)
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "bos": bos, "eos": eos,
            "rendered": {name: render(template, m, g, bos, eos) for name, (m, g) in CONVERSATIONS.items()}}


def from_gguf(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()

    def token(key):
        return tokens[fields[key].contents()] if key in fields else ""

    return (fields["tokenizer.chat_template"].contents(), token("tokenizer.ggml.bos_token_id"),
            token("tokenizer.ggml.eos_token_id"))


def main():
    out, folder, models = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    env = environment()
    templates = {p.name: record(env, p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.jinja"))}
    for m in models:
        templates[pathlib.Path(m).name] = record(env, *from_gguf(m))
    result = {"now": NOW, "conversations": {n: {"messages": m, "add_generation_prompt": g}
                                            for n, (m, g) in CONVERSATIONS.items()}, "templates": templates}
    pathlib.Path(out).write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
