"""Clients in the jail whose credentials are made outside: the target takes the real ones alone, the jail has decoys."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.credentials import Credentials

from tests.credgate.gateway_rig import server_tls
from tests.e2e.site import Site
from tests.targets.aws import Aws
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
