"""A server of ours as a child: started, looked at from outside, ended."""
import asyncio
import os
import re
import signal
import time

from wire import get

REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "Assertion `", "== ERROR")


class Server:
    def __init__(self, command, log_path):
        self.command, self.log_path = command, log_path

    async def start(self, seconds=120):
        env = dict(os.environ)
        # freed memory that is kept back for reports would look like growth
        env["ASAN_OPTIONS"] = "quarantine_size_mb=8:detect_leaks=1:" + env.get("ASAN_OPTIONS", "")
        env["UBSAN_OPTIONS"] = "print_stacktrace=1:" + env.get("UBSAN_OPTIONS", "")
        env["TSAN_OPTIONS"] = "second_deadlock_stack=1:" + env.get("TSAN_OPTIONS", "")
        self.log = open(self.log_path, "wb")
        self.process = await asyncio.create_subprocess_exec(*self.command, stdout=asyncio.subprocess.PIPE, stderr=self.log, env=env)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    line = (await self.process.stdout.readline()).decode()
                    if not line:
                        raise RuntimeError(f"the server ended while it started: {open(self.log_path, errors='replace').read()[-500:]}")
                    found = re.match(r"server ready: http://[^ ]*:(\d+)", line)
                    if found:
                        self.port, self.pid = int(found.group(1)), self.process.pid
                        return
        except BaseException:
            self.kill()
            raise

    def kill(self):
        if self.process.returncode is None:
            self.process.kill()

    async def stop(self, seconds):
        """SIGTERM; the exit code, None if it did not end."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            return None
        finally:
            self.log.close()
        return self.process.returncode

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def reports(self):
        """What sanitizers wrote."""
        with open(self.log_path, errors="replace") as f:
            text = f.read()
        at = min((text.find(r) for r in REPORTS if r in text), default=-1)
        return text[max(0, at - 200):at + 6000] if at >= 0 else ""

    def memory(self):
        """Resident bytes, descriptors, threads."""
        with open(f"/proc/{self.pid}/status") as f:
            status = f.read()
        field = lambda name: int(re.search(rf"^{name}:\s+(\d+)", status, re.M).group(1))
        return field("VmRSS") * 1024, len(os.listdir(f"/proc/{self.pid}/fd")), field("Threads")

    async def metrics(self):
        status, body = await get(self.port, "/metrics")
        if status != 200:
            raise RuntimeError(f"/metrics: {status}")
        return {k: float(v) for k, v in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", body.decode(), re.M)}

    async def idle(self, seconds):
        """Waits until nothing runs, waits or is connected; the metrics then, or the last ones with what is left."""
        end = time.monotonic() + seconds
        while True:
            m = await self.metrics()
            left = {k: m[k] for k in ("colibri_requests_running", "colibri_requests_reading", "colibri_requests_waiting") if m[k]}
            if m["colibri_http_connections"] > 1:  # ours
                left["connections"] = m["colibri_http_connections"] - 1
            if m["colibri_http_pending"] > 1:
                left["pending"] = m["colibri_http_pending"] - 1
            if not left or time.monotonic() > end:
                return m, left
            await asyncio.sleep(0.1)
