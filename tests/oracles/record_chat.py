"""Records how jinja2 renders chat templates, for the interpreter in core/text to be compared with.

Needs: pip install jinja2
Run:   python3 record_chat.py OUT.json TEMPLATE_DIR [MODEL.gguf ...]     (the latter also need: pip install gguf)
       python3 record_chat.py --show TEMPLATE CONVERSATION                one rendering, to compare by eye

TEMPLATE_DIR holds templates as published with models (*.jinja); they are not part of the repository, so OUT.json keeps
their names, hashes and results only: of each rendering its length in bytes and the FNV-1a hash of its 64 bits, or the
error. From a GGUF file tokenizer.chat_template is taken. The set-up is that of transformers (apply_chat_template):
trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception, strftime_now; tools and documents
are none unless the conversation has some. Time stands still at NOW, in UTC.
"""
import copy
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


def tool(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


WEATHER = tool("get_weather", "Current weather of a city.\nUse it for \"today\".", {
    "city": {"type": "string", "description": "Name of the city, like \"Zürich\""},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["city"])
ORDER = tool("place_order", "Orders things 日本 <b>&</b>", {
    "items": {"type": "array", "description": "what", "minItems": 1, "items": {
        "type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        "required": ["sku"], "additionalProperties": False}},
    "gift": {"type": ["boolean", "null"], "description": "wrapped?"},
    "limit": {"type": "number", "exclusiveMinimum": 0.5},
    "tags": {"type": "array", "items": {"type": "string"}},
    "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{4}$"}}},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}}, ["items", "gift"])
NOTHING = {"type": "function", "function": {"name": "ping", "description": "No arguments", "parameters": {
    "type": "object", "properties": {}}}}
TOOLS = [WEATHER, ORDER, NOTHING]


def call(ident, name, arguments):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(ident, name, content):
    return {"role": "tool", "tool_call_id": ident, "name": name, "content": content}


ASK = {"role": "user", "content": "How is the weather in Zürich? <|im_end|> {{ 7 * 7 }}"}
ARGUMENTS = {"city": "Zürich", "unit": "celsius"}
ORDERED = {"items": [{"sku": "a\"b\\c\n", "count": 2}], "gift": None, "limit": 1.5, "tags": [], "address": {"zip": "8000"},
           "either": True}
RESULT = result("abcde1234", "get_weather", '{"temperature": 21.5, "sky": "clear"}')
ONE_CALL = [ASK, {"role": "assistant", "content": "", "tool_calls": [call("abcde1234", "get_weather", ARGUMENTS)]}, RESULT]
TWO_CALLS = [SYSTEM, ASK, {"role": "assistant", "content": "I look.", "tool_calls": [
    call("abcde1234", "get_weather", ARGUMENTS), call("fghij5678", "place_order", ORDERED)]}, RESULT,
    result("fghij5678", "place_order", "ok 日本 </tool_response>")]
AFTER = [{"role": "assistant", "content": "It is \"fine\"."}, {"role": "user", "content": "Thanks"}]


def parts(*texts):
    return [{"type": "text", "text": t} for t in texts]


def without(messages, key):
    return [{k: v for k, v in m.items() if k != key} for m in messages]


def conversation(messages, generation=True, **more):
    return {"messages": messages, "add_generation_prompt": generation, **more}


CONVERSATIONS = {
    "user": conversation([USER]),
    "system": conversation([SYSTEM, USER]),
    "turns": conversation([SYSTEM, USER, ANSWER, {"role": "user", "content": "And 3+3? \"é\" 日本"},
                           {"role": "assistant", "content": "Six"}, {"role": "user", "content": "Merci"}]),
    "answered": conversation([USER, ANSWER], False),
    "empty": conversation([{"role": "system", "content": ""}, {"role": "user", "content": ""},
                           {"role": "assistant", "content": ""}, {"role": "user", "content": "é 'x' \"y\" \\ <a&b>"}]),
    "null": conversation([USER, {"role": "assistant", "content": None}, USER]),
    "parts": conversation([{"role": "user", "content": parts("What is this?", " And “this”?")}]),
    "parts-turns": conversation([{"role": "system", "content": parts("Be kind.")}, {"role": "user", "content": parts("Hi")},
                                 {"role": "assistant", "content": parts("Hello")}, {"role": "user", "content": parts("Bye")}]),
    "developer": conversation([{"role": "developer", "content": "You are terse."}, USER]),
    "tools": conversation([ASK], tools=TOOLS),
    "tools-system": conversation([SYSTEM, ASK], tools=[WEATHER]),
    "call": conversation(ONE_CALL, tools=TOOLS),
    "call-null": conversation([{**m, "content": m["content"] or None} for m in ONE_CALL], tools=[WEATHER]),
    "call-without-content": conversation([ASK, without([ONE_CALL[1]], "content")[0], RESULT], tools=[WEATHER]),
    "call-text": conversation([ASK, {**ONE_CALL[1], "tool_calls": [
        call("abcde1234", "get_weather", json.dumps(ARGUMENTS, ensure_ascii=False))]}, RESULT], tools=[WEATHER]),
    "call-open": conversation(ONE_CALL[:2], False, tools=[WEATHER]),
    "call-no-tools": conversation(ONE_CALL),
    "calls": conversation(TWO_CALLS, tools=TOOLS),
    "calls-after": conversation(TWO_CALLS + AFTER, tools=TOOLS),
    "calls-again": conversation(ONE_CALL + AFTER + [
        {"role": "assistant", "content": None, "tool_calls": [call("klmno9012", "ping", {})]},
        result("klmno9012", "ping", "")], tools=TOOLS),
    "bare-result": conversation([ASK, ONE_CALL[1], {"role": "tool", "content": "21"}], tools=[WEATHER]),
    "reasoning": conversation([USER, {"role": "assistant", "content": "4", "reasoning_content": "add\nthem"}, USER, {
        **ONE_CALL[1], "reasoning_content": "call it"}, RESULT], tools=[WEATHER]),
    "thinking-on": conversation([USER], enable_thinking=True, thinking=True),
    "thinking-off": conversation([SYSTEM, USER, ANSWER, USER], enable_thinking=False, thinking=False),
    "effort": conversation([SYSTEM, USER], reasoning_effort="high", model_identity="You are Colibri."),
    "documents": conversation([USER], documents=[{"title": "One", "text": "Some “text”.", "doc_id": 1}]),
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


def render(template, messages, add_generation_prompt, bos="<s>", eos="</s>", **more):
    """The text, or {"error": ...} if the template refuses."""
    try:
        return template.render(**{"tools": None, "documents": None, **copy.deepcopy(more)}, messages=copy.deepcopy(messages),
                               add_generation_prompt=add_generation_prompt, bos_token=bos, eos_token=eos)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, KeyError, AttributeError,
            RecursionError) as e:
        return {"error": str(e)}


def fnv1a(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 % (1 << 64)
    return h


def digest(result):
    return result if isinstance(result, dict) else f"{len(result.encode())}:{fnv1a(result.encode()):016x}"


def record(env, text, bos="<s>", eos="</s>"):
    template = env.from_string(text)
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "bos": bos, "eos": eos,
            "rendered": {name: digest(render(template, bos=bos, eos=eos, **c)) for name, c in CONVERSATIONS.items()}}


def from_gguf(path):
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()

    def token(key):
        return tokens[fields[key].contents()] if key in fields else ""

    return (fields["tokenizer.chat_template"].contents(), token("tokenizer.ggml.bos_token_id"),
            token("tokenizer.ggml.eos_token_id"))


def main():
    env = environment()
    if sys.argv[1] == "--show":
        text = pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
        result = render(env.from_string(text), **CONVERSATIONS[sys.argv[3]])
        print(result if isinstance(result, str) else f"error: {result['error']}", end="")
        return
    out, folder, models = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    templates = {p.name: record(env, p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.jinja"))}
    for m in models:
        templates[pathlib.Path(m).name] = record(env, *from_gguf(m))
    result = {"now": NOW, "conversations": CONVERSATIONS, "templates": templates}
    pathlib.Path(out).write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
