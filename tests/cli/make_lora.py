"""Writes a LoRA adapter (GGUF, F32) for the query weights of the first two layers: make_lora.py OUT ARCH N_IN N_OUT [SEED [RANK]]
Ranks from 1024 on: zeros, as a hole in the file."""
import random
import struct
import sys


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def main():
    path, arch, n_in, n_out = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    rank = int(sys.argv[6]) if len(sys.argv) > 6 else 2
    tensors = []
    for layer in range(2):
        tensors.append((f"blk.{layer}.attn_q.weight.lora_a", (n_in, rank)))
        tensors.append((f"blk.{layer}.attn_q.weight.lora_b", (rank, n_out)))
    keys = [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch), ("general.name", "caf\u00e9")]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys) + 1)
    for key, value in keys:
        head += text(key) + struct.pack("<I", 8) + text(value)
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, 8.0)
    offset, data = 0, b""
    for name, shape in tensors:
        n = shape[0] * shape[1]
        head += text(name) + struct.pack("<IQQIQ", 2, *shape, 0, offset)
        size = 4 * n + -4 * n % 32
        if rank < 1024:
            data += struct.pack(f"<{n}f", *(rng.uniform(-1, 1) for _ in range(n))).ljust(size, b"\0")
        offset += size
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % 32) + data)
        out.truncate(len(head) + -len(head) % 32 + offset)


main()
