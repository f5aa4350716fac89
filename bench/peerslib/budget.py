"""bench/budget: engines in a memory cgroup that is smaller than the model.

One round: a plain O_DIRECT read of the file, then each engine by itself: page cache dropped, a new cgroup, a new process,
tokens that warm it up and are not counted, then the measured ones. Colibri gets the budget as --max-memory, the peers map
the file and leave it to the kernel what stays; the cgroup's limit is the budget and 5 % for everybody.
"""
import argparse
import datetime
import json
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from . import engines as kinds
from . import ggufinfo, install, machine
from .main import find_peers, parse_cores
from .stepped import BenchError, Stepped

SLACK = 1.05      # the cgroup's limit: the budget times this
BLOCK = 4 << 20   # of the plain read
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text):
    """'1.5G' -> bytes, as Colibri reads sizes."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in ("K", "M", "G") else (text, "")
    try:
        size = float(number) * UNITS[unit]
    except ValueError:
        size = 0
    if not 0 < size < 1 << 60:
        raise argparse.ArgumentTypeError(f"'{text}' is no size; examples: 1600M, 1.6G")
    return int(size)


class NoGroup(Exception):
    pass


class MemoryGroup:
    """A memory cgroup (version 1 or 2) with a limit; a command that `wrap` made runs inside."""

    def __init__(self, name, limit, root="/sys/fs/cgroup"):
        root = Path(root)
        controllers = machine.text(root / "cgroup.controllers", "").split()
        if "memory" in controllers:
            self.version, parent = 2, root
            self.files = {"limit": "memory.max", "peak": "memory.peak", "swap": "memory.swap.max"}
            self._write(root / "cgroup.subtree_control", "+memory", "enabling the memory controller")
        elif (root / "memory" / "memory.limit_in_bytes").exists():
            self.version, parent = 1, root / "memory"
            self.files = {"limit": "memory.limit_in_bytes", "peak": "memory.max_usage_in_bytes",
                          "swap": "memory.memsw.limit_in_bytes"}
        else:
            raise NoGroup(f"there is no memory cgroup controller in {root}")
        self.path = parent / name
        try:
            self.path.mkdir()
        except OSError as error:
            raise NoGroup(f"cannot make the cgroup {self.path}: {error.strerror} (this needs root, and a writable "
                          f"{root})") from None
        try:
            self._write(self.path / self.files["limit"], str(limit), "setting the limit")
            # No way out through swap; where the kernel does not count swap there is no such file.
            if (self.path / self.files["swap"]).exists():
                self._write(self.path / self.files["swap"], str(limit) if self.version == 1 else "0", "forbidding swap")
        except NoGroup:
            self.close()
            raise

    @staticmethod
    def _write(path, text, what):
        try:
            path.write_text(text)
        except OSError as error:
            raise NoGroup(f"{what} failed: {path}: {error.strerror} (this needs root)") from None

    def wrap(self, command):
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    def peak(self):
        """Most bytes that were charged to the group, page cache included; None if the kernel does not say."""
        found = machine.text(self.path / self.files["peak"], "")
        return int(found) if found.isdigit() else None

    def killed(self):
        """How many processes the kernel has killed here for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for line in machine.text(self.path / name, "").splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def close(self):
        for _ in range(100):  # the kernel takes its time to empty it
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
        kinds.warn(f"the cgroup {self.path} could not be removed")


def drop_cache(path):
    """Takes the file out of the page cache (what somebody has mapped stays)."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read(path, most):
    """Bytes per second of a sequential O_DIRECT read of up to `most` bytes in blocks of 4 MiB, one at a time."""
    buffer = mmap.mmap(-1, BLOCK)  # page-aligned
    done, fd = 0, os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        start = time.perf_counter()
        while done < most:
            count = os.preadv(fd, [buffer], done)
            done += count
            if count < BLOCK:
                break
        return done / (time.perf_counter() - start)
    finally:
        os.close(fd)
        buffer.close()


def parse_io(text):
    """Bytes read from drives, out of /proc/PID/io."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "read_bytes":
            return int(value)
    raise BenchError("/proc/PID/io does not say what was read")


class Mapped(kinds.Package):
    """A peer that maps the file. Nothing is repacked: a second copy of the weights would not fit."""

    CONFIG = {"llama.cpp": {"fa": 1, "ub": 512, "repack": 0}, "ik_llama.cpp": {"fa": 1, "ub": 512, "fmoe": 1, "rtr": 0,
                                                                              "muge": 0}}

    def command(self, model, config):
        settings = json.dumps(dict(config, threads=self.threads, mmap=1))
        return [str(self.python), str(kinds.HERE / "worker.py"), self.name, model, settings]


def run_once(engine, group, model, args, log):
    """One engine in one round: what it did."""
    config = getattr(engine, "CONFIG", {}).get(engine.name, {})
    test = kinds.Test("tg", args.tokens, args.warm)
    child = Stepped(engine.name, group.wrap(engine.command(model, config)), engine.cores, log, engine.env(config),
                    timeout=args.timeout)
    try:
        child.resume()
        context = engine.context_request(test, config)
        if context:
            child.order("ctx", json.dumps(context))
        warm = child.ask("tg", args.warm)
        # The same tokens in one batch, then others one by one: only these are timed, and they are not the ones that the
        # warm-up has just prepared for. The counter of bytes also sees the batch; so the same batch with one token after
        # it goes first, and what is left after subtracting it was read for the other tokens.
        def bytes_read():
            return parse_io(machine.text(f"/proc/{child.pid}/io", ""))

        start = bytes_read()
        child.ask("tg", 1, args.warm)
        middle = bytes_read()
        seconds = child.ask(*test)
        read = max(0, (bytes_read() - middle) - (middle - start)) / (args.tokens - 1)
        memory = machine.memory_of(child.pid)
        return {"tokens_per_second": args.tokens / seconds, "warm_tokens_per_second": args.warm / warm,
                "read_bytes_per_token": read, "read_rate": read * args.tokens / seconds,
                "load_seconds": child.load_seconds, "peak_rss": memory.get("peak"), "anonymous": memory.get("anonymous"),
                "peak_group": group.peak(), "killed": group.killed()}
    finally:
        child.close()


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values)}


def summarize(report):
    """Medians of each engine over the rounds, and of our speed over each peer's in the same round."""
    names = list(dict.fromkeys(name for r in report["rounds"] for name in r["engines"]))
    out = {"plain_read": spread([r["plain_read"] for r in report["rounds"]]), "engines": {}, "ratios": {}}
    for name in names:
        runs = [(r["plain_read"], r["engines"][name]) for r in report["rounds"] if "error" not in r["engines"][name]]
        if not runs:
            continue
        out["engines"][name] = {
            "tokens_per_second": spread([e["tokens_per_second"] for _, e in runs]),
            "read_bytes_per_token": spread([e["read_bytes_per_token"] for _, e in runs]),
            "drive_share": spread([e["read_rate"] / plain for plain, e in runs]),
            "peak_rss": max(e["peak_rss"] or 0 for _, e in runs),
            "peak_group": max(e["peak_group"] or 0 for _, e in runs),
            "killed": sum(e["killed"] for _, e in runs), "runs": len(runs)}
        pairs = [r["engines"]["colibri"]["tokens_per_second"] / r["engines"][name]["tokens_per_second"]
                 for r in report["rounds"] if name != "colibri" and "error" not in r["engines"][name]
                 and "error" not in r["engines"].get("colibri", {"error": 1})]
        if pairs:
            out["ratios"][name] = spread(pairs)
    return out


def triple(s, digits=2):
    return f"{s['median']:.{digits}f} ({s['min']:.{digits}f}..{s['max']:.{digits}f})"


def scaled(s, unit):
    return {key: value / unit for key, value in s.items()}


def table(report):
    s = report["summary"]
    lines = [f"{report['file']}, {report['file_bytes'] / 1e9:.2f} GB; budget {report['budget'] / 1e9:.2f} GB "
             f"({100 * report['budget'] / report['file_bytes']:.0f} %), cgroup limit {report['limit'] / 1e9:.2f} GB; "
             f"{report['threads']} threads; {len(report['rounds'])} rounds, {report['tokens']} tokens after "
             f"{report['warm']}.", f"Plain O_DIRECT read of the file: {triple(scaled(s['plain_read'], 1e9))} GB/s.", "",
             "| engine | tok/s | MB read per token | drive, of plain read | peak RSS, GB | peak of the group, GB | "
             "Colibri is faster by |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, e in s["engines"].items():
        ratio = triple(s["ratios"][name], 1) if name in s["ratios"] else "–"
        lines.append(f"| {name} | {triple(e['tokens_per_second'])} | {triple(scaled(e['read_bytes_per_token'], 1e6), 1)} | "
                     f"{triple(scaled(e['drive_share'], 0.01), 0)} % | {e['peak_rss'] / 1e9:.2f} | "
                     f"{e['peak_group'] / 1e9:.2f} | {ratio} |")
    for number, r in enumerate(report["rounds"], 1):
        for name, e in r["engines"].items():
            if "error" in e:
                lines.append(f"\nRound {number}, {name}: {e['error'].splitlines()[0]}")
    return "\n".join(lines)


def parser():
    p = argparse.ArgumentParser(
        prog="bench/budget", description="Measures Colibri, llama.cpp and ik_llama.cpp on a model that is larger than "
        "their memory: each in a cgroup of the same size, page cache dropped before each run. Needs root.",
        epilog="See bench/README.md.")
    p.add_argument("-m", "--model", required=True, metavar="FILE", help="a GGUF file")
    p.add_argument("--budget", type=parse_size, metavar="SIZE", help="memory (default: 45 %% of the file)")
    p.add_argument("-r", "--rounds", type=int, default=3, metavar="N", help="default 3")
    p.add_argument("-n", "--tokens", type=int, default=32, metavar="N", help="measured tokens per run (default 32)")
    p.add_argument("--warm", type=int, default=32, metavar="N", help="tokens before them (default 32)")
    p.add_argument("--plain", type=parse_size, default=2 << 30, metavar="SIZE", help="bytes of the plain read (2G)")
    p.add_argument("--timeout", type=int, default=900, metavar="S", help="seconds for one answer (default 900)")
    p.add_argument("--cores", type=parse_cores, metavar="LIST", help="cores to use (default: all this process may use)")
    p.add_argument("-t", "--threads", type=int, metavar="N", help="threads of each engine (default: one per core)")
    p.add_argument("--colibri", metavar="PATH", help="the program (default: the one of build/release)")
    p.add_argument("--colibri-model", metavar="FILE", help="another file for Colibri, e.g. the packed form of the model")
    p.add_argument("--colibri-arg", action="append", default=[], metavar="ARG", help="passed to 'colibri bench'")
    p.add_argument("--only", metavar="NAMES", help="of the peers only these; none: Colibri alone")
    p.add_argument("--venv", action="append", default=[], metavar="DIR", help="a venv with a peer's package; repeatable")
    p.add_argument("--cache", default=str(install.cache_dir()), metavar="DIR", help="venvs made by bench/peers --install")
    p.add_argument("--out", metavar="PREFIX", help="write PREFIX.md and PREFIX.json")
    return p


def find_engines(args, cores, threads, logs):
    path = args.colibri or kinds.find_colibri() or ""
    if not os.access(path, os.X_OK):
        raise SystemExit(f"bench/budget: no colibri program at '{path}': build it, or use --colibri PATH")
    test = kinds.Test("tg", args.tokens, args.warm)
    extra = ["--max-memory", str(args.budget), *args.colibri_arg]
    found = [kinds.Colibri("colibri", os.path.abspath(path), extra, None, [test, kinds.Test("tg", args.warm)], cores,
                           threads, logs)]
    args.mask = args.llama_bench = args.ik_bench = None
    for peer in [] if args.only == "none" else find_peers(args, cores, threads, logs):
        peer.__class__ = Mapped
        found.append(peer)
    return found


def main(argv=None):
    args = parser().parse_args(argv)
    args.model = os.path.abspath(args.model)
    size = os.path.getsize(args.model)
    args.budget = args.budget or int(0.45 * size)
    if min(args.rounds, args.tokens - 1, args.warm) < 1:
        raise SystemExit("bench/budget: --rounds and --warm must be at least 1, --tokens at least 2")
    cores = args.cores or sorted(os.sched_getaffinity(0))
    threads = args.threads or len(cores)
    limit = int(args.budget * SLACK) // mmap.PAGESIZE * mmap.PAGESIZE
    name = f"colibri-budget-{os.getpid()}"
    try:  # before anything is measured
        MemoryGroup(name, limit).close()
    except NoGroup as error:
        raise SystemExit(f"bench/budget: {error}") from None
    report = {"schema": "colibri-budget/1", "file": os.path.basename(args.model), "file_bytes": size,
              "budget": args.budget, "limit": limit, "threads": threads, "tokens": args.tokens, "warm": args.warm,
              "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "machine": machine.describe(cores, threads), "model": ggufinfo.describe(args.model), "rounds": []}
    with tempfile.TemporaryDirectory(prefix="colibri-budget-") as logs:
        engines = find_engines(args, cores, threads, logs)
        for number in range(args.rounds):
            drop_cache(args.model)
            current = {"plain_read": plain_read(args.model, min(size, args.plain)), "engines": {}}
            report["rounds"].append(current)
            for engine in engines if number % 2 == 0 else engines[::-1]:
                model = args.colibri_model if args.colibri_model and engine.name == "colibri" else args.model
                drop_cache(args.model)
                drop_cache(model)
                group = MemoryGroup(name, limit)
                try:
                    done = run_once(engine, group, os.path.abspath(model), args, Path(logs) / f"{engine.name}.log")
                    kinds.warn(f"round {number + 1}: {engine.name} {done['tokens_per_second']:.2f} tok/s")
                except BenchError as error:
                    done = {"error": str(error), "killed": group.killed()}
                    if done["killed"]:
                        done["error"] = f"killed by the kernel: over {limit} bytes\n{error}"
                    kinds.warn(f"round {number + 1}: {engine.name}: {done['error']}")
                finally:
                    group.close()
                current["engines"][engine.name] = done
        report["engines"] = {e.name: {"version": e.version} for e in engines}
    report["summary"] = summarize(report)
    text = table(report)
    print(text)
    if args.out:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out + ".md").write_text(text + "\n")
        Path(args.out + ".json").write_text(json.dumps(report, indent=1) + "\n")
    ours = report["summary"]["engines"].get("colibri")
    return 0 if ours and not ours["killed"] else 1
