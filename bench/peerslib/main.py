"""The command line of bench/peers and the order of events."""
import argparse
import datetime
import json
import os
import re
import signal
import struct
import sys
import tempfile
from pathlib import Path

from . import engines as kinds
from . import ggufinfo, install, machine, summary, tune
from .stepped import BenchError

FOREIGN = 0.05  # share of our cores used by others from which a result is doubtful


def parse_test(text):
    match = re.fullmatch(r"(pp|tg)([1-9]\d{0,6})(?:x([1-9]\d{0,2}))?(?:@(\d{1,7}))?", text)
    if not match or (match[1] == "pp" and match[3]):
        raise argparse.ArgumentTypeError(f"'{text}' is no test; examples: pp512, tg128, tg128@4096, tg64x8")
    return kinds.Test(match[1], int(match[2]), int(match[4] or 0), int(match[3] or 1))


def parse_cores(text):
    """'0-2,5' -> [0, 1, 2, 5]."""
    cores = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise argparse.ArgumentTypeError(f"'{text}' is no list of cores; example: 0-3,6")
        cores += range(int(match[1]), int(match[2] or match[1]) + 1)
    if not cores or len(set(cores)) != len(cores):
        raise argparse.ArgumentTypeError(f"'{text}' names no core, or one twice")
    missing = set(cores) - os.sched_getaffinity(0)
    if missing:
        raise argparse.ArgumentTypeError(f"this process may not use core {min(missing)}")
    return cores


def parse_flags(text):
    """'llama.cpp:fa=0,thp=1' -> ('llama.cpp', {'fa': 0, 'thp': 1})."""
    name, _, rest = text.partition(":")
    config = {}
    for pair in rest.split(","):
        knob, _, value = pair.partition("=")
        if knob not in kinds.KNOBS.get(name, {}) or not value.isdigit():
            raise argparse.ArgumentTypeError(f"'{text}': known are " + "; ".join(
                f"{engine}: {' '.join(knobs)}" for engine, knobs in kinds.KNOBS.items()))
        config[knob] = int(value)
    return name, config


def parse_synth(text):
    match = re.fullmatch(r"([\w.-]+):([a-z0-9_]+)(?::(\d+))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}': write MODEL:TYPE or MODEL:TYPE:LAYERS, e.g. qwen3moe:q4_k:12")
    return match[1], match[2], int(match[3]) if match[3] else None


def named(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}': write NAME=VALUE")
    return name, value


def parser():
    p = argparse.ArgumentParser(
        prog="bench/peers", description="Measures Colibri against llama.cpp and ik_llama.cpp on the same GGUF file.",
        epilog="See bench/README.md.")
    p.add_argument("-m", "--model", action="append", default=[], metavar="FILE", help="a GGUF file; repeatable")
    p.add_argument("--synth", action="append", default=[], type=parse_synth, metavar="MODEL:TYPE[:LAYERS]",
                   help="a model with random weights, written to the cache by synth_gguf.py; repeatable")
    p.add_argument("--tests", default="pp512,tg128", metavar="LIST",
                   help="ppN: N prompt tokens; tgN: N generated ones, tgNxS: of S sequences side by side; with @D: after D others (default pp512,tg128)")
    p.add_argument("-r", "--repeats", type=int, default=5, metavar="N", help="rounds per test (default 5)")
    p.add_argument("--cores", type=parse_cores, metavar="LIST", help="cores to use (default: all this process may use)")
    p.add_argument("-t", "--threads", type=int, metavar="N", help="threads of each engine (default: one per core)")
    p.add_argument("--out", metavar="PREFIX", help="write PREFIX.md and PREFIX.json")
    p.add_argument("--cache", default=str(install.cache_dir()), metavar="DIR", help="venvs, models, flags found")

    p.add_argument("--no-bandwidth", action="store_true", help="do not measure the read bandwidth of memory")

    g = p.add_argument_group("engines")
    g.add_argument("--colibri", action="append", default=[], metavar="[NAME=]PATH",
                   help="the program; repeatable with names, to compare builds (default: the one of build/release)")
    g.add_argument("--colibri-arg", action="append", default=[], metavar="ARG", help="passed to 'colibri bench'")
    g.add_argument("--no-colibri", action="store_true", help="only the peers")
    g.add_argument("--llama-bench", metavar="PATH", help="llama-bench of llama.cpp, instead of the package")
    g.add_argument("--ik-bench", metavar="PATH", help="llama-bench of ik_llama.cpp, instead of the package")
    g.add_argument("--venv", action="append", default=[], metavar="DIR",
                   help="a venv with one of the packages or both; repeatable (default: those of --install)")
    g.add_argument("--only", metavar="NAMES", help="of the peers only these, e.g. ik_llama.cpp")
    g.add_argument("--engine", action="append", default=[], type=named, metavar="NAME=COMMAND",
                   help="one more engine that speaks the protocol of worker.py; {model} and {threads} are filled in")

    g = p.add_argument_group("peers' flags")
    g.add_argument("--tune", action="store_true", help="try the flags first and keep the best per model and test")
    g.add_argument("--flags", action="append", default=[], type=parse_flags, metavar="ENGINE:KEY=N,...",
                   help="fix flags, e.g. llama.cpp:fa=0,repack=1")
    g.add_argument("--mask", choices=["avx2"], help="Colibri without AVX-512, against peers built for AVX2")

    g = p.add_argument_group("building the peers")
    g.add_argument("--install", action="store_true", help="build the packages from source into the cache, and stop")
    g.add_argument("--isa", choices=list(install.CMAKE_ARGS), default="native", help="what --install builds for")
    g.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    return p


def find_peers(args, cores, threads, logs):
    isa = args.mask or "native"
    found = []
    for name, binary in (("llama.cpp", args.llama_bench), ("ik_llama.cpp", args.ik_bench)):
        if args.only and name not in args.only.split(","):
            continue
        if binary:
            found.append(kinds.Binary(name, binary, cores, threads, logs))
            continue
        for venv in [*args.venv, install.venv_of(args.cache, isa, name)]:
            package = install.find_package(venv, name)
            if package:
                found.append(kinds.Package(name, venv, package, cores, threads, logs))
                break
        else:
            kinds.warn(f"{name} is not there (--install builds it, --venv and the *-bench options name it)")
    return found


def find_colibris(args, tests, cores, threads, logs):
    if args.no_colibri:
        return []
    found = []
    for text in args.colibri or [kinds.find_colibri() or ""]:
        name, equals, path = text.partition("=")
        name, path = (name, path) if equals else ("colibri", text)
        if not os.access(path, os.X_OK):
            raise SystemExit(f"bench/peers: no colibri program at '{path}': build it, or use --colibri PATH")
        found.append(kinds.Colibri(name, os.path.abspath(path), args.colibri_arg, args.mask, tests, cores,
                                   threads, logs))
    return found


def models_of(args):
    paths = list(args.model)
    if args.synth:
        sys.path.insert(0, str(kinds.HERE.parent))
        import synth_gguf
        for name, kind, layers in args.synth:
            if name not in synth_gguf.MODELS or kind not in synth_gguf.TYPES:
                raise SystemExit(f"bench/peers: synth_gguf.py knows no {name} in {kind}")
            path = Path(args.cache) / "models" / f"{name}-{kind}{f'-{layers}l' if layers else ''}.gguf"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                kinds.warn(f"writing {path}")
                synth_gguf.write(path, name, kind, layers)
            paths.append(str(path))
    if not paths:
        raise SystemExit("bench/peers: no model; use -m FILE or --synth MODEL:TYPE")
    return [os.path.abspath(path) for path in paths]


class Run:
    def __init__(self, args, engines, bandwidth, report):
        self.args, self.engines, self.bandwidth, self.report = args, engines, bandwidth, report
        self.memory = tune.Memory(Path(args.cache) / "flags.json")
        self.fixed = {}
        for name, config in args.flags:
            self.fixed.setdefault(name, {}).update(config)

    def warn(self, text):
        if text not in self.report["warnings"]:
            kinds.warn(text)
            self.report["warnings"].append(text)

    def config(self, engine, path, info, test, result):
        """The flags of an engine in a test: searched for, found earlier, or the best guess; fixed ones always win."""
        if engine.name not in kinds.KNOBS:
            return {}
        config, origin = kinds.defaults(engine.name), "not tuned"
        key = tune.Memory.key(engine, info, self.report["isa"], self.report["machine"]["threads"], str(test))
        if self.args.tune:
            config, tries = tune.tune(engine, path, test, info["moe"])
            engine.close()  # makes room for the next engine to be tuned
            self.memory.put(key, config)
            result["tuning"][engine.name] = tries
            origin = "tuned"
            kinds.warn(f"{engine.name} {test}: best with {summary.flags(config)}")
        elif self.memory.get(key):
            config, origin = self.memory.get(key), "tuned earlier"
        config = dict(config, **self.fixed.get(engine.name, {}))
        result["origin"][engine.name] = origin
        if origin == "not tuned":
            self.warn(f"{engine.name}: flags not tuned for {info['file']} (--tune tries them)")
        return config

    def check_build(self, engine):
        """A peer built for another instruction set than wanted makes the comparison worthless."""
        built = kinds.built_for(engine.system)
        if not engine.system or engine.name not in kinds.KNOBS:
            return
        if self.args.mask == "avx2" and "AVX512" in built:
            raise BenchError(f"{engine.name} is built with AVX-512: --mask avx2 needs one of --install --isa avx2")
        if not self.args.mask and "avx512f" in self.report["machine"]["features"] and "AVX512" not in built:
            self.warn(f"{engine.name} is built without AVX-512, which this CPU has")

    def ready(self, step, engines, info):
        """The engines for which step(engine) works. One that cannot load a model is left out with that model."""
        able = []
        for engine in engines:
            try:
                step(engine)
                able.append(engine)
            except BenchError as error:
                engine.close()
                self.warn(f"{engine.name} is left out with {info['file']}: {' '.join(str(error).split())[:300]}")
        return able

    def test(self, path, info, test, engines):
        """The result of one test, and the engines that took part."""
        name = str(test)
        notes = {"tuning": {}, "origin": {}}
        configs = {}

        def choose(engine):
            configs[engine.name] = self.config(engine, path, info, test, notes)

        def load(engine):
            if machine.available() < info["file_bytes"] * 1.1 and not getattr(engine, "child", None):
                self.warn(f"memory is short for {engine.name} with {info['file']}")
            engine.prepare(path, test, configs[engine.name])
            self.check_build(engine)
            if not isinstance(engine, kinds.Binary):
                engine.run(test)  # the first run after loading touches memory for the first time

        engines = self.ready(load, self.ready(choose, engines, info), info)
        if not engines:
            raise BenchError(f"no engine can run {name} of {info['file']}")
        samples = {e.name: [] for e in engines}
        foreign = {e.name: [] for e in engines}
        speeds = []
        for turn in range(self.args.repeats):
            if self.bandwidth.child:
                speeds.append(self.bandwidth.run())
            for engine in engines:
                seconds, others = engine.run(test)
                samples[engine.name].append(test.tokens / seconds)
                if others is not None:
                    foreign[engine.name].append(others)
            kinds.warn(f"{info['file']} {name} round {turn + 1}: " +
                       ", ".join(f"{k} {v[-1]:.1f} t/s" for k, v in samples.items()))
        first = [n for n in self.report["first"] if n in samples]
        peers = [e.name for e in engines if e.name in kinds.KNOBS]
        result = summary.summarize(name, samples, speeds, info["active_bytes"], first, peers)
        for engine in engines:
            entry = result["engines"][engine.name]
            entry.update(config=configs[engine.name], memory=engine.memory(), foreign_load=foreign[engine.name],
                         load_seconds=engine.load_seconds)
            if entry["config"]:
                entry["config_origin"] = notes["origin"][engine.name]
            if engine.name in notes["tuning"]:
                entry["tuning"] = notes["tuning"][engine.name]
            if entry["load_seconds"] is None:
                del entry["load_seconds"]
            self.report["engines"][engine.name] = {"version": engine.version, "system": engine.system}
            if foreign[engine.name] and max(foreign[engine.name]) > FOREIGN:
                self.warn(f"{info['file']} {name}: other programs used up to {100 * max(foreign[engine.name]):.0f} % "
                          f"of the cores while {engine.name} ran; repeat on a quiet machine")
        return result, engines

    def model(self, path, tests):
        try:
            info = ggufinfo.describe(path)
        except (OSError, ValueError, struct.error) as error:
            raise BenchError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        self.report["models"].append(dict(info, tests=[]))
        engines = self.engines
        try:
            for test in tests:
                result, engines = self.test(path, info, test, engines)
                self.report["models"][-1]["tests"].append(result)
                self.save()
        finally:
            for engine in self.engines:
                engine.close()

    def save(self):
        """After each test: a long run that breaks off leaves what it has."""
        if self.args.out:
            out = Path(self.args.out)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.with_name(out.name + ".json").write_text(json.dumps(self.report, indent=1) + "\n")
            out.with_name(out.name + ".md").write_text(summary.markdown(self.report))


def measure(args):
    cores = args.cores or sorted(os.sched_getaffinity(0))
    threads = args.threads or len(cores)
    try:
        tests = [parse_test(text) for text in args.tests.split(",")]
    except argparse.ArgumentTypeError as error:
        raise SystemExit(f"bench/peers: {error}") from None
    paths = models_of(args)
    logs = tempfile.mkdtemp(prefix="colibri-peers-")
    colibris = find_colibris(args, tests, cores, threads, logs)
    customs = [kinds.Custom(name, text.split(), cores, threads, logs) for name, text in args.engine]
    engines = colibris + customs + find_peers(args, cores, threads, logs)
    if len({engine.name for engine in engines}) < len(engines):
        raise SystemExit("bench/peers: two engines of one name; use --colibri NAME=PATH")
    if not engines:
        raise SystemExit("bench/peers: nothing to measure")
    now = datetime.datetime.now(datetime.timezone.utc)
    report = {"schema": "colibri-peers/1", "date": now.isoformat(" ", "seconds"),
              "machine": machine.describe(cores, threads), "isa": args.mask or "native",
              "first": [engine.name for engine in colibris + customs] or [engines[0].name],
              "order": [engine.name for engine in engines], "engines": {}, "models": [], "warnings": []}
    bandwidth = kinds.Bandwidth(cores, threads, logs, args.cache)
    run = Run(args, engines, bandwidth, report)
    if args.repeats < 5:
        run.warn(f"{args.repeats} rounds are too few for a claim; 5 or more are")
    try:
        try:
            if not args.no_bandwidth:
                bandwidth.start()
        except BenchError as error:
            run.warn(str(error))
        for path in paths:
            run.model(path, tests)
    except BenchError as error:
        raise SystemExit(f"bench/peers: {error}\n(logs: {logs})") from None
    finally:
        bandwidth.close()
    run.save()
    print(summary.markdown(report), end="")


def terminate(number, frame):
    raise SystemExit(128 + number)


def main(argv=None):
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, terminate)
    if args.install:
        return install.install_all(args.isa, args.cache, args.jobs)
    if args.repeats < 1 or (args.threads is not None and args.threads < 1):
        raise SystemExit("bench/peers: --repeats and --threads must be at least 1")
    measure(args)
    return 0
