"""The checks of test_anthropic.sh: python3 anthropic_checks.py PORT, against a server of the embedded tiny model with a context of
1024 tokens. Anthropic's Messages API as it goes over the wire."""
import copy
import json
import sys
import time

from openai_client import Client

c = Client(int(sys.argv[1]))
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
RECALL = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ANSWER = "The secret code of the silver fox is 7316."
WEATHER = dict(name="get_weather", description="Weather of a city", input_schema=dict(
    type="object", properties=dict(city=dict(type="string", maxLength=6), days=dict(type="integer", minimum=1, maximum=9)),
    required=["city", "days"], additionalProperties=False))
PING = dict(name="ping", input_schema=dict(type="object", properties={}, additionalProperties=False))


def ask(text=RECALL, **more):
    return dict(model="any", max_tokens=40, temperature=0, messages=[dict(role="user", content=text)], **more)


def refused(body, status, kind, part, path=MESSAGES):
    got, _, o = c.post(path, body)
    assert (got, o["type"], o["error"]["type"]) == (status, "error", kind), (body, got, o)
    assert part in o["error"]["message"], (body, o)


def stream(body):
    """The events as (name, data); checks that the name is that of the data, and the order of blocks."""
    conn, r = c.open_stream(MESSAGES, body)
    assert r.status == 200, (r.status, r.read())
    assert r.headers["Content-Type"].startswith("text/event-stream")
    text = r.read().decode()
    conn.close()
    events, index, open_block = [], -1, False
    assert text.endswith("\n\n")
    for block in text[:-2].split("\n\n"):
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        event = json.loads(data[6:])
        assert event["type"] == name[7:]
        events.append(event)
        if event["type"] == "content_block_start":
            assert not open_block and event["index"] == index + 1
            index, open_block = event["index"], True
        elif event["type"] == "content_block_delta":
            assert open_block and event["index"] == index
        elif event["type"] == "content_block_stop":
            assert open_block and event["index"] == index
            open_block = False
    assert not open_block
    names = [e["type"] for e in events if e["type"] != "ping"]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    return events


def assembled(events):
    """The message that a client makes of the events."""
    m = copy.deepcopy(events[0]["message"])
    for e in events:
        if e["type"] == "content_block_start":
            m["content"].append(dict(e["content_block"], raw=""))
        elif e["type"] == "content_block_delta":
            d = e["delta"]
            key = dict(text_delta="text", thinking_delta="thinking", input_json_delta="raw").get(d["type"])
            if key:
                m["content"][e["index"]][key] += d.get("partial_json", d.get(key))
        elif e["type"] == "message_delta":
            m.update(e["delta"])
            m["usage"] = e["usage"]
    for b in m["content"]:
        raw = b.pop("raw")
        if b["type"] == "tool_use":
            b["input"] = json.loads(raw)
    return m


def whole():
    o = c.ok(MESSAGES, ask())
    assert o["id"].startswith("msg_") and (o["type"], o["role"]) == ("message", "assistant"), o
    assert o["content"] == [dict(type="text", text=ANSWER)], o
    assert (o["stop_reason"], o["stop_sequence"]) == ("end_turn", None), o
    u = o["usage"]
    n = c.ok(COUNT, {k: v for k, v in ask().items() if k in ("model", "messages")})["input_tokens"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == n and u["cache_creation_input_tokens"] == 0
    assert u["output_tokens"] > 5


def streamed():
    events = stream(ask())
    m = assembled(events)
    assert m["content"] == [dict(type="text", text=ANSWER)], m
    assert m["stop_reason"] == "end_turn"
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    assert events[0]["message"]["usage"]["input_tokens"] + events[0]["message"]["usage"]["cache_read_input_tokens"] > 10


def stops():
    o = c.ok(MESSAGES, ask(stop_sequences=["zebra", " 7316"]))
    assert o["content"] == [dict(type="text", text="The secret code of the silver fox is")], o
    assert (o["stop_reason"], o["stop_sequence"]) == ("stop_sequence", " 7316")
    o = c.ok(MESSAGES, dict(ask(), max_tokens=3))
    assert o["stop_reason"] == "max_tokens" and o["usage"]["output_tokens"] == 3
    m = assembled(stream(dict(ask(), max_tokens=3)))
    assert m["stop_reason"] == "max_tokens" and m["content"] == o["content"]


def blocks():
    """Blocks mean what strings mean; messages of one role are one."""
    a = c.ok(MESSAGES, dict(ask(), system="Answer in one sentence."))
    b = c.ok(MESSAGES, dict(ask(), system=[dict(type="text", text="Answer in one sentence.", cache_control=dict(type="ephemeral"))],
                            messages=[dict(role="user", content=[dict(type="text", text=RECALL)])]))
    assert a["content"] == b["content"]
    # the system may speak among the messages, too
    o = [c.ok(COUNT, dict(ask(), **m)) for m in (dict(system="Be brief."), dict(messages=[dict(role="system", content="Be brief.")] + ask()["messages"]))]
    assert o[0] == o[1], o
    # a line that differs from request to request is no part of the prompt
    nonce = [dict(type="text", text=f"x-anthropic-billing-header: cch={time.time()};"), dict(type="text", text="Answer in one sentence.")]
    n = [c.ok(COUNT, dict(ask(), system=s))["input_tokens"] for s in ("Answer in one sentence.", nonce)]
    assert n[0] == n[1], n
    two = [dict(role="user", content="Hello"), dict(role="user", content="world")]
    one = [dict(role="user", content="Hello\nworld")]
    assert c.ok(COUNT, dict(ask(), messages=two)) == c.ok(COUNT, dict(ask(), messages=one))
    # the assistant's last message is gone on with
    o = c.ok(MESSAGES, dict(ask(), messages=[dict(role="user", content=RECALL), dict(role="assistant", content="The secret code of")]))
    assert o["content"][0]["text"] == " the silver fox is 7316.", o


def tools():
    """The tools are the same everywhere: their part of the prompt is read once."""
    any_tool = ask("Hi", tools=[WEATHER, PING], tool_choice=dict(type="any", disable_parallel_tool_use=True), seed=5)
    named = ask("Hi", tools=[WEATHER, PING], tool_choice=dict(type="tool", name="get_weather"))
    for body in any_tool, named, dict(named, temperature=1, seed=3):
        body = dict(body, max_tokens=200)
        o = c.ok(MESSAGES, body)
        assert o["stop_reason"] == "tool_use" and len(o["content"]) == 1, o
        use = o["content"][0]
        assert use["type"] == "tool_use" and use["id"].startswith("toolu_") and use["name"] in ("get_weather", "ping"), use
        if use["name"] == "get_weather":
            assert isinstance(use["input"]["city"], str) and 1 <= use["input"]["days"] <= 9, use
        else:
            assert use["input"] == {}
        m = assembled(stream(body))
        assert m["stop_reason"] == "tool_use"
        assert [(b["name"], b["input"]) for b in m["content"]] == [(use["name"], use["input"])], (m, o)
    # and the way back
    talk = [dict(role="user", content="Hi"),
            dict(role="assistant", content=[dict(type="text", text="I look."), dict(type="tool_use", id="toolu_1", name="get_weather",
                                                                                    input=dict(city="Bern", days=2))]),
            dict(role="user", content=[dict(type="tool_result", tool_use_id="toolu_1", content=[dict(type="text", text="21 degrees")]),
                                       dict(type="text", text="Thanks")])]
    o = c.ok(MESSAGES, dict(ask(), messages=talk, tools=[WEATHER, PING]))
    assert o["content"] or o["usage"]["output_tokens"] == 0
    assert c.ok(COUNT, dict(ask(), messages=talk, tools=[WEATHER, PING]))["input_tokens"] > 100
    assert c.ok(MESSAGES, dict(ask(), tools=[WEATHER, PING], tool_choice=dict(type="none")))["content"][0]["text"] == ANSWER


def output_format():
    schema = dict(type="object", properties=dict(code=dict(type="integer")), required=["code"], additionalProperties=False)
    o = c.ok(MESSAGES, dict(ask(), output_config=dict(format=dict(type="json_schema", schema=schema))))
    assert isinstance(json.loads(o["content"][0]["text"])["code"], int), o
    o = c.ok(MESSAGES, dict(ask("Hi", tools=[WEATHER, PING]), output_config=dict(format=dict(type="json_schema", schema=schema))))
    block = o["content"][0]
    assert block["type"] == "tool_use" or isinstance(json.loads(block["text"])["code"], int), o


def refusals():
    bad = "invalid_request_error"
    refused(dict(model="m", messages=ask()["messages"]), 400, bad, "max_tokens: Field required")
    refused(dict(model="m", max_tokens=1), 400, bad, "messages: Field required")
    refused(dict(max_tokens=1, messages=ask()["messages"]), 400, bad, "model: Field required")
    refused(dict(ask(), messages=[]), 400, bad, "at least one")
    refused(dict(ask(), max_tokens=0), 400, bad, "max_tokens")
    refused(dict(ask(), temperature=1.5), 400, bad, "temperature")
    refused(dict(ask(), frobnicate=1), 400, bad, "frobnicate")
    refused(dict(ask(), messages=[dict(role="king", content="x")]), 400, bad, "messages.0")
    image = dict(type="image", source=dict(type="base64", media_type="image/png", data=""))
    refused(dict(ask(), messages=[dict(role="user", content=[image])]), 400, bad, "'image'")
    refused(dict(ask(), messages=[dict(role="user", content=[dict(type="tool_result")])]), 400, bad, "tool_use_id")
    for content in ([dict(type="text")], [dict(type="tool_result", tool_use_id="t", content=[dict(type="text")])]):
        refused(dict(ask(), messages=[dict(role="user", content=content)]), 400, bad, "text")
    refused(dict(ask(), tools=[dict(type="web_search_20250305", name="web_search")]), 400, bad, "web_search_20250305")
    refused(dict(ask(), tools=[dict(name="a b", input_schema={})]), 400, bad, "name of a function")
    refused(dict(ask(), tools=[dict(name="a")]), 400, bad, "input_schema")
    refused(dict(ask(), tool_choice=dict(type="any")), 400, bad, "providing tools")
    refused(dict(ask(), tools=[PING], tool_choice=dict(type="tool", name="b")), 400, bad, "tool_choice.name")
    refused(dict(ask(), messages=[dict(role="user", content="word " * 3000)]), 400, bad, "prompt is too long")
    refused(b"{", 400, bad, "not JSON")
    refused(b"[1]", 400, bad, "object")


for check in whole, streamed, stops, blocks, tools, output_format, refusals:
    began = time.time()
    check()
    print(f"{check.__name__}: {time.time() - began:.1f} s", file=sys.stderr)
