#!/usr/bin/env python3
"""How a server does when several clients share it: throughput of parallel streams, time to first token (TTFT) while a long prompt is
being read, gaps between the tokens of running streams while others come.

    bench/serve.py COLIBRI MODEL [-- FLAGS OF THE SERVER]       starts `colibri serve` and ends it
    bench/serve.py --url http://127.0.0.1:8080 --vocab 50000    any server of OpenAI's /v1/completions that takes token ids

Prompts are random token ids, so nothing is known beforehand, or pieces of a text (--text). Streams of random text hardly share experts of
a mixture of experts, those of one topic do: the report says how many each layer used per pass, if the server tells. What is compared is measured in turn, `--repeat` times; the report has
medians with the smallest and largest, and the machine's load and what the server's threads used of the CPU meanwhile. The client reads
bytes and takes next to no CPU. Python 3.11's standard library only."""
import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "load"))
from server import Server  # noqa: E402
from wire import get  # noqa: E402

TEXT, END = b'"finish_reason":null', b"data: [DONE]"


class Stream(asyncio.Protocol):
    """One request of /v1/completions as a stream; when its texts came (seconds)."""

    def __init__(self, body):
        self.body, self.times, self.tail, self.over = body, [], b"", asyncio.get_running_loop().create_future()
        self.progress, self.first = asyncio.Event(), asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self.began = time.perf_counter()
        transport.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                        b"Connection: close\r\n\r\n%b" % (len(self.body), self.body))

    def data_received(self, data):
        now = time.perf_counter()
        self.progress.set()
        new = self.tail[-(len(TEXT) - 1):] + data
        n = new.count(TEXT) - new.count(b'"prompt_progress"')
        if n > 0:
            self.times += [now] * n
            self.first.set()
        self.tail = (self.tail + data)[-3000:]
        if END in self.tail and not self.over.done():
            self.ended = now
            self.over.set_result(None)

    def connection_lost(self, error):
        if not self.over.done():
            self.over.set_exception(RuntimeError(f"the stream ended early: {error} {self.tail[:400]!r}"))

    def generated(self):
        return int(re.findall(rb'"completion_tokens":(\d+)', self.tail)[-1])

    def ttft(self):
        return self.times[0] - self.began


class Bench:
    def __init__(self, o, host, port, vocab, server):
        self.o, self.host, self.port, self.vocab, self.server, self.r = o, host, port, vocab, server, random.Random(o.seed)
        self.text = open(o.text, encoding="utf-8").read().split(" ") if o.text else None

    def prompt(self, n_tokens):
        if not self.text:
            return [self.r.randrange(self.vocab // 16, self.vocab - self.vocab // 16) for _ in range(n_tokens)]
        n = max(1, n_tokens * 2 // 3)  # words
        at = self.r.randrange(max(1, len(self.text) - n))
        return " ".join(self.text[at:at + n])

    async def open(self, n_prompt, n_tokens, progress=False):
        body = {"prompt": self.prompt(n_prompt), "max_tokens": n_tokens, "stream": True, "ignore_eos": True, "temperature": 0.8, "seed": self.r.randrange(1 << 30),
                "stream_options": {"include_usage": True}}
        if progress:
            body["return_progress"] = True
        _, s = await asyncio.get_running_loop().create_connection(lambda: Stream(json.dumps(body).encode()), self.host, self.port)
        return s

    async def finish(self, streams, n_tokens):
        async with asyncio.timeout(self.o.patience):
            await asyncio.gather(*(s.over for s in streams))
        for s in streams:
            s.transport.close()
            if s.generated() != n_tokens:
                raise RuntimeError(f"{s.generated()} tokens instead of {n_tokens}")

    async def together(self, n):
        """Tokens per second of n streams, from the first request to the last token; the server's CPU seconds per second."""
        before, cpu, t0 = await self.figures(), self.cpu(), time.perf_counter()
        streams = await asyncio.gather(*(self.open(self.o.short, self.o.tokens) for _ in range(n)))
        await self.finish(streams, self.o.tokens)
        seconds = max(s.ended for s in streams) - t0
        cpu = (self.cpu() - cpu) / seconds
        d = {k: v - before[k] for k, v in (await self.figures()).items()}
        experts = (d["hits"] + d["misses"]) / d["passes"] / self.layers if self.layers and d["passes"] else 0.0
        return n * self.o.tokens / seconds, cpu, experts, d["busy"] / seconds

    async def figures(self):
        """Sums of the server's own: passes, seconds in them, experts that they used."""
        m = await self.server.metrics() if self.server else {}
        names = {"passes": "passes", "busy": "busy_seconds", "hits": "expert_hits", "misses": "expert_misses"}
        return {k: m.get(f"colibri_{v}_total", 0.0) for k, v in names.items()}

    def cpu(self):
        if not self.server:
            return 0.0
        with open(f"/proc/{self.server.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def idle_ttft(self):
        await asyncio.sleep(self.r.uniform(0.02, 0.1))
        s = await self.open(self.o.short, 4)
        await self.finish([s], 4)
        return s.ttft()

    async def busy_ttft(self, pause):
        """Of short requests while a long prompt is being read, with pauses of up to `pause` seconds; and how long that took."""
        long, out = await self.open(self.o.prompt, 1, True), []
        await long.progress.wait()
        while not long.over.done():
            await asyncio.sleep(self.r.uniform(0.0, pause))
            if long.over.done():
                break
            s = await self.open(self.o.short, 4)
            await self.finish([s], 4)
            if not long.over.done() or s.times[0] < long.ended:
                out.append(s.ttft())
        await self.finish([long], 1)
        return out, long.ended - long.began

    async def gaps(self, prompts):
        """Between the tokens of 4 streams; with prompts of 512 tokens coming meanwhile, or nothing."""
        streams = [await self.open(self.o.short, self.o.tokens * 2) for _ in range(4)]
        others = []
        while prompts and not all(s.over.done() for s in streams):
            others.append(await self.open(512, 1))
            await asyncio.wait([others[-1].over, *(s.over for s in streams)], timeout=self.o.patience)
            await asyncio.sleep(self.r.uniform(0.0, 0.1))
        await self.finish(streams, self.o.tokens * 2)
        await self.finish(others, 1)
        return [b - a for s in streams for a, b in zip(s.times, s.times[1:])]


def spread(values, scale=1.0, digits=1):
    return f"{statistics.median(values) * scale:.{digits}f} ({min(values) * scale:.{digits}f} .. {max(values) * scale:.{digits}f})"


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


async def throughput(b, out):
    rows, n = [], b.o.streams
    await b.together(n)
    for _ in range(b.o.repeat):
        one, many = await b.together(1), await b.together(n)
        rows.append((one, many))
    ratio = [m[0] / o[0] for o, m in rows]
    out["throughput"] = {"streams": n, "tokens": b.o.tokens, "ratio": ratio, "columns": "tok/s, CPUs, experts per layer and pass, share of forward passes",
                         "one": [r[0] for r in rows], "many": [r[1] for r in rows]}
    for name, i in (("1 stream", 0), (f"{n} streams", 1)):
        rate, cpu, experts, busy = (list(x) for x in zip(*(r[i] for r in rows)))
        more = f", {statistics.median(experts):.1f} experts per layer" if max(experts) else ""
        print(f"{name:19s} {spread(rate)} tok/s, {statistics.median(cpu):.2f} CPUs, forward passes {statistics.median(busy):.0%}{more}", flush=True)
    print(f"ratio               {spread(ratio, 1, 2)}", flush=True)


async def ttft(b, out):
    rows, all_idle, all_busy = [], [], []
    await b.idle_ttft()
    for _ in range(b.o.repeat):
        idle = [await b.idle_ttft() for _ in range(9)]
        busy, seconds = await b.busy_ttft(8 * statistics.median(idle))
        if not busy:
            raise RuntimeError(f"the prompt of {b.o.prompt} tokens was read in {seconds:.3f} s: too quick for a short request meanwhile")
        rows.append((statistics.median(idle), statistics.median(busy), statistics.median(busy) / statistics.median(idle), seconds))
        all_idle += idle
        all_busy += busy
    idle, busy, ratio, seconds = zip(*rows)
    out["ttft"] = {"prompt": b.o.prompt, "short": b.o.short, "idle": all_idle, "busy": all_busy, "ratio": ratio, "prompt_s": seconds}
    print(f"TTFT, idle          {spread(idle, 1e3)} ms\n"
          f"TTFT, prompt read   {spread(busy, 1e3)} ms; p90 {quantile(all_busy, 0.9) * 1e3:.1f} ms of {len(all_busy)}\n"
          f"ratio               {spread(ratio, 1, 2)}\n"
          f"the long prompt     {spread(seconds, 1, 2)} s, {b.o.prompt / statistics.median(seconds):.0f} tok/s meanwhile", flush=True)


async def gaps(b, out):
    alone, loaded = [], []
    for _ in range(b.o.repeat):
        alone += await b.gaps(False)
        loaded += await b.gaps(True)
    out["gaps"] = {"alone": alone, "loaded": loaded}
    for name, g in (("4 streams", alone), ("and prompts of 512", loaded)):
        print(f"{name:19s} between tokens: p50 {quantile(g, 0.5) * 1e3:.1f} ms, p99 {quantile(g, 0.99) * 1e3:.1f} ms, "
              f"most {max(g) * 1e3:.1f} ms ({len(g)} gaps)", flush=True)


async def moe_layers(server):
    _, body = await get(server.port, "/residency")
    return json.loads(body).get("layers", 0)


async def run(o, folder):
    server, out = None, {"load_before": os.getloadavg(), "command": sys.argv[1:]}
    if o.url:
        u = urllib.parse.urlparse(o.url)
        host, port, vocab = u.hostname, u.port, o.vocab
    else:
        ctx = o.ctx or o.prompt + 64
        server = Server([o.colibri, "serve", "-m", o.model, "--port", "0", "--parallel", str(o.streams), "--ctx", str(ctx), *o.flags],
                        os.path.join(folder, "log"))
        await server.start(600)
        host, port = "127.0.0.1", server.port
        with urllib.request.urlopen(f"http://{host}:{port}/v1/models") as r:
            vocab = o.vocab or json.load(r)["data"][0]["meta"]["n_vocab"]
    try:
        b = Bench(o, host, port, vocab, server)
        b.layers = await moe_layers(server) if server else 0
        for test in o.tests.split(","):
            await {"throughput": throughput, "ttft": ttft, "gaps": gaps}[test](b, out)
    finally:
        if server:
            await server.stop(30)
    out["load_after"] = os.getloadavg()
    print(f"load of the machine {out['load_before'][0]:.1f} before, {out['load_after'][0]:.1f} after", flush=True)
    if o.json:
        with open(o.json, "w") as f:
            json.dump(out, f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("colibri", nargs="?")
    p.add_argument("model", nargs="?")
    p.add_argument("flags", nargs="*")
    p.add_argument("--url")
    p.add_argument("--vocab", type=int, help="token ids are taken from 1/16 to 15/16 of so many")
    p.add_argument("--tests", default="throughput,ttft,gaps")
    p.add_argument("--text", help="file that prompts are pieces of")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--tokens", type=int, default=128, help="of each stream")
    p.add_argument("--short", type=int, default=16, help="tokens of a short prompt")
    p.add_argument("--prompt", type=int, default=4096, help="tokens of the long one")
    p.add_argument("--ctx", type=int)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--patience", type=float, default=300)
    p.add_argument("--json")
    o = p.parse_args()
    if bool(o.url) == bool(o.model) or (o.url and not o.vocab):
        p.error("give COLIBRI and MODEL, or --url and --vocab")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(o, folder))


if __name__ == "__main__":
    main()
