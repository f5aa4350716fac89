"""The programs that are measured, and the flags each of them has.

Every engine can be asked: prepare(model, test, config), then any number of run(test); memory(); close().
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from . import install, machine
from .stepped import BenchError, Stepped, before_exec, tail

HERE = Path(__file__).resolve().parent
# engine -> flag -> (values, the best guess first; where it is set: when the model is loaded or with the context)
KNOBS = {
    "llama.cpp": {"fa": ((1, 0), "context"), "ub": ((512, 2048), "context"), "repack": ((1, 0), "model"),
                  "thp": ((1, 0), "model")},
    "ik_llama.cpp": {"fa": ((1, 0), "context"), "fmoe": ((1, 0), "context"), "ub": ((512, 2048), "context"),
                     "rtr": ((1, 0), "model"), "thp": ((1, 0), "model"), "muge": ((0, 1), "model")},
}
MOE_ONLY = ("fmoe", "muge")
# What hides everything above AVX2 from Colibri's choice of kernels.
CPU_MASK = {"avx2": "avx512f,avxvnni"}


class Test(NamedTuple):
    """pp: a prompt of count tokens, tg: count tokens one by one, of each of `streams` sequences at a time; with depth tokens in
    the context before."""
    kind: str
    count: int
    depth: int = 0
    streams: int = 1

    def __str__(self):
        return (f"{self.kind}{self.count}" + (f"x{self.streams}" if self.streams > 1 else "") +
                (f"@{self.depth}" if self.depth else ""))

    @property
    def tokens(self):
        return self.count * self.streams


def knobs_for(name, test, moe):
    """The flags of an engine that can matter for this test."""
    knobs = dict(KNOBS.get(name, {}))
    if not moe:
        knobs = {knob: value for knob, value in knobs.items() if knob not in MOE_ONLY}
    if test.kind != "pp" or test.count <= 512:
        knobs.pop("ub", None)
    return knobs


def defaults(name):
    return {knob: values[0] for knob, (values, _) in KNOBS.get(name, {}).items()}


def peer_env(cores, config):
    """The environment of a peer: OpenMP's threads one to a core, and huge pages for what malloc takes."""
    env = {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{core}}}" for core in cores)}
    if config.get("thp"):
        tunables = os.environ.get("GLIBC_TUNABLES")
        env["GLIBC_TUNABLES"] = (tunables + ":" if tunables else "") + "glibc.malloc.hugetlb=1"
    return env


def built_for(system):
    """The instruction sets that the build info of ggml names as used: {'AVX2', 'AVX512', ...}."""
    return set(re.findall(r"(\w+) = 1\b", system))


class SteppedEngine:
    """A program that stays loaded and is asked for tests (Colibri, and the peers' libraries through worker.py)."""

    def __init__(self, name, cores, threads, logs):
        self.name, self.cores, self.threads = name, cores, threads
        self.log = Path(logs) / f"{name}.log"
        self.child = None
        self.loaded = self.context = None
        self.version, self.system = "unknown", ""

    def command(self, model, config):
        raise NotImplementedError

    def env(self, config):
        return {}

    def context_request(self, test, config):
        """The request for a context that fits the test, or None where the program sees to it itself."""
        return None

    def prepare(self, model, test, config):
        """Loads the model unless it is loaded with these flags already."""
        knobs = KNOBS.get(self.name, {})
        loaded = (model, {k: v for k, v in config.items() if knobs.get(k, (0, "model"))[1] == "model"})
        if self.child is None or loaded != self.loaded:
            self.close()
            self.child = Stepped(self.name, self.command(model, config), self.cores, self.log, self.env(config))
            self.loaded, self.context = loaded, None
            self.version = self.child.info.get("version", self.version)
            self.system = self.child.info.get("system", self.system)
        context = self.context_request(test, config)
        if context != self.context:
            self.child.resume()
            self.child.order("ctx", json.dumps(context))
            self.child.pause()
            self.context = context

    def run(self, test):
        """(seconds, share of our cores that others used meanwhile or None)."""
        child = self.child
        child.resume()
        child.ask("tg", 1)  # wakes the threads; every engine gets it
        own, busy, start = machine.cpu_seconds(child.pid), machine.busy_seconds(self.cores), time.monotonic()
        seconds = child.ask(*test)
        own, busy = machine.cpu_seconds(child.pid) - own, machine.busy_seconds(self.cores) - busy
        wall = time.monotonic() - start
        child.pause()
        # The kernel counts in hundredths of a second: nothing can be said about short runs.
        return seconds, max(0.0, busy - own) / wall / len(self.cores) if wall >= 0.5 else None

    def memory(self):
        return machine.memory_of(self.child.pid) if self.child else {}

    @property
    def load_seconds(self):
        return self.child.load_seconds if self.child else None

    def close(self):
        if self.child:
            self.child.close()
        self.child = self.loaded = self.context = None


class Colibri(SteppedEngine):
    def __init__(self, name, program, extra, mask, tests, *rest):
        super().__init__(name, *rest)
        self.program, self.extra = program, list(extra)
        # It sizes its context by the tests that these flags name.
        self.sizes = []
        for flag, counts in (("-p", [t.count for t in tests if t.kind == "pp"]),
                             ("-n", [t.count for t in tests if t.kind == "tg"]), ("-d", [t.depth for t in tests])):
            self.sizes += [flag, str(max(counts, default=0))]
        if max(t.streams for t in tests) > 1:
            self.sizes += ["--streams", str(max(t.streams for t in tests))]
        if mask in CPU_MASK:
            self.extra += ["--cpu-mask", CPU_MASK[mask]]
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
        self.version = (done.stdout.strip() or "unknown").splitlines()[0]
        self.system = " ".join(self.extra)

    def command(self, model, config):
        return [self.program, "bench", "-m", model, "--threads", str(self.threads), "--stdin", *self.sizes,
                *self.extra]


class Custom(SteppedEngine):
    """Any command that speaks the protocol of worker.py; {model} and {threads} are filled in."""

    def __init__(self, name, words, *rest):
        super().__init__(name, *rest)
        self.words, self.version = words, " ".join(words)

    def command(self, model, config):
        return [word.replace("{model}", model).replace("{threads}", str(self.threads)) for word in self.words]


class Package(SteppedEngine):
    """A peer out of its Python package."""

    def __init__(self, name, venv, package, *rest):
        super().__init__(name, *rest)
        self.python = Path(venv) / "bin" / "python"
        self.version = install.PACKAGES[name][0].split("==")[0] + " " + install.package_version(package)
        self.package_version = self.version
        self.libraries = str(package / "lib")

    def command(self, model, config):
        settings = json.dumps(dict(config, threads=self.threads, mmap=0))
        return [str(self.python), str(HERE / "worker.py"), self.name, model, settings]

    def env(self, config):
        # ik-llama-cpp-python built from source leaves its libraries without a path to each other.
        path = os.environ.get("LD_LIBRARY_PATH")
        return dict(peer_env(self.cores, config), LD_LIBRARY_PATH=self.libraries + (":" + path if path else ""))

    def context_request(self, test, config):
        return {"n_ctx": max(256, -(-(test.depth + test.count) // 256) * 256) * test.streams, "fa": config["fa"],
                "ub": config["ub"], "fmoe": config.get("fmoe", 0), "seqs": test.streams}

    def prepare(self, *args):
        super().prepare(*args)
        self.version = self.package_version

    def memory(self):
        found = super().memory()
        if self.child:
            found["rss_before_load"] = self.child.info.get("rss_before_load", 0)
        return found


def has_flag(help_text, flag):
    return re.search(r"(?<![\w-])" + re.escape(flag) + r"(?![\w-])", help_text) is not None


def bench_flags(help_text, config):
    """Arguments of a llama-bench for these flags, and the flags that it does not know, judged by its --help."""
    out, unknown = ["-ngl", "0"], []
    if has_flag(help_text, "--mmap"):
        out += ["-mmp", "0"]
    elif has_flag(help_text, "--load-mode"):
        out += ["--load-mode", "none"]
    for knob, value in sorted(config.items()):
        if knob == "thp":
            continue  # by the environment
        if knob == "fa" and has_flag(help_text, "-fa"):
            words = re.search(r"--flash-attn\s+<on\|off", help_text)
            out += ["-fa", ("off", "on")[value] if words else str(value)]
        elif knob == "repack" and has_flag(help_text, "--repack"):
            words = not re.search(r"--repack\s+<0\|1>", help_text)
            out += ["--repack", ("off", "on")[value] if words else str(value)]
        elif knob == "repack" and has_flag(help_text, "--no-repack"):
            out += [] if value else ["--no-repack"]
        elif knob == "ub" or has_flag(help_text, "-" + knob):
            out += ["-" + knob, str(value)]
        else:
            unknown.append(knob)
    return out, unknown


def parse_bench_json(text, test):
    """Seconds of the only run in the JSON of llama-bench or colibri bench."""
    match = re.search(r"^\[", text, re.M)
    if not match:
        raise BenchError("no JSON array in the answer")
    for entry in json.loads(text[match.start():]):
        wanted = (test.count, 0) if test.kind == "pp" else (0, test.count)
        if (entry.get("n_prompt"), entry.get("n_gen")) == wanted and len(entry.get("samples_ts", [])) == 1:
            return test.count / entry["samples_ts"][0]
    raise BenchError(f"no entry for {test} with one sample in the JSON")


class Binary:
    """A peer by its llama-bench, which loads the model anew for each run (and warms up by itself)."""

    def __init__(self, name, program, cores, threads, logs):
        self.name, self.program, self.cores, self.threads = name, program, cores, threads
        self.log = Path(logs) / f"{name}.log"
        done = subprocess.run([program, "--help"], capture_output=True, text=True)
        self.help = done.stdout + done.stderr
        self.version, self.system = program, ""
        self.peak = 0
        self.load_seconds = None
        self.model = self.config = None

    def prepare(self, model, test, config):
        if (model, config) != (self.model, self.config):
            self.peak = 0
        self.model, self.config = model, config

    def run(self, test):
        if test.streams > 1:
            raise BenchError(f"{self.program} cannot run {test}: llama-bench has one sequence")
        prompt, gen = (test.count, 0) if test.kind == "pp" else (0, test.count)
        arguments, _ = bench_flags(self.help, self.config)
        command = [self.program, "-m", self.model, "-p", str(prompt), "-n", str(gen), "-r", "1", "-t",
                   str(self.threads), "-o", "json", *arguments]
        if test.depth:
            if not has_flag(self.help, "--n-depth"):
                raise BenchError(f"{self.program} has no --n-depth for {test}")
            command += ["-d", str(test.depth)]
        env = dict(os.environ, **peer_env(self.cores, self.config))
        start = time.monotonic()
        with open(self.log, "ab") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env,
                                     preexec_fn=before_exec(self.cores))
            with child.stdout:
                text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise BenchError(f"{' '.join(command)} ended with status {child.returncode}:\n{tail(self.log)}")
        self.peak = max(self.peak, usage.ru_maxrss * 1024)
        seconds = parse_bench_json(text, test)
        self.load_seconds = time.monotonic() - start - seconds
        return seconds, None

    def memory(self):
        return {"peak": self.peak}

    def close(self):
        pass


class Bandwidth:
    """bench/stream_read.c, compiled at first use."""

    BYTES = 8 << 30

    def __init__(self, cores, threads, logs, cache):
        self.cores, self.threads, self.log = cores, threads, Path(logs) / "bandwidth.log"
        self.cache = Path(cache)
        self.child = None

    def start(self):
        compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if not compiler:
            raise BenchError("no C compiler for the bandwidth probe")
        program = self.cache / "stream_read"
        self.cache.mkdir(parents=True, exist_ok=True)
        march = "-mcpu=native" if os.uname().machine == "aarch64" else "-march=native"
        done = subprocess.run([*compiler.split(), "-O3", march, "-pthread", str(HERE.parent / "stream_read.c"), "-o",
                               str(program)], capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"the bandwidth probe does not compile:\n{done.stderr}")
        self.child = Stepped("bandwidth", [str(program), str(self.threads), "1024"], self.cores, self.log)

    def run(self):
        """Bytes per second of one read of BYTES."""
        per_pass = self.child.info["bytes_per_pass"]
        passes = max(1, round(self.BYTES / per_pass))
        self.child.resume()
        seconds = self.child.ask("bw", passes)
        self.child.pause()
        return per_pass * passes / seconds

    def close(self):
        if self.child:
            self.child.close()
            self.child = None


def find_colibri():
    """The program of a build in this checkout, else the installed one."""
    root = HERE.parent.parent
    for preset in ("release", "native", "debug"):
        if (root / "build" / preset / "bin" / "colibri").exists():
            return str(root / "build" / preset / "bin" / "colibri")
    return shutil.which("colibri")


def warn(text):
    print("bench/peers: " + text, file=sys.stderr, flush=True)
