"""boto3 with decoys before the gateway, and behind it a target that takes the real key's signature alone."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from credgate.runs import Listener, Run
from tests.credgate.gateway_rig import POLICY, Rig, listening, rig, server_tls
from tests.targets.aws import Aws
from tests.targets.pki import Authority as TargetCa

KEY, SECRET, TOKEN = "AKIAREALREALREALREAL", "realSecretKey/0123456789+abcdefghijklmnop", "sessionTOKEN/real=="
OTHERS_DECOY = "AKIADECOYOFANOTHER01"
DECOY, DECOY_SECRET = "AKIADECOYDECOYDECOY1", "decoydecoydecoydecoydecoydecoydecoydecoy"
S3, DYNAMODB = "s3.eu-central-1.amazonaws.com", "dynamodb.eu-central-1.amazonaws.com"
ENDPOINT = """
[endpoint.{{name}}]
host = "{{host}}"
port = {direct}
dial_port = {{port}}
address = ["127.0.0.1"]
ca = "{ca}"
[[endpoint.{{name}}.allow]]
id = "all"
methods = ["GET", "PUT", "POST", "DELETE"]
paths = ["/**"]
[binding.{{name}}]
secret = "aws"
endpoint = "{{name}}"
rules = ["all"]
place = "sigv4"
mode = "placeholder"
"""
ROLE = """
[secret.aws]
source = "keyring:credgate/aws"
"""


@asynccontextmanager
async def site(tmp: Path, *, token: str = "", secret: str = SECRET, sign: str = "") -> AsyncIterator[tuple[Rig, Aws]]:
    ca = TargetCa(tmp, "targets")
    aws = Aws(server_tls(ca, S3, DYNAMODB), Credentials(KEY, SECRET, token or None))
    text = POLICY
    for name, host in (("s3", S3), ("dynamodb", DYNAMODB)):
        text += ENDPOINT.replace("{{name}}", name).replace("{{host}}", host).replace("{{port}}", str(aws.port))
    text = (text + (f"sign = {{{{ {sign} }}}}\n" if sign else "") + ROLE).replace(
        'bindings = ["token", "swap", "h2"]', 'bindings = ["token", "s3", "dynamodb"]'
    )
    try:
        async with rig(tmp, policy=text, test_ca=ca, decoys={"s3": DECOY, "dynamodb": DECOY}) as r:
            r.vault.values["aws"] = f"{KEY}:{secret}:{token}" if token else f"{KEY}:{secret}"
            yield r, aws
    finally:
        aws.stop()


def client(r: Rig, service: str, host: str, key: str = DECOY, **config: Any) -> Any:
    more = {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}} | config
    return boto3.client(
        service,
        region_name="eu-central-1",
        endpoint_url=f"https://{host}:{r.direct}",
        aws_access_key_id=key,
        aws_secret_access_key=DECOY_SECRET,
        verify=str(r.ca),
        config=Config(proxies={"https": f"http://127.0.0.1:{r.proxy}"}, **more),
    )


def check(tmp: Path, work: Callable[[Rig, Aws], None], **kw: Any) -> None:
    async def main() -> None:
        async with site(tmp, **kw) as (r, aws):
            await asyncio.to_thread(work, r, aws)

    asyncio.run(main())


@pytest.mark.parametrize("token", ["", TOKEN])
def test_s3(token: str, tmp_path: Path) -> None:
    """List, a put of 6 MB, multipart, keys that need escaping: signed by the real key, and no decoy arrives."""

    def work(r: Rig, aws: Aws) -> None:
        s3 = client(r, "s3", S3)
        data = os.urandom(6 << 20)
        s3.put_object(Bucket="b", Key="six", Body=data)
        assert aws.seen[-1].headers["x-amz-content-sha256"] == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
        assert aws.seen[-1].trailers.keys() == {"x-amz-checksum-crc32"}
        s3.put_object(Bucket="b", Key="a b/c+d'(e)~ü=&!", Body=b"odd", Metadata={"who": "me"})
        assert aws.objects["/b/a b/c+d'(e)~ü=&!"] == b"odd"
        assert s3.get_object(Bucket="b", Key="six")["Body"].read() == data
        upload = s3.create_multipart_upload(Bucket="b", Key="big")["UploadId"]
        pieces = [os.urandom(5 << 20), b"last"]
        done = [
            {
                "PartNumber": n,
                "ETag": s3.upload_part(Bucket="b", Key="big", UploadId=upload, PartNumber=n, Body=p)["ETag"],
            }
            for n, p in enumerate(pieces, 1)
        ]
        s3.complete_multipart_upload(Bucket="b", Key="big", UploadId=upload, MultipartUpload={"Parts": done})
        assert aws.objects["/b/big"] == b"".join(pieces)
        listed = s3.list_objects_v2(Bucket="b", Prefix="x y+z", Delimiter="/")
        assert listed["KeyCount"] == 3
        assert {a.error for a in aws.seen} == {""}
        assert {a.signed for a in aws.seen} == {KEY}
        arrived = repr([(a.path, a.headers) for a in aws.seen])
        assert DECOY not in arrived
        intent = r.records("intent")[0]
        assert (intent["binding"], intent["secret"]) == ("s3", "aws")
        lines = repr(r.records())
        assert SECRET not in lines
        assert TOKEN not in lines

    check(tmp_path, work, token=token)


def test_dynamodb_hashes_what_it_read(tmp_path: Path) -> None:
    def work(r: Rig, aws: Aws) -> None:
        tables = client(r, "dynamodb", DYNAMODB).list_tables(Limit=7)
        assert tables["TableNames"] == ["orders"]
        assert aws.seen[0].body == b'{"Limit": 7}'
        assert "x-amz-content-sha256" not in aws.seen[0].headers
        assert aws.seen[0].signed == KEY
        with pytest.raises(ClientError, match="403"):
            client(r, "dynamodb", DYNAMODB).put_item(TableName="t", Item={"k": {"S": "x" * (1 << 20)}})
        assert len(aws.seen) == 1
        assert [(d["reason"], "max = 1048576" in d["detail"]) for d in r.records("deny")] == [("body_refused", True)]

    check(tmp_path, work)


def test_operations_are_told_by_what_the_client_asks(tmp_path: Path) -> None:
    def work(r: Rig, aws: Aws) -> None:
        tables = client(r, "dynamodb", DYNAMODB)
        assert tables.list_tables()["TableNames"] == ["orders"]
        with pytest.raises(ClientError, match="403"):
            tables.delete_table(TableName="orders")
        assert [arrived.headers["x-amz-target"] for arrived in aws.seen] == ["DynamoDB_20120810.ListTables"]
        assert "DeleteTable" in r.records("deny")[0]["detail"]

    check(tmp_path, work, sign='operations = ["DynamoDB_20120810.List*"]')


def test_the_control_without_the_gateway_and_with_another_key(tmp_path: Path) -> None:
    """The target is one that refuses: a decoy sent straight to it, and a wrong key in the vault."""

    def work(r: Rig, aws: Aws) -> None:
        with pytest.raises(ClientError) as wrong:
            client(r, "s3", S3).list_objects_v2(Bucket="b")
        assert wrong.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
        straight = boto3.client(
            "s3",
            region_name="eu-central-1",
            endpoint_url=f"https://127.0.0.1:{aws.port}",
            aws_access_key_id=DECOY,
            aws_secret_access_key=DECOY_SECRET,
            verify=False,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        import urllib3

        urllib3.disable_warnings()
        with pytest.raises(ClientError) as decoy:
            straight.list_objects_v2(Bucket="b")
        assert decoy.value.response["Error"]["Code"] == "InvalidAccessKeyId"

    check(tmp_path, work, secret=SECRET[::-1])


def test_what_is_not_signed_anew_never_arrives(tmp_path: Path) -> None:
    """Another run's decoy, a decoy at another endpoint, presigned URLs, version 2, another region."""

    def work(r: Rig, aws: Aws) -> None:
        def refused(**kw: Any) -> str:
            with pytest.raises(ClientError) as caught:
                client(r, "s3", S3, **kw).list_objects_v2(Bucket="b")
            return str(caught.value)

        assert "AccessDenied" in refused(key="AKIADECOYOFOTHERRUN1")  # passed on without any signature
        assert "authorization" not in aws.seen.pop().headers
        moved = boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=f"https://{S3}:{r.direct}",
            aws_access_key_id=DECOY,
            aws_secret_access_key=DECOY_SECRET,
            verify=str(r.ca),
            config=Config(proxies={"https": f"http://127.0.0.1:{r.proxy}"}, retries={"total_max_attempts": 1}),
        )
        with pytest.raises(ClientError):
            moved.list_objects_v2(Bucket="b")
        import urllib3

        for version in ("s3", "s3v4"):
            url = client(r, "s3", S3, signature_version=version).generate_presigned_url(
                "get_object", Params={"Bucket": "b", "Key": "k"}
            )
            pool = urllib3.ProxyManager(f"http://127.0.0.1:{r.proxy}", ca_certs=str(r.ca))
            assert pool.request("GET", url, retries=False).status == 403
        assert aws.seen == []
        reasons = [line["reason"] for line in r.records("deny")]
        assert reasons == ["signature_refused"] * 3
        other = urllib3.ProxyManager(f"http://127.0.0.1:{r.proxy}", ca_certs=str(r.ca))
        request = AWSRequest(method="GET", url=f"https://api.good.test:{r.direct}/ok/a")
        SigV4Auth(Credentials(DECOY, DECOY_SECRET), "s3", "eu-central-1").add_auth(request)
        elsewhere = other.request("GET", request.url, headers=dict(request.headers.items()), retries=False)
        assert elsewhere.json()["error"]["code"] == "placeholder_misplaced"
        assert r.good.seen == []

    check(tmp_path, work)


async def beside(r: Rig, name: str, bindings: tuple[str, ...], decoys: dict[str, str]) -> Rig:
    """The clients' side of a run beside the first, which lives on; it reaches both services."""
    sock, own = listening(), r.run
    role = replace(own.policy.roles["dev"], bindings=bindings, endpoints=("s3", "dynamodb"))
    port = int(sock.getsockname()[1])
    policy = replace(own.policy, roles={**own.policy.roles, name: role})
    run = Run(
        id=name, policy=policy, role=name, gateway_ip="127.0.0.98", proxy_port=port, decoys=decoys, proof="proof-2"
    )
    await r.gateway.serve(run, [Listener(sock=sock, port=port, proxy=True)])
    return replace(r, proxy=port)


def test_a_run_signs_by_its_own_decoy_alone(tmp_path: Path) -> None:
    """Wrong run: one without the binding, and one that has it and decoys of its own."""

    def asked(r: Rig, key: str) -> str:
        try:
            client(r, "s3", S3, key=key).list_objects_v2(Bucket="b")
        except ClientError as error:
            return str(error)
        return "ok"

    async def main() -> None:
        async with site(tmp_path) as (r, aws):
            bare = await beside(r, "bare", (), {})
            other = await beside(r, "other", ("s3",), {"s3": OTHERS_DECOY})
            for side, key in ((bare, DECOY), (bare, OTHERS_DECOY), (other, DECOY), (r, OTHERS_DECOY)):
                assert "AccessDenied" in await asyncio.to_thread(asked, side, key)
            assert aws.seen == []
            assert [line["reason"] for line in r.records("deny")] == ["placeholder_misplaced"] * 4
            assert "AccessDenied" in await asyncio.to_thread(asked, bare, "AKIAOFNOBODYOFNOBODY")
            assert [(a.signed, "authorization" in a.headers) for a in aws.seen] == [("", False)]
            assert r.vault.fetched == []
            for side, key in ((r, DECOY), (other, OTHERS_DECOY)):  # control
                assert await asyncio.to_thread(asked, side, key) == "ok"
            assert [a.signed for a in aws.seen[1:]] == [KEY, KEY]

    asyncio.run(main())
