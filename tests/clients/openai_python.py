"""OpenAI's own Python client against a running server: python openai_python.py http://127.0.0.1:8080/v1 [--exact]

--exact: the server has the embedded tiny model, whose answer to one question is known."""
import json
import math
import sys
import threading
import time

import openai

base, exact = sys.argv[1], "--exact" in sys.argv
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=120)
QUESTION = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?"
ANSWER = "The secret code of the silver fox is 7316."
ASK = dict(model="any", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=40)


def models():
    listed = client.models.list().data
    assert len(listed) == 1
    assert client.models.retrieve(listed[0].id).id == listed[0].id


def chat():
    r = client.chat.completions.create(**ASK)
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert not exact or r.choices[0].message.content == ANSWER
    return r


def stream():
    whole = chat()
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert (text, finish) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
    assert usage.completion_tokens == whole.usage.completion_tokens
    # the helper that gathers events
    with client.chat.completions.stream(**ASK) as s:
        for event in s:
            pass
        if finish == "stop":  # it takes anything else for a failure
            assert s.get_final_completion().choices[0].message.content == text


def stop():
    text = chat().choices[0].message.content
    word = text.split()[2]
    r = client.chat.completions.create(**ASK, stop=[word])
    assert r.choices[0].message.content == text[:text.index(word)] and r.choices[0].finish_reason == "stop"


def logprobs():
    r = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=4).choices[0]
    assert b"".join(bytes(t.bytes) for t in r.logprobs.content).decode() == r.message.content
    assert all(len(t.top_logprobs) == 4 and math.exp(t.logprob) <= 1 for t in r.logprobs.content)
    r = client.completions.create(model="any", prompt="Once upon a time", max_tokens=4, temperature=0, logprobs=3, echo=True).choices[0]
    assert r.logprobs.token_logprobs[0] is None or r.logprobs.tokens[0]
    assert "".join(r.logprobs.tokens).endswith(r.text[-3:]) and len(r.logprobs.text_offset) == len(r.logprobs.tokens)


def choices_and_seed():
    ask = dict(ASK, temperature=1.2, max_tokens=12)
    a = client.chat.completions.create(**ask, n=3, seed=5)
    b = client.chat.completions.create(**ask, n=3, seed=5)
    c = client.chat.completions.create(**ask, seed=7)
    texts = [x.message.content for x in a.choices]
    assert texts == [x.message.content for x in b.choices] and len(texts) == 3
    assert c.choices[0].message.content == texts[2]


def completions():
    r = client.completions.create(model="any", prompt=["Once upon a time", "The"], max_tokens=6, temperature=0)
    assert [x.index for x in r.choices] == [0, 1]
    text = "".join(c.choices[0].text for c in client.completions.create(model="any", prompt="The", max_tokens=6, temperature=0, stream=True))
    assert text == r.choices[1].text


def schema():
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=10)
        age: int = Field(ge=0, le=120)

    r = client.chat.completions.parse(model="any", messages=[{"role": "user", "content": "Who are you?"}], response_format=Person, seed=1)
    assert isinstance(r.choices[0].message.parsed, Person)
    r = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "JSON, please"}],
                                       response_format={"type": "json_object"}, max_tokens=300, seed=2)
    assert r.choices[0].finish_reason == "length" or isinstance(json.loads(r.choices[0].message.content), dict)


def tools():
    tool = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}}}
    ask = dict(model="any", messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[tool], parallel_tool_calls=False, max_tokens=100, seed=1)
    r = client.chat.completions.create(**ask, tool_choice="required").choices[0]
    call = r.message.tool_calls[0]
    assert r.finish_reason == "tool_calls" and call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)
    with client.chat.completions.stream(**ask, tool_choice="required") as s:
        for event in s:
            pass
        got = s.get_final_completion().choices[0]
    assert got.message.tool_calls[0].function.arguments == call.function.arguments and got.finish_reason == "tool_calls"
    turn = ask["messages"] + [r.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    r = client.chat.completions.create(**dict(ask, messages=turn), tool_choice="none")
    assert r.choices[0].message.tool_calls is None
    client.chat.completions.create(**ask)  # auto: whatever it does, it is understood


def embeddings():
    r = client.embeddings.create(model="any", input=["hello", "world"])  # the client asks for base64 by itself
    plain = client.embeddings.create(model="any", input="hello", encoding_format="float")
    assert max(abs(a - b) for a, b in zip(r.data[0].embedding, plain.data[0].embedding)) < 1e-7
    assert abs(sum(x * x for x in r.data[1].embedding) - 1) < 1e-4 and r.usage.prompt_tokens > 0


def errors():
    for make, kind, code in [
        (lambda: client.chat.completions.create(**dict(ASK, temperature=9)), openai.BadRequestError, "decimal_above_max_value"),
        (lambda: client.chat.completions.create(**ASK, extra_body={"temprature": 1}), openai.BadRequestError, "unknown_parameter"),
        (lambda: client.chat.completions.create(**dict(ASK, messages=[{"role": "user", "content": "word " * 200000}])),
         openai.BadRequestError, "context_length_exceeded"),
        (lambda: client.completions.create(model="any", prompt="a", max_tokens=-5), openai.BadRequestError, "integer_below_min_value"),
    ]:
        try:
            make()
        except kind as e:
            assert e.code == code, (e.code, code)
        else:
            raise AssertionError("not refused: " + code)


def cancellation():
    """Closing a stream ends the request: the next one does not wait for it."""
    ask = dict(model="any", prompt="Once", max_tokens=1000, extra_body={"ignore_eos": True}, stream=True)
    for _ in range(10):
        s = client.completions.create(**ask)
        next(iter(s))
        s.close()
    begin = time.monotonic()
    client.completions.create(model="any", prompt="a", max_tokens=1)
    assert time.monotonic() - begin < 5
    # a client that gives up while the prompt is read, or in the queue
    try:
        client.with_options(timeout=0.05).completions.create(model="any", prompt="word " * 500, max_tokens=1000, extra_body={"ignore_eos": True})
    except openai.APITimeoutError:
        pass


def concurrent():
    results = [None] * 8

    def one(i):
        results[i] = client.completions.create(model="any", prompt="Once upon a time", max_tokens=20, seed=i % 4).choices[0].text

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert results[:4] == results[4:] and None not in results


def asynchronous():
    import asyncio

    async def go():
        a = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0)
        s = await a.chat.completions.create(**ASK, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in s if c.choices])
        assert text == chat().choices[0].message.content
        # a task that is cancelled
        t = asyncio.create_task(a.completions.create(model="any", prompt="Once", max_tokens=1000, extra_body={"ignore_eos": True}))
        await asyncio.sleep(0.1)
        t.cancel()
        await a.close()

    asyncio.run(go())


failed = 0
for check in (models, chat, stream, stop, logprobs, choices_and_seed, completions, schema, tools, embeddings, errors, cancellation, concurrent,
              asynchronous):
    try:
        check()
        print("ok  ", check.__name__)
    except Exception as e:
        failed += 1
        print("FAIL", check.__name__, type(e).__name__, str(e)[:500], "line", e.__traceback__.tb_next.tb_lineno)
sys.exit(failed > 0)
