// Vercel's AI SDK against a running server: node ai_sdk.mjs http://127.0.0.1:8080/v1
// By three ways: the provider for compatible servers, OpenAI's with chat completions, and OpenAI's with responses.
import assert from "node:assert/strict";
import { embed, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const baseURL = process.argv[2];
const compatible = createOpenAICompatible({ name: "colibri", baseURL, apiKey: "none", supportsStructuredOutputs: true, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey: "none" });
const schema = z.object({ name: z.string().max(12), age: z.number().int().min(0).max(120) });
const tools = { get_weather: tool({ description: "Weather of a city", inputSchema: z.object({ city: z.string().max(12) }), execute: async () => "sunny" }) };
const providerOptions = { openai: { store: false, parallelToolCalls: false } };
let failed = 0;

function stream(make, options) {
    let error;
    const r = make({ ...options, providerOptions, onError: (e) => (error = e.error) });
    return [r, () => { if (error) throw error; }];
}

async function check(name, model) {
    const text = await generateText({ model, system: "Be brief.", prompt: "Name one fruit.", maxOutputTokens: 30, providerOptions });
    assert.ok(text.text && text.usage.totalTokens > 0 && ["stop", "length"].includes(text.finishReason));
    const [s, sound] = stream(streamText, { model, prompt: "Name one fruit.", maxOutputTokens: 30 });
    let got = "";
    for await (const delta of s.textStream) got += delta;
    sound();
    assert.ok(got && got === (await s.text) && (await s.usage).outputTokens > 0);
    const called = await generateText({ model, prompt: "Weather in Paris?", tools, maxOutputTokens: 100, providerOptions, stopWhen: stepCountIs(2),
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : { type: "tool", toolName: "get_weather" } }) });
    assert.equal(called.steps.length, 2);
    assert.equal(called.steps[0].toolResults[0].output, "sunny");
    const [t, toolSound] = stream(streamText, { model, prompt: "Weather in Paris?", tools, toolChoice: { type: "tool", toolName: "get_weather" }, maxOutputTokens: 100 });
    const kinds = new Set();
    for await (const part of t.fullStream) kinds.add(part.type);
    toolSound();
    for (const kind of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result", "finish"]) assert.ok(kinds.has(kind), kind);
    const object = await generateObject({ model, schema, prompt: "A person.", maxOutputTokens: 100, providerOptions });
    assert.ok(object.object.age <= 120);
    const [o, objectSound] = stream(streamObject, { model, schema, prompt: "A person.", maxOutputTokens: 100 });
    for await (const partial of o.partialObjectStream) assert.ok(partial);
    objectSound();
    assert.ok((await o.object).age <= 120);
}

for (const [name, model] of [["compatible", compatible("any")], ["chat", openai.chat("any")], ["responses", openai("any")]]) {
    try {
        await check(name, model);
        console.log("ok  ", name);
    } catch (e) {
        failed++;
        console.log("FAIL", name, e.stack?.slice(0, 800));
    }
}
assert.ok((await embed({ model: compatible.embeddingModel("any"), value: "hello" })).embedding.length);
process.exit(failed ? 1 : 0);
