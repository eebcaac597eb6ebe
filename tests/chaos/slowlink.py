"""A link that can be slow: `python -m tests.chaos.slowlink PORT TARGET_PORT`, driven by lines on stdin.

A connection to 127.2.a.b is handed on to 127.1.a.b. `delay S` makes every piece of data take so many seconds
(with jitter, in order) from then on; `reset` ends all connections with a reset.
"""

import asyncio
import contextlib
import random
import socket
import struct
import subprocess
import sys

CONNECT_S = 2.0
PIECES_MAX = 256
"""Under way in one direction; more wait in the kernel."""

_RESET = struct.pack("ii", 1, 0)


class Link:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._delay_s = 0.0
        self._rng = random.Random(1)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str(writer.get_extra_info("sockname")[0]).replace("127.2.", "127.1.", 1)
        try:
            connecting = asyncio.open_connection(host, self._target_port)
            far_reader, far_writer = await asyncio.wait_for(connecting, CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            writer.close()
            return
        both = {writer, far_writer}
        self._open |= both
        try:
            await asyncio.gather(
                self._pump(reader, far_writer), self._pump(far_reader, writer),
                return_exceptions=True,
            )  # fmt: skip
        finally:
            self._open -= both
            for end in both:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)
        handing_on = asyncio.create_task(self._hand_on(pieces, sink))
        last_at = 0.0
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                last_at = max(last_at, loop.time() + self._delay_s * self._rng.uniform(0.5, 1.0))
                await pieces.put((last_at, data))
        await pieces.put((last_at, b""))
        await handing_on

    async def _hand_on(
        self, pieces: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        broken = False
        while True:
            at, data = await pieces.get()
            await asyncio.sleep(max(0.0, at - loop.time()))  # noqa: TID251 (it is the delay)
            if not data:
                break
            if not broken:
                try:
                    sink.write(data)
                    await sink.drain()
                except OSError:
                    broken = True
        sink.close()

    def obey(self, line: str) -> None:
        word, *rest = line.split()
        if word == "delay":
            self._delay_s = float(rest[0])
        else:
            for writer in list(self._open):
                sock = writer.get_extra_info("socket")
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()


async def serve(port: int, target_port: int) -> None:
    link = Link(target_port)
    server = await asyncio.start_server(link.accept, "0.0.0.0", port, backlog=256)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := await orders.readline():
        link.obey(line.decode())
    server.close()


class SlowLink:
    """The process, from the side of the harness."""

    def __init__(self, port: int, target_port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.slowlink", str(port), str(target_port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def delay(self, seconds: float) -> None:
        self._tell(f"delay {seconds}")

    def reset(self) -> None:
        self._tell("reset")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
