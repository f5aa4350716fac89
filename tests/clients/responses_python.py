"""The Responses API by OpenAI's own Python client: python responses_python.py http://127.0.0.1:8080/v1 [--exact]

--exact: the server has the embedded tiny model, whose answer to one question is known."""
import json
import sys
import time

import openai
from pydantic import BaseModel, Field

base, exact = sys.argv[1], "--exact" in sys.argv
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
QUESTION = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ANSWER = "The secret code of the silver fox is 7316."
ASK = dict(model="any", input=QUESTION, temperature=0, max_output_tokens=40)
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather of a city", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}}


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=120)


def plain():
    r = client.responses.create(**ASK, instructions=None, store=False, metadata={"a": "b"})
    assert r.output_text and r.status in ("completed", "incomplete") and r.metadata == {"a": "b"} and r.store is False
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert not exact or r.output_text == ANSWER
    return r


def stream():
    whole = plain()
    text, kinds, final = "", [], None
    for event in client.responses.create(**ASK, stream=True):
        assert event.sequence_number == len(kinds)
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        final = getattr(event, "response", final)
    assert text == whole.output_text == final.output_text and kinds[-1] == "response." + whole.status, kinds
    with client.responses.stream(**ASK) as s:  # the helper that gathers events
        for event in s:
            pass
        if whole.status == "completed":  # it takes anything else for a failure
            assert s.get_final_response().output_text == text


def tools():
    ask = dict(model="any", tools=[WEATHER], parallel_tool_calls=False, max_output_tokens=100, temperature=0)
    items = [{"role": "user", "content": "What is the weather in Paris?"}]
    r = client.responses.create(input=items, tool_choice="required", **ask)
    call = r.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and "city" in json.loads(call.arguments)
    with client.responses.stream(input=items, tool_choice={"type": "function", "name": "get_weather"}, **ask) as s:
        deltas = "".join(e.delta for e in s if e.type == "response.function_call_arguments.delta")
        assert s.get_final_response().output[-1].arguments == deltas == call.arguments
    items += r.output + [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert client.responses.create(input=items, tool_choice="none", **ask).output[0].type == "message"
    client.responses.create(input=items, **ask)  # auto: whatever it does, it is understood


def schema():
    r = client.responses.parse(model="any", input="Who are you?", text_format=Person, max_output_tokens=100)
    assert isinstance(r.output_parsed, Person)
    # with tools: such an answer, or calls
    r = client.responses.parse(model="any", input="Who are you?", text_format=Person, tools=[WEATHER], parallel_tool_calls=False, temperature=0,
                                max_output_tokens=200)
    assert isinstance(r.output_parsed, Person) or r.output[0].type == "function_call" or r.status == "incomplete"


def logprobs():
    r = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=3)
    got = r.output[0].content[0].logprobs
    assert b"".join(bytes(t.bytes) for t in got).decode() == r.output_text and len(got[0].top_logprobs) == 3


def conversation():
    first = plain()
    items = [{"role": "user", "content": QUESTION}] + first.output + [{"role": "user", "content": "Thank you."}]
    assert client.responses.create(model="any", input=items, max_output_tokens=10).usage.input_tokens > first.usage.total_tokens


def truncation():
    turns = [{"role": "user", "content": "The fox ran home. " * 40000}, {"role": "assistant", "content": "It is home."}]
    asking = {**ASK, "input": turns + [{"role": "user", "content": QUESTION}]}
    try:
        client.responses.create(**asking)
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded" and e.param == "input", e.body
    else:
        raise AssertionError("the context is larger than the test thinks")
    r = client.responses.create(**asking, truncation="auto")
    assert r.truncation == "auto" and r.output_text == plain().output_text and plain().truncation == "disabled"


def refusals():
    for change, param in ((dict(previous_response_id="resp_1"), "previous_response_id"), (dict(background=True), "background"),
                          (dict(tools=[{"type": "web_search"}]), "tools[0].type")):
        try:
            client.responses.create(**{**ASK, **change})
        except openai.BadRequestError as e:
            assert e.param == param, e.body
        else:
            raise AssertionError(change)


for test in plain, stream, tools, schema, logprobs, conversation, truncation, refusals:
    began = time.time()
    test()
    print(f"{test.__name__}: {time.time() - began:.1f} s")
