"""Requests with an answer of their own: all sampling is seeded, so each reply is the same whoever else is being served. `Question.normal`
takes from a reply, whole or as a stream, what must not change; ids, times and the share of the prompt that was known may."""
import json
import random

from wire import Events, request

CHAT, TEXT, EMBED, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"
ADJECTIVES = "silver golden hollow narrow quiet broken distant early frozen gentle heavy iron".split()
NOUNS = "fox river tower garden lantern meadow palace hammer bridge window harbour forest".split()
STARTS = ["Once upon a time", "In the beginning", "The history of", "int main(void) {", "NAME\n       ls - list", "Es war einmal", "A", "\u4ece\u524d"]


class Wrong(Exception):
    """A reply that breaks the contract by itself."""


class Question:
    def __init__(self, kind, path, body, streams=True):
        self.kind, self.path, self.body, self.streams = kind, path, body, streams
        self.lone = None

    def bytes(self, stream, fields=()):
        body = dict(self.body)
        if stream:
            body["stream"] = True
            if self.path != MESSAGES:
                body["stream_options"] = {"include_usage": True}
        return request("POST", self.path, body, fields)

    def reader(self, stream):
        if self.path == EMBED:
            return EmbeddingReader()
        if self.path == MESSAGES:
            return MessageStream() if stream else MessageReader()
        return TextStream(self) if stream else TextReader(self)

    def check(self, normal):
        """What is to be said about a lone reply without knowing it."""
        if self.kind == "schema" and normal["choices"][0]["finish"] == "stop":
            person = json.loads(normal["choices"][0]["text"])
            if set(person) != {"name", "age"} or not 1 <= person["age"] <= 99:
                raise Wrong(f"not what the schema says: {person}")
        if self.kind == "stop" and self.body["stop"][0] in normal["choices"][0]["text"]:
            raise Wrong("the stop string is in the text")


class Reader:
    """feed(piece of the body)... then finish() -> the normal form."""

    def __init__(self):
        self.parts = []

    def feed(self, piece):
        self.parts.append(piece)

    def finish(self):
        return self.normal(json.loads(b"".join(self.parts)))


class EmbeddingReader(Reader):
    def normal(self, o):
        return {"vectors": [d["embedding"] for d in o["data"]], "usage": [o["usage"]["prompt_tokens"]]}


class MessageReader(Reader):
    def normal(self, o):
        if o["type"] != "message":
            raise Wrong(f"not a message: {o}")
        text = "".join(b["text"] for b in o["content"] if b["type"] == "text")
        return {"text": text, "finish": o["stop_reason"], "stop": o["stop_sequence"], "usage": o["usage"]["output_tokens"]}


def usage_of(o):
    return [o["usage"]["prompt_tokens"], o["usage"]["completion_tokens"]]


def empty_choice():
    return {"text": "", "finish": None, "logprobs": [], "calls": []}


def add_logprobs(choice, logprobs):
    """Chat: a list of tokens. Completions: four lists, which become one of quadruples."""
    if not logprobs:
        return
    if "content" in logprobs:
        choice["logprobs"] += logprobs["content"]
    else:
        choice["logprobs"] += [list(x) for x in zip(*(logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")))]


class TextReader(Reader):
    def __init__(self, question):
        super().__init__()
        self.chat = question.path == CHAT

    def normal(self, o):
        choices = []
        for i, c in enumerate(o["choices"]):
            if c["index"] != i:
                raise Wrong("choices out of order")
            n = empty_choice()
            n["text"] = (c["message"]["content"] or "") if self.chat else c["text"]
            n["finish"] = c["finish_reason"]
            if self.chat:
                n["calls"] = [[t["function"]["name"], t["function"]["arguments"]] for t in c["message"].get("tool_calls", [])]
            add_logprobs(n, c["logprobs"])
            choices.append(n)
        return {"choices": choices, "usage": usage_of(o)}


class TextStream:
    def __init__(self, question):
        self.chat = question.path == CHAT
        self.events = Events(self.event)
        self.choices, self.usage, self.heads, self.done, self.opened, self.first = {}, None, set(), False, set(), None

    def feed(self, piece):
        self.events.feed(piece)

    def event(self, name, data):
        if self.done:
            raise Wrong("an event after [DONE]")
        if data == "[DONE]":
            self.done = True
            return
        o = json.loads(data)
        if "error" in o:
            raise Wrong(f"an error in the stream: {o['error']}")
        self.heads.add((o["id"], o["created"], o["object"]))
        if not o["choices"]:
            self.usage = usage_of(o)
            return
        if self.usage:
            raise Wrong("text after the usage")
        (c,) = o["choices"]
        n = self.choices.setdefault(c["index"], empty_choice())
        if n["finish"]:
            raise Wrong("text after the last chunk of a choice")
        if not self.chat:
            n["text"] += c["text"]
        elif c["index"] not in self.opened:
            self.opened.add(c["index"])
            if c["delta"] != {"role": "assistant", "content": None}:
                raise Wrong(f"a stream that begins with {c['delta']}")
        else:
            n["text"] += c["delta"].get("content") or ""
            for t in c["delta"].get("tool_calls", []):
                if t["index"] == len(n["calls"]):
                    n["calls"].append([t["function"]["name"], ""])
                n["calls"][t["index"]][1] += t["function"].get("arguments") or ""
        add_logprobs(n, c["logprobs"])
        n["finish"] = c["finish_reason"]

    def finish(self):
        self.events.finish()
        if not self.done or len(self.heads) != 1:
            raise Wrong(f"a stream without its end, or of several replies: {self.heads}")
        return {"choices": [self.choices[i] for i in sorted(self.choices)], "usage": self.usage}


class MessageStream:
    def __init__(self):
        self.events = Events(self.event)
        self.o = {"text": "", "finish": None, "stop": None, "usage": None}
        self.names = []

    def feed(self, piece):
        self.events.feed(piece)

    def event(self, name, data):
        o = json.loads(data)
        if o["type"] != name:
            raise Wrong(f"an event named {name} with {o}")
        if name == "error":
            raise Wrong(f"an error in the stream: {o['error']}")
        self.names.append(name)
        if name == "content_block_delta" and o["delta"]["type"] == "text_delta":
            self.o["text"] += o["delta"]["text"]
        elif name == "message_delta":
            self.o.update(finish=o["delta"]["stop_reason"], stop=o["delta"]["stop_sequence"], usage=o["usage"]["output_tokens"])

    def finish(self):
        self.events.finish()
        if self.names[:1] != ["message_start"] or self.names[-1:] != ["message_stop"]:
            raise Wrong(f"not the order of a message: {self.names[:3]} ... {self.names[-3:]}")
        return self.o


# ---- what is asked ----------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}}}


class Maker:
    def __init__(self, seed, longest):
        self.r, self.longest = random.Random(seed), longest

    def words(self, n):
        return " ".join(f"the {self.r.choice(ADJECTIVES)} {self.r.choice(NOUNS)}" for _ in range(n))

    def recall(self):
        thing, code = f"{self.r.choice(ADJECTIVES)} {self.r.choice(NOUNS)}", self.r.randrange(1000, 10000)
        return f"Remember this: the secret code of the {thing} is {code}. What is the secret code of the {thing}?"

    def messages(self, text, system=False):
        first = [{"role": "system", "content": "You are a tiny mixture-of-experts language model."}] if system else []
        return {"messages": first + [{"role": "user", "content": text}]}

    def sampling(self, most):
        hot = self.r.random() < 0.7
        return {"temperature": self.r.choice([0.7, 1, 1.5]) if hot else 0, "seed": self.r.randrange(1 << 30),
                "max_tokens": self.r.randrange(1, most + 1)}

    def start(self):
        return f"{self.r.choice(STARTS)} {self.words(1)}"

    def chat(self):
        return Question("chat", CHAT, {**self.messages(self.recall(), self.r.random() < 0.5), **self.sampling(48)})

    def long(self):
        """Prompts that share their beginning with other long ones, or do not."""
        n = self.r.randrange(self.longest // 20, self.longest // 8)
        text = self.words(n) if self.r.random() < 0.5 else "the silver fox and " * n + self.words(4)
        return Question("long", CHAT, {**self.messages(text, True), **self.sampling(24)})

    def stop(self):
        return Question("stop", CHAT, {**self.messages(self.recall()), **self.sampling(48), "temperature": 0, "stop": [" of the", "7"]})

    def several(self):
        return Question("n", self.r.choice([CHAT]), {**self.messages(self.words(3)), **self.sampling(32), "n": 2, "temperature": 1.2})

    def schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        return Question("schema", CHAT, {**self.messages("Who? " + self.words(2)), **self.sampling(48), "max_tokens": 60, "response_format": form})

    def tools(self):
        return Question("tools", CHAT, {**self.messages("What is the weather in Paris? " + self.words(2)), **self.sampling(48), "max_tokens": 80,
                                        "tools": [TOOL], "tool_choice": "required"})

    def logprobs(self):
        return Question("logprobs", CHAT, {**self.messages(self.recall()), **self.sampling(24), "logprobs": True, "top_logprobs": 5})

    def text(self):
        return Question("text", TEXT, {"prompt": self.start(), **self.sampling(48), "logprobs": 3})

    def echo(self):
        return Question("echo", TEXT, {"prompt": self.start(), **self.sampling(12), "logprobs": 1, "echo": True})

    def prompts(self):
        return Question("prompts", TEXT, {"prompt": [self.start() for _ in range(self.r.randrange(2, 6))], **self.sampling(16)})

    def embeddings(self):
        return Question("embeddings", EMBED, {"input": [self.words(self.r.randrange(1, 30)) for _ in range(self.r.randrange(1, 4))]}, streams=False)

    def big(self):
        """A reply of a megabyte or so: more than sockets hold."""
        return Question("big", CHAT, {**self.messages(self.words(2)), **self.sampling(8), "max_tokens": 192, "temperature": 1.5, "ignore_eos": True,
                                      "n": 2, "logprobs": True, "top_logprobs": 20})

    def anthropic(self):
        s = self.sampling(32)
        return Question("messages", MESSAGES, {**self.messages(self.recall()), "max_tokens": s["max_tokens"], "temperature": 0, "model": "tiny"})


KINDS = ["chat", "long", "stop", "several", "schema", "tools", "logprobs", "text", "echo", "prompts", "embeddings", "big", "anthropic"]


def make(seed, each, longest, kinds):
    """`each` questions of each kind."""
    maker = Maker(seed, longest)
    return [getattr(maker, kind)() for kind in kinds for _ in range(1 if kind == "big" else each)]
