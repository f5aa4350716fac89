#!/usr/bin/env python3
"""Break a GGUF file in one precise way, for tests of refusals.

    edit_gguf.py IN OUT tensor-count N | key-count N | architecture NAME | pre NAME | u32 KEY VALUE |
                        key-name OLD NEW |
                        tensor-type NAME TYPE | tensor-name OLD NEW | tensor-offset NAME OFFSET | tensor-swap-dims NAME

Replacements keep every length, so that nothing else in the file moves: new names must be as long as the old ones.
"""
import struct
import sys

SCALAR = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class File:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = bytearray(f.read())
        self.at = 24
        n_tensors, n_keys = struct.unpack_from("<QQ", self.data, 8)
        self.keys, self.key_names = {}, {}
        for _ in range(n_keys):
            name = self.string()
            self.key_names[name] = self.at - len(name)
            kind = self.u32()
            self.keys[name] = (kind, self.at)
            self.skip(kind)
        self.tensors = {}
        for _ in range(n_tensors):
            start = self.at
            name = self.string()
            n_dims = self.u32()
            dims = self.at
            self.at += 8 * n_dims
            kind = self.at
            self.at += 4
            self.tensors[name] = dict(name=start + 8, dims=dims, n_dims=n_dims, type=kind, offset=self.at)
            self.at += 8

    def u32(self):
        self.at += 4
        return struct.unpack_from("<I", self.data, self.at - 4)[0]

    def u64(self):
        self.at += 8
        return struct.unpack_from("<Q", self.data, self.at - 8)[0]

    def string(self):
        n = self.u64()
        self.at += n
        return bytes(self.data[self.at - n:self.at]).decode()

    def skip(self, kind):
        if kind == 8:
            self.string()
        elif kind == 9:
            elem, n = self.u32(), self.u64()
            for _ in range(n):
                self.skip(elem)
        else:
            self.at += SCALAR[kind]

    def replace(self, at, new):
        self.data[at:at + len(new)] = new

    def set_string(self, key, new):
        kind, at = self.keys[key]
        n = struct.unpack_from("<Q", self.data, at)[0]
        assert kind == 8
        self.data[at:at + 8 + n] = struct.pack("<Q", len(new)) + new.encode()
        # what follows has moved: re-align the tensor data as the writer would have
        return len(new) - n


def main():
    source, target, what, *args = sys.argv[1:]
    f = File(source)
    header_end = f.at
    if what == "tensor-count":
        f.replace(8, struct.pack("<Q", int(args[0])))
    elif what == "key-count":
        f.replace(16, struct.pack("<Q", int(args[0])))
    elif what in ("architecture", "pre"):
        moved = f.set_string({"architecture": "general.architecture", "pre": "tokenizer.ggml.pre"}[what], args[0])
        align = 32
        old = -header_end % align
        new = -(header_end + moved) % align
        end = header_end + moved
        f.data[end:end + old] = bytes(new)
    elif what == "u32":
        kind, at = f.keys[args[0]]
        assert kind == 4
        f.replace(at, struct.pack("<I", int(args[1])))
    elif what == "key-name":
        assert len(args[0]) == len(args[1])
        f.replace(f.key_names[args[0]], args[1].encode())
    elif what == "tensor-type":
        f.replace(f.tensors[args[0]]["type"], struct.pack("<I", int(args[1])))
    elif what == "tensor-name":
        assert len(args[0]) == len(args[1])
        f.replace(f.tensors[args[0]]["name"], args[1].encode())
    elif what == "tensor-offset":
        f.replace(f.tensors[args[0]]["offset"], struct.pack("<Q", int(args[1])))
    elif what == "tensor-swap-dims":
        t = f.tensors[args[0]]
        dims = struct.unpack_from("<%dQ" % t["n_dims"], f.data, t["dims"])
        f.replace(t["dims"], struct.pack("<%dQ" % t["n_dims"], dims[1], dims[0], *dims[2:]))
    else:
        sys.exit("unknown edit " + what)
    with open(target, "wb") as out:
        out.write(f.data)


main()
