// The chat: one conversation, streamed answers, kept for this tab only.
"use strict";

const byId = (id) => document.getElementById(id);
const numbers = { temperature: "temperature", top_p: "top-p", top_k: "top-k", max_tokens: "max-tokens", seed: "seed" };
let messages = [];
let running = null; // AbortController of the answer that is coming

// ---- keeping it for this tab ----

function save() {
  try {
    sessionStorage.setItem("colibri.messages", JSON.stringify(messages));
    const settings = { system: byId("system").value, key: byId("key").value };
    for (const id of Object.values(numbers)) settings[id] = byId(id).value;
    sessionStorage.setItem("colibri.settings", JSON.stringify(settings));
  } catch { /* private windows may refuse: then it is not kept */ }
}

function restore() {
  try {
    messages = JSON.parse(sessionStorage.getItem("colibri.messages") || "[]");
    const settings = JSON.parse(sessionStorage.getItem("colibri.settings") || "{}");
    for (const [id, value] of Object.entries(settings)) if (byId(id)) byId(id).value = value;
  } catch {
    messages = [];
  }
}

function headers() {
  const key = byId("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// ---- showing it ----

function say(text) {
  byId("status").textContent = text;
}

function button(text, label, action) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = text;
  b.setAttribute("aria-label", label);
  b.addEventListener("click", action);
  return b;
}

function fill(article, message) {
  const body = article.querySelector(".body");
  body.replaceChildren();
  if (message.reasoning) {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    details.append(summary, ...markdown(message.reasoning));
    body.append(details);
  }
  if (message.role === "user") {
    const p = document.createElement("p");
    p.textContent = message.content;
    body.append(p);
  } else {
    body.append(...markdown(message.content || ""));
  }
}

function show(message, index) {
  const article = document.createElement("article");
  article.className = `message ${message.role}`;
  const title = document.createElement("h3");
  title.textContent = message.role === "user" ? "You" : message.role === "error" ? "Error" : "Answer";
  const body = document.createElement("div");
  body.className = "body";
  const tools = document.createElement("div");
  tools.className = "tools";
  const figures = document.createElement("span");
  figures.className = "figures";
  figures.textContent = message.figures || "";
  if (message.role !== "error") tools.append(button("Copy", `Copy ${title.textContent.toLowerCase()} ${index + 1}`, () => copy(message.content)));
  if (message.role === "assistant") tools.append(button("Again", `Answer ${index + 1} again`, () => again(index)));
  if (message.role === "user") tools.append(button("Edit", `Edit message ${index + 1}`, () => edit(index)));
  tools.append(figures);
  article.append(title, body, tools);
  fill(article, message);
  byId("log").append(article);
  return article;
}

function render() {
  byId("log").replaceChildren();
  messages.forEach(show);
  toEnd(true);
}

const nearEnd = () => {
  const main = document.querySelector("main");
  return main.scrollHeight - main.scrollTop - main.clientHeight < 120;
};
function toEnd(always) {
  const main = document.querySelector("main");
  if (always || nearEnd()) main.scrollTop = main.scrollHeight;
}

function copy(text) {
  navigator.clipboard?.writeText(text).then(() => say("Copied."), () => say("The browser does not allow copying here."));
}

// ---- asking ----

function request() {
  const body = { messages: [], stream: true, stream_options: { include_usage: true }, return_progress: true };
  const system = byId("system").value.trim();
  if (system) body.messages.push({ role: "system", content: system });
  for (const m of messages) if (m.role !== "error") body.messages.push({ role: m.role, content: m.content });
  for (const [field, id] of Object.entries(numbers)) if (byId(id).value !== "") body[field] = Number(byId(id).value);
  return body;
}

// Events of a stream of server-sent events; comments are skipped.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts)
      for (const line of part.split("\n")) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

function progress(p) {
  const bar = byId("progress");
  if (!p) {
    bar.hidden = true;
    return;
  }
  bar.hidden = false;
  bar.max = p.total;
  bar.value = p.processed;
  say(`Reading the prompt: ${p.processed} of ${p.total} tokens${p.cache ? `, ${p.cache} known already` : ""}`);
}

class Meter {
  constructor() {
    this.tokens = 0;
    this.start = performance.now();
    this.first = 0;
  }
  token() {
    if (!this.first) this.first = performance.now();
    this.tokens++;
  }
  text() {
    const seconds = (performance.now() - this.first) / 1000;
    return this.tokens > 1 && seconds > 0 ? `${((this.tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  }
}

function finish(message, chunk, meter) {
  const t = chunk.timings;
  const parts = [];
  if (chunk.usage) parts.push(`${chunk.usage.completion_tokens} tokens`);
  if (t?.predicted_per_second) parts.push(`${t.predicted_per_second.toFixed(1)} tokens/s`);
  else if (meter.text()) parts.push(meter.text());
  if (meter.first) parts.push(`first after ${((meter.first - meter.start) / 1000).toFixed(2)} s`);
  message.figures = parts.join(", ");
}

async function receive(response, message, article, meter) {
  let drawn = 0;
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.prompt_progress) progress(chunk.prompt_progress);
    const delta = chunk.choices?.[0]?.delta || {};
    if (delta.content || delta.reasoning_content) {
      if (!meter.first) {
        progress(null);
        say("Answering…");
      }
      meter.token();
      message.content += delta.content || "";
      message.reasoning = (message.reasoning || "") + (delta.reasoning_content || "");
    }
    if (chunk.choices?.[0]?.finish_reason === "length") message.cut = true;
    if (chunk.usage || chunk.timings) finish(message, chunk, meter);
    const now = performance.now();
    if (now - drawn > 60) { // markdown of the whole message: not for every token
      drawn = now;
      fill(article, message);
      toEnd(false);
      if (meter.first) byId("rate").textContent = meter.text();
    }
  }
  throw new Error("the server broke the answer off");
}

async function ask() {
  const body = request();
  const chat = messages; // another one may have begun when this ends
  const message = { role: "assistant", content: "" };
  const meter = new Meter();
  running = new AbortController();
  byId("send").hidden = true;
  byId("stop").hidden = false;
  byId("log").setAttribute("aria-busy", "true"); // read out once it is whole
  const article = show(message, messages.length);
  toEnd(true);
  say("Waiting for the server…");
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(body),
      signal: running.signal,
    });
    if (!response.ok) {
      const reply = await response.json().catch(() => ({}));
      throw new Error(reply.error?.message || `the server answered ${response.status}`);
    }
    await receive(response, message, article, meter);
    say(message.cut ? "Ended: as many tokens as allowed. Raise them in the settings." : "Done.");
    chat.push(message);
  } catch (e) {
    if (message.content) chat.push(message);
    if (e.name !== "AbortError") chat.push({ role: "error", content: e.message });
    if (chat === messages) say(e.name === "AbortError" ? "Stopped." : "");
  }
  running = null;
  progress(null);
  byId("rate").textContent = "";
  byId("send").hidden = false;
  byId("stop").hidden = true;
  if (chat === messages) {
    // Only what is new: a screen reader would read the whole conversation again.
    if (chat.includes(message)) fill(article, message);
    else article.remove();
    if (message.figures) article.querySelector(".figures").textContent = message.figures;
    if (chat.at(-1)?.role === "error") show(chat.at(-1), chat.length - 1);
    toEnd(false);
    save();
  }
  byId("log").setAttribute("aria-busy", "false");
  byId("input").focus();
}

function send() {
  const input = byId("input");
  const text = input.value.trim();
  if (!text || running) return;
  messages = messages.filter((m) => m.role !== "error");
  messages.push({ role: "user", content: text });
  input.value = "";
  save();
  render();
  ask();
}

function again(index) {
  if (running) return;
  messages = messages.slice(0, index);
  render();
  ask();
}

function edit(index) {
  if (running) return;
  byId("input").value = messages[index].content;
  messages = messages.slice(0, index);
  save();
  render();
  byId("input").focus();
}

// ---- the rest of the page ----

function toggle(buttonId, sectionId, opened) {
  byId(buttonId).addEventListener("click", () => {
    const section = byId(sectionId);
    section.hidden = !section.hidden;
    byId(buttonId).setAttribute("aria-expanded", String(!section.hidden));
    opened?.(!section.hidden);
  });
}

async function model() {
  try {
    const reply = await fetch("v1/models", { headers: headers() });
    if (reply.status === 401) {
      byId("model").textContent = "this server wants an API key: see Settings";
      return;
    }
    const list = await reply.json();
    byId("model").textContent = list.data?.[0]?.id || "no model";
    document.title = `${byId("model").textContent} – Colibri`;
  } catch {
    byId("model").textContent = "the server does not answer";
    setTimeout(model, 2000);
  }
}

byId("compose").addEventListener("submit", (e) => { e.preventDefault(); send(); });
byId("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (e) => { if (e.key === "Escape" && running) running.abort(); });
byId("stop").addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", () => {
  running?.abort();
  messages = [];
  save();
  render();
  say("New chat.");
  byId("input").focus();
});
byId("settings-form").addEventListener("input", save);
byId("key").addEventListener("change", model);
byId("settings-form").addEventListener("submit", (e) => e.preventDefault());
toggle("show-settings", "settings");
toggle("show-machine", "machine", (open) => open ? machine.start(headers) : machine.stop());
restore();
render();
model();
