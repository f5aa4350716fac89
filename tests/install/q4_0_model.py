#!/usr/bin/env python3
"""Makes a Q4_0 model to run a Q4_0 kernel with: q4_0_model.py IN.gguf OUT.gguf

Q4_K and Q4_0 take the same room (144 bytes for 256 columns), so that the type of a tensor can be changed in place. The
new weights are random, from a fixed seed: the text is nonsense, but the same nonsense with every kernel."""
import random
import struct
import sys

Q4_0, Q4_K = 2, 12
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


def main():
    data = bytearray(open(sys.argv[1], "rb").read())
    at = 8
    n_tensors, n_keys = struct.unpack_from("<QQ", data, at)
    at += 16
    alignment = 32

    def skip(at, kind):
        if kind == STRING:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind != ARRAY:
            return at + SIZES[kind]
        item, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = skip(at, item)
        return at

    for _ in range(n_keys):
        n = struct.unpack_from("<Q", data, at)[0]
        key = bytes(data[at + 8:at + 8 + n]).decode()
        at += 8 + n
        kind = struct.unpack_from("<I", data, at)[0]
        if key == "general.alignment":
            alignment = struct.unpack_from("<I", data, at + 4)[0]
        at = skip(at + 4, kind)
    changed = []
    for _ in range(n_tensors):
        at = skip(at, STRING)
        n_dims = struct.unpack_from("<I", data, at)[0]
        dims = struct.unpack_from("<%dQ" % n_dims, data, at + 4)
        at += 4 + 8 * n_dims
        kind, offset = struct.unpack_from("<IQ", data, at)
        if kind == Q4_K:
            struct.pack_into("<I", data, at, Q4_0)
            size = 18
            for d in dims:
                size *= d
            changed.append((offset, size // 32))
        at += 12
    base = (at + alignment - 1) // alignment * alignment
    rng = random.Random(3)
    scales = [struct.pack("<e", s / 1000) for s in range(1, 17)]
    for offset, size in changed:
        blocks = size // 18
        codes = rng.randbytes(16 * blocks)
        data[base + offset:base + offset + size] = b"".join(
            scales[codes[16 * b] & 15] + codes[16 * b:16 * b + 16] for b in range(blocks))
    open(sys.argv[2], "wb").write(data)


main()
