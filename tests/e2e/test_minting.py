"""Clients in the jail whose credentials are made outside: the target takes the real ones alone, the jail has decoys."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from tests.credgate.gateway_rig import server_tls
from tests.e2e.place import wait_for
from tests.e2e.site import Site
from tests.targets.aws import Aws
from tests.targets.idp import Asked, Idp, Provider
from tests.targets.pki import Authority

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

KEY, SECRET = "AKIAREALREALREALREAL", "realSecretKey/0123456789+abcdefghijklmnop"
S3, DYNAMODB = "s3.eu-central-1.amazonaws.com", "dynamodb.eu-central-1.amazonaws.com"
ENDPOINT = """
[endpoint.{name}]
host = "{host}"
dial_port = {port}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.{name}.allow]]
id = "all"
methods = ["GET", "PUT", "POST"]
paths = ["/**"]
[binding.{name}]
secret = "aws"
endpoint = "{name}"
rules = ["all"]
place = "sigv4"
mode = "placeholder"
"""
CLIENT = """
import json, os
import boto3
from botocore.config import Config
more = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
s3 = boto3.client("s3", region_name="eu-central-1", config=more)
data = os.urandom(6 << 20)
s3.put_object(Bucket="b", Key="six", Body=data)
same = s3.get_object(Bucket="b", Key="six")["Body"].read() == data
upload = s3.create_multipart_upload(Bucket="b", Key="big")["UploadId"]
parts = []
for number, piece in enumerate((data[: 5 << 20], b"last"), 1):
    tag = s3.upload_part(Bucket="b", Key="big", UploadId=upload, PartNumber=number, Body=piece)["ETag"]
    parts.append({"PartNumber": number, "ETag": tag})
s3.complete_multipart_upload(Bucket="b", Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
count = s3.list_objects_v2(Bucket="b")["KeyCount"]
tables = boto3.client("dynamodb", region_name="eu-central-1", config=more).list_tables()["TableNames"]
environ = open("/proc/self/environ").read()
print(json.dumps({"same": same, "count": count, "tables": tables, "environ": environ}))
"""


@pytest.fixture
def aws(authority: Authority) -> Iterator[Aws]:
    made = Aws(server_tls(authority, S3, DYNAMODB), Credentials(KEY, SECRET))
    yield made
    made.stop()


def test_boto3_with_decoys(site: Site, aws: Aws, authority: Authority) -> None:
    text = 'version = 1\n[secret.aws]\nsource = "keyring:credgate/aws"\n'
    text += "".join(ENDPOINT.format(name=n, host=h, port=aws.port) for n, h in (("s3", S3), ("dynamodb", DYNAMODB)))
    site.policy(text + '[role.dev]\nbindings = ["s3", "dynamodb"]\n', authority.ca)
    site.secret("aws", f"{KEY}:{SECRET}")
    done = site.run(site.python(), "-c", CLIENT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["same"], said["count"], said["tables"]) == (True, 2, ["orders"])
    assert "AWS_ACCESS_KEY_ID=AKIA" in said["environ"]
    assert KEY not in said["environ"]
    assert SECRET not in said["environ"]
    assert {arrived.error for arrived in aws.seen} == {""}
    assert {arrived.signed for arrived in aws.seen} == {KEY}
    assert SECRET not in "".join(path.read_text() for path in Path(site.state / "ledger").glob("seg-*.jsonl"))


IDP = "idp.acme.example"
OAUTH = """
version = 1
[secret.refresh]
source = "keyring:credgate/refresh"
[endpoint.idp]
host = "idp.acme.example"
dial_port = {port}
address = ["127.0.0.1"]
ca = "ca.pem"
[[endpoint.idp.allow]]
id = "api"
methods = ["GET", "POST"]
paths = ["/**"]
[mint.oauth]
type = "oauth2-refresh"
secret = "refresh"
endpoint = "idp"
path = "/oauth/token"
placeholder = {{ env = "REFRESH_TOKEN", shape = "rt_{{40}}" }}
[secret.oauth]
source = "mint:oauth"
[binding.oauth]
secret = "oauth"
endpoint = "idp"
rules = ["api"]
place = "header:authorization"
mode = "placeholder"
placeholder = {{ env = "ACCESS_TOKEN", shape = "at_{{40}}" }}
[role.dev]
bindings = ["oauth"]
"""
AGENT = """
import json, os, time, urllib.error, urllib.parse, urllib.request
BASE = "https://idp.acme.example"
refresh, access = os.environ["REFRESH_TOKEN"], os.environ["ACCESS_TOKEN"]
def ask(path, body=None, **headers):
    request = urllib.request.Request(BASE + path, data=body and urllib.parse.urlencode(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
statuses = []
while not statuses or not os.path.exists("enough"):
    statuses.append(ask("/api", Authorization="Bearer " + access)[0])
    time.sleep(0.1)
own = ask("/oauth/token", {"grant_type": "refresh_token", "refresh_token": refresh})
others = [ask("/oauth/token", {"grant_type": "refresh_token", "refresh_token": t})[0] for t in (access, "refresh-0")]
print(json.dumps({"statuses": statuses, "own": own, "others": others, "environ": open("/proc/self/environ").read()}))
"""


def stale(seen: list[Asked]) -> int:
    """Requests with another token than the newest; the newest is the one that the first request with it shows."""
    met: list[str] = []
    late = 0
    for asked in seen:
        if asked.path == "/api":
            met += [asked.authorization] if asked.authorization not in met else []
            late += asked.authorization != met[-1]
    return late


def test_five_jails_and_tokens_of_two_seconds(site: Site, authority: Authority) -> None:
    """One refresh for each expiry, whoever asks; no jail redeems or holds anything."""
    idp = Idp(server_tls(authority, IDP), Provider(lifetime=2, grace=60))
    try:
        site.policy(OAUTH.format(port=idp.port), authority.ca)
        site.secret("refresh", "refresh-0", told=True)
        jails = [site.start(site.python(), "-c", AGENT) for _ in range(5)]
        wait_for(lambda: len(idp.provider.minted()) >= 3, "three refreshes")
        site.write("work/enough", "")
        outputs = [jail.communicate(timeout=100) for jail in jails]
    finally:
        idp.stop()
    said = [json.loads(out) for out, err in outputs if out or pytest.fail(err)]
    assert len(said) == 5
    minted, provider = idp.provider.minted(), idp.provider
    gaps = [later.at - earlier.at for earlier, later in pairwise(minted)]
    assert all(gap > 1.75 for gap in gaps), gaps
    assert {asked.status for asked in minted} == {200}
    assert not provider.chain_over
    assert all(asked.bearer for asked in provider.seen if asked.path == "/api")
    assert stale(provider.seen) <= 5 * (len(minted) - 1)  # what each jail had on its way when there was a new one
    for jail in said:
        assert set(jail["statuses"]) == {200}
        assert jail["own"][0] == 200
        assert jail["own"][1]["access_token"] in jail["environ"]
        assert jail["others"] == [403, 403]
    told = repr(said) + "".join(path.read_text() for path in Path(site.state / "ledger").glob("seg-*.jsonl"))
    assert not any(token in told for token in (*provider.living, provider.refresh))
    assert len(site.ledger(ev="mint", verdict="allow")) == len(minted)
    assert len({jail["own"][1]["refresh_token"] for jail in said}) == 5  # a decoy is its run's own
