"""A small client of OpenAI's API for the tests: the standard library only, with everything that goes over the wire in sight."""
import http.client
import json
import threading
import time


class Client:
    def __init__(self, port, timeout=300):
        self.port, self.timeout = port, timeout

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)

    def post(self, path, body):
        """(status, headers, body) of a request; the body as JSON."""
        c = self.connection()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        c.request("POST", path, data, {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, r.headers, json.loads(text)

    def get(self, path):
        c = self.connection()
        c.request("GET", path)
        r = c.getresponse()
        text = r.read()
        c.close()
        return r.status, text.decode()

    def ok(self, path, body):
        status, _, o = self.post(path, body)
        assert status == 200, (status, o)
        return o

    def open_stream(self, path, body):
        c = self.connection()
        c.request("POST", path, json.dumps(dict(body, stream=True)).encode(), {"Content-Type": "application/json"})
        return c, c.getresponse()

    def stream(self, path, body):
        """The events' data ("[DONE]" as a string) and the comments."""
        c, r = self.open_stream(path, body)
        assert r.status == 200, (r.status, r.read())
        assert r.headers["Content-Type"].startswith("text/event-stream"), r.headers["Content-Type"]
        text = r.read().decode()
        c.close()
        events, comments = [], []
        assert text.endswith("\n\n"), repr(text[-80:])
        for block in text[:-2].split("\n\n"):
            if block.startswith(":"):
                comments.append(block)
                continue
            assert block.startswith("data: ") and "\n" not in block, repr(block)
            data = block[6:]
            events.append(data if data == "[DONE]" else json.loads(data))
        return events, comments

    def chat(self, text, **more):
        return self.ok("/v1/chat/completions", dict(messages=[dict(role="user", content=text)], **more))

    def chat_text(self, text, **more):
        return self.chat(text, **more)["choices"][0]["message"]["content"]

    def complete(self, prompt, **more):
        return self.ok("/v1/completions", dict(prompt=prompt, **more))


def joined(events, n=1):
    """The texts of a chat stream's choices and their finish reasons; checks the order of the chunks."""
    assert events[-1] == "[DONE]", events[-1]
    chunks = [e for e in events[:-1] if e["choices"]]
    assert len({(e["id"], e["created"], e["object"]) for e in events[:-1]}) == 1
    texts, finish, opened = [""] * n, [None] * n, [False] * n
    for e in chunks:
        assert e["object"] == "chat.completion.chunk" and len(e["choices"]) == 1, e
        choice = e["choices"][0]
        i, delta = choice["index"], choice["delta"]
        assert finish[i] is None, "a chunk after the last one"
        if not opened[i]:
            assert delta == {"role": "assistant", "content": None}, delta
            opened[i] = True
            continue
        assert "role" not in delta
        texts[i] += delta.get("content") or ""
        finish[i] = choice["finish_reason"]
        if finish[i]:
            assert delta == {}, delta
    assert all(finish), finish
    return texts, finish


def concurrently(functions):
    """Runs them at the same time; their results in order."""
    out = [None] * len(functions)

    def call(i):
        try:
            out[i] = functions[i]()
        except BaseException as e:
            out[i] = e

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for o in out:
        if isinstance(o, BaseException):
            raise o
    return out


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("waited for nothing")
