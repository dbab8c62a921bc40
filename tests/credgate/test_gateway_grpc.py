"""gRPC through the gateway: real clients and servers, with methods judged by their paths, and trailers passed on."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from tests.credgate.gateway_rig import SECRET, Rig, rig
from tests.targets.pki import Authority as TargetCa

BIG = b"x" * (1 << 20)


class Echo(grpc.GenericRpcHandler):
    """/ok/One and /ok/Many; keeps the authorization of each call."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        self.seen += [value for name, value in details.invocation_metadata if name == "authorization"]
        match details.method:
            case "/ok/One":
                return grpc.unary_unary_rpc_method_handler(self._one)
            case "/ok/Many":
                return grpc.stream_stream_rpc_method_handler(self._many)
        return None

    def _one(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata([("x-sum", str(len(request)))])
        if request == b"fail":
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as asked")
        return request

    def _many(self, requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests


def serve(ca: TargetCa, echo: Echo) -> tuple[grpc.Server, int]:
    pair = ca.issue("h2.good.test")
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([echo])
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, port


def channel(r: Rig) -> grpc.Channel:
    options = [("grpc.http_proxy", f"http://127.0.0.1:{r.proxy}"), ("grpc.enable_http_proxy", 1)]
    credentials = grpc.ssl_channel_credentials(r.ca.read_bytes())
    return grpc.secure_channel(f"h2.good.test:{r.direct}", credentials, options)


def calls(r: Rig, work: Callable[[grpc.Channel], None]) -> None:
    with channel(r) as c:
        work(c)


@pytest.mark.parametrize("size", [0, 5, len(BIG)])
def test_a_grpc_echo(size: int, tmp_path: Path) -> None:
    ca, echo = TargetCa(tmp_path, "targets"), Echo()
    server, port = serve(ca, echo)

    def work(c: grpc.Channel) -> None:
        one = c.unary_unary("/ok/One")
        for _ in range(2):
            answer, call = one.with_call(BIG[:size], timeout=60)
            assert answer == BIG[:size]
            assert ("x-sum", str(size)) in call.trailing_metadata()
        with pytest.raises(grpc.RpcError) as told:
            one(b"fail", timeout=60)
        assert told.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert told.value.details() == "as asked"

    async def main() -> None:
        async with rig(tmp_path, test_ca=ca, h2_port=port) as r:
            await asyncio.to_thread(calls, r, work)
            assert echo.seen == ["Bearer " + SECRET] * 3
            assert [i["path"] for i in r.records("intent")] == ["/ok/One"] * 3
            assert {o["status"] for o in r.records("outcome")} == {200}

    asyncio.run(main())
    server.stop(None).wait()


def test_a_stream_in_both_directions(tmp_path: Path) -> None:
    ca, echo = TargetCa(tmp_path, "targets"), Echo()
    server, port = serve(ca, echo)

    def work(c: grpc.Channel) -> None:
        got: list[bytes] = []

        def questions() -> Iterator[bytes]:
            for n in range(20):  # each waits for the answer to the one before
                while len(got) < n:
                    time.sleep(0.001)
                yield b"%d" % n

        for answer in c.stream_stream("/ok/Many")(questions(), timeout=60):
            got.append(answer)  # noqa: PERF402 - the questions look at it
        assert got == [b"%d" % n for n in range(20)]

    async def main() -> None:
        async with rig(tmp_path, test_ca=ca, h2_port=port) as r:
            await asyncio.to_thread(calls, r, work)
            assert len(r.records("intent")) == 1

    asyncio.run(main())
    server.stop(None).wait()


def test_a_method_that_no_rule_allows(tmp_path: Path) -> None:
    ca, echo = TargetCa(tmp_path, "targets"), Echo()
    server, port = serve(ca, echo)

    def work(c: grpc.Channel) -> None:
        with pytest.raises(grpc.RpcError) as told:
            c.unary_unary("/admin/One")(b"x", timeout=60)
        assert told.value.code() is grpc.StatusCode.PERMISSION_DENIED  # what gRPC makes of a 403

    async def main() -> None:
        async with rig(tmp_path, test_ca=ca, h2_port=port) as r:
            await asyncio.to_thread(calls, r, work)
            assert echo.seen == []
            assert r.reasons() == ["no_rule"]

    asyncio.run(main())
    server.stop(None).wait()
