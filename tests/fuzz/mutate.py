"""Bytes that are nearly HTTP. Seeded: the same seed gives the same cases."""

from random import Random

TOKENS: tuple[bytes, ...] = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\x00", b"\x0b", b"\x7f", b"\xff", b":", b";", b",", b"="),
    *(b"Content-Length: 0\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil.test\r\n"),
    *(b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Connection: content-length\r\n", b" folded\r\n"),
    *(
        b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\n",
        b"Authorization: Bearer mine\r\n",
        b"Keep-Alive: timeout=1\r\n",
    ),
    *(
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffffffffffff\r\n",
        b"0;a=b\r\n",
        b"0\r\nX: y\r\n\r\n",
        b"-1",
        b"+5",
        b"0x5",
    ),
    *(
        b"GET /ok/a HTTP/1.1\r\n",
        b"POST /ok/b HTTP/1.1\r\n",
        b"GET http://evil.test/ HTTP/1.1\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
    ),
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 304 Same\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ),
    *(b"/../", b"%2e%2e", b"%2f", b"//", b"/ok/mint/x", b"?", b"#", b"@", b"a" * 300, b"X: " + b"b" * 70_000),
)


def mutated(rng: Random, data: bytes, other: bytes) -> bytes:
    """A few changes; `other` is a second seed to splice with."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((0, 1, 1, 2, 4, 16)))
        match rng.randrange(7):
            case 0:
                data = data[:at] + rng.choice(TOKENS) + data[at:]
            case 1:
                data = data[:at] + rng.choice(TOKENS) + data[to:]
            case 2:
                data = data[:at] + data[to:]
            case 3:
                data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
            case 4:
                data = data[:at] + data[at:to] * rng.randrange(2, 5) + data[to:]
            case 5:
                data = data[:at] + other[rng.randrange(len(other) + 1) :]
            case _:
                data = lines_changed(rng, data)
    return data


def lines_changed(rng: Random, data: bytes) -> bytes:
    """Move, double or drop a line."""
    lines = data.split(b"\r\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines[one], lines[two] = lines[two], lines[one]
        case 1:
            lines.insert(one, lines[two])
        case _:
            del lines[one]
    return b"\r\n".join(lines)


def pieces(rng: Random, data: bytes) -> list[bytes]:
    """The data in up to five parts; mostly in one."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 2, 4))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def frames_changed(rng: Random, data: bytes) -> bytes:
    """HTTP/2 behind the preface: frames dropped, doubled, moved, and their headers and payloads changed."""
    frames, at = [], 0
    while at + 9 <= len(data):
        end = at + 9 + int.from_bytes(data[at : at + 3])
        frames.append(data[at:end])
        at = end
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        if not frames:
            break
        n = rng.randrange(len(frames))
        frame = bytearray(frames[n])
        match rng.randrange(6):
            case 0:
                frames.insert(n, frames[n])
            case 1:
                del frames[n]
            case 2:
                frame[rng.randrange(9)] = rng.randrange(256)
                frames[n] = bytes(frame)
            case 3:
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
                frames[n] = bytes(frame)
            case 4:
                payload = bytes(frame[9:]) + rng.randbytes(rng.randrange(20))
                frames[n] = len(payload).to_bytes(3) + bytes(frame[3:9]) + payload
            case _:
                frames.insert(n, frames[rng.randrange(len(frames))])
    return b"".join(frames)
