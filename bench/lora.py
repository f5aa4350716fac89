"""What a LoRA adapter costs: writes adapters with random weights for everything that can have one, and measures prompts and
generation with and without them, in turn, in processes that all stay loaded. Times are CPU time, of one thread.

    python3 bench/lora.py COLIBRI MODEL [--rank 8,16,64] [--rounds 7] [--prompt 256] [--gen 32] [-- flags of `colibri bench`]
"""
import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile

TARGETS = r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down)(_shexp|_exps)?|ffn_gate_inp)\.weight$"
PIECE = 1 << 24


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_halves(out, n, rng):
    """n numbers of F16, about 0.008 to 0.016 of both signs."""
    high = bytes(0x20 | (i & 3) | (i & 0x80) for i in range(256))
    while n:
        k = min(n, PIECE)
        data = bytearray(rng.randbytes(2 * k))
        data[1::2] = bytes(data[1::2]).translate(high)
        out.write(data)
        n -= k


def write_adapter(path, model, arch, rank):
    """Returns how many numbers it has."""
    tensors = []
    for t in model["tensors"]:
        if not re.match(TARGETS, t["name"]):
            continue
        n_in, n_out, *experts = t["shape"]
        tensors += [(t["name"] + ".lora_a", (n_in, rank, *experts)), (t["name"] + ".lora_b", (rank, n_out, *experts))]
    keys = [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch)]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys) + 1)
    for key, value in keys:
        head += text(key) + struct.pack("<I", 8) + text(value)
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, rank)
    offset, sizes = 0, []
    for name, shape in tensors:
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        head += struct.pack("<IQ", 1, offset)
        n = 1
        for k in shape:
            n *= k
        sizes.append(n)
        offset += 2 * n + -2 * n % 32
    rng = random.Random(1)
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % 32))
        for n in sizes:
            write_halves(out, n, rng)
            out.write(bytes(-2 * n % 32))
    return sum(sizes)


class Bench:
    def __init__(self, args, name, adapter):
        command = [args.colibri, "bench", "-m", args.model, "--stdin", "-p", str(args.prompt), "-n", str(args.gen), "--threads",
                   "1", *args.flags]
        self.name = name
        self.process = subprocess.Popen(command + (["--lora", adapter] if adapter else []), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"colibri bench does not start: {' '.join(command)}")
        self.times = {"pp": [], "tg": []}

    def cpu_seconds(self):
        """Of all threads: what others do on this machine is not in it."""
        tasks = f"/proc/{self.process.pid}/task"
        return sum(int(open(f"{tasks}/{t}/schedstat").read().split()[0]) for t in os.listdir(tasks)) / 1e9

    def run(self, what, n, counts=True):
        before = self.cpu_seconds()
        self.process.stdin.write(f"{what} {n}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()
        if counts:
            self.times[what].append(self.cpu_seconds() - before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("colibri")
    parser.add_argument("model")
    parser.add_argument("--rank", default="8,16,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--gen", type=int, default=32)
    args, rest = parser.parse_known_args()
    args.flags = [flag for flag in rest if flag != "--"]
    model = json.loads(subprocess.run([args.colibri, "inspect", "--json", "--tensors", args.model], check=True,
                                      capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder:
        benches = [Bench(args, "none", None)]
        for rank in args.rank.split(","):
            path = os.path.join(folder, f"r{rank}.gguf")
            n = write_adapter(path, model, model["architecture"], int(rank))
            benches.append(Bench(args, f"rank {rank}, {n / 1e6:.1f} M", path))
            os.unlink(path)
        for i in range(args.rounds + 1):
            for what, n in (("pp", args.prompt), ("tg", args.gen)):
                for bench in benches:
                    bench.run(what, n, i > 0)
        for bench in benches:
            bench.process.stdin.write("quit\n")
            bench.process.stdin.flush()
            bench.process.wait()
    print(f"{os.path.basename(args.model)}: medians of {args.rounds} rounds, tokens per second of one thread, and times of the time without adapters")
    base = benches[0].times
    for bench in benches:
        line = f"{bench.name:24}"
        for what, n in (("pp", args.prompt), ("tg", args.gen)):
            median = statistics.median(bench.times[what])
            more = statistics.median(a / b for a, b in zip(bench.times[what], base[what]))
            line += f"  {what}{n} {n / median:8.1f}  x {more:.2f}"
        print(line)


main()
