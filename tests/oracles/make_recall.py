#!/usr/bin/env python3
"""The tiny model's recall tests as JSON lines for `colibri evaluate` and `colibri compare --strategies`.

    python3 make_recall.py recall_tests.json OUT.jsonl [N_PER_DISTANCE]

recall_tests.json is what the model's training left aside: a list of {distance, kind, prompt, answer, prompt_ids,
answer_ids}. The answer gets the space in front that its tokens have; "question" is the end of the prompt that asks. With N, every distance has its first N items of
each kind in turn, so that both kinds are there.
"""
import json
import sys


def pick(items, n):
    kinds = {}
    for item in items:
        kinds.setdefault(item["kind"], []).append(item)
    out = []
    while len(out) < n:
        rest = [k for k in kinds.values() if k]
        if not rest:
            break
        out += [k.pop(0) for k in rest][: n - len(out)]
    return sorted(out, key=lambda x: x["id"])


def main():
    tests = json.load(open(sys.argv[1], encoding="utf-8"))
    most = int(sys.argv[3]) if len(sys.argv) > 3 else len(tests)
    by_distance = {}
    for test in tests:
        group = by_distance.setdefault(test["distance"], [])
        group.append(dict(id=f"{test['distance']}-{len(group) + 1:03}", distance=test["distance"], kind=test["kind"],
                          prompt=test["prompt"], question=test["prompt"][test["prompt"].rindex("\nQuestion:"):],
                          answer=" " + test["answer"]))
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for distance in sorted(by_distance):
            for item in pick(by_distance[distance], most):
                out.write(json.dumps(item, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
