"""Anthropic's own Python client against a running server: python anthropic_python.py http://127.0.0.1:8080/v1 [--exact]

--exact: the server has the embedded tiny model, whose answer to one question is known."""
import sys
import threading
import time

import anthropic

base, exact = sys.argv[1].removesuffix("/v1"), "--exact" in sys.argv
client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=120)
QUESTION = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ANSWER = "The secret code of the silver fox is 7316."
# today's client has no temperature, the server does
ASK = dict(model="any", max_tokens=40, extra_body={"temperature": 0}, messages=[{"role": "user", "content": QUESTION}])
WEATHER = {"name": "get_weather", "description": "Weather of a city", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"], "additionalProperties": False}}


def message():
    m = client.messages.create(**ASK)
    assert m.role == "assistant" and m.type == "message" and m.content[0].type == "text"
    assert m.stop_reason in ("end_turn", "max_tokens") and m.usage.output_tokens > 0
    assert not exact or m.content[0].text == ANSWER
    return m


def system():
    m = client.messages.create(**ASK, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert m.content[0].text


def streams():
    whole = message()
    with client.messages.stream(**ASK) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    kinds = [e.type for e in client.messages.create(**ASK, stream=True)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_delta" in kinds


def stop():
    m = client.messages.create(**{**ASK, "stop_sequences": [" fox"]})
    if exact:
        assert m.stop_reason == "stop_sequence" and m.stop_sequence == " fox"
        assert m.content[0].text == "The secret code of the silver"
    assert client.messages.create(**{**ASK, "max_tokens": 2}).stop_reason == "max_tokens"


def count():
    n = client.messages.count_tokens(model="any", messages=ASK["messages"]).input_tokens
    u = message().usage
    assert n == u.input_tokens + u.cache_read_input_tokens


def tools():
    ask = dict(ASK, max_tokens=200, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather"})
    m = client.messages.create(**ask)
    use = m.content[-1]
    assert m.stop_reason == "tool_use" and use.type == "tool_use" and 1 <= use.input["days"] <= 9, m
    with client.messages.stream(**ask) as s:
        final = s.get_final_message()
    assert final.content[-1].input == use.input and final.stop_reason == "tool_use"
    turn = ask["messages"] + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
    m = client.messages.create(**{**ask, "messages": turn, "tool_choice": {"type": "none"}})
    assert m.stop_reason in ("end_turn", "max_tokens")
    m = client.messages.create(**{**ask, "tool_choice": {"type": "auto"}})
    assert m.stop_reason in ("end_turn", "max_tokens", "tool_use")


def errors():
    for change, kind in ((dict(messages=[]), anthropic.BadRequestError), (dict(extra_body={"temperature": 9}), anthropic.BadRequestError),
                         (dict(messages=[{"role": "user", "content": "word " * 100000}]), anthropic.BadRequestError)):
        try:
            client.messages.create(**{**ASK, **change})
        except kind as e:
            assert e.body["error"]["type"] == "invalid_request_error", e.body
        else:
            raise AssertionError(change)


def together():
    """Four at once, each as if it were alone."""
    want, got = message().content[0].text, [None] * 4

    def one(i):
        with client.messages.stream(**ASK) as s:
            got[i] = s.get_final_message().content[0].text

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 4, got


def cancelled():
    with client.messages.stream(**{**ASK, "max_tokens": 400}) as s:
        next(iter(s.text_stream))
    assert message()


for test in message, system, streams, stop, count, tools, errors, together, cancelled:
    began = time.time()
    test()
    print(f"{test.__name__}: {time.time() - began:.1f} s")
