"""The checks of test_responses.sh: python3 responses_checks.py PORT, against a server of the embedded tiny model with a context of
1024 tokens. OpenAI's Responses API as it goes over the wire."""
import json
import sys
import time

from openai_client import Client

c = Client(int(sys.argv[1]))
PATH = "/v1/responses"
RECALL = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ANSWER = "The secret code of the silver fox is 7316."
WEATHER = dict(type="function", name="get_weather", description="Weather of a city", strict=True, parameters=dict(
    type="object", properties=dict(city=dict(type="string", maxLength=12), days=dict(type="integer", minimum=1, maximum=9)),
    required=["city", "days"], additionalProperties=False))
CITY = dict(type="object", properties=dict(size=dict(enum=["small", "large"])), required=["size"], additionalProperties=False)


def ask(**more):
    return dict(dict(model="any", max_output_tokens=40, temperature=0, input=RECALL), **more)


def ask_(items, truncation):
    return ask(input=items, truncation=truncation)


def create(**more):
    status, _, r = c.post(PATH, ask(**more))
    assert status == 200 and r["object"] == "response", (status, r)
    return r


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def stream(**more):
    """The last response of a stream, after checks of what came before against it."""
    conn, r = c.open_stream(PATH, ask(stream=True, **more))
    assert r.status == 200, (r.status, r.read())
    assert r.headers["Content-Type"].startswith("text/event-stream")
    blocks = r.read().decode().removesuffix("\n\n").split("\n\n")
    conn.close()
    events = []
    for i, block in enumerate(blocks):
        name, data = block.split("\n")
        e = json.loads(data.removeprefix("data: "))
        assert name == "event: " + e["type"] and e["sequence_number"] == i, block
        events.append(e)
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1]["response"]
    assert events[-1]["type"] == "response." + final["status"], events[-1]
    items, deltas, whole = [], {}, {}
    for e in events[2:-1]:
        kind, at = e["type"].removeprefix("response."), e["output_index"]
        assert at == len(items), e
        if kind.endswith(".delta"):
            deltas[at] = deltas.get(at, "") + e["delta"]
        elif kind in ("output_text.done", "reasoning_text.done", "function_call_arguments.done"):
            whole[at] = e["text"] if "text" in e else e["arguments"]
        elif kind == "output_item.done":
            items.append(e["item"])
        else:
            assert kind in ("output_item.added", "content_part.added", "content_part.done"), kind
    assert items == final["output"], (items, final)
    assert all(deltas.get(i, "") == whole[i] for i in range(len(items))), (deltas, whole)
    assert all(whole[i] == (x["arguments"] if x["type"] == "function_call" else x["content"][0]["text"]) for i, x in enumerate(items))
    return final


def texts():
    r = create(metadata=dict(a="b"), store=True, truncation="auto", user="me", service_tier="auto", prompt_cache_key="k")
    assert (text_of(r), r["status"], r["store"], r["metadata"]) == (ANSWER, "completed", False, dict(a="b")), r
    u = r["usage"]
    assert u["total_tokens"] == u["input_tokens"] + u["output_tokens"] and u["output_tokens"] > 5
    s = stream()
    assert text_of(s) == ANSWER and s["usage"]["output_tokens"] == u["output_tokens"]
    # the same tokens as chat's
    _, _, chat = c.post("/v1/chat/completions", dict(messages=[dict(role="user", content=RECALL)], max_tokens=40, temperature=0))
    assert chat["usage"]["prompt_tokens"] == u["input_tokens"] and chat["choices"][0]["message"]["content"] == ANSWER
    parts = [dict(type="message", role="user", content=[dict(type="input_text", text=RECALL)])]
    assert text_of(create(input=parts)) == ANSWER
    assert text_of(create(input=[dict(role="user", content=RECALL)])) == ANSWER
    more = create(instructions="Be brief.")["usage"]["input_tokens"]
    assert more > u["input_tokens"]
    assert create(input=[dict(role="system", content="Be brief."), dict(role="user", content=RECALL)])["usage"]["input_tokens"] == more


def limits():
    for r in create(max_output_tokens=3), stream(max_output_tokens=3):
        assert r["status"] == "incomplete" and r["incomplete_details"] == dict(reason="max_output_tokens")
        assert r["usage"]["output_tokens"] == 3 and r["output"][0]["status"] == "incomplete"
    r = create(stop=" fox")
    assert r["status"] == "completed" and text_of(r) == "The secret code of the silver"


def log_probabilities():
    for r in create(include=["message.output_text.logprobs"], top_logprobs=2), stream(include=["message.output_text.logprobs"], top_logprobs=2):
        got = r["output"][0]["content"][0]["logprobs"]
        assert b"".join(bytes(t["bytes"]) for t in got).decode() == ANSWER, got
        assert all(len(t["top_logprobs"]) == 2 and t["logprob"] <= 0 for t in got)
    assert create()["output"][0]["content"][0]["logprobs"] == []


def conversation():
    """What a reply holds can be sent back as it is."""
    first = create()
    turn = [dict(role="user", content=RECALL)] + first["output"] + [dict(role="user", content="Thank you.")]
    assert create(input=turn)["usage"]["input_tokens"] > first["usage"]["total_tokens"]


def schemas():
    form = dict(format=dict(type="json_schema", name="city", strict=True, schema=CITY))
    for r in create(text=form, max_output_tokens=100), stream(text=form, max_output_tokens=100):
        assert json.loads(text_of(r))["size"] in ("small", "large"), r
        assert r["text"]["format"] == form["format"]
    r = create(text=dict(format=dict(type="json_object")), max_output_tokens=200)
    assert r["status"] == "incomplete" or isinstance(json.loads(text_of(r)), dict)
    # with tools: such an answer, or a call
    for r in create(text=form, tools=[WEATHER], max_output_tokens=100), stream(text=form, tools=[WEATHER], max_output_tokens=100):
        if r["output"][0]["type"] == "message":
            assert r["status"] == "incomplete" or json.loads(text_of(r))["size"] in ("small", "large"), r
        else:
            assert 1 <= json.loads(r["output"][0]["arguments"])["days"] <= 9


def tools():
    more = dict(tools=[WEATHER], max_output_tokens=200)
    for choice in "required", dict(type="function", name="get_weather"), dict(
            type="allowed_tools", mode="required", tools=[dict(type="function", name="get_weather")]):
        for r in create(tool_choice=choice, **more), stream(tool_choice=choice, **more):
            call = r["output"][0]  # the last may be cut
            assert call["type"] == "function_call" and call["name"] == "get_weather" and call["call_id"].startswith("call_"), r
            assert 1 <= json.loads(call["arguments"])["days"] <= 9
    r = create(tool_choice="required", parallel_tool_calls=False, **more)
    assert [i["type"] for i in r["output"]] == ["function_call"] and r["tools"] == [WEATHER], r
    turn = [dict(role="user", content=RECALL), *r["output"],
            dict(type="function_call_output", call_id=r["output"][0]["call_id"], output="sunny")]
    assert text_of(create(input=turn, tool_choice="none", **more))
    stream(input=turn, **more)  # auto: whatever it does, it is told well


def refusals():
    for body, param in ((dict(), "input"), (ask(previous_response_id="resp_1"), "previous_response_id"), (ask(background=True), "background"),
                        (ask(tools=[dict(type="web_search")]), "tools[0].type"), (ask(temperature=9), "temperature"),
                        (ask(input=[dict(role="user", content=[dict(type="input_image")])]), "input[0].content[0]"),
                        (ask(input=[dict(type="function_call_output", call_id="a")]), "input[0].output")):
        status, _, o = c.post(PATH, body)
        assert status == 400 and o["error"]["param"] == param, (body, o)
    status, _, o = c.post(PATH, ask(input="word " * 3000))
    assert status == 400 and o["error"]["code"] == "context_length_exceeded" and o["error"]["param"] == "input", o
    assert c.post("/responses", ask())[0] == 200


def truncation():
    """A conversation that outgrows the context goes on, without its beginning."""
    turns = []
    for i in range(60):
        turns += [dict(role="user", content=f"[{i}] " + "The fox ran home. " * 5), dict(role="assistant", content=f"<{i}> It is home.")]
    ask = turns + [dict(role="user", content=RECALL)]
    status, _, o = c.post(PATH, ask_(ask, "disabled"))
    assert status == 400 and o["error"]["code"] == "context_length_exceeded", o
    assert c.post(PATH, dict(ask_(ask, "disabled"), truncation=None))[2] == o
    for r in create(input=ask, truncation="auto"), stream(input=ask, truncation="auto"):
        assert r["truncation"] == "auto" and r["status"] == "completed" and text_of(r), r
        assert 600 < r["usage"]["input_tokens"] <= 1024 - 40, r["usage"]
    # a short one is not touched
    r = create(truncation="auto")
    assert (text_of(r), r["truncation"]) == (ANSWER, "auto") and create()["truncation"] == "disabled"
    # calls and results of an agent that works for long; its next request begins with what the last one began with
    work = [dict(role="developer", content="Be brief."), dict(role="user", content=RECALL)]
    known = []
    for i in range(35):
        call = dict(type="function_call", call_id=f"c{i}", name="get_weather", arguments=json.dumps(dict(city=f"city {i}", days=1)))
        work += [call, dict(type="function_call_output", call_id=f"c{i}", output="sunny")]
        if i < 20:
            continue
        u = create(input=work, truncation="auto", max_output_tokens=1)["usage"]
        assert u["input_tokens"] < 1024
        known.append((u["input_tokens"], u["input_tokens_details"]["cached_tokens"]))
    kept = [cached for n, cached in known if cached > n / 2]
    assert 3 <= len(kept) < len(known), known
    # nothing that could be left out is enough
    for items in [dict(role="user", content="word " * 3000)], work + [dict(role="user", content="word " * 3000)]:
        status, _, o = c.post(PATH, ask_(items, "auto"))
        assert status == 400 and o["error"]["code"] == "context_length_exceeded" and o["error"]["param"] == "input", o
        assert o["error"]["n_ctx"] == 1024 and o["error"]["n_prompt_tokens"] > 3000


def many_results():
    """Results whose calls are not there take time in proportion to their number, not to its square."""
    def seconds(n):
        items = [dict(type="function_call_output", call_id=f"c{i}", output="r") for i in range(n)]
        began = time.monotonic()
        assert c.post(PATH, ask(input=items))[0] == 400
        return max(time.monotonic() - began, 0.05)
    few = seconds(6000)
    many = seconds(48000)
    assert many < 24 * few, (few, many)


def cancelled():
    """A client that goes away in the middle: the next request does not wait for it."""
    for _ in range(3):
        conn, r = c.open_stream(PATH, ask(stream=True, ignore_eos=True, max_output_tokens=900))
        r.read(300)
        conn.sock.close() if conn.sock else None
        conn.close()
        r.close()
    assert text_of(create()) == ANSWER


for check in texts, limits, log_probabilities, conversation, schemas, tools, refusals, truncation, many_results, cancelled:
    check()
    print("ok", check.__name__)
