"""loop.py STOP [LINES]: an event loop with timers, streams over a pair of sockets and calls from
another thread; each line says what came of a round. Until STOP is there, or so many lines. While
STOP.pause is there it has only timers: nothing moves through its sockets.
"""

import os
import socket
import sys
import zlib

# Its libraries are larger than all the rest, and nothing here is encrypted.
sys.modules["ssl"] = None  # type: ignore[assignment]
import asyncio  # noqa: E402


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What comes goes back, to its end."""
    while data := await reader.readline():
        writer.write(b"%08x\n" % zlib.crc32(data))
        await writer.drain()


async def main() -> None:
    """Rounds of one message each."""
    loop = asyncio.get_running_loop()
    ends = socket.socketpair()
    far = await asyncio.open_connection(sock=ends[1])
    task = loop.create_task(echo(*far))
    reader, writer = await asyncio.open_connection(sock=ends[0])
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    number = 0
    while number != lines and not (lines < 0 and os.path.exists(sys.argv[1])):
        while os.path.exists(sys.argv[1] + ".pause"):
            await asyncio.sleep(0.05)
        number += 1
        # By a thread: it wakes the loop through a pair of sockets of its own.
        squared = await loop.run_in_executor(None, pow, number, 3)
        writer.write(b"%d\n" % squared)
        answer = await asyncio.wait_for(reader.readline(), 600)
        await asyncio.sleep(0.02)
        print(number, answer.decode().strip(), "end", flush=True)
    task.cancel()


asyncio.run(main())
