"""A measured program that waits for requests: a line in, a line out.

It is stopped by a signal whenever it is not its turn. Worker threads that spin while they wait (OpenMP's, a thread
pool's) would otherwise take cores away from the program that is measured.
"""
import ctypes
import json
import os
import select
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class BenchError(Exception):
    pass


def parse_answer(line, kind, count):
    """Seconds out of the answer 'KIND COUNT SECONDS'; None for a line that is no answer."""
    words = line.split()
    if not words:
        return None
    if words[0] == "error":
        raise BenchError(line)
    if words[0] != kind:
        return None
    if len(words) != 3 or words[1] != str(count):
        raise BenchError(f"'{line}' is no answer to '{kind} {count}'")
    try:
        seconds = float(words[2])
    except ValueError:
        raise BenchError(f"'{line}' is no answer to '{kind} {count}'") from None
    if not 0 < seconds < float("inf"):
        raise BenchError(f"impossible time in '{line}'")
    return seconds


def before_exec(cores):
    """What a child does before it becomes the program: pin itself, and die with the driver."""
    def run():
        os.sched_setaffinity(0, cores)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return run


def tail(path, lines=6):
    try:
        with open(path, errors="replace") as log:
            return "".join(log.readlines()[-lines:]).rstrip()
    except OSError:
        return ""


class Stepped:
    """Starts a command, waits for 'ready', and asks it for tests; see worker.py for the lines."""

    def __init__(self, name, command, cores, log, env=None, timeout=900):
        self.name, self.log, self.timeout = name, log, timeout
        self.info = {}
        self.buffer = b""
        self.stopped = False
        start = time.monotonic()
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                env=dict(os.environ, **(env or {})), preexec_fn=before_exec(cores))
        self.pid = self.process.pid
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise
        self.load_seconds = time.monotonic() - start
        self.pause()

    def _await_ready(self):
        while True:
            line = self._line()
            if line == "ready":
                return
            if line.startswith("info "):
                self.info.update(json.loads(line[5:]))
            elif line.startswith("error"):
                raise BenchError(f"{self.name}: {line} (log: {self.log})")

    def _line(self):
        deadline = time.monotonic() + self.timeout
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, left))
            if not ready:
                raise BenchError(f"{self.name}: no answer within {self.timeout} s (log: {self.log})")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                status = self.process.wait()
                raise BenchError(f"{self.name} ended (status {status}):\n{tail(self.log)}")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode(errors="replace").strip()

    def _signal(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass

    def pause(self):
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self):
        self._signal(signal.SIGCONT)
        self.stopped = False

    def _send(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.name} ended:\n{tail(self.log)}") from None

    def ask(self, kind, count, depth=0, streams=1):
        """One test of a running program: seconds."""
        words = [kind, count] + ([depth] if depth or streams > 1 else []) + ([streams] if streams > 1 else [])
        self._send(" ".join(map(str, words)))
        while True:
            seconds = parse_answer(self._line(), kind, count)
            if seconds is not None:
                return seconds

    def order(self, word, rest):
        """A request that is answered by 'WORD ok'."""
        self._send(f"{word} {rest}")
        while True:
            line = self._line()
            if line == f"{word} ok":
                return
            if line.startswith("error"):
                raise BenchError(f"{self.name}: {line} (log: {self.log})")

    def close(self):
        if self.process.poll() is None:
            self._signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except BrokenPipeError:
                pass
