// OpenAI's own client for Node against a running server: node openai_js.mjs http://127.0.0.1:8080/v1 [--exact]
import assert from "node:assert/strict";
import OpenAI from "openai";

const [base, flag] = process.argv.slice(2);
const exact = flag === "--exact";
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0, timeout: 120000 });
const question = "Remember this: the secret code of the silver fox is 7316. What is the secret code of the silver fox?";
const ask = { model: "any", messages: [{ role: "user", content: question }], temperature: 0, max_tokens: 40 };

const checks = {
    async models() {
        const listed = (await client.models.list()).data;
        assert.equal(listed.length, 1);
    },
    async chat() {
        const r = await client.chat.completions.create(ask);
        assert.ok(r.choices[0].message.content);
        if (exact) assert.equal(r.choices[0].message.content, "The secret code of the silver fox is 7316.");
        assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    },
    async stream() {
        const whole = await client.chat.completions.create(ask);
        let text = "", usage;
        for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
            text += chunk.choices[0]?.delta?.content ?? "";
            usage = chunk.usage ?? usage;
        }
        assert.equal(text, whole.choices[0].message.content);
        assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
        const runner = client.chat.completions.stream(ask); // the helper that gathers events
        assert.equal(await runner.finalContent(), text);
    },
    async stop() {
        const text = (await client.chat.completions.create(ask)).choices[0].message.content;
        const word = text.split(" ")[2];
        const r = await client.chat.completions.create({ ...ask, stop: word });
        assert.equal(r.choices[0].message.content, text.slice(0, text.indexOf(word)));
    },
    async logprobs() {
        const r = await client.chat.completions.create({ ...ask, logprobs: true, top_logprobs: 2 });
        const bytes = r.choices[0].logprobs.content.flatMap((t) => t.bytes);
        assert.equal(Buffer.from(bytes).toString(), r.choices[0].message.content);
    },
    async choicesAndSeed() {
        const hot = { ...ask, temperature: 1.2, max_tokens: 12, n: 2, seed: 3 };
        const a = await client.chat.completions.create(hot), b = await client.chat.completions.create(hot);
        assert.deepEqual(a.choices.map((c) => c.message.content), b.choices.map((c) => c.message.content));
        assert.equal(a.choices.length, 2);
    },
    async completions() {
        const r = await client.completions.create({ model: "any", prompt: ["Once upon a time", "The"], max_tokens: 6, temperature: 0 });
        let text = "";
        for await (const chunk of await client.completions.create({ model: "any", prompt: "The", max_tokens: 6, temperature: 0, stream: true }))
            text += chunk.choices[0].text;
        assert.equal(text, r.choices[1].text);
    },
    async schema() {
        const schema = { type: "object", properties: { city: { type: "string", maxLength: 12 }, size: { enum: ["small", "large"] } },
            required: ["city", "size"], additionalProperties: false };
        const r = await client.chat.completions.create({ model: "any", messages: [{ role: "user", content: "A city?" }], seed: 1,
            response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } } });
        assert.ok(["small", "large"].includes(JSON.parse(r.choices[0].message.content).size));
    },
    async tools() {
        const tool = { type: "function", function: { name: "get_weather", parameters: { type: "object",
            properties: { city: { type: "string", maxLength: 16 } }, required: ["city"], additionalProperties: false } } };
        const r = await client.chat.completions.create({ model: "any", messages: [{ role: "user", content: "The weather in Paris?" }],
            tools: [tool], tool_choice: "required", max_tokens: 100, seed: 1 });
        const call = r.choices[0].message.tool_calls[0];
        assert.equal(call.function.name, "get_weather");
        assert.ok("city" in JSON.parse(call.function.arguments));
        const runner = client.chat.completions.stream({ model: "any", messages: [{ role: "user", content: "The weather in Paris?" }],
            tools: [tool], tool_choice: "required", max_tokens: 100, seed: 1 });
        const done = await runner.finalChatCompletion();
        assert.equal(done.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    },
    async responses() {
        const r = await client.responses.create({ model: "any", input: question, temperature: 0, max_output_tokens: 40 });
        assert.ok(r.output_text && r.usage.total_tokens === r.usage.input_tokens + r.usage.output_tokens);
        if (exact) assert.equal(r.output_text, "The secret code of the silver fox is 7316.");
        let text = "", last, n = 0;
        for await (const event of await client.responses.create({ model: "any", input: question, temperature: 0, max_output_tokens: 40, stream: true })) {
            assert.equal(event.sequence_number, n++);
            if (event.type === "response.output_text.delta") text += event.delta;
            last = event;
        }
        assert.equal(text, r.output_text);
        assert.equal(last.type, "response." + r.status);
        const schema = { type: "object", properties: { size: { enum: ["small", "large"] } }, required: ["size"], additionalProperties: false };
        const s = await client.responses.create({ model: "any", input: "How large?", max_output_tokens: 100,
            text: { format: { type: "json_schema", name: "size", schema, strict: true } } });
        assert.ok(["small", "large"].includes(JSON.parse(s.output_text).size));
    },
    async embeddings() {
        const a = await client.embeddings.create({ model: "any", input: ["hello", "world"] }); // asks for base64 by itself
        const b = await client.embeddings.create({ model: "any", input: "hello", encoding_format: "float" });
        a.data[0].embedding.forEach((x, i) => assert.ok(Math.abs(x - b.data[0].embedding[i]) < 1e-7));
    },
    async errors() {
        await assert.rejects(client.chat.completions.create({ ...ask, temperature: 9 }),
            (e) => e instanceof OpenAI.BadRequestError && e.code === "decimal_above_max_value" && e.param === "temperature");
        await assert.rejects(client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "word ".repeat(200000) }] }),
            (e) => e.code === "context_length_exceeded");
    },
    async cancellation() {
        for (let i = 0; i < 10; i++) {
            const s = await client.completions.create({ model: "any", prompt: "Once", max_tokens: 1000, ignore_eos: true, stream: true });
            for await (const chunk of s) break; // ends the request
        }
        const abort = new AbortController();
        const waiting = client.completions.create({ model: "any", prompt: "word ".repeat(500), max_tokens: 1000, ignore_eos: true },
            { signal: abort.signal });
        setTimeout(() => abort.abort(), 50);
        await assert.rejects(waiting, OpenAI.APIUserAbortError);
        const begin = Date.now();
        await client.completions.create({ model: "any", prompt: "a", max_tokens: 1 });
        assert.ok(Date.now() - begin < 5000);
    },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
        console.log("ok  ", name);
    } catch (e) {
        failed++;
        console.log("FAIL", name, e.message?.slice(0, 500));
    }
}
process.exit(failed ? 1 : 0);
