"""How many bytes of weights a token reads, from the headers of a GGUF model."""
import json
import math
import re
import struct
from pathlib import Path

# ggml type number: values per block, bytes per block
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17),
}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# Tables of which a token uses one row.
LOOKUPS = ("token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")


class Reader:
    def __init__(self, file):
        self.file = file

    def bytes(self, count):
        data = self.file.read(count)
        if len(data) != count:
            raise ValueError("the file ends within its header")
        return data

    def scalar(self, kind):
        return struct.unpack(SCALARS[kind], self.bytes(struct.calcsize(SCALARS[kind])))[0]

    def string(self):
        return self.bytes(self.scalar(10)).decode(errors="replace")

    def value(self, kind):
        """A value; of arrays only the length, which is all that is needed."""
        if kind == 8:
            return self.string()
        if kind != 9:
            return self.scalar(kind)
        inner, count = self.scalar(4), self.scalar(10)
        if inner in SCALARS:
            self.file.seek(count * struct.calcsize(SCALARS[inner]), 1)
        else:
            for _ in range(count):
                self.value(inner)
        return count


def tensor_bytes(kind, dims):
    if kind not in BLOCKS:
        raise ValueError(f"tensor type {kind} is not known here")
    values, size = BLOCKS[kind]
    return math.prod(dims) // values * size


def read_header(path):
    """Metadata and tensors (name -> (type, dims, offset)) of one file."""
    with open(path, "rb") as file:
        reader = Reader(file)
        magic, version, tensors, pairs = struct.unpack("<4sIQQ", reader.bytes(24))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        meta = {}
        for _ in range(pairs):
            key = reader.string()
            meta[key] = reader.value(reader.scalar(4))
        found = {}
        for _ in range(tensors):
            name = reader.string()
            dims = [reader.scalar(10) for _ in range(reader.scalar(4))]
            kind, offset = reader.scalar(4), reader.scalar(10)
            found[name] = (kind, dims, offset)
    return meta, found


def parts(path):
    """All files of a split model, given its first; else the file alone."""
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", Path(path).name)
    if not match:
        return [Path(path)]
    return [Path(path).with_name(f"{match[1]}-{i:05d}-of-{match[2]}.gguf") for i in range(1, int(match[2]) + 1)]


def weights(meta, tensors):
    """(bytes of all weights, bytes that one token reads)."""
    arch = meta.get("general.architecture", "")
    experts, used = meta.get(arch + ".expert_count", 0), meta.get(arch + ".expert_used_count", 0)
    total = active = 0
    for name, (kind, dims, _) in tensors.items():
        size = tensor_bytes(kind, dims)
        total += size
        if "_exps." in name and experts:
            size = size * used // experts
        elif name in LOOKUPS and not (name == "token_embd.weight" and "output.weight" not in tensors):
            size = size // dims[-1]
        active += size
    return total, active


def describe(path):
    """What the report says about a model; the generator's FILE.json wins for active_bytes."""
    meta, tensors, size = {}, {}, 0
    for part in parts(path):
        more, found = read_header(part)
        meta = meta or more
        tensors.update(found)
        size += part.stat().st_size
    total, active = weights(meta, tensors)
    info = {"file": Path(path).name, "file_bytes": size, "tensor_bytes": total, "active_bytes": active,
            "architecture": meta.get("general.architecture", "unknown"), "random_weights": False,
            "moe": any("_exps." in name for name in tensors)}
    side = Path(str(path) + ".json")
    if side.exists():
        told = json.loads(side.read_text())
        if isinstance(told.get("active_bytes"), int):
            info["active_bytes"] = told["active_bytes"]
            info["random_weights"] = True
    return info
