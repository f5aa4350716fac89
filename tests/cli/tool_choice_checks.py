"""An answer of a schema or calls, over HTTP, on a server whose template has one family's format of calls."""
import json
import sys

from openai_client import Client

port, family, call_begin = int(sys.argv[1]), sys.argv[2], sys.argv[3]
c = Client(port)
CHAT = "/v1/chat/completions"


def tool(name, strict, **properties):
    schema = dict(type="object", properties=properties, required=list(properties), additionalProperties=False)
    return dict(type="function", function=dict(name=name, strict=strict, parameters=schema))


tools = [tool("set_day", True, day=dict(type="integer", minimum=1, maximum=9)), tool("stop_it", True, now=dict(type="boolean"))]
schema = dict(type="object", properties=dict(n=dict(type="integer", minimum=0, maximum=99)), required=["n"], additionalProperties=False)
form = dict(type="json_schema", json_schema=dict(name="a", schema=schema))
ask = dict(messages=[dict(role="user", content="When?")], tools=tools, response_format=form, parallel_tool_calls=False,
           max_tokens=300, temperature=1)


def check(message, finish):
    """What kind of reply it is."""
    if "tool_calls" in message:
        (call,) = message["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        day = call["function"]["name"] == "set_day"
        assert finish == "tool_calls" and message["content"] is None, message
        assert 1 <= arguments["day"] <= 9 if day else isinstance(arguments["now"], bool), message
        return "call"
    assert finish == "stop" and 0 <= json.loads(message["content"])["n"] <= 99, (message, finish)
    return "answer"


kinds = set()
for seed in range(40):
    # the model is pushed to what calls begin with, or to what answers do
    begin = call_begin if seed % 2 else "{"
    first = c.ok("/tokenize", dict(content=begin, add_special=False))["tokens"][0]
    body = dict(ask, seed=seed, logit_bias={str(first): 8})
    o = c.ok(CHAT, body)["choices"][0]
    if o["finish_reason"] == "length":
        continue
    kinds.add(check(o["message"], o["finish_reason"]))
    events, _ = c.stream(CHAT, body)
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
    text = "".join(d.get("content") or "" for d in deltas)
    arguments = "".join(t["function"].get("arguments", "") for d in deltas for t in d.get("tool_calls", []))
    whole = o["message"].get("tool_calls")
    assert text == (o["message"]["content"] or ""), (text, o)
    assert arguments == (whole[0]["function"]["arguments"] if whole else ""), (arguments, o)
    if len(kinds) == 2 and seed > 6:
        break
assert kinds == {"answer", "call"}, (family, kinds)

# cut within the name of a call: nothing of it is shown
o = c.ok(CHAT, dict(ask, response_format=dict(type="text"), tool_choice="required", max_tokens=1))["choices"][0]
assert o["finish_reason"] == "length" and not o["message"]["content"] and "tool_calls" not in o["message"], o

# an answer that may begin like a call of a strict function
code, _, o = c.post(CHAT, dict(ask, response_format=dict(type="json_object")))
if family == "llama3":
    assert code == 400 and o["error"]["param"] == "tools" and "begin like a call" in o["error"]["message"], o
else:
    assert code == 200, o
