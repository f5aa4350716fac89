"""The CLBREF1 file: token ids and float32 logits of a few prompts, little-endian.

    "CLBREF1\\0"  u32 n_prompts  then per prompt: u32 n_tokens, u32 n_vocab, i32 ids[n_tokens],
    f32 logits[n_tokens][n_vocab]

Needs: pip install numpy
"""
import struct

import numpy as np

MAGIC = b"CLBREF1\0"


def write(path, prompts):
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<I", len(prompts)))
        for ids, logits in prompts:
            ids, logits = np.asarray(ids, dtype="<i4"), np.asarray(logits, dtype="<f4")
            assert logits.ndim == 2 and len(ids) == len(logits)
            f.write(struct.pack("<II", *logits.shape) + ids.tobytes() + logits.tobytes())


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == MAGIC
    (count,), at, out = struct.unpack_from("<I", data, 8), 12, []
    for _ in range(count):
        n, vocab = struct.unpack_from("<II", data, at)
        ids = np.frombuffer(data, "<i4", n, at + 8)
        logits = np.frombuffer(data, "<f4", n * vocab, at + 8 + 4 * n).reshape(n, vocab)
        at += 8 + 4 * n + 4 * n * vocab
        out.append((ids, logits))
    assert at == len(data)
    return out
