"""Looks for the flags with which a peer is fastest in a test, and remembers them."""
import json
from pathlib import Path

from .engines import defaults, knobs_for
from .stepped import BenchError

GAIN = 1.01  # less than this is noise


def search(start, knobs, rate):
    """The best of the configurations reached from start by changing one flag at a time.

    knobs: flag -> values, in the order to try; rate(config) -> tokens per second. Returns (config, tries); no
    configuration is measured twice.
    """
    seen = {}

    def measured(config):
        key = tuple(sorted(config.items()))
        if key not in seen:
            seen[key] = rate(config)
        return seen[key]

    best, best_rate = dict(start), measured(start)
    improved = True
    while improved:
        improved = False
        for knob, values in knobs.items():
            for value in values:
                trial = dict(best, **{knob: value})
                if measured(trial) > best_rate * GAIN:
                    best, best_rate, improved = trial, measured(trial), True
    return best, [{"config": dict(key), "tokens_per_second": value} for key, value in seen.items()]


def tune(engine, model, test, moe, repeats=2):
    """The best flags of an engine for one test."""
    # Flags of the context first: they need no new load.
    knobs = knobs_for(engine.name, test, moe)
    order = sorted(knobs, key=lambda knob: knobs[knob][1] == "model")

    start = defaults(engine.name)

    def rate(config):
        try:
            engine.prepare(model, test, config)
            # Long prompts are their own warm-up.
            runs = [engine.run(test)[0] for _ in range(1 if test.count > 2048 else repeats + 1)]
        except BenchError:
            if config == start:
                raise
            engine.close()  # a combination that does not work: slower than any
            return 0.0
        return test.tokens / min(runs)

    return search(start, {knob: knobs[knob][0] for knob in order}, rate)


class Memory:
    """Flags found earlier, in a file."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            self.found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.found = {}

    @staticmethod
    def key(engine, model_info, isa, threads, test):
        return "|".join(map(str, (engine.name, engine.version, isa, threads, model_info["file"],
                                  model_info["file_bytes"], test)))

    def get(self, key):
        return self.found.get(key)

    def put(self, key, config):
        self.found[key] = config
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.found, indent=1) + "\n")
