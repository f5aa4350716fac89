#!/usr/bin/env python3
"""Tests bench/budget and the skewed models it is used with.

    [COLIBRI=build/release/bin/colibri] python3 tests/bench/test_budget.py

With COLIBRI set, and where a memory cgroup can be made (root), the program itself is measured.
"""
import array
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))
import synth_gguf  # noqa: E402
from peerslib import budget, ggufinfo  # noqa: E402


def round_of(plain, **engines):
    entry = {"read_bytes_per_token": 2e8, "read_rate": plain / 2, "peak_rss": 10, "peak_group": 20, "killed": 0}
    return {"plain_read": plain, "engines": {
        name.replace("_", "."): dict(entry, tokens_per_second=speed) if speed else {"error": "no\nmore", "killed": 1}
        for name, speed in engines.items()}}


class Parts(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([budget.parse_size(t) for t in ("5", "2K", "1.5G", "3m")], [5, 2048, 3 << 29, 3 << 20])
        for bad in ("", "G", "-1G", "0", "1T", "nan", "inf"):
            with self.assertRaises(Exception, msg=bad):
                budget.parse_size(bad)

    def test_io(self):
        self.assertEqual(budget.parse_io("rchar: 9\nread_bytes: 4096\nwrite_bytes: 1\n"), 4096)
        with self.assertRaises(budget.BenchError):
            budget.parse_io("")

    def test_summary_pairs_rounds_and_leaves_failures_out(self):
        report = {"rounds": [round_of(1e9, colibri=10, llama=1, ik=2), round_of(2e9, colibri=20, llama=4, ik=None),
                             round_of(1e9, colibri=None, llama=1, ik=2)]}
        s = budget.summarize(report)
        self.assertEqual(s["ratios"]["llama"], {"median": 7.5, "min": 5, "max": 10})
        self.assertEqual(s["ratios"]["ik"], {"median": 5, "min": 5, "max": 5})
        self.assertNotIn("colibri", s["ratios"])
        self.assertEqual(s["engines"]["colibri"]["runs"], 2)
        self.assertEqual(s["engines"]["llama"]["drive_share"], {"median": 0.5, "min": 0.5, "max": 0.5})
        report.update(file="x.gguf", file_bytes=4e9, budget=2e9, limit=2.1e9, threads=2, tokens=8, warm=8, summary=s)
        text = budget.table(report)
        self.assertIn("| llama | 1.00 (1.00..4.00) | 200.0 (200.0..200.0) | 50 (50..50) % |", text)
        self.assertIn("Round 2, ik: no", text)

    def test_refuses_without_a_cgroup(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(budget.NoGroup, "no memory cgroup controller"):
                budget.MemoryGroup("x", 1 << 20, folder)
            (Path(folder) / "memory" / "taken").mkdir(parents=True)
            (Path(folder) / "memory" / "memory.limit_in_bytes").write_text("9\n")
            with self.assertRaisesRegex(budget.NoGroup, "cannot make the cgroup .*needs root"):
                budget.MemoryGroup("taken", 1 << 20, folder)

    def test_plain_read_reads_all(self):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
            path = Path(folder) / "file"
            path.write_bytes(bytes(9 << 20))
            os.sync()
            try:
                rate = budget.plain_read(path, 9 << 20)
            except OSError as error:
                self.skipTest(f"no O_DIRECT here: {error}")
            self.assertTrue(1e6 < rate < 1e12)


class Skew(unittest.TestCase):
    def floats(self, path, name):
        _, tensors = ggufinfo.read_header(path)
        kind, dims, offset = tensors[name]
        self.assertEqual(kind, 0)
        data = Path(path).read_bytes()
        end = max(o + ggufinfo.tensor_bytes(k, d) for k, d, o in tensors.values())
        start = len(data) - (end + -end % 32)
        values = array.array("f")
        values.frombytes(data[start + offset:start + offset + ggufinfo.tensor_bytes(kind, dims)])
        return values, dims

    @staticmethod
    def rms(values):
        return (sum(v * v for v in values) / len(values)) ** 0.5

    def test_router_rows_and_the_first_attention_change(self):
        with tempfile.TemporaryDirectory() as folder:
            plain, skewed = Path(folder) / "a.gguf", Path(folder) / "b.gguf"
            synth_gguf.write(plain, "tiny", "f32")
            synth_gguf.write(skewed, "tiny", "f32", skew=0.4)
            spread = {}
            for path in (plain, skewed):
                rows, (width, experts) = self.floats(path, "blk.1.ffn_gate_inp.weight")
                sizes = [self.rms(rows[i * width:(i + 1) * width]) for i in range(experts)]
                spread[path] = max(sizes) / min(sizes)
            self.assertLess(spread[plain], 1.3)
            self.assertGreater(spread[skewed], 1.6)
            gain = [self.rms(self.floats(skewed, f"blk.{b}.attn_output.weight")[0]) /
                    self.rms(self.floats(plain, f"blk.{b}.attn_output.weight")[0]) for b in (0, 1)]
            self.assertAlmostEqual(gain[0], 41, places=3)
            self.assertAlmostEqual(gain[1], 1, places=6)


@unittest.skipUnless(os.environ.get("COLIBRI"), "COLIBRI is not set")
class Real(unittest.TestCase):
    def run_budget(self, *arguments):
        try:
            budget.MemoryGroup("colibri-budget-test", 1 << 26).close()
        except budget.NoGroup as error:
            self.skipTest(str(error))
        out, err = io.StringIO(), io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            prefix = str(Path(folder) / "result")
            status = budget.main(["-m", str(ROOT / "examples/tiny-moe/tiny-moe-q4_k_m.gguf"), "--colibri",
                                  os.environ["COLIBRI"], "--only", "none", "--rounds", "1", "-n", "4", "--warm", "4",
                                  "--out", prefix, *arguments])
            return status, json.loads(Path(prefix + ".json").read_text()), err.getvalue()

    def test_within_the_budget(self):
        status, report, err = self.run_budget("--budget", "128M")
        self.assertEqual(status, 0, err)
        (run,) = [r["engines"]["colibri"] for r in report["rounds"]]
        self.assertEqual(run["killed"], 0)
        self.assertGreater(run["tokens_per_second"], 1)
        self.assertLessEqual(run["peak_group"], report["limit"])
        self.assertEqual(report["limit"], int((128 << 20) * 1.05) // 4096 * 4096)
        self.assertFalse(list(Path("/sys/fs/cgroup").glob(f"**/colibri-budget-{os.getpid()}")))

    def test_a_limit_below_the_budget_is_an_error(self):
        # The program is told 60 MB, the cgroup has 15: whether it refuses or is killed, that is no result.
        real = budget.SLACK
        budget.SLACK = 0.25
        try:
            status, report, _ = self.run_budget("--budget", "60M")
        finally:
            budget.SLACK = real
        self.assertEqual(status, 1)
        self.assertIn("error", report["rounds"][0]["engines"]["colibri"])


if __name__ == "__main__":
    unittest.main()
