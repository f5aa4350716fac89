#!/usr/bin/env python3
"""Checks that #include points one way only: CONTRIBUTING.md's table of folders, as a test.

    python3 tests/tools/check_layers.py [SOURCE_DIR]

Every quoted include is resolved as the compiler does (own folder, then core/, core/include/, sdk/include/, tools/; for tests tests/unit/ too) and must lie in
a folder that the includer's folder may use. Outside libraries are allowed where they are needed and nowhere else. With
--self-test it first proves on made-up trees that each kind of violation is found.
"""
import re
import sys
import tempfile
from pathlib import Path

SDK = "sdk/include/colibri"
API = "core/include"
LOW = {SDK, "core/base"}
# folder -> folders whose headers it may include, besides its own. No folder may lead back to itself.
MAY = {
    SDK: set(),
    API: {SDK},
    "core/base": {SDK},
    "core/config": LOW,
    "core/cpu": LOW,
    "core/ops": {SDK},
    "core/gguf": LOW,
    "core/text": LOW | {"core/gguf"},
    "core/grammar": LOW | {"core/gguf", "core/text"},
    "core/plugin": LOW | {"core/config", "core/cpu", "core/ops"},
    "core/kv": LOW | {"core/ops"},
    "core/store": LOW | {"core/gguf", "core/plugin"},
    "core/model": LOW | {"core/gguf", "core/ops", "core/plugin", "core/store", "core/kv"},
    "core/plan": LOW | {"core/gguf", "core/model", "core/store", "core/kv", "core/plugin", "core/replay"},
    "core/replay": LOW | {"core/plugin", "core/store"},
}
MAY["core/engine"] = set(MAY)
MAY["tools"] = set(MAY) | {"core/engine"}
MAY["tools/serve"] = set(MAY["tools"])
MAY["tools"] |= {"tools/serve"}
MAY["plugins"] = {SDK}
MAY["examples"] = {SDK, API}
MAY["examples/plugins"] = {SDK}
MAY["tests/plugins-bad"] = {SDK}
MAY["tests/kernels"] = {SDK, "core/ops"}
MAY["tests/unit"] = set(MAY["tools"]) | {"tools", "tools/serve"}
MAY["tests/fuzz"] = MAY["tests/tools"] = MAY["tests/unit"] | {"tests/unit"}

# Headers of ISO C: all that the SDK and plugins may use.
ISO_C = {f"{h}.h" for h in (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype").split()}
INTRINSICS = {"immintrin.h", "arm_neon.h"}
# Outside libraries: header (or its folder) -> the only places that may include it.
OUTSIDE = {
    "ini.h": {"core/config"},
    "hwloc.h": {"core/cpu"},
    "cpu_features": {"core/cpu"},
    "cpuid.h": {"core/cpu", "tests/kernels"},
    "liburing.h": {"core/store"},
    "xxhash.h": {"core/gguf", "core/kv", "tools", "tests/fuzz"},
    "ffi.h": {"core/plugin"},
    "pcre2.h": {"core/text"},
    "utf8proc.h": {"core/text", "tools", "tools/serve", "tests/unit"},
    "jansson.h": {"tools", "tools/serve", "tests/unit", "tests/fuzz", "tests/tools"},
    "microhttpd.h": {"tools/serve"},
    "histedit.h": {"tools"},
    "cmocka.h": {"tests/unit"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def unit_of(path):
    """The longest entry of MAY that `path` (relative) lies in."""
    text = path.as_posix()
    return max((u for u in MAY if text.startswith(u + "/")), key=len, default=None)


def resolve(root, includer, name):
    folders = [includer.parent, root / "core", root / "core/include", root / "sdk/include", root / "tools"]
    if "tests" in includer.relative_to(root).parts:
        folders.append(root / "tests/unit")
    for base in folders:
        target = base / name
        if target.is_file():
            return target.resolve().relative_to(root)
    return None


def check_system(unit, name):
    if unit in (SDK, API) and name not in ISO_C:
        return "only ISO C headers are allowed here"
    if unit == "plugins" and name not in ISO_C | INTRINSICS:
        return "plugins use ISO C headers and intrinsics only"
    if unit != "plugins" and name in INTRINSICS and not unit.startswith(("tests/", "examples/plugins")):
        return "instruction-set specific code belongs into plugins"
    places = OUTSIDE.get(name, OUTSIDE.get(name.split("/")[0]))
    if places is not None and unit not in places:
        return f"this library is used in {', '.join(sorted(places))} only"
    return None


def check_file(root, path):
    unit = unit_of(path.relative_to(root))
    if unit is None:
        return [f"{path.relative_to(root)}: its folder is not in check_layers.py: say what it may include"]
    bad = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name, reason = match.group(2), None
        target = resolve(root, path, name)
        if target is None:
            reason = check_system(unit, name) if match.group(1) == "<" else "there is no such file"
        elif target.parts[0] == "plugins" or unit == "plugins":
            # one plugin never sees another one's files
            folder = path.relative_to(root).parent
            if target.parent != folder and unit_of(target) != SDK:
                reason = f"{unit} may not include {target.parent.as_posix()}"
        else:
            used = unit_of(target)
            if used != unit and used not in MAY[unit]:
                reason = f"{unit} may not include {used}"
        if reason:
            bad.append(f"{path.relative_to(root)}:{number}: {line.strip()}: {reason}")
    return bad


def check_tree(root):
    bad = []
    for top in ("sdk", "core", "plugins", "tools", "examples", "tests"):
        for path in sorted((root / top).rglob("*.[ch]")):
            bad += check_file(root, path)
    return bad


def check_cycles():
    def reach(unit, seen):
        for u in MAY.get(unit, ()):
            if u not in seen:
                seen.add(u)
                reach(u, seen)
        return seen
    return [f"the rules lead from {u} back to it" for u in MAY if u in reach(u, set())]


def self_test():
    cases = [
        ("core/text/a.c", '#include "engine/b.h"', "core/engine/b.h"),
        ("core/store/a.c", '#include "model/b.h"', "core/model/b.h"),
        ("plugins/x/a.c", '#include "base/b.h"', "core/base/b.h"),
        ("plugins/x/a.c", '#include "../y/b.h"', "plugins/y/b.h"),
        ("plugins/x/a.c", "#include <pthread.h>", None),
        ("core/ops/a.c", '#include "base/b.h"', "core/base/b.h"),
        ("core/kv/a.c", "#include <immintrin.h>", None),
        ("core/engine/a.c", "#include <jansson.h>", None),
        ("core/base/a.c", '#include "base/none.h"', None),
        ("sdk/include/colibri/a.h", "#include <unistd.h>", None),
        ("core/new/a.c", "", None),
    ]
    failed = []
    for includer, line, target in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in ((includer, line + "\n"), (target, "")):
                if name:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_text(text)
            if not any(includer in b for b in check_tree(root)):
                failed.append(f"self test: not found: {line or 'unknown folder'} in {includer}")
    return failed


def main():
    args = [a for a in sys.argv[1:] if a != "--self-test"]
    root = Path(args[0] if args else ".").resolve()
    bad = (self_test() if "--self-test" in sys.argv else []) + check_cycles() + check_tree(root)
    print("\n".join(bad) if bad else "includes point one way")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
