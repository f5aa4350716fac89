"""Frameworks on top of the clients, against a running server: python frameworks.py http://127.0.0.1:8080/v1 [NAME...]

Each is left out if it is not installed. What a small model says does not matter: requests must be accepted, streamed, ended and
understood."""
import asyncio
import sys
import time

from pydantic import BaseModel, Field

base, only = sys.argv[1], [a for a in sys.argv[2:] if not a.startswith("-")]
root = base.removesuffix("/v1")
WEATHER, PERSON = "What is the weather in Paris?", "Describe a person, as JSON with name and age."


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


def get_weather(city: str) -> str:
    """Weather of a city"""
    return "sunny"


def added(chunks):
    total = None
    for chunk in chunks:
        total = chunk if total is None else total + chunk
    return total


def langchain(llm, schemas):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    r = llm.invoke("Name one fruit.")
    assert r.content and r.usage_metadata["total_tokens"] > 0
    total = added(llm.stream("Name one fruit."))
    assert total.content and total.usage_metadata["output_tokens"] > 0
    for method in schemas:
        assert isinstance(llm.with_structured_output(Person, method=method).invoke(PERSON), Person), method
    tools = llm.bind_tools([tool(get_weather)], tool_choice="get_weather")
    r = tools.invoke(WEATHER)
    assert "city" in r.tool_calls[0]["args"] and "city" in added(tools.stream(WEATHER)).tool_calls[0]["args"]
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in r.tool_calls]
    llm.bind_tools([tool(get_weather)]).invoke([HumanMessage(WEATHER), r] + results)


def langchain_openai():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    options = dict(base_url=base, api_key="none", model="any", max_tokens=100, max_retries=0)
    llm = ChatOpenAI(**options, stream_usage=True)
    langchain(llm, ["json_schema", "function_calling"])
    assert asyncio.run(llm.ainvoke("hello")).content  # once: its clients are shared, and belong to one loop
    scored = ChatOpenAI(**options, logprobs=True, top_logprobs=2, seed=3, temperature=0.4).invoke("hello")
    assert scored.response_metadata["logprobs"]["content"]
    embeddings = OpenAIEmbeddings(base_url=base, api_key="none", model="any", check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["hello", "world"])) == 2


def langchain_responses():
    from langchain_openai import ChatOpenAI
    langchain(ChatOpenAI(base_url=base, api_key="none", model="any", max_tokens=100, max_retries=0, use_responses_api=True),
              ["json_schema", "function_calling"])


def langchain_anthropic():
    from langchain_anthropic import ChatAnthropic
    # json_schema: the client takes bounds out of schemas, and then insists on them
    langchain(ChatAnthropic(base_url=root, api_key="none", model="any", max_tokens=100, max_retries=0), ["function_calling"])


def litellm():
    import litellm
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}}
    for model, address in ("openai/any", base), ("anthropic/any", root), ("hosted_vllm/any", base):
        ask = dict(model=model, api_base=address, api_key="none", max_tokens=60, messages=[{"role": "user", "content": WEATHER}])
        r = litellm.completion(**ask)
        assert r.choices[0].message.content and r.usage.completion_tokens > 0
        assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(**ask, stream=True))
        r = litellm.completion(**ask, tools=[tool], tool_choice="required")
        assert r.choices[0].message.tool_calls[0].function.name == "get_weather"
    r = litellm.responses(model="openai/any", api_base=base, api_key="none", max_output_tokens=40, input="hello")
    assert r.output[0].content[0].text
    assert litellm.embedding(model="openai/any", input=["a"], api_base=base, api_key="none").data[0]["embedding"]


def instructor():
    import instructor
    import openai
    for mode in instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA:
        client = instructor.from_openai(openai.OpenAI(base_url=base, api_key="none", max_retries=0), mode=mode)
        ask = dict(model="any", messages=[{"role": "user", "content": PERSON}], response_model=Person, max_tokens=150)
        assert isinstance(client.chat.completions.create(**ask), Person), mode
    assert list(client.chat.completions.create_partial(**ask))[-1].age is not None


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    for kind in OpenAIChatModel, OpenAIResponsesModel:
        model = kind("any", provider=OpenAIProvider(base_url=base, api_key="none"))
        settings = {"max_tokens": 100}
        assert Agent(model, system_prompt="Be brief.", model_settings=settings).run_sync("Name one fruit.").output
        for output in ToolOutput(Person), NativeOutput(Person):
            r = Agent(model, output_type=output, model_settings=settings, retries=3).run_sync(PERSON)
            assert isinstance(r.output, Person)

        async def stream():
            async with Agent(model, model_settings=settings).run_stream("Name one fruit.") as r:
                return [t async for t in r.stream_text(delta=True)]

        assert asyncio.run(stream())


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    llm = OpenAILike(model="any", api_base=base, api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=100,
                     context_window=2048, max_retries=0)
    question = [ChatMessage(role="user", content=WEATHER)]
    assert llm.chat(question).message.content and list(llm.stream_chat(question))[-1].message.content
    r = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER, tool_required=True)
    assert "city" in llm.get_tool_calls_from_response(r)[0].tool_kwargs
    assert OpenAILike(model="any", api_base=base, api_key="none", is_chat_model=False, max_tokens=20).complete("Once").text


def openai_agents():
    import agents
    import openai
    agents.set_tracing_disabled(True)

    async def go(make):
        model = make(model="any", openai_client=openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0))
        settings = agents.ModelSettings(max_tokens=100)
        call = agents.ModelSettings(max_tokens=100, tool_choice="required", parallel_tool_calls=False)
        run = agents.Runner.run
        r = await run(agents.Agent(name="a", instructions="Be brief.", model=model, model_settings=settings), "Name one fruit.")
        assert r.final_output and r.raw_responses[0].usage.total_tokens > 0
        r = await run(agents.Agent(name="a", model=model, output_type=Person, model_settings=settings), PERSON)
        assert isinstance(r.final_output, Person)
        tooled = agents.Agent(name="a", model=model, tools=[agents.function_tool(get_weather)], model_settings=call,
                              tool_use_behavior="stop_on_first_tool")
        assert (await run(tooled, WEATHER)).final_output == "sunny"
        streamed = agents.Runner.run_streamed(tooled, WEATHER)
        assert [e async for e in streamed.stream_events()] and streamed.final_output == "sunny"
        other = agents.Agent(name="fruit", model=model, model_settings=settings)
        handing = agents.ModelSettings(max_tokens=100, tool_choice="transfer_to_fruit")
        r = await run(agents.Agent(name="a", model=model, handoffs=[other], model_settings=handing), "Fruit?")
        assert r.last_agent.name == "fruit"
        session = agents.SQLiteSession("s")
        for question in "My name is Bo.", "What is my name?":
            r = await run(agents.Agent(name="a", model=model, model_settings=settings), question, session=session)
        assert r.final_output

    asyncio.run(go(agents.OpenAIResponsesModel))
    asyncio.run(go(agents.OpenAIChatCompletionsModel))


failed = 0
for check in (langchain_openai, langchain_responses, langchain_anthropic, litellm, instructor, pydantic_ai, llama_index, openai_agents):
    if only and check.__name__ not in only:
        continue
    began = time.time()
    try:
        check()
        print(f"ok    {check.__name__} ({time.time() - began:.0f} s)", flush=True)
    except ModuleNotFoundError as e:
        print(f"not installed: {check.__name__} ({e.name})", flush=True)
    except Exception as e:
        failed += 1
        print("FAIL ", check.__name__, type(e).__name__, str(e)[:600], flush=True)
sys.exit(failed > 0)
