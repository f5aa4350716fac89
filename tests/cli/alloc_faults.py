"""Runs a command again and again, each time with another allocation failing (tests/tools/alloc_fault.c), and says what went
wrong. Each run must end by itself, with a documented exit code, and say one thing if it failed.

    alloc_faults.py run   COLIBRI FAULT.so MODEL [--count N] [--first N] [--only SPEC]
    alloc_faults.py serve COLIBRI FAULT.so MODEL [--count N] [--first N] [--only SPEC] --adapter FILE

N different places (0: all, both ways), spread evenly over all allocations of a run from the first on: every second of them
alone, every second with all that come after. SPEC is one ALLOC_FAULT, for a closer look.
"""
import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130}  # sdk/include/colibri/status.h, without INTERNAL
PATIENCE = 30  # seconds
PROMPT = "Once upon a time"
problems = 0


def problem(what, detail):
    global problems
    problems += 1
    print(f"FAIL: {what}: {detail}", flush=True)


def specs(args, total):
    """The same ones for the same numbers; the first and the last are among them."""
    first, n = args.first, total - args.first + 1
    if not args.count or args.count >= n:
        return [spec for i in range(first, total + 1) for spec in (str(i), f"{i}+")]
    return [f"{first + (n - 1) * i // max(args.count - 1, 1)}{'' if i % 2 else '+'}" for i in range(args.count)]


def environment(args, spec, log=None):
    env = {k: v for k, v in os.environ.items() if not k.startswith("COLIBRI_")}
    env["LD_PRELOAD"] = args.preload
    if spec:
        env["ALLOC_FAULT"] = spec
    if log:
        env["ALLOC_FAULT_LOG"] = log
    return env


def check_end(what, code, errors, may_fail):
    """How a process ended: its exit code and what it wrote to stderr."""
    if "Sanitizer" in errors or "runtime error:" in errors:
        return problem(what, errors[-6000:])
    if code is None:
        return problem(what, f"still running after {PATIENCE} s: {errors[-300:]}")
    if code < 0:
        return problem(what, f"ended by signal {signal.Signals(-code).name}: {errors[-300:]}")
    if code not in EXIT_CODES:
        return problem(what, f"exit code {code}: {errors[-300:]}")
    said = [line for line in errors.splitlines() if re.match(r"colibri( \w+)?: (?!warning: )", line)]
    if code and not may_fail:
        return problem(what, f"exit code {code}: {errors[-300:]}")
    if code and len(said) != 1:
        return problem(what, f"exit code {code} with {len(said)} messages: {errors[-600:]!r}")
    return None


def end_of(process, seconds=PATIENCE):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


# ---- colibri run


def run_once(args, spec, log=None, want=None):
    command = [args.colibri, "run", "-m", args.model, "-n", "4", "--temperature", "0", "--threads", "2", *args.extra, PROMPT]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment(args, spec, log), stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=errors)
        code = end_of(process)
        out.seek(0)
        errors.seek(0)
        text, said = out.read(), errors.read().decode(errors="replace")
    check_end(f"run, allocation {spec}", code, said, spec is not None)
    if code == 0 and want is not None and text != want:
        problem(f"run, allocation {spec}", f"went on, and wrote {text!r} instead of {want!r}; {said[-300:]}")
    return code, text


def check_run(args):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "n")
        code, want = run_once(args, None, log)
        if code:
            sys.exit("the command fails without faults, too")
        total = int(open(log).read())
    codes = {}
    for spec in specs(args, total):
        code, _ = run_once(args, spec, want=want)
        codes[code] = codes.get(code, 0) + 1
    print(f"run: {total} allocations; exit codes {codes}")


# ---- colibri serve

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA, "strict": True}}
FUNCTION = {"type": "function", "name": "look", "description": "d", "parameters": SCHEMA, "strict": True}
WORK = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "nothing"}]}]
HI = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
RESPONSE = {"instructions": "Be brief.", "input": [HI, *WORK, HI], "max_output_tokens": 4, "temperature": 0}
LONG = [HI, *WORK, {"role": "user", "content": "long " * 2000}, {"role": "assistant", "content": "long"}, HI]
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def requests(args):
    """name, method, path, body, statuses that are fine without faults"""
    whole = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    return [
        ("chat", "POST", "/v1/chat/completions", CHAT),
        ("stream", "POST", "/v1/chat/completions", CHAT | {"stream": True, "stop": ["zzz"], "logprobs": True}),
        ("schema", "POST", "/v1/chat/completions", CHAT | {"response_format": whole, "max_tokens": 30}),
        ("tools", "POST", "/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 30}),
        ("response", "POST", "/v1/responses", RESPONSE),
        ("events", "POST", "/v1/responses", RESPONSE | {"stream": True, "include": ["message.output_text.logprobs"]}),
        ("shortened", "POST", "/v1/responses", RESPONSE | {"truncation": "auto", "input": LONG}),
        ("call", "POST", "/v1/responses", RESPONSE | {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 30}),
        ("messages", "POST", "/v1/messages", {"model": "m", "max_tokens": 4, "messages": CHAT["messages"]}),
        ("lora", "POST", "/lora-adapters", {"path": os.path.basename(args.adapter)}),
        ("bad", "POST", "/v1/chat/completions", b'{"messages": [{"role": 3'),
        ("metrics", "GET", "/metrics", None),
        ("health", "GET", "/health", None),
    ]


def ask(port, method, path, body):
    """Status and body; 0 if the connection was closed without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read().decode(errors="replace")
    except TimeoutError:
        return -1, "no answer"
    except (http.client.HTTPException, OSError) as why:
        return 0, repr(why)
    finally:
        connection.close()


class Server:
    def __init__(self, args, spec, log):
        command = [args.colibri, "serve", "-m", args.model, "--port", "0", "--threads", "2", "--parallel", "2", "--ctx", "2048", "--lora-dir",
                   os.path.dirname(args.adapter), "--lora-memory", "16M", *args.extra]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, env=environment(args, spec, log), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.errors)
        self.port = None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline().decode(errors="replace")
        watchdog.cancel()
        self.hung = not watchdog.finished.is_set() or (not line and self.process.poll() == -9)
        found = re.match(r"server ready: http://[^:]*:(\d+)", line)
        if found:
            self.port = int(found[1])

    def stop(self):
        """Exit code (None: it did not end) and what it wrote to stderr."""
        if self.port is not None:
            self.process.terminate()
        code = end_of(self.process)
        self.process.stdout.close()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace")
        self.errors.close()
        return code, said


def serve_once(args, spec, log=None, count_of=None):
    what = f"serve, allocation {spec}"
    server = Server(args, spec, log)
    if server.port is None:
        code, said = server.stop()
        if code == 0:
            problem(what, f"ended with 0 and without a word: {said[-300:]}")
        check_end(what, code, said, spec is not None)
        return "no start"
    outcome, wrong, lone, failed = [], [], spec is not None and spec.isdigit(), []
    for name, method, path, body in requests(args):
        status, text = ask(server.port, method, path, body)
        outcome.append(status)
        fine = {400} if name == "bad" else {201} if name == "lora" else {200}
        if status in fine:
            end = {"stream": "[DONE]", "events": "event: response."}.get(name, "")
            if spec is None and name != "bad" and (end not in text or "error" in text.replace('"error":null', "")):
                wrong.append((name, status, text))
            if name == "shortened" and status == 200 and json.loads(text)["usage"]["input_tokens"] > 200:
                wrong.append((name, status, text))
            continue
        failed.append(name)
        if spec is None or status not in (0, 500, 503, 507):
            wrong.append((name, status, text[:300]))
        elif status and '"error"' not in text and '"message"' not in text:
            wrong.append((name, status, text[:300]))
    if lone and len(failed) > 1:
        wrong.append((failed, 0, "one allocation has failed, and several requests"))
    code, said = server.stop()
    for name, status, text in wrong:
        problem(what, f"{name} was answered by {status}: {text}; {said[-300:]}")
    check_end(what, code, said, spec is not None)
    return outcome


def check_serve(args):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "n")
        print("without faults:", serve_once(args, None, log))
        if problems:
            sys.exit(1)
        total = int(open(log).read())
    seen = {}
    for spec in specs(args, total):
        outcome = serve_once(args, spec)
        for status in outcome if isinstance(outcome, list) else [outcome]:
            seen[status] = seen.get(status, 0) + 1
    print(f"serve: {total} allocations; answers {seen}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["run", "serve"])
    parser.add_argument("colibri")
    parser.add_argument("preload")
    parser.add_argument("model")
    parser.add_argument("--adapter")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", action="append")
    parser.add_argument("--extra", action="append", default=[])
    args = parser.parse_args()
    if args.only:
        for spec in args.only:
            print(spec, run_once(args, spec) if args.what == "run" else serve_once(args, spec))
    elif args.what == "run":
        check_run(args)
    else:
        check_serve(args)
    sys.exit(1 if problems else 0)


main()
