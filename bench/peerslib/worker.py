"""Drives llama.cpp or ik_llama.cpp through the ctypes bindings of its Python package; runs inside the package's venv.

    worker.py ENGINE MODEL 'JSON'     ENGINE: llama.cpp or ik_llama.cpp; JSON: {"threads": 2, "repack": 1, ...}

Does what the engine's own llama-bench does (load once; random tokens; the KV cache emptied before each test; logits of
the last token of a batch only; no sampling), but one test at a time, on request, so that engines can take turns:

    info {...}          first, once: versions and what the library says about the CPU features it was built for
    ready               then; from here on each line of standard input gets one line in answer
    ctx JSON            a new context: {"n_ctx": 768, "fa": 1, "ub": 512, "fmoe": 1, "seqs": 1}  ->  ctx ok
    pp N [DEPTH]        decode N random tokens in batches of up to 2048               ->  pp N SECONDS
    tg N [DEPTH [S]]    decode N single tokens, one of each of S sequences at a time  ->  tg N SECONDS
                        (with DEPTH other tokens in the context before, which are not timed)
    quit                end
    (a failure)                                                                       ->  error TEXT

Everything the libraries print goes to standard error.
"""
import ctypes
import json
import os
import random
import sys
import time

N_BATCH = 2048


def set_fields(struct, **fields):
    """Sets the fields that this version of the struct has; returns the names of the others."""
    known = {field[0] for field in struct._fields_}
    for name, value in fields.items():
        if name in known:
            setattr(struct, name, value)
    return set(fields) - known


class LlamaCpp:
    def __init__(self, settings):
        import llama_cpp
        from llama_cpp import llama_cpp as api
        self.api = api
        self.version = "llama-cpp-python " + llama_cpp.__version__
        api.llama_backend_init()
        self.system = api.llama_print_system_info().decode()
        self.settings = settings

    def load(self, path):
        params = self.api.llama_model_default_params()
        set_fields(params, n_gpu_layers=0, use_extra_bufts=bool(self.settings.get("repack", 1)))
        mmap = bool(self.settings.get("mmap", 0))
        if set_fields(params, load_mode=1 if mmap else 0) and set_fields(params, use_mmap=mmap):
            raise RuntimeError("this llama-cpp-python has neither load_mode nor use_mmap")
        self.model = self.api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise RuntimeError("the model cannot be loaded")
        return self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def context(self, want, threads):
        params = self.api.llama_context_default_params()
        set_fields(params, n_ctx=want["n_ctx"], n_batch=N_BATCH, n_ubatch=want["ub"], n_threads=threads,
                   n_threads_batch=threads, no_perf=True)
        seqs = want.get("seqs", 1)
        if seqs > 1 and set_fields(params, n_seq_max=seqs):
            raise RuntimeError("this llama-cpp-python does not know n_seq_max")
        flash = want["fa"]
        if set_fields(params, flash_attn_type=flash) and set_fields(params, flash_attn=bool(flash)):
            raise RuntimeError("this llama-cpp-python has neither flash_attn_type nor flash_attn")
        return self.api.llama_init_from_model(self.model, params)

    def clear(self, ctx):
        self.api.llama_memory_clear(self.api.llama_get_memory(ctx), False)

    def synchronize(self, ctx):
        self.api.llama_synchronize(ctx)


class IkLlamaCpp:
    def __init__(self, settings):
        import ik_llama_cpp
        from ik_llama_cpp import _ctypes_api as api
        self.api = api
        self.version = "ik-llama-cpp-python " + getattr(ik_llama_cpp, "__version__", "")
        self.lib = api._lib
        self.lib.llama_print_system_info.restype = ctypes.c_char_p
        self.lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        api.llama_backend_init()
        self.system = self.lib.llama_print_system_info().decode()
        self.settings = settings

    def load(self, path):
        params = self.api.llama_model_default_params()
        missing = set_fields(params, n_gpu_layers=0, use_mmap=bool(self.settings.get("mmap", 0)),
                             repack_tensors=bool(self.settings.get("rtr", 1)),
                             merge_up_gate_exps=bool(self.settings.get("muge", 0)))
        if missing:
            raise RuntimeError(f"this ik-llama-cpp-python does not know {sorted(missing)}")
        self.model = self.api.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise RuntimeError("the model cannot be loaded")
        return self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self.model))

    def context(self, want, threads):
        params = self.api.llama_context_default_params()
        missing = set_fields(params, n_ctx=want["n_ctx"], n_batch=N_BATCH, n_ubatch=want["ub"], n_threads=threads,
                             n_threads_batch=threads, flash_attn=bool(want["fa"]),
                             fused_moe_up_gate=bool(want["fmoe"]))
        seqs = want.get("seqs", 1)
        missing |= set_fields(params, n_seq_max=seqs) if seqs > 1 else set()
        if missing:
            raise RuntimeError(f"this ik-llama-cpp-python does not know {sorted(missing)}")
        return self.api.llama_init_from_model(self.model, params)

    def clear(self, ctx):
        self.api.llama_kv_cache_clear(ctx)

    def synchronize(self, ctx):
        self.lib.llama_synchronize(ctx)


class Bench:
    """One context and the two tests on it."""

    def __init__(self, engine, n_vocab, threads):
        self.engine, self.api, self.threads = engine, engine.api, threads
        self.random = random.Random(1)
        self.n_vocab = n_vocab
        self.ctx = None
        self.batch = self.api.llama_batch_init(N_BATCH, 0, 1)

    def new_context(self, want):
        if self.ctx:
            self.api.llama_free(self.ctx)
        self.ctx = self.engine.context(want, self.threads)
        if not self.ctx:
            raise RuntimeError(f"no context with {want}")

    def decode(self, tokens, start, seq=0):
        """Tokens of one sequence from position `start` on, with logits for the last one."""
        self.submit([(token, start + i, seq, i + 1 == len(tokens)) for i, token in enumerate(tokens)])

    def submit(self, rows):
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, seq, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq
            batch.logits[i] = logits
        status = self.api.llama_decode(self.ctx, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def tokens(self, count):
        return [self.random.randrange(self.n_vocab) for _ in range(count)]

    def streams(self, count, depth, seqs):
        """Seconds of `count` passes with one token of each of `seqs` sequences."""
        self.engine.clear(self.ctx)
        for seq in range(seqs):
            tokens = self.tokens(depth)
            for at in range(0, depth, N_BATCH):
                self.decode(tokens[at:at + N_BATCH], at, seq)
        self.engine.synchronize(self.ctx)
        tokens = [self.tokens(seqs) for _ in range(count)]
        start = time.perf_counter()
        for i, row in enumerate(tokens):
            self.submit([(token, depth + i, seq, True) for seq, token in enumerate(row)])
            self.engine.synchronize(self.ctx)
        return time.perf_counter() - start

    def test(self, kind, count, depth):
        """Seconds of one test: 'pp' all tokens in batches, 'tg' one by one."""
        tokens = self.tokens(depth + count)
        step = N_BATCH if kind == "pp" else 1
        self.engine.clear(self.ctx)
        for at in range(0, depth, N_BATCH):
            self.decode(tokens[at:min(at + N_BATCH, depth)], at)
        self.engine.synchronize(self.ctx)
        start = time.perf_counter()
        for at in range(depth, depth + count, step):
            self.decode(tokens[at:at + step], at)
            if step == 1:
                self.engine.synchronize(self.ctx)
        self.engine.synchronize(self.ctx)
        return time.perf_counter() - start


def serve(bench, say):
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            if word == "quit":
                break
            if word == "ctx":
                bench.new_context(json.loads(rest))
                say("ctx ok")
            elif word in ("pp", "tg"):
                numbers = list(map(int, rest.split()))
                count, depth, seqs = numbers + [0, 1][len(numbers) - 1:]
                seconds = bench.streams(count, depth, seqs) if seqs > 1 else bench.test(word, count, depth)
                say(f"{word} {count} {seconds:.6f}")
            else:
                say("error unknown command " + word)
        except Exception as error:  # reported to the driver, which decides
            say("error " + str(error).replace("\n", " "))


def main():
    name, path, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    # Standard output belongs to the protocol; whatever the libraries print there must not get in between.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(line):
        out.write(line + "\n")
        out.flush()

    try:
        engine = {"llama.cpp": LlamaCpp, "ik_llama.cpp": IkLlamaCpp}[name](settings)
        with open("/proc/self/statm") as statm:
            before = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        bench = Bench(engine, engine.load(path), settings["threads"])
        say("info " + json.dumps({"version": engine.version, "system": engine.system, "rss_before_load": before}))
        say("ready")
    except Exception as error:
        say("error " + str(error).replace("\n", " "))
        return 1
    serve(bench, say)
    return 0


if __name__ == "__main__":
    # No interpreter shutdown: the libraries' destructors have nothing to say any more.
    status = main()
    sys.stderr.flush()
    os._exit(status)
