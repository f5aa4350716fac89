"""HTTP/1.1 on asyncio's streams, as bare as a load test needs it: every byte that is sent is the caller's, replies may be read at any
speed, and a connection can be left in every way that clients leave one."""
import asyncio
import json
import socket
import struct


BEGINNING = 8192


class Broken(Exception):
    """The server closed the connection before its reply was complete."""


class Head:
    def __init__(self, status, fields):
        self.status, self.fields = status, fields

    def get(self, name, default=""):
        return self.fields.get(name.lower(), default)

    @property
    def stays_open(self):
        return self.get("connection").lower() != "close"


class Connection:
    """`window`: bytes that the socket and the reader may buffer, for clients that read slowly; 0: as usual."""

    def __init__(self, port):
        self.port, self.used, self.alive = port, 0, False

    @classmethod
    async def open(cls, port, window=0):
        self = cls(port)
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.setblocking(False)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if window:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        try:
            await asyncio.get_running_loop().sock_connect(s, ("127.0.0.1", port))
            self.reader, self.writer = await asyncio.open_connection(sock=s, limit=window or 1 << 22)
        except BaseException:
            s.close()
            raise
        self.alive = True
        return self

    async def send(self, data):
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError as e:
            self.alive = False
            raise Broken(f"sending: {e}") from e

    async def _bytes(self, n):
        try:
            return await self.reader.readexactly(n)
        except (asyncio.IncompleteReadError, OSError) as e:
            self.alive = False
            raise Broken(f"the connection ended inside a reply: {e}") from e

    async def _line(self):
        try:
            line = await self.reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as e:
            self.alive = False
            raise Broken(f"the connection ended before a line did: {e!r}") from e
        if not line.endswith(b"\r\n"):
            raise ValueError(f"a line that ends without CR: {line!r}")
        return line[:-2].decode("latin-1")

    async def head(self):
        """That of the next reply; 100 Continue is read over."""
        while True:
            first = await self._line()
            version, status, *_ = first.split(" ", 2)
            if version != "HTTP/1.1" or len(status) != 3:
                raise ValueError(f"a reply that begins with {first!r}")
            fields = {}
            while True:
                line = await self._line()
                if not line:
                    break
                name, _, value = line.partition(":")
                fields[name.strip().lower()] = value.strip()
            if status != "100":
                return Head(int(status), fields)

    async def pieces(self, head, most=1 << 16):
        """The body of the reply with this head, as it comes: its beginning in pieces of at most `most` bytes, the rest in large ones (a
        megabyte byte by byte would stop all other clients of this process)."""
        self.taken, self.most = 0, most
        if head.get("transfer-encoding").lower() == "chunked":
            while n := int((await self._line()).split(";")[0], 16):
                while n:
                    piece = await self._piece(n)
                    n -= len(piece)
                    yield piece
                if await self._bytes(2) != b"\r\n":
                    raise ValueError("a chunk that is longer than it says")
            if await self._line():
                raise ValueError("trailers")
        elif head.get("content-length"):
            left = int(head.get("content-length"))
            while left:
                piece = await self._piece(left)
                left -= len(piece)
                yield piece
        else:
            while piece := await self.reader.read(most):
                yield piece
            self.alive = False

    async def _piece(self, left):
        piece = await self._bytes(min(left, self.most if self.taken < BEGINNING else 1 << 16))
        if self.taken // 1024 != (self.taken + len(piece)) // 1024:
            await asyncio.sleep(0)
        self.taken += len(piece)
        return piece

    async def body(self, head):
        return b"".join([p async for p in self.pieces(head)])

    async def ask(self, data):
        """(head, body) of one request."""
        await self.send(data)
        head = await self.head()
        body = await self.body(head)
        self.used += 1
        self.alive = self.alive and head.stays_open
        return head, body

    def close(self, reset=False):
        if reset:
            if not self.writer.is_closing():
                s = self.writer.get_extra_info("socket")
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()
        self.alive = False

    def half_close(self):
        self.writer.write_eof()


def request(method, path, body=None, fields=()):
    """A request as bytes; body: bytes, or what becomes JSON."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += list(fields)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


async def get(port, path):
    c = await Connection.open(port)
    try:
        head, body = await c.ask(request("GET", path, fields=["Connection: close"]))
    finally:
        c.close()
    return head.status, body


class Events:
    """Takes a stream of server-sent events apart. `on_event(name, data)` is called for each."""

    def __init__(self, on_event):
        self.rest, self.on_event, self.comments = b"", on_event, 0

    def feed(self, piece):
        *blocks, self.rest = (self.rest + piece).split(b"\n\n")
        for block in blocks:
            name, data = None, None
            for line in block.split(b"\n"):
                if line.startswith(b":"):
                    self.comments += 1
                elif line.startswith(b"event: "):
                    name = line[7:].decode()
                elif line.startswith(b"data: ") and data is None:
                    data = line[6:].decode()
                else:
                    raise ValueError(f"not a line of an event: {line[:80]!r}")
            if data is not None:
                self.on_event(name, data)

    def finish(self):
        if self.rest:
            raise ValueError(f"the stream ends inside an event: {self.rest[:80]!r}")
