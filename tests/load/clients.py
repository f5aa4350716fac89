"""One client of the load test: a loop of things that clients do, each checked as far as it promises anything."""
import asyncio
import json
import random
import time

import misuse
from questions import Question, Wrong
from wire import Broken, Connection, request

# what a client does next, and how often
WEIGHTS = {"ask": 56, "ask_slow_write": 3, "ask_slow_read": 3, "leave_queue": 6, "leave_prompt": 6, "leave_stream": 8, "half_close": 2,
           "bad_body": 8, "bad_bytes": 4, "oversize": 1, "pipeline": 3, "stalled_head": 1, "deaf": 1, "look": 2}
BUSY = (429, 503)


class Failed(Exception):
    pass


class Client:
    """`world`: port, questions, deadline, patience (s), idle (the server's idle timeout, s), and where results are counted."""

    def __init__(self, world, number):
        self.w, self.r = world, random.Random(world.seed * 1000003 + number)
        self.c = None
        self.names, self.odds = list(WEIGHTS), list(WEIGHTS.values())

    async def run(self):
        while not self.w.over():
            what = self.r.choices(self.names, self.odds)[0]
            self.w.count(what)
            try:
                async with asyncio.timeout(self.w.patience):
                    await getattr(self, what)()
            except TimeoutError:
                self.w.fail(what, f"stuck: nothing for {self.w.patience} s")
                self.drop()
            except (Failed, Wrong, Broken, ValueError, KeyError, TypeError, IndexError) as e:
                self.w.fail(what, f"{type(e).__name__}: {e}")
                self.drop()
            except OSError as e:
                self.w.fail(what, f"no connection: {e}")
                await asyncio.sleep(0.2)
        self.drop()

    # ---- connections ----

    def drop(self, reset=False):
        if self.c:
            self.c.close(reset)
        self.c = None

    async def connection(self):
        """The one of the last request, or a new one."""
        if self.c and (not self.c.alive or self.r.random() < 0.2):
            self.drop(self.r.random() < 0.3)
        if not self.c:
            self.c = await Connection.open(self.w.port)
        return self.c

    async def head_of(self, data):
        """Sends it and waits for the reply's head. A kept connection may have been closed meanwhile: then once again."""
        c = await self.connection()
        try:
            await c.send(data)
            return await c.head()
        except Broken:
            if not c.used:
                raise
            self.drop()
            c = await self.connection()
            await c.send(data)
            return await c.head()

    async def refused(self, head):
        """429 and 503 say when to come again."""
        o = json.loads(await self.c.body(head))
        if not o["error"]["message"] or not head.get("retry-after").isdigit():
            raise Failed(f"{head.status} without Retry-After or reason: {o}")
        self.done(head)
        self.w.count(f"refused {head.status}")
        await asyncio.sleep(self.r.uniform(0.05, 0.3))

    def done(self, head):
        self.c.used += 1
        self.c.alive = self.c.alive and head.stays_open
        if not self.c.alive:
            self.drop()

    def same(self, q, stream, got):
        if got != q.lone:
            raise Failed(f"{q.kind} ({'stream' if stream else 'whole'}) differs from its lone run:\n    got  {json.dumps(got)[:1500]}\n"
                         f"    lone {json.dumps(q.lone)[:1500]}\n    body {json.dumps(q.body)[:300]}")
        self.w.count(f"same {q.kind}")

    # ---- what goes well ----

    async def ask(self, write=None, read=None):
        q = self.r.choice(self.w.questions)
        stream = q.streams and self.r.random() < 0.7
        head = await (write(q.bytes(stream)) if write else self.head_of(q.bytes(stream)))
        if head.status in BUSY:
            return await self.refused(head)
        if head.status != 200:
            raise Failed(f"{head.status} for {q.kind}: {(await self.c.body(head))[:300]}")
        reader = q.reader(stream)
        async for piece in self.c.pieces(head, self.r.choice([1, 7, 1000, 65536])):
            reader.feed(piece)
            if read:
                await read()
        self.done(head)
        self.same(q, stream, reader.finish())

    async def ask_slow_write(self):
        async def write(data):
            self.drop()
            c = await self.connection()
            cuts = sorted(self.r.randrange(1, len(data)) for _ in range(12))
            for a, b in zip([0, *cuts], [*cuts, len(data)]):
                await c.send(data[a:b])
                await asyncio.sleep(self.r.uniform(0, 0.02 * self.w.idle))
            return await c.head()

        await self.ask(write)

    async def ask_slow_read(self):
        """A byte every 100 ms for a while, from sockets that hold next to nothing; then the rest, or away. The server may give it up."""
        self.drop()
        q = self.r.choice([q for q in self.w.questions if q.kind in ("big", "logprobs", "n", "chat")])
        stream = self.r.random() < 0.7
        self.c = await Connection.open(self.w.port, 2048)
        await self.c.send(q.bytes(stream))
        try:
            head = await self.c.head()
            if head.status in BUSY:
                return await self.refused(head)
            reader, until, leaves = q.reader(stream), time.monotonic() + self.r.uniform(1, 1.5 * self.w.idle), self.r.random() < 0.5
            async for piece in self.c.pieces(head, 1):
                reader.feed(piece)
                if time.monotonic() < until:
                    await asyncio.sleep(0.1)
                elif leaves:
                    self.w.count("slow reader left")
                    return self.drop(self.r.random() < 0.5)
            self.done(head)
        except Broken:
            self.w.count("slow reader given up")
            return self.drop()
        self.same(q, stream, reader.finish())

    async def look(self):
        path = self.r.choice(["/health", "/metrics", "/slots", "/props", "/v1/models", "/residency", "/"])
        head = await self.head_of(request("GET", path))
        body = await self.c.body(head)
        if head.status != 200 or not body:
            raise Failed(f"{path}: {head.status}")
        self.done(head)

    async def pipeline(self):
        """Three requests at once; three replies in their order."""
        self.drop()
        q = self.r.choice([q for q in self.w.questions if q.kind in ("chat", "text", "embeddings")])
        c = await self.connection()
        await c.send(request("GET", "/health") + q.bytes(False) + request("POST", "/tokenize", {"content": "a b"}))
        replies = []
        for _ in range(3):
            head = await c.head()
            replies.append((head, await c.body(head)))
        if replies[0][0].status != 200 or "tokens" not in json.loads(replies[2][1]):
            raise Failed(f"replies of pipelined requests: {[h.status for h, _ in replies]}")
        if replies[1][0].status not in BUSY:
            reader = q.reader(False)
            reader.feed(replies[1][1])
            self.same(q, False, reader.finish())
        self.done(replies[2][0])

    # ---- clients that go away ----

    async def leave(self, q, seconds, reset=None):
        self.drop()
        c = await self.connection()
        await c.send(q.bytes(q.streams and self.r.random() < 0.7))
        await asyncio.sleep(seconds)
        self.drop(self.r.random() < 0.5 if reset is None else reset)

    async def leave_queue(self):
        await self.leave(self.r.choice(self.w.questions), self.r.choice([0, 0, 0.002, 0.02]))

    async def leave_prompt(self):
        await self.leave(self.r.choice([q for q in self.w.questions if q.kind in ("long", "big")]), self.r.uniform(0, 0.5))

    async def leave_stream(self):
        self.drop()
        q = self.r.choice([q for q in self.w.questions if q.streams])
        c = await self.connection()
        await c.send(q.bytes(True))
        head = await c.head()
        n, most = 0, self.r.randrange(1, 4000)
        async for piece in c.pieces(head, 50):
            n += len(piece)
            if n > most:
                break
        self.drop(self.r.random() < 0.5)

    async def deaf(self):
        """Asks for more than the server keeps for a client, and reads nothing: the server gives it up, or we do."""
        self.drop()
        q = self.r.choice([q for q in self.w.questions if q.kind == "big"])
        self.c = await Connection.open(self.w.port, 2048)
        await self.c.send(Question("big", q.path, {**q.body, "max_tokens": 450}).bytes(True))
        await asyncio.sleep(self.r.uniform(1, 2 * self.w.idle))
        self.drop(self.r.random() < 0.5)

    async def half_close(self):
        """Says that nothing more comes: the server takes it as gone or answers, but neither hangs nor answers half."""
        self.drop()
        q = self.r.choice(self.w.questions)
        c = await self.connection()
        await c.send(q.bytes(False))
        c.half_close()
        try:
            head = await c.head()
            body = await c.body(head)
        except Broken:
            return self.drop()
        if head.status == 200:
            reader = q.reader(False)
            reader.feed(body)
            self.same(q, False, reader.finish())
        self.drop()

    async def stalled_head(self):
        """Half a request and then nothing: the server closes the connection in its own time, or we do."""
        self.drop()
        c = await self.connection()
        await c.send(request("POST", "/tokenize", {"content": "x" * 200})[: self.r.randrange(1, 250)])
        try:
            async with asyncio.timeout(self.r.uniform(0.1, 2 * self.w.idle + 2)):
                await c.reader.read()
                self.w.count("stalled head closed")
        except (TimeoutError, OSError):
            pass
        self.drop()

    # ---- what is refused ----

    async def bad_body(self):
        i = self.r.randrange(len(misuse.BODIES))
        data, want = misuse.body(i)
        head = await self.head_of(data)
        body = await self.c.body(head)
        if head.status in BUSY:
            return self.done(head)
        if head.status not in want or not json.loads(body)["error"]["message"]:
            raise Failed(f"body {i} was answered with {head.status}: {body[:300]}")
        self.done(head)

    async def bad_bytes(self):
        self.drop()
        i = self.r.randrange(len(misuse.BYTES))
        c = await self.connection()
        try:
            await c.send(misuse.BYTES[i])
            if self.r.random() < 0.5:
                c.half_close()
            head = await c.head()
            if head.status < 400:
                raise Failed(f"bytes {i} were answered with {head.status}")
        except (Broken, OSError):
            pass  # closed
        self.drop(self.r.random() < 0.5)

    async def oversize(self):
        self.drop()
        first, more, n = self.r.choice(misuse.OVERSIZE)
        c = await self.connection()
        try:
            await c.send(first)
            answer = asyncio.ensure_future(c.head())
            try:
                for _ in range(n):
                    await c.send(more)
                    if answer.done():
                        break
                head = await answer
                if head.status < 400:
                    raise Failed(f"an oversize request was answered with {head.status}")
            finally:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
        except (Broken, OSError):
            pass
        self.drop(True)
