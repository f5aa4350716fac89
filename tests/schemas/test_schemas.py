#!/usr/bin/env python3
"""JSON schemas against their grammars: random schemas, samples of what the grammar allows, and instances that it must accept.

    python3 tests/schemas/test_schemas.py SCHEMA_SAMPLES MODEL [--schemas N] [--seed S] [--samples K] [--jsonschema]
    python3 tests/schemas/test_schemas.py COLIBRI MODEL --run ...    # the model's own text, by `colibri run --json-schema`

A seeded generator makes schemas of the supported kind. Samples are drawn token by token through the matcher and must validate; valid
instances of the generator, written compactly and with indents, must be accepted; instances with one thing wrong must be
refused. The validator is below; with --jsonschema, Python's `jsonschema` has to agree.
"""
import argparse
import json
import math
import random
import re
import subprocess
import sys
from datetime import date

# ---- a small validator: the keywords that the generator uses ----

FORMATS = {
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.|$)){4}",
    "email": r"[^@\s]+@[^@\s]+\.[^@\s]+",
    "date": r"\d{4}-\d\d-\d\d",
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
}


def is_type(value, name):
    if name == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}[name] is type(value)


def equal(a, b):
    return type(a) is type(b) and a == b or (is_type(a, "number") and is_type(b, "number") and a == b)


def resolve(ref, root):
    at = root
    for step in ref.split("/")[1:]:
        at = at[step]
    return at


def valid(schema, value, root):
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not valid(resolve(schema["$ref"], root), value, root):
        return False
    types = schema.get("type")
    if types is not None and not any(is_type(value, t) for t in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and not any(equal(value, v) for v in schema["enum"]):
        return False
    if "const" in schema and not equal(value, schema["const"]):
        return False
    if "anyOf" in schema and not any(valid(s, value, root) for s in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(valid(s, value, root) for s in schema["oneOf"]) != 1:
        return False
    if not all(valid(s, value, root) for s in schema.get("allOf", [])):
        return False
    if is_type(value, "number"):
        if value < schema.get("minimum", -math.inf) or value > schema.get("maximum", math.inf):
            return False
        if value <= schema.get("exclusiveMinimum", -math.inf) or value >= schema.get("exclusiveMaximum", math.inf):
            return False
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
            return False
        if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z") if schema["pattern"].endswith("$")
                                                 else schema["pattern"], value, re.ASCII):
            return False
        if "format" in schema and not re.fullmatch(FORMATS[schema["format"]], value):
            return False
        if schema.get("format", "").startswith("date"):
            try:
                date.fromisoformat(value[:10])
            except ValueError:
                return False
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            return False
        first = schema.get("prefixItems", [])
        if not all(valid(s, v, root) for s, v in zip(first, value)):
            return False
        if not all(valid(schema.get("items", True), v, root) for v in value[len(first):]):
            return False
    if isinstance(value, dict):
        named = schema.get("properties", {})
        if any(k not in value for k in schema.get("required", [])):
            return False
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", math.inf):
            return False
        if not all(valid(named[k], v, root) for k, v in value.items() if k in named):
            return False
        if not all(valid(schema.get("additionalProperties", True), v, root) for k, v in value.items() if k not in named):
            return False
    return True


# ---- the generator: a schema, and how to make an instance of it ----

NAMES = ["name", "id", "value", "na", "names", "größe", "quote\"d", "back\\slash", "a b", "名前", "x", "tab\t", "line\n", "]^-"]
PATTERNS = [
    (r"^[A-Z]{2,4}-\d+$", lambda r: "".join(r.choice("ABCXYZ") for _ in range(r.randint(2, 4))) + "-%d" % r.randint(0, 999)),
    (r"^(yes|no)?$", lambda r: r.choice(["yes", "no", ""])),
    (r"^\w+(\.\w+)*$", lambda r: ".".join("w%d" % r.randint(0, 9) for _ in range(r.randint(1, 3)))),
    (r"b+c", lambda r: r.choice(["bc", "xbbc!", "a \"bc\"", "bbbc\n"])),
    (r"^[^\s\"]{0,5}$", lambda r: r.choice(["", "é中!", "ab\\c"])),
    (r"^#(?:[0-9a-f]{3}){1,2}$", lambda r: r.choice(["#abc", "#012def"])),
    (r"^a|z$", lambda r: r.choice(["abc", "xyz", "a", "z"])),
    (r"^(a+)+b$", lambda r: "a" * r.randint(1, 9) + "b"),
    (r"^\t\u00e9\x41[\n-\r]?.$", lambda r: r.choice(["\téAx", "\téA\r ", "\téA\n\""])),
]


def text(r):
    pieces = ["a", "Zeile", " ", "é", "中文", "\"", "\\", "\n", "\t", "/", "😀", "\x7f", "0", "{", "\u2028", "\x01"]
    return "".join(r.choice(pieces) for _ in range(r.randint(0, 8)))


def any_value(r, depth=0):
    kind = r.randint(0, 6 if depth < 3 else 4)
    if kind == 0:
        return r.choice([None, True, False])
    if kind == 1:
        return r.randint(-10**9, 10**9)
    if kind == 2:
        return round(r.uniform(-100, 100), r.randint(0, 6))
    if kind <= 4:
        return text(r)
    if kind == 5:
        return [any_value(r, depth + 1) for _ in range(r.randint(0, 3))]
    return {text(r): any_value(r, depth + 1) for _ in range(r.randint(0, 3))}


def string_schema(r):
    kind = r.randint(0, 4)
    if kind == 0:
        return {"type": "string"}, text
    if kind == 1:
        least = r.randint(0, 5)
        most = least + r.randint(0, 70)
        chars = "ab é中😀\"\\\n"
        return ({"type": "string", "minLength": least, "maxLength": most},
                lambda r: "".join(r.choice(chars) for _ in range(r.choice([least, most, r.randint(least, most)]))))
    if kind == 2:
        pattern, make = r.choice(PATTERNS)
        return {"type": "string", "pattern": pattern}, make
    if kind == 3:
        name = r.choice(sorted(FORMATS))
        make = {
            "uuid": lambda r: "%08x-%04x-%04x-%04x-%012x" % tuple(r.getrandbits(b) for b in (32, 16, 16, 16, 48)),
            "ipv4": lambda r: ".".join(str(r.choice([0, 9, 99, 100, 199, 249, 255])) for _ in range(4)),
            "email": lambda r: r.choice(["a@b.de", "first.last+tag@mail.example.org", "x_y-z@a1.co"]),
            "date": lambda r: r.choice(["2024-02-29", "1999-12-31", "2000-02-29", "0001-01-01", "2023-04-30"]),
            "date-time": lambda r: r.choice(["2024-02-29T23:59:59Z", "1985-04-12T23:20:50.52Z", "2020-06-01T00:00:00+02:00"]),
            "time": lambda r: r.choice(["00:00:00Z", "23:59:59.123-08:00"]),
        }[name]
        return {"type": "string", "format": name}, make
    return {"type": "string", "minLength": 3}, lambda r: text(r) + "abc"


def number_schema(r):
    if r.random() < 0.5:
        lo = r.choice([0, 1, -1, r.randint(-2000, 2000), r.randint(-10**12, 10**12)])
        hi = lo + r.choice([0, 1, 9, 100, r.randint(0, 10**6), r.randint(0, 10**13)])
        s, a, b = {"type": "integer"}, -10**17, 10**17
        if r.random() < 0.8:
            exclusive = r.random() < 0.3
            s["exclusiveMinimum" if exclusive else "minimum"] = lo - exclusive
            a = lo
        if r.random() < 0.8:
            exclusive = r.random() < 0.3
            s["exclusiveMaximum" if exclusive else "maximum"] = hi + exclusive
            b = max(hi, a)
        if a == -10**17:
            a = min(a, b)
        return s, lambda r: r.choice([a, b, r.randint(a, b), min(b, a + 1), max(a, b - 1)])
    if r.random() < 0.3:
        return {"type": "number"}, lambda r: r.choice([0, -1, 1.5, 1e-7, -2.5e10, r.random(), 12345678901234567])
    digits = r.randint(0, 3)
    a = round(r.uniform(-20, 20) * r.choice([1, 0.01, 100]), digits) + 0.0
    b = round(a + abs(r.uniform(0, 20)) * r.choice([1, 0.01, 100]), digits) + 10.0**-digits
    b = round(b, digits)
    s = {"type": "number"}
    if r.random() < 0.3:
        s["exclusiveMinimum"] = a
    else:
        s["minimum"] = a
    if r.random() < 0.3:
        s["exclusiveMaximum"] = b
    else:
        s["maximum"] = b

    def make(r):
        for _ in range(20):
            v = r.choice([a, b, round(r.uniform(a, b), r.randint(0, 6)), (a + b) / 2])
            v = v + 0.0  # no -0.0
            v = int(v) if r.random() < 0.3 and float(v).is_integer() else round(float(v), 10)
            if valid(s, v, s) and "e" not in repr(v):
                return v
        return round((a + b) / 2, 8)

    return s, make


def object_schema(r, depth, defs):
    names = r.sample(NAMES, r.randint(0, 5))
    parts = {n: schema(r, depth + 1, defs) for n in names}
    required = [n for n in names if r.random() < 0.5]
    s = {"type": "object", "properties": {n: p[0] for n, p in parts.items()}}
    if required:
        s["required"] = r.sample(required, len(required))
    extra = None
    kind = r.random()
    if kind < 0.3:
        s["additionalProperties"] = False
    elif kind < 0.6:
        extra = schema(r, depth + 2, defs)
        s["additionalProperties"] = extra[0]
    least = 0
    if names and r.random() < 0.2:
        least = r.randint(0, len(names))
        s["minProperties"] = least
    if r.random() < 0.2:
        s["maxProperties"] = max(len(required), least, r.randint(0, 6))

    def make(r):
        keep = [n for n in names if n in required or r.random() < 0.5]
        missing = [n for n in names if n not in keep]
        while len(keep) < least:
            keep.append(missing.pop())
        most = s.get("maxProperties", 99)
        while len(keep) > most:
            keep.remove(next(n for n in keep if n not in required))
        out = {n: parts[n][1](r) for n in names if n in keep}
        if extra:
            for _ in range(r.randint(0, 2)):
                key = r.choice(["other", "namesake", "n", "größer", "a", "tab", text(r) + "?"])
                if key not in names and len(out) < most and not any(key.startswith(c) for c in "\"\\\n\t\x01"):
                    out[key] = extra[1](r)
        return out

    return s, make


def array_schema(r, depth, defs):
    item = schema(r, depth + 1, defs)
    s = {"type": "array", "items": item[0]}
    least = most = None
    first = []
    if r.random() < 0.3:
        first = [schema(r, depth + 1, defs) for _ in range(r.randint(1, 3))]
        s["prefixItems"] = [f[0] for f in first]
        if r.random() < 0.3:
            s["items"] = False
    if r.random() < 0.5:
        least = r.randint(0, 3)
        if s["items"] is False:
            least = min(least, len(first))
        s["minItems"] = least
    if r.random() < 0.5:
        most = (least or 0) + r.randint(0, 4)
        s["maxItems"] = most
    hi = min(most if most is not None else (least or 0) + 4, len(first) if s["items"] is False else 99)

    def make(r):
        n = r.randint(least or 0, max(least or 0, hi))
        return [first[i][1](r) if i < len(first) else item[1](r) for i in range(n)]

    return s, make


def schema(r, depth=0, defs=None):
    """(schema, function that makes an instance)"""
    kind = r.randint(0, 11 if depth < 3 else 5)
    if kind == 0:
        return r.choice([({"type": "null"}, lambda r: None), ({"type": "boolean"}, lambda r: r.random() < 0.5),
                         ({}, any_value), (True, any_value)])
    if kind <= 2:
        return string_schema(r)
    if kind <= 4:
        return number_schema(r)
    if kind == 5:
        values = [r.choice([text(r), r.randint(-5, 5), None, True, 1.5, [1, "a"], {"k": [], "é": {}}]) for _ in range(r.randint(1, 4))]
        s = {"const": values[0]} if len(values) == 1 else {"enum": values}
        return s, lambda r: r.choice(values)
    if kind <= 8:
        return object_schema(r, depth, defs)
    if kind == 9:
        return array_schema(r, depth, defs)
    if kind == 10:
        parts = [schema(r, depth + 1, defs) for _ in range(r.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda r: r.choice(parts)[1](r)
    if r.random() < 0.3:
        return ({"type": ["string", "null"], "maxLength": 5}, lambda r: r.choice([None, "ab"]))
    if r.random() < 0.4:  # told apart by a constant
        left, right = schema(r, depth + 1, defs), schema(r, depth + 1, defs)
        s = {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": p[0]}, "required": ["kind", "v"],
                        "additionalProperties": False} for k, p in (("l", left), ("r", right))]}
        return s, lambda r: r.choice([lambda: {"kind": "l", "v": left[1](r)}, lambda: {"kind": "r", "v": right[1](r)}])()
    if r.random() < 0.5:
        s = {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"]},
                       {"properties": {"a": {"maximum": 9}, "b": {"type": "string", "maxLength": 3}}}]}
        return s, lambda r: dict([("a", r.randint(0, 9))] + ([("b", "xyz")] if r.random() < 0.5 else []))
    # a list that contains itself
    name = "node%d" % len(defs)
    defs[name] = None
    value = schema(r, 9, defs)
    defs[name] = {"type": "object", "properties": {"v": value[0], "next": {"anyOf": [{"$ref": "#/$defs/" + name}, {"type": "null"}]}},
                  "required": ["v", "next"], "additionalProperties": False}

    def make(r, left=3):
        return {"v": value[1](r), "next": make(r, left - 1) if left and r.random() < 0.5 else None}

    return {"$ref": "#/$defs/" + name}, make


def is_plain(s):
    return s.isascii() and "\x7f" not in s


def plain_names(value):
    if isinstance(value, dict):
        return all(is_plain(k) and plain_names(v) for k, v in value.items())
    return all(plain_names(v) for v in value) if isinstance(value, list) else True


def spoiled(value, r):
    """The instance with one thing wrong somewhere."""
    if isinstance(value, dict) and value and r.random() < 0.7:
        key = r.choice(sorted(value))
        if r.random() < 0.3:
            return {k: v for k, v in value.items() if k != key}
        return {k: spoiled(v, r) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and r.random() < 0.7:
        i = r.randrange(len(value))
        return value[:i] + [spoiled(value[i], r)] + value[i + 1:]
    if isinstance(value, str):
        return r.choice([value + "x" * 80, value[:-1], 5, None, value + "~"])
    if is_type(value, "number"):
        return r.choice([value + 10**14, -value - 1, "5", value + 0.5, value * 1000])
    return r.choice([None, 7, "s", [], {"zz": 1}, [value]])


def run_model(program, model, schemas, seed, judge):
    """Text of the model itself. A text that -n has cut is a beginning and shows nothing."""
    finished = bad = 0
    for i, s in enumerate(schemas):
        done = subprocess.run([program, "run", "-m", model, "--json-schema", "-", "--seed", str(seed * 1000 + i), "--temperature",
                               "1.2", "-n", "300", "--json", "--", "Write JSON."], input=json.dumps(s), text=True,
                              encoding="utf-8", capture_output=True, check=False)
        answer = json.loads(done.stdout) if done.returncode == 0 else None
        if answer is None:
            print("FAILED: %s\n  %s" % (json.dumps(s), done.stderr))
            bad += 1
        elif answer["finish_reason"] == "stop":
            finished += 1
            value = json.loads(answer["text"])
            if not valid(s, value, s) or not judge(s, value):
                print("FAILED: not valid\n  %s\n  %s" % (json.dumps(s), answer["text"]))
                bad += 1
    print("%d schemas: %d texts of the model finished, %d failures" % (len(schemas), finished, bad))
    sys.exit(bad > 0 or finished < len(schemas) // 2)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("model")
    args.add_argument("--schemas", type=int, default=200)
    args.add_argument("--samples", type=int, default=3)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--jsonschema", action="store_true", help="ask Python's jsonschema too")
    args.add_argument("--run", action="store_true", help="PROGRAM is colibri: look at what the model writes")
    args.add_argument("--show", action="store_true", help="print schemas and samples")
    args = args.parse_args()
    if args.jsonschema:
        import jsonschema
    requests, cases = [], []
    for i in range(args.schemas):
        r = random.Random(args.seed * 100003 + i)
        defs = {}
        s, make = schema(r, 0, defs)
        if defs:
            s = {"allOf": [s], "$defs": defs} if r.random() < 0.3 or not isinstance(s, dict) else dict(s, **{"$defs": defs})
        instances = [make(r) for _ in range(6)]
        wrong = [w for w in (spoiled(v, r) for v in instances * 2) if not valid(s, w, s)]
        for v in instances:
            if not valid(s, v, s):
                sys.exit("the generator made an invalid instance: %s of %s" % (json.dumps(v), json.dumps(s)))
        # Names, constants and patterns have one spelling; other strings may be written with escapes.
        plain = is_plain(json.dumps(s, ensure_ascii=False)) and "pattern" not in json.dumps(s)
        texts = [json.dumps(v, ensure_ascii=plain and plain_names(v) and r.random() < 0.5, indent=r.choice([None, 2, 4])) for v in instances]
        texts += [json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in wrong]
        cases.append((s, len(instances), texts))
        requests.append(json.dumps({"schema": s, "seed": args.seed * 7919 + i, "samples": args.samples, "texts": texts}))
    if args.run:
        def judge(s, value):
            return not args.jsonschema or jsonschema.Draft202012Validator(
                s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).is_valid(value)

        run_model(args.program, args.model, [c[0] for c in cases], args.seed, judge)
    done = subprocess.run([args.program, args.model], input="\n".join(requests) + "\n", text=True, encoding="utf-8",
                          capture_output=True, check=False)
    if done.returncode:
        sys.exit("%s: %s" % (args.program, done.stderr))
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(cases), "%d answers" % len(answers)
    n_samples = n_accepted = n_refused = n_unfinished = bad = 0

    def wrong_answer(what, s, detail):
        nonlocal bad
        bad += 1
        if bad <= 8:
            print("FAILED: %s\n  schema %s\n  %s" % (what, json.dumps(s, ensure_ascii=False), detail))

    for (s, n_valid, texts), answer in zip(cases, answers):
        if "error" in answer:
            wrong_answer("refused", s, answer["error"])
            continue
        n_unfinished += answer["unfinished"]
        for sample in answer["samples"]:
            n_samples += 1
            if args.show:
                print(sample)
            try:
                value = json.loads(sample)
            except ValueError as e:
                wrong_answer("a sample is no JSON", s, "%r: %s" % (sample, e))
                continue
            if not valid(s, value, s):
                wrong_answer("a sample is not valid", s, sample)
            if args.jsonschema:
                try:
                    jsonschema.validate(value, s, cls=jsonschema.Draft202012Validator,
                                        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
                except jsonschema.ValidationError as e:
                    wrong_answer("jsonschema refuses a sample", s, "%s: %s" % (sample, e.message))
        for i, ok in enumerate(answer["accepted"]):
            n_accepted += ok
            n_refused += not ok
            if ok != (i < n_valid):
                wrong_answer("a valid instance is not accepted" if i < n_valid else "an invalid instance is accepted", s, texts[i])
    print("%d schemas: %d samples valid, %d unfinished; %d instances accepted, %d refused; %d failures" %
          (len(cases), n_samples, n_unfinished, n_accepted, n_refused, bad))
    if n_samples < args.schemas * args.samples * 0.9 or n_refused < args.schemas:
        sys.exit("too few samples or wrong instances to show anything")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
