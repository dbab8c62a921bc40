"""Trust stores of their own that clients bring: a browser's database, a JDK's file. In pairs, in real jails."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.site import PATH, Site, bound, endpoint
from tests.targets.served import Target

pytestmark = pytest.mark.needs("userns", "netns", "nftables", "landlock", "seccomp")

ROLE = '[role.dev]\nbindings = ["api"]\nallow_userns = true\n'
BROWSER = (
    *("chromium", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--user-data-dir=/tmp/profile"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"),
)


@pytest.mark.needs("chromium")
def test_chromium_trusts_the_gateway_by_the_database_below_the_home(site: Site, https_target: Target) -> None:
    site.policy("version = 1\n" + endpoint(https_target) + bound() + ROLE, https_target.ca)
    site.secret("api", https_target.token)
    url = f"https://{https_target.host}/private/x"
    elsewhere = site.run("env", "HOME=/tmp", *BROWSER, url)  # control
    assert "ERR_CERT_AUTHORITY_INVALID" in elsewhere.stderr, elsewhere.stderr[-2000:]
    assert https_target.seen() == []
    done = site.run(*BROWSER, url)
    assert "welcome" in done.stdout, done.stderr[-2000:]
    assert {request.authorization for request in https_target.seen()} == {f"Bearer {https_target.token}"}


CLASS = """
import java.net.URI; import java.net.http.*;
public class Get { public static void main(String[] url) throws Exception {
  var answer = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create(url[0])).build(),
      HttpResponse.BodyHandlers.ofString());
  System.out.println(answer.statusCode());
}}
"""


@pytest.mark.needs("javac")
def test_java_with_the_systems_store_and_with_one_of_its_own(site: Site, https_target: Target) -> None:
    """The system's is a link into /etc/ssl; a JDK that somebody unpacked has a file, which is bound over."""
    jdk = site.home / "tools/jdk"
    system = Path(os.path.realpath(shutil.which("java", path=PATH) or "")).parents[1]
    shutil.copytree(system, jdk, symlinks=True, ignore=shutil.ignore_patterns("cacerts", "jmods"))
    shutil.copy("/etc/ssl/certs/java/cacerts", jdk / "lib/security/cacerts")
    site.own(jdk.parent)
    site.write("work/Get.java", CLASS)
    role = ROLE + f'tools = ["{jdk.parent}"]\n'
    site.policy("version = 1\n" + endpoint(https_target) + bound() + role, https_target.ca)
    site.secret("api", https_target.token)
    url = f"https://{https_target.host}/private/x"
    for java in ("java", str(jdk / "bin/java")):
        done = site.run(java, "Get.java", url)
        assert (done.stdout, done.returncode) == ("200\n", 0), done.stderr
    theirs = f"-Djavax.net.ssl.trustStore={site.work}/cacerts"  # control: what it came with
    site.own(Path(shutil.copy(jdk / "lib/security/cacerts", site.work / "cacerts")))
    done = site.run(str(jdk / "bin/java"), theirs, "Get.java", url)
    assert "PKIX path building failed" in done.stderr or "SSLHandshakeException" in done.stderr, done.stderr
    assert {request.authorization for request in https_target.seen()} == {f"Bearer {https_target.token}"}
    assert len(https_target.seen()) == 2
