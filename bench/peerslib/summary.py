"""Numbers out of samples, and the report as Markdown."""
from statistics import median


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values)}


def ratios(ours, theirs):
    """Ratios of the same round: what disturbed both cancels out."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError("ratios need samples of the same rounds")
    return spread([a / b for a, b in zip(ours, theirs)])


def is_single(test):
    """One token after the other of one sequence: what is read for each is known."""
    return test.startswith("tg") and "x" not in test


def summarize(test, samples, bandwidth, active_bytes, first, peers):
    """The result of one test.

    samples: engine -> tokens per second, one for each round; bandwidth: bytes per second of the same rounds or empty;
    first: the engines whose ratios are wanted (Colibri, or several builds of it); peers: what they are compared with.
    """
    result = {"test": test, "rounds": len(next(iter(samples.values()))), "engines": {}, "ratios": {}}
    for name, rates in samples.items():
        result["engines"][name] = {"samples_ts": rates, "tokens_per_second": spread(rates)}
        if is_single(test) and bandwidth:
            share = [rate * active_bytes / speed for rate, speed in zip(rates, bandwidth)]
            result["engines"][name]["bandwidth_share"] = spread(share)
    if bandwidth:
        result["bandwidth"] = {"samples": bandwidth, "bytes_per_second": spread(bandwidth)}
        if is_single(test):
            result["bandwidth_limit_ts"] = median(bandwidth) / active_bytes
    for name in first:
        others = [other for other in samples if other != name and (other in peers or other in first)]
        result["ratios"][name] = {other: ratios(samples[name], samples[other]) for other in others}
    rivals = [peer for peer in peers if peer in samples and peer not in first]
    if rivals:
        result["better_peer"] = max(rivals, key=lambda peer: median(samples[peer]))
    return result


def times(ratio):
    return f"{ratio['median']:.2f}× ({ratio['min']:.2f}..{ratio['max']:.2f})"


def rate(values):
    digits = 1 if values["median"] >= 10 else 2
    return f"{values['median']:.{digits}f} ({values['min']:.{digits}f}..{values['max']:.{digits}f})"


def gigabytes(count):
    return f"{count / 1e9:.2f} GB"


def flags(config):
    return " ".join(f"{key}={value}" for key, value in sorted(config.items())) or "defaults"


def table(head, rows):
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(row) + " |" for row in rows]


def overview(report, first):
    rows = []
    for model in report["models"]:
        for test in model["tests"]:
            best = test.get("better_peer")
            row = [model["file"], test["test"]]
            for name in first:
                row.append(rate(test["engines"][name]["tokens_per_second"]) if name in test["engines"] else "failed")
            row.append(f"{best}: {rate(test['engines'][best]['tokens_per_second'])}" if best else "none")
            for name in first:
                row.append(times(test["ratios"][name][best]) if best and name in test["ratios"] else "–")
                share = test["engines"].get(name, {}).get("bandwidth_share")
                row.append(f"{100 * share['median']:.0f} %" if share else "–")
            rows.append(row)
    head = ["model", "test", *[f"{name} t/s" for name in first], "better peer t/s"]
    for name in first:
        head += [f"{name} ÷ better peer", "of read bandwidth"]
    return table(head, rows)


def details(model, test, first):
    rows = []
    for name, engine in test["engines"].items():
        share = engine.get("bandwidth_share")
        memory = engine.get("memory", {})
        cells = [name, rate(engine["tokens_per_second"])]
        ratios_to_it = [test["ratios"].get(ours, {}).get(name) for ours in first]
        cells += [times(ratio) if ratio else "–" for ratio in ratios_to_it]
        cells += [f"{100 * share['median']:.0f} %" if share else "–",
                  gigabytes(memory["rss"]) if "rss" in memory else "–",
                  gigabytes(memory["peak"]) if "peak" in memory else "–",
                  f"{engine['load_seconds']:.1f} s" if "load_seconds" in engine else "–",
                  f"{100 * max(engine['foreign_load']):.0f} %" if engine.get("foreign_load") else "–",
                  flags(engine.get("config", {}))]
        rows.append(cells)
    head = ["engine", "t/s", *[f"{ours} ÷ it" for ours in first], "of bandwidth", "RSS", "peak RSS", "load",
            "others' load", "flags"]
    out = ["", f"### {model['file']}, {test['test']}, {test['rounds']} rounds", ""] + table(head, rows)
    if "bandwidth" in test:
        speed = test["bandwidth"]["bytes_per_second"]
        out += ["", f"Read bandwidth {speed['median'] / 1e9:.1f} GB/s ({speed['min'] / 1e9:.1f}.."
                    f"{speed['max'] / 1e9:.1f})" +
                (f"; at that speed {gigabytes(model['active_bytes'])} per token allow "
                 f"{test['bandwidth_limit_ts']:.1f} t/s." if "bandwidth_limit_ts" in test else ".")]
    return out


def markdown(report):
    first = report["first"]
    machine = report["machine"]
    out = ["# Colibri and its peers", "",
           f"{machine['cpu']}, {machine['threads']} threads on cores {','.join(map(str, machine['cores']))}; "
           f"Linux {machine['kernel']}, transparent huge pages {machine['huge_pages']}; {report['date']}.",
           f"Peers built for: {report['isa']}.", ""]
    out += [f"- {name}: {engine['version']}{' – ' + engine['system'] if engine.get('system') else ''}"
            for name, engine in report["engines"].items()]
    out += ["", "Medians of interleaved runs with their range; a ratio compares runs of the same round.", ""]
    out += overview(report, first)
    for model in report["models"]:
        note = "; random weights, so that experts are picked nearly uniformly" if model["random_weights"] else ""
        out += ["", f"## {model['file']}", "",
                f"{model['architecture']}, {gigabytes(model['file_bytes'])}, of which a token reads "
                f"{gigabytes(model['active_bytes'])} of weights{note}."]
        for test in model["tests"]:
            out += details(model, test, first)
    if report["warnings"]:
        out += ["", "## Warnings", ""] + [f"- {warning}" for warning in report["warnings"]]
    return "\n".join(out) + "\n"
