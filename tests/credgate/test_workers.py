"""The gateway in two processes: one judgement, one count, one ledger."""

import asyncio
from pathlib import Path

from tests.credgate.gateway_rig import rig


def test_smoke(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, processes=2) as r:
            clients = [await r.tunnel() for _ in range(8)]
            answers = [await c.get("/ok/a", f"api.good.test:{r.direct}") for c in clients]
            print([a.status for a in answers], r.gateway.workers.rows())
            answers = [await c.get("/no/a", f"api.good.test:{r.direct}") for c in clients]
            print([a.status for a in answers], r.gateway.workers.rows())
        for line in r.records(): print({k: v for k, v in line.items() if k in ("ev", "seq", "reason", "intent_seq", "detail")})
        print(r.run.allowed, r.run.denied)

    asyncio.run(main())
