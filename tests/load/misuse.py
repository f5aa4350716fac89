"""What clients should not do: bodies that are refused, bytes that are no HTTP. Each entry of BODIES is answered with one of its status
codes and a JSON error, and the connection stays usable. Each of BYTES is answered with an error, or the connection is closed."""
import json

from questions import CHAT, EMBED, TEXT
from wire import request


def chat(**more):
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}


def schema(s):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": s}})


def nested(depth):
    """A schema, as text: Python's own encoder gives up earlier."""
    body = json.dumps(schema("HERE")).replace('"HERE"', '{"type":"array","items":' * depth + "true" + "}" * depth)
    return body.encode()


DEEP = b'{"messages":' + b"[" * 100000 + b"]" * 100000 + b"}"
BODIES = [
    (CHAT, b"", {400}),
    (CHAT, b"{", {400}),
    (CHAT, b"[]", {400}),
    (CHAT, b"null", {400}),
    (CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}', {400}),
    (CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}', {400}),
    (CHAT, b'{"messages":[{"role":"user","content":"hi"}]} trailing', {400}),
    (CHAT, b"\x00" * 1000, {400}),
    (CHAT, DEEP, {400}),
    (CHAT, {}, {400}),
    (CHAT, {"messages": []}, {400}),
    (CHAT, {"messages": [{"role": "user"}]}, {400}),
    (CHAT, {"messages": ["hi"] * 1000}, {400}),
    (CHAT, chat(temperature=-1), {400}),
    (CHAT, chat(temperature="hot"), {400}),
    (CHAT, chat(n=0), {400}),
    (CHAT, chat(n=100000), {400}),
    (CHAT, chat(max_tokens=-5), {400}),
    (CHAT, chat(seed=1.5), {400}),
    (CHAT, chat(top_logprobs=50, logprobs=True), {400}),
    (CHAT, chat(stop=["a"] * 1000), {400}),
    (CHAT, chat(logit_bias={"99999999": 1}), {400}),
    (CHAT, chat(no_such_field=1), {400}),
    (CHAT, chat(tools=[{"type": "function"}]), {400}),
    (CHAT, chat(grammar="root ::= undefined"), {400}),
    (CHAT, chat(grammar="root ::= root"), {400}),
    (CHAT, chat(grammar="root ::= " + "(" * 20000), {400}),
    (CHAT, schema({"type": "nonsense"}), {400}),
    (CHAT, nested(3000), {400}),
    (CHAT, schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), {400}),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 20000}]}, {400}),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 20000}], "stream": True}, {400}),
    (TEXT, {"prompt": [99999999]}, {400}),
    (TEXT, {"prompt": []}, {400}),
    (TEXT, {"prompt": {"a": 1}}, {400}),
    (TEXT, {"prompt": "a", "logprobs": 1000}, {400}),
    (EMBED, {"input": ""}, {400}),
    (EMBED, {"input": [[]]}, {400}),
    (EMBED, {"input": 5}, {400}),
    ("/v1/nothing", {"a": 1}, {404}),
    ("/health", {"a": 1}, {405}),
]

BODY = json.dumps(chat()).encode()
BYTES = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",  # TLS
    b"\x00" * 4096,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"NO SUCH REQUEST\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"b" * 100000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(20000)) + b"\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: zz\r\n\r\n{",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n",
    b"DELETE /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n",
]
# sent without an end: the server has to say no in the middle of it, or close
OVERSIZE = [
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\n\r\n", b"x" * 65536, 4000),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", 4000),
    (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000000\r\nExpect: 100-continue\r\n\r\n", b"", 0),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ", b"y" * 65536, 400),
]


def body(i):
    path, b, want = BODIES[i]
    return request("POST", path, b), want
