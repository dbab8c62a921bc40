"""Every place of a secret, through every way in: what the target got is the witness, and what it didn't get.

Each row says what is asked and what has to arrive. `policy explain` is asked the same, and has to say the same.
"""

import asyncio
import base64
import gzip
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from credgate.explain import as_json, as_text, explain
from credgate.runs import Listener, Run
from rules.load import load_policy
from rules.verdict import Allow
from tests.credgate.gateway_rig import SECRET, Client, Rig, listening, rig
from tests.credgate.h2_rig import H2Client

OTHER = SECRET[::-1]
ALPN = ("h2", "http/1.1")
DECOYS = {
    "ph-query": "qkey-decoyDecoyDecoyDecoyDecoy1",
    "ph-path": "110201543:AAdecoyDecoyDecoyDecoyDecoy",
    "ph-cookie": "ckie-decoyDecoyDecoyDecoyDecoy1",
    "ph-json": "json-decoyDecoyDecoyDecoyDecoy1",
    "ph-form": "form-decoyDecoyDecoyDecoyDecoy1",
    "ph-basic": "ghp_decoyDecoyDecoyDecoyDecoyDecoyDecoy1",
    "ph-scheme": "ghp_decoyDecoyDecoyDecoyDecoyDecoyDecoy2",
}
ALIEN = "qkey-alienAlienAlienAlienAlien1"  # of another run
PLACES = (  # name, place, the rule's path and more of it, format
    ("scheme", "header:x-odd", "/scheme", "", 'format = "Token token={{secret}}"'),
    ("basic", "basic", "/basic", "", 'format = "x-access-token:{{secret}}"'),
    ("user", "basic", "/user", "", 'format = "{{secret}}:"'),
    ("query", "query:api_key", "/query", "", ""),
    ("path", "path:token", "/{{token}}/sendMessage", "", 'format = "bot{{secret}}"'),
    ("cookie", "cookie:session", "/cookie", "", ""),
    ("json", "json:auth.token", "/json", 'body = {{ type = "json", max = "4KiB" }}', ""),
    ("form", "form:client_secret", "/form", 'body = {{ type = "form", max = "4KiB" }}', ""),
)


def rule(name: str, path: str, more: str) -> str:
    methods = '["POST"]' if "body" in more else '["GET", "POST"]'
    return f'[[endpoint.good.allow]]\nid = "{name}"\nmethods = {methods}\npaths = ["{path}"]\n{more}\n'


def binding(name: str, place: str, form: str, swap: bool) -> str:
    env = name.upper().replace("-", "_")
    mode = f'mode = "placeholder"\nplaceholder = {{{{ env = "{env}", shape = "{{{{30}}}}" }}}}\n' if swap else ""
    secret = "other" if swap else "token"
    at = f'endpoint = "good"\nrules = ["{name}"]\nplace = "{place}"'
    return f'[binding.{name}]\nsecret = "{secret}"\n{at}\n{form}\n{mode}'


def policy() -> str:
    rules, bindings, names = "", "", []
    for name, place, path, more, form in PLACES:
        for prefix, swap in (("", False), ("ph-", True)):
            if f"{prefix}{name}" == "ph-user":
                continue
            parts = path.split("/")
            moved = "/".join([*parts[:-1], f"ph-{parts[-1]}"]) if swap else path
            rules += rule(prefix + name, moved, more)
            bindings += binding(prefix + name, place, form, swap)
            names.append(prefix + name)
    role = f"[role.dev]\nbindings = {json.dumps(names)}\n"
    return HEAD + rules + rule("free", "/free", "") + bindings + role


HEAD = """
version = 1
default_role = "dev"
[secret.token]
source = "keyring:credgate/token"
[secret.other]
source = "keyring:credgate/other"
[endpoint.good]
host = "api.good.test"
port = {direct}
dial_port = {good}
address = ["127.0.0.1"]
ca = "{ca}"
alpn = ["h2", "http/1.1"]
"""
POLICY = policy()
JSON_TYPE = {"content-type": "application/json"}
FORM_TYPE = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """`{NAME}` in any part is the placeholder of binding NAME. `verdict` a rule's id, or a reason.

    `path` is what the ledger says, `target` and `body` what has to arrive ("" and b"": what was sent), `fields` which
    headers with which values ("" for none).
    """

    name: str
    target: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    verdict: str
    injected: str = ""
    sent: str = ""
    sent_body: str = ""
    path: str = ""
    quoted: tuple[str, ...] = ()  # bindings that the outcome names
    fields: dict[str, str] = field(default_factory=dict)


def swapped(name: str) -> str:
    return "{" + name.upper().replace("-", "_") + "}"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


FORBIDDEN = "placeholder_misplaced"
CASES = [
    Ask(
        name="scheme", target="/scheme", verdict="scheme", injected="scheme", fields={"x-odd": f"Token token={SECRET}"}
    ),
    Ask(
        name="scheme swapped",
        target="/ph-scheme",
        headers={"X-Odd": "anything {PH_SCHEME}", "Authorization": "Bearer mine"},
        verdict="ph-scheme",
        injected="ph-scheme",
        fields={"x-odd": f"Token token={OTHER}", "authorization": ""},
    ),
    Ask(
        name="basic as password",
        target="/basic",
        verdict="basic",
        injected="basic",
        fields={"authorization": "Basic " + b64(f"x-access-token:{SECRET}")},
    ),
    Ask(
        name="basic as user",
        target="/user",
        headers={"Authorization": "Bearer mine"},
        verdict="user",
        injected="user",
        fields={"authorization": "Basic " + b64(f"{SECRET}:")},
    ),
    Ask(name="query added", target="/query", verdict="query", injected="query", sent=f"/query?api_key={SECRET}"),
    Ask(
        name="query added behind others",
        target="/query?page=1&q=%20a+b",
        method="GET",
        verdict="query",
        injected="query",
        sent=f"/query?page=1&q=%20a+b&api_key={SECRET}",
    ),
    Ask(
        name="query replaced",
        target="/query?api_key=mine&page=1",
        verdict="query",
        injected="query",
        sent=f"/query?api_key={SECRET}&page=1",
    ),
    Ask(
        name="query, and other credentials",
        target="/query?token=mine&page=1;access_token=b&api_key",
        headers={"Authorization": "Bearer mine", "X-Api-Key": "mine", "Cookie": "session=mine"},
        verdict="query",
        injected="query",
        sent=f"/query?page=1&api_key={SECRET}",
        fields={"authorization": "", "x-api-key": "", "cookie": ""},
    ),
    Ask(name="query twice", target="/query?api_key=a&api_key=b", verdict="place_ambiguous"),
    Ask(name="query twice, once escaped", target="/query?api_key=a&api%5Fkey=b", verdict="place_ambiguous"),
    Ask(name="query alike", target="/query?API-KEY=a", verdict="place_ambiguous"),
    Ask(name="query alike in brackets", target="/query?api_key[]=a", verdict="place_ambiguous"),
    Ask(
        name="query swapped",
        target="/ph-query?a=1&api_key={PH_QUERY}&b=2",
        verdict="ph-query",
        injected="ph-query",
        sent=f"/ph-query?a=1&api_key={OTHER}&b=2",
    ),
    Ask(
        name="query without its placeholder",
        target="/ph-query?a=1&api_key=mine",
        verdict="ph-query",
        sent="/ph-query?a=1",
    ),
    Ask(name="query placeholder in another name", target="/ph-query?q={PH_QUERY}", verdict=FORBIDDEN),
    Ask(name="query placeholder twice", target="/ph-query?api_key={PH_QUERY}{PH_QUERY}", verdict=FORBIDDEN),
    Ask(name="query placeholder as a name", target="/ph-query?{PH_QUERY}=1", verdict=FORBIDDEN),
    Ask(name="query placeholder at another rule", target="/query?api_key={PH_QUERY}", verdict=FORBIDDEN),
    Ask(name="query placeholder in a header", target="/ph-query", headers={"X-K": "{PH_QUERY}"}, verdict=FORBIDDEN),
    Ask(name="query placeholder of another run", target="/ph-query?api_key={ALIEN}", verdict=FORBIDDEN),
    Ask(name="another run's in a free place", target="/free?x={ALIEN}", verdict=FORBIDDEN),
    Ask(
        name="path",
        target="/anything/sendMessage?x=1",
        verdict="path",
        injected="path",
        sent=f"/bot{SECRET}/sendMessage?x=1",
        path="/{path}/sendMessage",
    ),
    Ask(
        name="path swapped",
        target="/bot{PH_PATH}/ph-sendMessage",
        verdict="ph-path",
        injected="ph-path",
        sent=f"/bot{OTHER}/ph-sendMessage",
        path="/{ph-path}/ph-sendMessage",
    ),
    Ask(name="path with another's", target="/botmine/ph-sendMessage", verdict="foreign_credential"),
    Ask(name="path placeholder elsewhere", target="/free?u=bot{PH_PATH}", verdict=FORBIDDEN),
    Ask(name="path placeholder at another rule", target="/bot{PH_PATH}/sendMessage", verdict=FORBIDDEN),
    Ask(name="path of one segment more", target="/a/b/sendMessage", verdict="no_rule"),
    Ask(
        name="cookie added",
        target="/cookie",
        verdict="cookie",
        injected="cookie",
        fields={"cookie": f"session={SECRET}"},
    ),
    Ask(
        name="cookie among others",
        target="/cookie",
        headers={"Cookie": "theme=dark; session=mine; auth_token=b; a=0123456789abcdef; lang=en"},
        verdict="cookie",
        injected="cookie",
        fields={"cookie": f"theme=dark; lang=en; session={SECRET}"},
    ),
    Ask(name="cookie twice", target="/cookie", headers={"Cookie": "session=a; session=b"}, verdict="place_ambiguous"),
    Ask(
        name="cookie swapped",
        target="/ph-cookie",
        headers={"Cookie": "lang=en; session={PH_COOKIE}"},
        verdict="ph-cookie",
        injected="ph-cookie",
        fields={"cookie": f"lang=en; session={OTHER}"},
    ),
    Ask(
        name="cookie without its placeholder",
        target="/ph-cookie",
        headers={"Cookie": "lang=en; session=mine"},
        verdict="ph-cookie",
        fields={"cookie": "lang=en"},
    ),
    Ask(
        name="cookie placeholder in another cookie",
        target="/ph-cookie",
        headers={"Cookie": "other={PH_COOKIE}"},
        verdict=FORBIDDEN,
    ),
    Ask(
        name="json replaced",
        target="/json",
        headers=JSON_TYPE,
        body='{"b": 1, "auth" : {"token" : "mine", "x":[1, 2.0]}, "u":"\\u00e9é"}',
        verdict="json",
        injected="json",
        sent_body=f'{{"b": 1, "auth" : {{"token" : "{SECRET}", "x":[1, 2.0]}}, "u":"\\u00e9é"}}',
    ),
    Ask(
        name="json added",
        target="/json",
        headers=JSON_TYPE,
        body='{"a": 1}',
        verdict="json",
        injected="json",
        sent_body=f'{{"a": 1,"auth":{{"token":"{SECRET}"}}}}',
    ),
    Ask(
        name="json twice",
        target="/json",
        headers=JSON_TYPE,
        body='{"auth":{"token":1,"token":2}}',
        verdict="body_refused",
    ),
    Ask(name="json alike", target="/json", headers=JSON_TYPE, body='{"auth":{"Token":1}}', verdict="place_ambiguous"),
    Ask(name="json no object", target="/json", headers=JSON_TYPE, body='{"auth":"x"}', verdict="place_ambiguous"),
    Ask(name="json and query", target="/json?auth=1", headers=JSON_TYPE, body="{}", verdict="place_ambiguous"),
    Ask(
        name="json swapped",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"auth":{"token":"{PH_JSON}"},"q":"say {PH_JSON}"}',
        verdict="ph-json",
        injected="ph-json",
        quoted=("ph-json",),
        sent_body='{"auth":{"token":"' + OTHER + '"},"q":"say ' + DECOYS["ph-json"] + '"}',
    ),
    Ask(
        name="json without",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"q":"{PH_JSON}"}',
        verdict="ph-json",
        quoted=("ph-json",),
    ),
    Ask(
        name="json with another's",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"auth":{"token":"mine"}}',
        verdict="foreign_credential",
    ),
    Ask(
        name="json with another place's",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"auth":{"token":"{PH_FORM}"}}',
        verdict=FORBIDDEN,
    ),
    Ask(
        name="json with another run's",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"auth":{"token":"{ALIEN}"}}',
        verdict=FORBIDDEN,
    ),
    Ask(
        name="json placeholder twice",
        target="/ph-json",
        headers=JSON_TYPE,
        body='{"auth":{"token":"{PH_JSON}{PH_JSON}"}}',
        verdict=FORBIDDEN,
    ),
    Ask(
        name="form replaced",
        target="/form",
        headers=FORM_TYPE,
        body="grant_type=x&client_secret=mine&b=%20+",
        verdict="form",
        injected="form",
        sent_body=f"grant_type=x&client_secret={SECRET}&b=%20+",
    ),
    Ask(
        name="form added",
        target="/form",
        headers=FORM_TYPE,
        body="a=1",
        verdict="form",
        injected="form",
        sent_body=f"a=1&client_secret={SECRET}",
    ),
    Ask(
        name="form twice",
        target="/form",
        headers=FORM_TYPE,
        body="client_secret=1&client%5Fsecret=2",
        verdict="place_ambiguous",
    ),
    Ask(name="form alike", target="/form", headers=FORM_TYPE, body="client.secret=1", verdict="place_ambiguous"),
    Ask(
        name="form and query", target="/form?client_secret=1", headers=FORM_TYPE, body="a=1", verdict="place_ambiguous"
    ),
    Ask(name="form that is json", target="/form", headers=JSON_TYPE, body="a=1", verdict="body_refused"),
    Ask(
        name="form of semicolons", target="/form", headers=FORM_TYPE, body="a=1;client_secret=2", verdict="body_refused"
    ),
    Ask(
        name="form swapped",
        target="/ph-form",
        headers=FORM_TYPE,
        body="client_secret={PH_FORM}&a={PH_FORM}",
        verdict="ph-form",
        injected="ph-form",
        quoted=("ph-form",),
        sent_body=f"client_secret={OTHER}&a={DECOYS['ph-form']}",
    ),
    Ask(
        name="a placeholder quoted",
        target="/free",
        headers=JSON_TYPE,
        body='{"q":"my keys are {PH_QUERY} and {PH_PATH}"}',
        verdict="free",
        quoted=("ph-path", "ph-query"),
    ),
    Ask(
        name="another run's quoted",
        target="/free",
        headers=JSON_TYPE,
        body='{"q":"its key is {ALIEN}"}',
        verdict="free",
    ),
]


def filled(text: str) -> str:
    for name, decoy in DECOYS.items():
        text = text.replace(swapped(name), decoy)
    return text.replace("{ALIEN}", ALIEN)


@dataclass
class Got:
    status: int
    code: str
    target: str = ""
    body: str = ""
    fields: list[tuple[str, str]] = field(default_factory=list)


async def over_h1(case: Ask, client: Client, r: Rig) -> Got:
    body = filled(case.body).encode()
    lines = [f"{case.method} {filled(case.target)} HTTP/1.1", f"Host: api.good.test:{r.direct}"]
    lines += [f"{name}: {filled(value)}" for name, value in case.headers.items()]
    lines += [f"Content-Length: {len(body)}"] if body else []
    before = len(r.good.seen)
    answer = await client.ask("\r\n".join([*lines, "", ""]).encode() + body)
    if answer.status != 200:
        assert len(r.good.seen) == before
        return Got(answer.status, answer.code)
    seen = r.good.seen[-1]
    pairs = [line.partition(b": ") for line in seen.raw.split(b"\r\n")[1:] if line]
    return Got(
        200,
        "",
        seen.line.split()[1].decode(),
        seen.body.decode(),
        [(k.decode().lower(), v.decode("latin-1")) for k, _, v in pairs],
    )


async def over_h2(case: Ask, client: H2Client, r: Rig) -> Got:
    body = filled(case.body).encode()
    fields = [
        (b":method", case.method.encode()),
        (b":scheme", b"https"),
        (b":authority", f"api.good.test:{r.direct}".encode()),
        (b":path", filled(case.target).encode()),
        *((k.lower().encode(), filled(v).encode()) for k, v in case.headers.items()),
        *([(b"content-length", b"%d" % len(body))] if body else []),
    ]
    answer = await client.ask(fields, body)
    seen = [s for session in r.good.sessions for s in session.seen]
    if answer.status != 200:
        return Got(answer.status, json.loads(answer.body)["error"]["code"])
    last = seen[-1]
    return Got(
        200,
        "",
        last.values(b":path")[0].decode(),
        last.body.decode(),
        [(k.decode(), v.decode("latin-1")) for k, v in last.fields],
    )


def faults(case: Ask, got: Got, r: Rig) -> list[str]:
    record = r.records("intent", "deny")[-1]
    found: list[str] = []
    if got.status != 200:
        return [] if (got.code, record["reason"]) == (case.verdict, case.verdict) else [f"{case.name}: {got}"]
    sent_body = filled(case.sent_body or case.body)
    wanted = {
        "rule": (record["rule"], f"good.{case.verdict}"),
        "binding": (record.get("binding", ""), case.injected),
        "target": (got.target, filled(case.sent or case.target)),
        "path": (record["path"], case.path or filled(case.target).partition("?")[0]),
        "query names": (
            record.get("query_names", []),
            [p.partition("=")[0] for p in got.target.partition("?")[2].split("&") if p],
        ),
        "body": (got.body, sent_body),
        "quoted": (tuple(r.records("outcome")[-1].get("placeholder_skipped", ())), case.quoted),
        "length": (
            [v for k, v in got.fields if k == "content-length"],
            [str(len(sent_body.encode()))] if sent_body else [],
        ),
    }
    found += [f"{case.name}: {key}: {one!r}, not {other!r}" for key, (one, other) in wanted.items() if one != other]
    for name, value in case.fields.items():
        values = [v for k, v in got.fields if k == name]
        found += [] if values == ([value] if value else []) else [f"{case.name}: {name} {values}"]
    return found


async def other_run(r: Rig) -> None:
    sock = listening()
    alien = replace_run(r.run, "run-2", {"ph-query": ALIEN})
    await r.gateway.serve(alien, [Listener(sock=sock, port=sock.getsockname()[1], proxy=True)])


def replace_run(run: Run, name: str, decoys: dict[str, str]) -> Run:
    return Run(
        id=name, policy=run.policy, role=run.role, gateway_ip="127.0.0.98", proxy_port=1, decoys=decoys, proof="proof-2"
    )


@pytest.mark.parametrize("way", ["connect", "direct", "h2"])
def test_each_place(way: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            await other_run(r)
            found: list[str] = []
            for case in CASES:
                if way == "h2":
                    opened = await r.tunnel("api.good.test", r.direct, alpn=ALPN)
                    found += faults(case, await over_h2(case, H2Client(opened.reader, opened.writer), r), r)
                else:
                    client = await (r.tunnel("api.good.test", r.direct) if way == "connect" else r.tls())
                    found += faults(case, await over_h1(case, client, r), r)
            assert found == []
            ledger = b"".join(f.read_bytes() for f in r.ledger_dir.glob("*.jsonl"))
            for secret in (SECRET, OTHER, quote(SECRET)):
                assert secret.encode() not in ledger
            assert len(r.records("intent")) == sum(c.verdict in {n for n, *_ in all_rules()} for c in CASES)

    asyncio.run(main())


def all_rules() -> list[tuple[str]]:
    return [(name,) for name in re.findall(r'id = "([^"]+)"', POLICY)]


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, place, *_ in PLACES])
def test_explain_names_what_would_go_where(name: str, place: str) -> None:
    loaded = load_policy(POLICY.format(direct=443, good=443, ca="/ca.pem").encode(), packs={}, base_dir="/")
    path = {n: p for n, _, p, *_ in PLACES}[name].replace("{{token}}", "x")
    said = explain(loaded, "dev", "POST", f"https://api.good.test{path}")
    assert as_json(said)["inject"] == [
        {"place": place, "secret": "token", "binding": name, "mode": "overwrite", "injected": True}
    ]
    assert f"secret token into {place} (binding {name}, overwrite)" in as_text(said)


@pytest.mark.parametrize(
    ("path", "body", "verdict"),
    [
        ("/form", "a=1&client_secret=x", "good.form"),
        ("/form", '{"a": "="}', "body_refused"),
        ("/json", '{"a": "="}', "good.json"),
        ("/json", "a=1", "body_refused"),
        ("/ph-form", "client_secret={PH_FORM}", "good.ph-form"),
    ],
)
def test_explain_takes_a_body_for_what_it_looks_like(path: str, body: str, verdict: str) -> None:
    loaded = load_policy(POLICY.format(direct=443, good=443, ca="/ca.pem").encode(), packs={}, base_dir="/")
    said = as_json(explain(loaded, "dev", "POST", f"https://api.good.test{path}", body=body.encode()))
    assert verdict in (said["rule"], said["reason"])


def test_cookies_that_http2_spreads_are_one_list(tmp_path: Path) -> None:
    """RFC 9113 8.2.3; in HTTP/1.1 two Cookie headers have no one reading."""

    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            opened = await r.tunnel("api.good.test", r.direct, alpn=ALPN)
            fields = [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":authority", f"api.good.test:{r.direct}".encode()),
                (b":path", b"/cookie"),
                (b"cookie", b"lang=en"),
                (b"cookie", b"session=mine"),
            ]
            client = H2Client(opened.reader, opened.writer)
            assert (await client.ask(fields)).status == 200
            assert r.good.sessions[-1].seen[-1].values(b"cookie") == [f"lang=en; session={SECRET}".encode()]
            assert (await client.ask([*fields, (b"cookie", b"session=b")])).status == 403
            plain = await r.tunnel("api.good.test", r.direct)
            head = f"GET /cookie HTTP/1.1\r\nHost: api.good.test:{r.direct}\r\n"
            answer = await plain.ask(f"{head}Cookie: lang=en\r\nCookie: a=b\r\n\r\n".encode())
            assert (answer.status, answer.code) == (403, "place_ambiguous")

    asyncio.run(main())


def test_explain_agrees_with_the_table(tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            found = [d for case in CASES if "ALIEN" not in repr(case) for d in differs(case, r)]
            assert found == []

    asyncio.run(main())


def differs(case: Ask, r: Rig) -> list[str]:
    """What `policy explain` says otherwise. It knows of no other run."""
    said = explain(
        r.run.policy,
        "dev",
        case.method,
        f"https://api.good.test:{r.direct}{case.target}",
        [f"{k}: {v}" for k, v in case.headers.items()],
        case.body.encode() if case.body else None,
    )
    match said.verdict:
        case Allow() as allow:
            got = (allow.rule, ",".join(said.injected))
            return [] if got == (f"good.{case.verdict}", case.injected) else [f"{case.name}: {got}"]
        case deny:
            return [] if deny.reason == case.verdict else [f"{case.name}: {deny}"]


def test_a_body_that_is_written_anew_keeps_neither_its_coding_nor_its_chunks(tmp_path: Path) -> None:
    plain = b'{"auth":{"token":"mine"}}'
    packed = gzip.compress(plain)
    head = b"POST /json HTTP/1.1\r\nHost: api.good.test:%d\r\nContent-Type: application/json\r\n"

    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            client = await r.tunnel("api.good.test", r.direct)
            start = head % r.direct
            zipped = start + b"Content-Encoding: gzip\r\nContent-MD5: x\r\nContent-Length: %d\r\n\r\n" % len(packed)
            chunked = start + b"Transfer-Encoding: chunked\r\n\r\n4\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
            for raw in (zipped + packed, chunked % (plain[:4], len(plain) - 4, plain[4:])):
                assert (await client.ask(raw)).status == 200
                seen = r.good.seen[-1]
                assert json.loads(seen.body) == {"auth": {"token": SECRET}}
                assert seen.values(b"content-length") == [b"%d" % len(seen.body)]
                for name in (b"content-encoding", b"transfer-encoding", b"content-md5"):
                    assert seen.values(name) == []

    asyncio.run(main())


@pytest.mark.parametrize("value", ["a/b", "a;b", "a\\b", "a%41b", "a b;", 'a"b'])
def test_a_secret_that_its_place_can_not_carry_is_sent_nowhere(value: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            r.vault.values["token"] = value
            client = await r.tunnel("api.good.test", r.direct)
            host = f"api.good.test:{r.direct}"
            asked = "/cookie" if value in ('a"b', "a b;") else "/x/sendMessage"
            answer = await client.get(asked, host=host)
            assert (answer.status, answer.code) == (403, "secret_unavailable")
            assert r.untouched

    asyncio.run(main())


def test_a_placeholder_is_forgotten_with_its_run(tmp_path: Path) -> None:
    asked = replace(CASES[0], name="x", target="/free?x={ALIEN}", verdict="free", injected="", fields={})

    async def main() -> None:
        async with rig(tmp_path, policy=POLICY, alpn=ALPN, decoys=DECOYS) as r:
            await other_run(r)
            client = await r.tunnel("api.good.test", r.direct)
            assert (await over_h1(asked, client, r)).code == FORBIDDEN
            await r.gateway.close("run-2")
            assert (await over_h1(asked, client, r)).status == 200

    asyncio.run(main())
