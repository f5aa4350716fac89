#!/usr/bin/env python3
"""Load on `colibri serve`: many clients, good, slow, rude and vanishing ones, and afterwards a server as before.

    tests/load/load.py --minutes 10 --requests 2000 COLIBRI MODEL [-- FLAGS OF THE SERVER]

First every question is asked alone; under load each complete reply has to be the same, to the last bit of its log probabilities. At
the end: nothing runs, waits or is connected, descriptors and threads are as many as before, memory has not grown since the warm-up,
all questions have their lone replies again, SIGTERM gives exit code 0, and no sanitizer has reported. Exit code 1 if anything is
missing. The standard library of Python 3.11 is all that is needed."""
import argparse
import asyncio
import collections
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from clients import Client
from questions import KINDS, Wrong, make
from server import Server
from wire import Broken, Connection, get, request

MOST_FAILURES = 20


class World:
    def __init__(self, options):
        self.o, self.seed, self.patience, self.idle = options, options.seed, options.patience, options.idle_timeout
        self.counts, self.failures, self.samples, self.stopping = collections.Counter(), [], [], False

    def begin(self, port, questions):
        self.port, self.questions, self.began = port, questions, time.monotonic()

    def asked(self):
        return sum(n for k, n in self.counts.items() if " " not in k)

    def over(self):
        return self.stopping or len(self.failures) >= MOST_FAILURES or (
            time.monotonic() - self.began > self.o.minutes * 60 and self.asked() >= self.o.requests)

    def count(self, what):
        self.counts[what] += 1

    def fail(self, what, why):
        self.failures.append(f"{what}: {why}")
        print(f"FAIL {what}: {why}", flush=True)


async def ask(port, q, stream):
    c = await Connection.open(port)
    try:
        await c.send(q.bytes(stream))
        head = await c.head()
        reader = q.reader(stream)
        if head.status != 200:
            raise Wrong(f"{head.status}: {(await c.body(head))[:300]}")
        async for piece in c.pieces(head):
            reader.feed(piece)
        return reader.finish()
    finally:
        c.close()


async def ask_all(world, questions, expect):
    """Each alone, whole and as a stream."""
    for q in questions:
        for stream in (False, True) if q.streams else (False,):
            try:
                async with asyncio.timeout(world.patience):
                    got = await ask(world.port, q, stream)
                if not expect and not stream:
                    q.lone = got
                    q.check(got)
                elif got != q.lone:
                    raise Wrong(f"another reply than before:\n    {json.dumps(got)[:800]}\n    {json.dumps(q.lone)[:800]}")
            except (Wrong, Broken, TimeoutError, ValueError, KeyError) as e:
                world.fail(f"alone: {q.kind}{' (stream)' if stream else ''}", f"{type(e).__name__} {e}; body {json.dumps(q.body)[:300]}")


async def watch(world, server):
    """Memory every second; what runs and waits, too."""
    try:
        while True:
            rss, fds, threads = server.memory()
            async with asyncio.timeout(world.patience):
                m = await server.metrics()
            world.samples.append((time.monotonic() - world.began, rss, fds, threads, m["colibri_requests_running"] + m["colibri_requests_reading"],
                                  m["colibri_requests_waiting"], m["colibri_http_connections"]))
            await asyncio.sleep(1)
    except asyncio.CancelledError:
        raise
    except Exception as e:
        world.fail("watching", f"the server does not answer: {type(e).__name__} {e}")
        world.stopping = True


async def reload(world, server):
    while True:
        await asyncio.sleep(world.o.reload)
        server.reload()
        world.count("SIGHUP")


async def settled(server, before):
    """The last connection of ours may take a moment to be closed."""
    for _ in range(50):
        after = server.memory()
        if after[1] <= before[1] and after[2] <= before[2]:
            break
        await asyncio.sleep(0.1)
    return after


def growth(world):
    """Of the median of the last fifth of the time over that of the first fifth after the warm-up; None: too short."""
    warm = world.o.warm_up
    after = [s for s in world.samples if s[0] >= warm]
    n = len(after) // 5
    if n < 5:
        return None
    return statistics.median(s[1] for s in after[-n:]) / statistics.median(s[1] for s in after[:n]) - 1


async def kinds_of(port):
    """Without those that the server does not have."""
    c = await Connection.open(port)
    head, _ = await c.ask(request("POST", "/v1/messages", b"{}"))
    c.close()
    return [k for k in KINDS if k != "anthropic" or head.status != 404]


async def run(o, log_path):
    world = World(o)
    nice = ["nice"] if o.nice else []
    server = Server([*nice, o.colibri, "serve", "-m", o.model, "--port", "0", "--parallel", str(o.parallel), "--queue", str(o.queue), "--ctx", str(o.ctx),
                     "--idle-timeout", str(o.idle_timeout), *o.flags], log_path)
    await server.start()
    try:
        questions = make(o.seed, o.each, o.ctx, await kinds_of(server.port))
        world.begin(server.port, questions)
        await ask_all(world, questions, False)
        alone_s = time.monotonic() - world.began
        if o.spoil:
            for q in questions:
                q.lone = {**q.lone, "usage": None}
        _, left = await server.idle(10)
        before = server.memory()
        print(f"alone: {len(questions)} questions in {alone_s:.1f} s; {before[0] >> 20} MiB, {before[1]} descriptors, {before[2]} threads", flush=True)
        world.begin(server.port, questions)
        aside = [asyncio.create_task(watch(world, server))] + ([asyncio.create_task(reload(world, server))] if o.reload else [])
        if not world.failures:
            await asyncio.gather(*(Client(world, i).run() for i in range(o.clients)))
        loaded_s = time.monotonic() - world.began
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)
        metrics, left = await server.idle(o.idle_timeout + 10)
        if left:
            world.fail("afterwards", f"still there: {left}")
        after = await settled(server, before)
        if after[1] > before[1] or after[2] > before[2]:
            world.fail("afterwards", f"{after[1]} descriptors and {after[2]} threads, {before[1]} and {before[2]} before")
        if (await get(server.port, "/health"))[0] != 200:
            world.fail("afterwards", "not healthy")
        await ask_all(world, questions, True)
        grown = growth(world)
        if grown is not None and grown > o.growth / 100:
            world.fail("memory", f"grown by {grown:.1%} since {o.warm_up:.0f} s")
        code = await server.stop(o.patience)
    finally:
        server.kill()
    if code != 0:
        world.fail("the end", f"exit code {code}")
    if server.reports():
        world.fail("sanitizer", server.reports())
    report(world, metrics, before, after, grown, loaded_s)
    return not world.failures


def report(world, metrics, before, after, grown, seconds):
    same = sum(n for k, n in world.counts.items() if k.startswith("same "))
    column = lambda i: [s[i] for s in world.samples] or [0]
    out = {
        "seconds": round(seconds, 1), "clients": world.o.clients, "seed": world.seed, "requests": world.asked(), "replies_as_alone": same,
        "failures": len(world.failures), "counts": dict(sorted(world.counts.items())),
        "most": {"running": max(column(4)), "waiting": max(column(5)), "connections": max(column(6))},
        "memory": {"before": before[0], "after": after[0], "most": max(column(1)), "growth": grown},
        "server": {k: metrics[k] for k in metrics if k.startswith(("colibri_requests_total", "colibri_http_slow", "colibri_http_timeouts",
                                                                  "colibri_http_disc", "colibri_tokens_generated", "colibri_prompt_tokens_c"))},
    }
    print(json.dumps(out, indent=1))
    if world.o.json:
        with open(world.o.json, "w") as f:
            json.dump({**out, "samples": world.samples, "what_failed": world.failures}, f)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("colibri")
    p.add_argument("model")
    p.add_argument("flags", nargs="*", help="for the server, behind --")
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--requests", type=int, default=2000, help="at least so many")
    p.add_argument("--minutes", type=float, default=10, help="at least so long")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--each", type=int, default=6, help="questions of each kind")
    p.add_argument("--parallel", type=int, default=4)
    p.add_argument("--queue", type=int, default=26, help="of the server; with more clients some are refused")
    p.add_argument("--ctx", type=int, default=2048)
    p.add_argument("--idle-timeout", type=int, default=10)
    p.add_argument("--patience", type=float, default=120, help="seconds after which a reply counts as stuck")
    p.add_argument("--warm-up", type=float, default=60, help="seconds after which memory is not to grow")
    p.add_argument("--growth", type=float, default=5, help="per cent that it may, all the same")
    p.add_argument("--reload", type=float, default=7, help="seconds between SIGHUPs; 0: none")
    p.add_argument("--spoil", action="store_true", help="changes the lone replies, to see that this is found")
    p.add_argument("--nice", action="store_true")
    p.add_argument("--json", help="file for the report with all samples")
    p.add_argument("--log", help="file for what the server writes to standard error")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        ok = asyncio.run(run(o, o.log or os.path.join(d, "serve.log")))
    sys.exit(not ok)


if __name__ == "__main__":
    main()
