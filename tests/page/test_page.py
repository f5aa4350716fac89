#!/usr/bin/env python3
"""The chat page in headless Chromium: answers stream, stop works, settings count, nothing leaves the machine.

    python3 tests/page/test_page.py COLIBRI MODEL

Needs Playwright for Python and a Chromium (CHROMIUM=/usr/bin/chromium); without them it says so and ends with 77.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("skipped: Playwright for Python is not installed")
    sys.exit(77)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if not CHROMIUM:
    print("skipped: no Chromium (CHROMIUM=PATH)")
    sys.exit(77)


class Server:
    def __init__(self, colibri, model, *flags):
        self.process = subprocess.Popen([colibri, "serve", "-m", model, "--port", "0", "--seed", "7", *flags],
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match, f"no ready line: {line!r}"
        self.url = match.group(0).rstrip("/")

    def get(self, path):
        return json.load(urllib.request.urlopen(self.url + path))

    def stop(self):
        self.process.terminate()
        assert self.process.wait(30) == 0, "the server did not end well"


def send(page, text):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def wait_idle(page):
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=60000)


def check_chat(page):
    send(page, "Once upon a time")
    answer = page.locator(".message.assistant").last
    expect(answer.locator(".body")).not_to_be_empty(timeout=60000)
    wait_idle(page)
    expect(page.get_by_role("status")).to_have_text(re.compile("Done|Ended"))
    assert "tokens/s" in answer.locator(".figures").inner_text()
    first = answer.locator(".body").inner_text()
    answer.get_by_role("button", name=re.compile("again")).click()
    wait_idle(page)
    assert page.locator(".message").count() == 2
    return first


def check_keyboard(page):
    """Every control is reached by Tab, and has a name."""
    page.locator("body").press("Tab")
    seen = []
    for _ in range(20):
        name = page.evaluate("""() => { const e = document.activeElement;
            return e && e !== document.body ? (e.getAttribute('aria-label') || e.textContent || e.labels?.[0]?.textContent || '').trim() : null; }""")
        if name is not None:
            seen.append(name)
            assert name, "a control without a name"
        page.keyboard.press("Tab")
    for want in ("Skip to the message", "New chat", "Machine", "Settings", "Conversation"):
        assert any(want in s for s in seen), (want, seen)


def check_stop(page, server):
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Tokens at most").fill("2000")

    def endless(route):
        body = json.loads(route.request.post_data)
        body["ignore_eos"] = True
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", endless)
    send(page, "Tell me a very long story")
    expect(page.locator(".message.assistant").last.locator(".body")).not_to_be_empty(timeout=60000)
    page.keyboard.press("Escape")
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    wait_idle(page)
    page.unroute("**/v1/chat/completions")
    for _ in range(100):
        if all(not s["is_processing"] for s in server.get("/slots")):
            return
        time.sleep(0.1)
    raise AssertionError("the server goes on after the page has stopped")


def check_new_chat(page):
    """A chat that is left while its answer comes leaves nothing in the next one."""
    def endless(route):
        body = json.loads(route.request.post_data)
        body.update(ignore_eos=True, max_tokens=2000)
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", endless)
    send(page, "Tell me a long story")
    expect(page.locator(".message.assistant").last.locator(".body")).not_to_be_empty(timeout=60000)
    page.get_by_role("button", name="New chat").click()
    wait_idle(page)
    page.unroute("**/v1/chat/completions")
    assert page.locator(".message").count() == 0
    assert page.evaluate("messages.length") == 0
    expect(page.get_by_role("status")).to_have_text("New chat.")


def check_broken_stream(page):
    """A stream that ends before its end is an error, and what came of it stays."""
    chunk = {"choices": [{"index": 0, "delta": {"content": "half an ans"}, "finish_reason": None}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n"))
    send(page, "Hi")
    expect(page.locator(".message.error")).to_contain_text("broke the answer off")
    expect(page.locator(".message.assistant .body")).to_have_text("half an ans")
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="New chat").click()


def check_settings(page):
    """A fixed seed gives the same answer; a reload keeps conversation and settings, a new chat the settings."""
    page.get_by_label("Tokens at most").fill("12")
    page.get_by_label("Seed").fill("3")
    answers = []
    for _ in range(2):
        page.get_by_role("button", name="New chat").click()
        send(page, "Hello there")
        expect(page.locator(".message.assistant .body")).not_to_be_empty(timeout=60000)
        wait_idle(page)
        answers.append(page.locator(".message.assistant .body").inner_text())
    assert answers[0] == answers[1], answers
    page.reload()
    expect(page.locator(".message.assistant .body")).to_have_text(answers[1])
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Seed").input_value() == "3"


def check_error(page):
    page.get_by_label("Temperature").fill("99")
    send(page, "Hi")
    expect(page.locator(".message.error")).to_contain_text("temperature", timeout=60000)
    page.get_by_label("Temperature").fill("")


def check_machine(page):
    page.get_by_role("button", name="Machine").click()
    expect(page.locator("#figures")).to_contain_text("Expert hit rate", timeout=10000)
    expect(page.locator("#heat")).to_have_attribute("aria-label", re.compile(r"\d+ of 160 experts"))
    assert page.locator("#heat-rows tr").count() == 5
    expect(page.locator("#chart")).to_have_attribute("aria-label", re.compile("hit rate"))
    page.get_by_role("button", name="Machine").click()


def check_markdown(page):
    """Markdown becomes nodes, and markup in it stays text."""
    cases = [
        ("**bold** and *em* and `co<b>de`", "p > strong", "bold"),
        ("# Title\n\ntext", "h4", "Title"),
        ("```c\nint x = a < b;\n```", "pre code", "int x = a < b;"),
        ("- one\n- two\n  - inner", "ul > li > ul > li", "inner"),
        ("1. one\n2. two", "ol > li", "one"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "table td", "1"),
        ("> quoted", "blockquote p", "quoted"),
        ("[link](https://example.org/x)", "a[href='https://example.org/x']", "link"),
        ("snake_case_word stays", "p", "snake_case_word stays"),
        ("```\nnever closed", "pre code", "never closed"),
    ]
    for source, selector, text in cases:
        got = page.evaluate("""([source, selector]) => { const d = document.createElement('div'); d.append(...markdown(source));
            return d.querySelector(selector)?.textContent ?? d.innerHTML; }""", [source, selector])
        assert got == text, (source, got)
    hostile = ["<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "<script>alert(1)</script>", "[x](data:text/html,1)",
               "`" * 5000, "*" * 5000, "[" * 5000, "> " * 3000 + "x", "- " * 2000 + "x", "|" * 4000 + "\n|-|\n", "_" * 4000,
               "*_" * 6000 + "a" + "_*" * 6000, "~~**" * 3000 + "a" + "**~~" * 3000, "*a " * 30000, "**a " * 10000]
    for source in hostile:
        begin = time.time()
        bad = page.evaluate("""(source) => { const d = document.createElement('div'); d.append(...markdown(source));
            return d.querySelectorAll('img, script, a[href^="javascript"], a[href^="data"]').length; }""", source)
        assert bad == 0, source[:40]
        assert time.time() - begin < 3, f"slow: {source[:20]}"


def main():
    colibri, model = sys.argv[1:3]
    server = Server(colibri, model, "--predict", "24")
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            outside, errors = [], []
            page.on("request", lambda r: outside.append(r.url) if not r.url.startswith((server.url, "data:")) else None)
            page.on("pageerror", lambda e: errors.append(str(e)))
            page.on("console", lambda m: errors.append(m.text) if m.type == "error" and "400" not in m.text else None)
            page.goto(server.url + "/")
            expect(page.locator("#model")).to_have_text(os.path.basename(model))
            check_keyboard(page)
            check_markdown(page)
            check_chat(page)
            check_machine(page)
            check_stop(page, server)
            check_new_chat(page)
            check_broken_stream(page)
            check_settings(page)
            check_error(page)
            assert not outside, outside
            assert not errors, errors
            browser.close()
    finally:
        server.stop()
    print("the page works")


if __name__ == "__main__":
    main()
