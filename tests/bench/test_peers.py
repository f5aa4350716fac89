#!/usr/bin/env python3
"""Tests bench/: what it reads out of other programs' output, what it computes, and that it takes turns as it says.

    [COLIBRI=build/release/bin/colibri] python3 tests/bench/test_peers.py

The engines are stand-ins; no model and no peer is needed. With COLIBRI set, the program itself is measured too.
"""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
import synth_gguf  # noqa: E402
from peerslib import engines, ggufinfo, install, machine, main, stepped, summary, tune  # noqa: E402
from peerslib.engines import Test  # noqa: E402
from peerslib.stepped import BenchError, Stepped  # noqa: E402

# Answers "KIND N SECONDS" at SPEED tokens per second and writes each request to LOG; "die" as SPEED ends at the first.
STAND_IN = """\
import sys, time
name, speed, log = sys.argv[1:]
print("noise of a library")
print('info {"version": "' + name + ' 1.0", "system": ""}')
print("ready", flush=True)
for line in sys.stdin:
    if speed == "die":
        sys.exit("no more")
    words = line.split()
    with open(log, "a") as out:
        out.write(name + " " + line)
    print("more noise")
    print(words[0], words[1], int(words[1]) / float(speed), flush=True)
"""

LLAMA_HELP_OLD = """
  -nr, --no-repack                          disable it
  -t, --threads <n>                         (default: 2)
  -ub, --ubatch-size <n>                    (default: 512)
  -fa, --flash-attn <0|1>                   (default: 0)
  -mmp, --mmap <0|1>                        (default: 1)
"""
LLAMA_HELP_NEW = """
  -ub, --ubatch-size <n>                    (default: 512)
  --repack <auto|on|off>                    weight repacking policy (default: auto)
  -fa, --flash-attn <on|off|auto>           (default: auto)
  -lm, --load-mode <auto|none|mmap>         (default: auto)
"""
IK_HELP = """
  -ub, --ubatch-size <n>              (default: 512)
  -fa, --flash-attn <0|1>             (default: 1)
  -mmp, --mmap <0|1>                  (default: 1)
  -rtr, --run-time-repack <0|1>       (default: 0)
  -muge, --merge-up-gate-experts      (default: 0)
  -fmoe, --fused-moe <0|1>            (default: 1)
"""


class Answers(unittest.TestCase):
    def test_line(self):
        self.assertEqual(stepped.parse_answer("pp 512 1.25", "pp", 512), 1.25)
        self.assertIsNone(stepped.parse_answer("llama: pp 512 1.25", "pp", 512))
        self.assertIsNone(stepped.parse_answer("", "pp", 512))
        for bad in ("pp 511 1.25", "pp 512", "pp 512 1.25 2", "pp 512 0", "pp 512 -1", "pp 512 nan", "pp 512 inf",
                    "pp 512 fast", "error no memory"):
            with self.assertRaises(BenchError, msg=bad):
                stepped.parse_answer(bad, "pp", 512)

    def test_json(self):
        entry = {"n_prompt": 512, "n_gen": 0, "avg_ts": 9.0, "stddev_ts": 0.0, "samples_ts": [256.0]}
        other = dict(entry, n_prompt=0, n_gen=512, samples_ts=[64.0])
        text = "using huge pages [2 MiB]\n" + json.dumps([other, entry], indent=2)
        self.assertEqual(engines.parse_bench_json(text, Test("pp", 512)), 2.0)
        self.assertEqual(engines.parse_bench_json(text, Test("tg", 512)), 8.0)
        for bad in ("", "out of memory [x]", json.dumps([dict(entry, samples_ts=[1.0, 2.0])]), json.dumps([])):
            with self.assertRaises(BenchError, msg=bad):
                engines.parse_bench_json(bad, Test("pp", 512))

    def test_flags_of_each_llama_bench(self):
        config = {"fa": 1, "ub": 512, "repack": 0, "thp": 1}
        self.assertEqual(engines.bench_flags(LLAMA_HELP_OLD, config),
                         (["-ngl", "0", "-mmp", "0", "-fa", "1", "--no-repack", "-ub", "512"], []))
        self.assertEqual(engines.bench_flags(LLAMA_HELP_NEW, config),
                         (["-ngl", "0", "--load-mode", "none", "-fa", "on", "--repack", "off", "-ub", "512"], []))
        arguments, unknown = engines.bench_flags(IK_HELP, {"fa": 0, "rtr": 1, "muge": 1, "fmoe": 0, "fused": 1})
        self.assertEqual(arguments, ["-ngl", "0", "-mmp", "0", "-fa", "0", "-fmoe", "0", "-muge", "1", "-rtr", "1"])
        self.assertEqual(unknown, ["fused"])
        self.assertFalse(engines.has_flag("  -fattn, --flash", "-fa"))
        self.assertFalse(engines.has_flag("  --no-fa", "-fa"))

    def test_build_info(self):
        self.assertEqual(engines.built_for("CPU : AVX2 = 1 | AVX512 = 0 | NEON = 1 | "), {"AVX2", "NEON"})


class Proc(unittest.TestCase):
    def test_cpu_seconds(self):
        rest = "S 1 1 1 0 -1 4194304 100 0 0 0 " + "250 50 7 7 20 0 1 0 0"
        self.assertEqual(machine.parse_cpu_seconds(f"17 (a b) c) {rest}"), 300 / machine.TICK)

    def test_busy(self):
        stat = ("cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 1000 1000 8 16 32 0 0\ncpu1 100 0 0 0 0 0 0 0 0 0\n"
                "cpu10 7 0 0 0 0 0 0 0\n")
        self.assertEqual(machine.parse_busy(stat, [0]), 63 / machine.TICK)
        self.assertEqual(machine.parse_busy(stat, [0, 1]), 163 / machine.TICK)

    def test_memory(self):
        found = machine.parse_status("Name:\tx\nVmHWM:\t    20 kB\nVmRSS:\t    10 kB\nRssAnon:\t 6 kB\n"
                                     "RssFile:\t 4 kB\n")
        self.assertEqual(found, {"peak": 20480, "rss": 10240, "anonymous": 6144, "file": 4096})
        self.assertGreater(machine.memory_of(os.getpid())["rss"], 1 << 20)


class Numbers(unittest.TestCase):
    def test_ratios_pair_rounds(self):
        # Both engines double their speed between rounds: the ratio is 2 in each, whatever the medians say.
        self.assertEqual(summary.ratios([2, 4, 8], [1, 2, 4]), {"median": 2, "min": 2, "max": 2})
        # The ratio of the medians would be 1.5.
        self.assertEqual(summary.ratios([3, 3, 1], [1, 3, 2]), {"median": 1, "min": 0.5, "max": 3})
        for bad in (([1, 2], [1]), ([], [])):
            with self.assertRaises(ValueError):
                summary.ratios(*bad)

    def test_summary(self):
        samples = {"new": [30.0, 40.0, 50.0], "old": [20.0, 20.0, 20.0],
                   "a": [10.0, 90.0, 11.0], "b": [12.0, 12.0, 12.0]}
        result = summary.summarize("tg128", samples, [1e9, 2e9, 1e9], 10_000_000, ["new", "old"], ["a", "b"])
        self.assertEqual(result["better_peer"], "b")  # by the median, not by the lucky round
        self.assertEqual(result["ratios"]["new"]["old"], {"median": 2.0, "min": 1.5, "max": 2.5})
        self.assertEqual(set(result["ratios"]["old"]), {"new", "a", "b"})
        share = result["engines"]["new"]["bandwidth_share"]
        self.assertEqual((share["median"], share["min"], share["max"]), (0.3, 0.2, 0.5))
        self.assertEqual(result["bandwidth_limit_ts"], 100.0)
        alone = summary.summarize("pp512", samples, [], 1, ["a"], ["a", "b"])
        self.assertEqual((alone["better_peer"], list(alone["ratios"]["a"])), ("b", ["b"]))
        self.assertNotIn("better_peer", summary.summarize("pp512", {"a": [1.0]}, [], 1, ["a"], ["a"]))
        prompt = summary.summarize("pp512", samples, [1e9, 2e9, 1e9], 10_000_000, ["new"], ["a", "b"])
        self.assertNotIn("bandwidth_share", prompt["engines"]["new"])

    def test_search(self):
        knobs = {"x": (0, 1), "y": (0, 1), "z": (0, 1)}
        asked = []

        def rate(config):
            asked.append(tuple(config.values()))
            # y pays only once x is off its first value; z is noise.
            return 100 + 20 * config["x"] + 30 * config["x"] * config["y"] + 0.5 * config["z"]

        best, tries = tune.search({"x": 0, "y": 0, "z": 0}, {"y": (0, 1), "x": (0, 1), "z": (0, 1)}, rate)
        self.assertEqual(best, {"x": 1, "y": 1, "z": 0})
        self.assertEqual(len(asked), len(set(asked)))
        self.assertEqual(len(tries), len(asked))
        self.assertEqual(tune.search({"x": 1}, {"x": knobs["x"]}, lambda config: 1)[0], {"x": 1})

    def test_tuning_survives_flags_that_fail(self):
        class Fake:
            name = "llama.cpp"
            closed = 0

            def prepare(self, model, test, config):
                self.config = config
                if not config["fa"]:
                    raise BenchError("needs flash attention")

            def run(self, test):
                return (1.0 if self.config["repack"] else 0.5), None

            def close(self):
                self.closed += 1

        fake = Fake()
        best, tries = tune.tune(fake, "m", Test("tg", 100), True)
        self.assertEqual((best["fa"], best["repack"]), (1, 0))
        self.assertIn(0.0, [one["tokens_per_second"] for one in tries])
        self.assertGreater(fake.closed, 0)
        fake.prepare = lambda model, test, config: (_ for _ in ()).throw(BenchError("no model"))
        with self.assertRaisesRegex(BenchError, "no model"):
            tune.tune(fake, "m", Test("tg", 100), True)

    def test_which_flags_matter(self):
        self.assertNotIn("fmoe", engines.knobs_for("ik_llama.cpp", Test("pp", 512), False))
        self.assertIn("fmoe", engines.knobs_for("ik_llama.cpp", Test("pp", 512), True))
        self.assertNotIn("ub", engines.knobs_for("llama.cpp", Test("pp", 512), True))
        self.assertNotIn("ub", engines.knobs_for("llama.cpp", Test("tg", 4096), True))
        self.assertIn("ub", engines.knobs_for("llama.cpp", Test("pp", 4096), True))

    def test_arguments(self):
        self.assertEqual(main.parse_test("tg128@4096"), Test("tg", 128, 4096))
        self.assertEqual(str(main.parse_test("tg128@4096")), "tg128@4096")
        core = min(os.sched_getaffinity(0))
        self.assertEqual(main.parse_cores(f"{core}"), [core])
        self.assertEqual(main.parse_flags("ik_llama.cpp:rtr=0,thp=1"), ("ik_llama.cpp", {"rtr": 0, "thp": 1}))
        self.assertEqual(main.parse_synth("qwen3-0.6b:q4_0"), ("qwen3-0.6b", "q4_0", None))
        self.assertEqual(main.parse_synth("qwen3moe:q4_k:12"), ("qwen3moe", "q4_k", 12))
        for parse, bad in ((main.parse_test, "pp0"), (main.parse_test, "xx5"), (main.parse_cores, "100000"),
                           (main.parse_cores, f"{core},{core}"), (main.parse_cores, ""), (main.parse_synth, "olmoe"),
                           (main.parse_flags, "llama.cpp:rtr=1"), (main.parse_flags, "llama.cpp:fa=on")):
            with self.assertRaises(Exception, msg=bad) as caught:
                parse(bad)
            self.assertEqual(type(caught.exception).__name__, "ArgumentTypeError")


class Files(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def test_each_type(self):
        for kind in synth_gguf.TYPES:
            path = self.folder / f"{kind}.gguf"
            info = synth_gguf.write(path, "tiny", kind, layers=1)
            meta, tensors = ggufinfo.read_header(path)
            self.assertEqual(ggufinfo.weights(meta, tensors), (info["tensor_bytes"], info["active_bytes"]), kind)
            self.assertEqual(path.stat().st_size, info["file_bytes"])
            # The offsets in the file, which a reader trusts, must fit the sizes that the reader computes.
            ends = [(offset, offset + ggufinfo.tensor_bytes(t, dims)) for t, dims, offset in tensors.values()]
            for (_, end), (start, _) in zip(ends, ends[1:]):
                self.assertEqual(start, -(-end // 32) * 32, kind)
            self.assertFalse(path.with_name(path.name + ".part").exists())

    def test_active_bytes_by_hand(self):
        path = self.folder / "m.gguf"
        synth_gguf.write(path, "tiny", "q8_0", layers=1)
        width, row = 256, 256 // 32 * 34
        attention = (4 * 64 + 2 * 64 + 2 * 64) * row + width * (4 * 64 // 32 * 34)
        norms = 4 * (3 * width + 2 * 64)
        experts = 4 * 8 * width + 2 * (2 * 256 * row + width * (256 // 32 * 34))
        wanted = row + 1024 * row + attention + norms + experts
        self.assertEqual(ggufinfo.weights(*ggufinfo.read_header(path))[1], wanted)
        # Without the side file, the same from the header; with it, that of the side file.
        side = self.folder / "m.gguf.json"
        told = json.loads(side.read_text())
        self.assertTrue(ggufinfo.describe(path)["random_weights"])
        side.write_text(json.dumps(dict(told, active_bytes=7)))
        self.assertEqual(ggufinfo.describe(path)["active_bytes"], 7)
        side.unlink()
        found = ggufinfo.describe(path)
        self.assertEqual((found["active_bytes"], found["random_weights"], found["moe"]), (wanted, False, True))

    def test_tied_embedding_counts_whole(self):
        tensors = {"token_embd.weight": (0, [4, 100], 0)}
        self.assertEqual(ggufinfo.weights({}, tensors), (1600, 1600))
        tensors["output.weight"] = (0, [4, 100], 1600)
        self.assertEqual(ggufinfo.weights({}, tensors), (3200, 16 + 1600))

    def test_equal_arguments_equal_files(self):
        one, two, three = (self.folder / name for name in ("1", "2", "3"))
        synth_gguf.write(one, "tiny", "q4_k", seed=5, skew=0.3)
        synth_gguf.write(two, "tiny", "q4_k", seed=5, skew=0.3)
        synth_gguf.write(three, "tiny", "q4_k", seed=6, skew=0.3)
        self.assertEqual(one.read_bytes(), two.read_bytes())
        self.assertNotEqual(one.read_bytes(), three.read_bytes())

    def test_q4_0_values(self):
        blocks = bytes(synth_gguf.fill_blocks(synth_gguf.random.Random(1), 4000, 1.0, "q4_0"))
        values = []
        for at in range(0, len(blocks), 18):
            (d,) = synth_gguf.struct.unpack_from("<e", blocks, at)
            values += [d * ((b & 15) - 8) for b in blocks[at + 2:at + 18]]
            values += [d * ((b >> 4) - 8) for b in blocks[at + 2:at + 18]]
        mean = sum(values) / len(values)
        deviation = (sum(v * v for v in values) / len(values)) ** 0.5
        self.assertLess(abs(mean), 0.03)
        self.assertLess(abs(deviation - 1), 0.05)

    def test_broken_files(self):
        path = self.folder / "m.gguf"
        synth_gguf.write(path, "tiny", "q4_0", layers=1)
        data = path.read_bytes()
        for bad in (data[:3000], b"GGML" + data[4:], data[:4] + b"\x09" + data[5:], b""):
            path.write_bytes(bad)
            with self.assertRaises(ValueError):
                ggufinfo.read_header(path)

    def test_split_names(self):
        self.assertEqual([p.name for p in ggufinfo.parts("/x/m-00001-of-00003.gguf")],
                         ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"])
        self.assertEqual(ggufinfo.parts("/x/m.gguf"), [Path("/x/m.gguf")])

    def test_repair_of_the_package(self):
        source = self.folder / "source"
        self.assertFalse(install.repair(source))
        (source / install.BUILD_INFO).mkdir(parents=True)
        self.assertTrue(install.repair(source))
        self.assertFalse(install.repair(source))

    def test_finds_packages(self):
        site = self.folder / "lib" / "python3.9" / "site-packages"
        (site / "llama_cpp" / "lib").mkdir(parents=True)
        self.assertIsNone(install.find_package(self.folder, "llama.cpp"))
        (site / "llama_cpp" / "lib" / "libllama.so").touch()
        (site / "llama_cpp_python-1.2.3.dist-info").mkdir()
        package = install.find_package(self.folder, "llama.cpp")
        self.assertEqual(install.package_version(package), "1.2.3")
        self.assertIsNone(install.find_package(self.folder, "ik_llama.cpp"))


class Engines(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.script = self.folder / "stand_in.py"
        self.script.write_text(STAND_IN)
        self.cores = sorted(os.sched_getaffinity(0))[:1]

    def command(self, name, speed):
        return [sys.executable, str(self.script), name, speed, str(self.folder / "asked")]

    def start(self, name="a", speed="100", timeout=60):
        child = Stepped(name, self.command(name, speed), self.cores, self.folder / "log", timeout=timeout)
        self.addCleanup(child.close)
        return child

    def state(self, pid):
        return machine.text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]

    def test_sleeps_unless_asked(self):
        child = self.start()
        deadline = time.monotonic() + 30
        while self.state(child.pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.state(child.pid), "T")
        self.assertEqual(os.sched_getaffinity(child.pid), set(self.cores))
        child.resume()
        self.assertEqual(child.ask("pp", 50), 0.5)
        self.assertEqual(child.info["version"], "a 1.0")
        child.pause()
        child.close()  # a stopped program ends too
        self.assertIsNotNone(child.process.returncode)

    def test_death_is_noticed(self):
        child = self.start(speed="die")
        child.resume()
        with self.assertRaisesRegex(BenchError, "no more"):
            child.ask("pp", 50)

    def test_silence_is_noticed(self):
        child = self.start(timeout=2)
        with self.assertRaisesRegex(BenchError, "no answer within"):
            child.ask("pp", 50)  # still stopped

    def test_no_start(self):
        with self.assertRaisesRegex(BenchError, "cannot be found"):
            Stepped("x", [sys.executable, "-c", "import sys; sys.exit('cannot be found')"], self.cores,
                    self.folder / "log")
        with self.assertRaisesRegex(BenchError, "no memory"):
            Stepped("x", [sys.executable, "-c", "print('error no memory')"], self.cores, self.folder / "log")

    def test_whole_run(self):
        model = self.folder / "tiny.gguf"
        synth_gguf.write(model, "tiny", "q4_0", layers=1)
        commands = {name: " ".join(self.command(name, speed)) for name, speed in (("one", "300"), ("two", "200"))}
        done = subprocess.run(
            [sys.executable, BENCH / "peers", "--no-colibri", "--only", "none", "-m", model, "--tests", "pp40,tg6@10",
             "-r", "3", "--cores", str(self.cores[0]), "--no-bandwidth",
             "--cache", self.folder / "cache", "--out", self.folder / "out",
             *(word for item in commands.items() for word in ("--engine", "=".join(item)))],
            capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        asked = (self.folder / "asked").read_text().splitlines()
        # Each test: one unmeasured run each, then turn by turn; before each run a token to wake the threads.
        first = [line for line in asked if line.endswith("pp 40")]
        self.assertEqual(first, ["one pp 40", "two pp 40"] * 4)
        self.assertEqual([line for line in asked if "tg 6" in line], ["one tg 6 10", "two tg 6 10"] * 4)
        self.assertEqual(asked[0:2], ["one tg 1", "one pp 40"])
        report = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(report["schema"], "colibri-peers/1")
        prompt, gen = report["models"][0]["tests"]
        self.assertEqual((prompt["test"], gen["test"], prompt["rounds"]), ("pp40", "tg6@10", 3))
        for entry in (prompt, gen):
            self.assertAlmostEqual(entry["ratios"]["one"]["two"]["median"], 1.5, places=6)
            self.assertEqual(len(entry["engines"]["one"]["samples_ts"]), 3)
        self.assertEqual((self.folder / "out.md").read_text(), done.stdout)
        self.assertIn("1.50× (1.50..1.50)", done.stdout)
        self.assertIn("3 rounds are too few", done.stdout)
        self.assertIn("random weights", done.stdout)

    @unittest.skipUnless(os.environ.get("COLIBRI"), "COLIBRI is not set")
    def test_colibri_itself(self):
        model = self.folder / "tiny.gguf"
        synth_gguf.write(model, "tiny", "q4_k")
        done = subprocess.run(
            [sys.executable, BENCH / "peers", "--colibri", os.environ["COLIBRI"], "--only", "none", "-m", model,
             "--tests", "pp20,tg3,tg2@9", "-r", "2", "-t", "1", "--no-bandwidth", "--cache", self.folder / "cache",
             "--out", self.folder / "out"], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "out.json").read_text())
        self.assertEqual([t["test"] for t in report["models"][0]["tests"]], ["pp20", "tg3", "tg2@9"])
        for entry in report["models"][0]["tests"]:
            self.assertEqual(len(entry["engines"]["colibri"]["samples_ts"]), 2)
        self.assertRegex(report["engines"]["colibri"]["version"], r"^colibri \d")

    def test_llama_bench(self):
        program = self.folder / "llama-bench"
        program.write_text(f"""#!{sys.executable}
import json, os, sys
if sys.argv[1] == "--help":
    print({IK_HELP!r})
    sys.exit()
if "-fa" in sys.argv and sys.argv[sys.argv.index("-fa") + 1] == "0":
    sys.exit("needs flash attention")
ballast = b"x" * (64 << 20)
value = {{flag: sys.argv[sys.argv.index(flag) + 1] for flag in ("-m", "-p", "-n", "-r", "-t")}}
with open({str(self.folder / "asked")!r}, "w") as out:
    json.dump([value, os.environ["GLIBC_TUNABLES"], sorted(os.sched_getaffinity(0))], out)
print(json.dumps([dict(n_prompt=int(value["-p"]), n_gen=int(value["-n"]), samples_ts=[50.0])]))
""")
        program.chmod(0o755)
        engine = engines.Binary("ik_llama.cpp", str(program), self.cores, 3, self.folder)
        config = engines.defaults("ik_llama.cpp")
        engine.prepare("some.gguf", Test("tg", 100), config)
        self.assertEqual(engine.run(Test("tg", 100)), (2.0, None))
        self.assertGreater(engine.memory()["peak"], 64 << 20)
        value, tunables, cores = json.loads((self.folder / "asked").read_text())
        self.assertEqual(value, {"-m": "some.gguf", "-p": "0", "-n": "100", "-r": "1", "-t": "3"})
        self.assertTrue(tunables.endswith("glibc.malloc.hugetlb=1"))
        self.assertEqual(cores, self.cores)
        with self.assertRaisesRegex(BenchError, "n-depth"):
            engine.run(Test("tg", 100, 7))
        engine.prepare("some.gguf", Test("tg", 100), dict(config, fa=0))
        with self.assertRaisesRegex(BenchError, "needs flash attention"):
            engine.run(Test("tg", 100))

    def test_engine_that_fails_is_left_out(self):
        model = self.folder / "tiny.gguf"
        synth_gguf.write(model, "tiny", "q4_0", layers=1)
        done = subprocess.run(
            [sys.executable, BENCH / "peers", "--no-colibri", "--only", "none", "-m", model, "--tests", "pp40,tg6",
             "-r", "2", "--no-bandwidth", "--cache", self.folder / "cache", "--out", self.folder / "out",
             "--engine", "bad=" + " ".join(self.command("bad", "die")),
             "--engine", "good=" + " ".join(self.command("good", "200"))], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "out.json").read_text())
        self.assertEqual([list(t["engines"]) for t in report["models"][0]["tests"]], [["good"], ["good"]])
        self.assertIn("bad is left out with tiny.gguf: bad ended (status 1): no more", report["warnings"])
        self.assertIn("failed", done.stdout)

    @unittest.skipUnless(shutil.which("cc"), "no C compiler")
    def test_bandwidth_probe(self):
        program = self.folder / "probe"
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", BENCH / "stream_read.c", "-o", program],
                       check=True)
        done = subprocess.run([program, "3", "16"], input="bw 4\nbw 0\nnonsense\nquit\n", capture_output=True,
                              text=True, timeout=60)
        info, ready, answer, *errors = done.stdout.splitlines()
        self.assertLessEqual(16 * 1e6, json.loads(info[5:])["bytes_per_pass"])
        self.assertEqual(ready, "ready")
        self.assertGreater(stepped.parse_answer(answer, "bw", 4), 0)
        self.assertEqual(errors, ["error cannot run 'bw 0'", "error cannot run 'nonsense'"])
        # It reads all of its bytes, which all are one: 4 passes over 64-bit words.
        words = json.loads(info[5:])["bytes_per_pass"] // 8
        self.assertEqual(int(done.stderr.split()[1], 16), 4 * words * 0x0101010101010101 % (1 << 64))

    def test_failures_are_one_line(self):
        model = self.folder / "tiny.gguf"
        synth_gguf.write(model, "tiny", "q4_0", layers=1)
        for arguments, message in (
                (["-m", model, "--engine", "x=" + " ".join(self.command("x", "die"))], "no engine can run pp512"),
                (["--engine", "x=true"], "no model"),
                (["-m", model], "nothing to measure"),
                (["-m", model, "--engine", "x=true", "--tests", "pp"], "no test")):
            out, err = io.StringIO(), io.StringIO()
            with self.assertRaises(SystemExit) as caught, contextlib.redirect_stdout(out), \
                    contextlib.redirect_stderr(err):
                main.main([str(a) for a in ["--no-colibri", "--only", "none", "--no-bandwidth", "--cache", self.folder,
                                                 *arguments]])
            self.assertIn(message, str(caught.exception.code))


if __name__ == "__main__":
    unittest.main()
