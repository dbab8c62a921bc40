"""The stages at another engine: PySpark in local mode finds what the embedded one finds, byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest

from credgate import cli
from credgate.reconcile.fabricate import BEGIN, FORMATS, SECOND, World, honest
from credgate.reconcile.lies import LIES
from tests.credgate.reconcile.rig import asked, tunnel

# Each of some 300 statements costs Spark a fifth of a second whatever it is about; of 5,000 requests a seventh more of
# its CPU (measured), and 100,000 show the same: for whoever changes the stages.
REQUESTS = int(os.environ.get("CREDGATE_TEST_ENGINE_REQUESTS", "600"))
# one target paired by tags and windows, one by request ids, one by counts
SOURCES = ("nginx", "cloudtrail", "openai")
PROXIED = "proxied.example"
TOLD = (
    "outside-call", "outside-key", "other-credential", "moved-clock", "denied-yet-seen", "replay", "copied-tag",
    "forgotten-request", "invented-request", "more-usage", "torn-line",
)  # fmt: skip
# A short session: what is compiled would not pay for itself, nor a second partition, nor a plan made anew at each
# stage. Hadoop without its native library forks a `chmod` for each file and directory: fewer of both, and not by way
# of jspawnhelper. Loopback alone, whatever the host is called.
_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djdk.lang.Process.launchMechanism=VFORK")
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.driver.extraJavaOptions": " ".join(_JVM),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
ENGINE = f"pyspark://local[2]?{urlencode(_SETTINGS)}"


def packages() -> Path:
    """Where `scripts/test` installed what tests/targets/engine/requirements.lock names."""
    home = os.environ.get("CREDGATE_TEST_ENGINE")
    if home is None:
        ask = ["bash", "-euc", "for part in say python host tools; do . scripts/lib/$part.sh; done; engine_home"]
        home = subprocess.run(ask, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True).stdout
    path = Path(home.strip())
    assert (path / ".complete").exists(), f"no Ibis and PySpark in {path}: scripts/test installs them"
    return path


def reconciled(world: Path, out: Path, *more: str, with_packages: bool) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "ignore", "-m", "credgate", "reconcile", "--ledger", str(world / "ledger")]
    argv += ["--mapping", str(world / "mapping.toml"), "--report", str(out)]
    argv += [f"--source={name}={world / f'{name}.log'}" for name in SOURCES]
    env = {"PATH": os.environ["PATH"], "HOME": str(world), "SPARK_LOCAL_IP": "127.0.0.1"}
    if with_packages:
        env["PYTHONPATH"] = str(packages())
    return subprocess.run([*argv, *more], cwd=world, env=env, capture_output=True, text=True, timeout=900, check=False)


def behind_a_proxy(world: World) -> str:
    """Requests through tunnels that overlap, one without an outcome, and somebody else's; the source's argument."""
    number, lines = 10 * REQUESTS, []
    for at in range(10, 60, 5):
        for place, opened in enumerate((asked(at), asked(at + 0.3), [])):
            number += 1
            begin = BEGIN + at * SECOND + place * 1000
            intent = {"run": "r-1", "host": PROXIED, "method": "GET", "path": f"/{at}", "verdict": "allow"}
            world.ledger.append((begin, "intent", number, intent))
            if (at, place) != (30, 2):
                world.ledger.append((begin + 900_000, "outcome", number, {"status": 200, "tunnels": opened}))
        lines += [tunnel(at + 0.01, at + 20, host=PROXIED), tunnel(at + 0.31, at + 9, host=PROXIED)]
    others = (tunnel(14, 18, host=PROXIED), tunnel(30.1, 40, host=PROXIED), tunnel(55.02, 56, host=PROXIED))
    world.ledger.sort(key=lambda entry: (entry[1] == "final", entry[0]))
    world.exports["squid"] = [*lines[:6], *lines[7:], *others]
    return f"squid@{PROXIED}"


@pytest.mark.needs("java")
@pytest.mark.timeout(1200)
def test_pyspark_finds_what_duckdb_finds(tmp_path: Path) -> None:
    world = honest(REQUESTS)
    for lie in LIES:
        if lie.name in TOLD:
            lie.tell(world)
    squid = f"--source={behind_a_proxy(world)}={tmp_path / 'squid.log'}"
    world.write(tmp_path)
    here = reconciled(tmp_path, tmp_path / "here", squid, with_packages=False)
    there = reconciled(tmp_path, tmp_path / "there", squid, "--engine", ENGINE, with_packages=True)
    assert (there.returncode, there.stderr.count("error:")) == (here.returncode, 0), there.stderr
    assert here.returncode == 4
    assert (tmp_path / "there" / "records.csv").read_bytes() == (tmp_path / "here" / "records.csv").read_bytes()
    mine = json.loads((tmp_path / "here" / "report.json").read_text())
    other = json.loads((tmp_path / "there" / "report.json").read_text())
    assert (mine["parameters"].pop("engine"), other["parameters"].pop("engine")) == ("embedded", "pyspark")
    assert other == mine
    assert len(mine["findings"]) >= len(TOLD)
    assert {item["class"] for item in mine["findings"]} >= {
        "target-only", "gateway-only", "deny-but-seen", "field-mismatch", "out-of-window", "ambiguous",
    }  # fmt: skip
    assert {item["class"] for item in mine["findings"] if item["source"] == "squid"} == {
        "target-only", "gateway-only", "ambiguous",
    }  # fmt: skip
    assert not (tmp_path / "spark-warehouse").exists()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    honest(40).write(directory)
    return directory


@pytest.mark.needs("java")
def test_an_engine_that_fails_is_an_error(small: Path) -> None:
    uri = "pyspark://no-such-master?spark.driver.host=127.0.0.1"
    done = reconciled(small, small / "out", "--engine", uri, with_packages=True)
    assert done.returncode == 2
    assert "error: the engine failed: " in done.stderr
    assert not (small / "out").exists()


@pytest.mark.needs("java")  # whoever has that has the packages too
def test_an_unknown_engine_is_an_error(small: Path) -> None:
    done = reconciled(small, small / "out", "--engine", "nonesuch://x", with_packages=True)
    assert done.returncode == 2
    assert "nonesuch: no engine that Ibis knows" in done.stderr


def arguments(world: Path) -> list[str]:
    sources = [f"--source={name}={world / f'{name}.log'}" for name in FORMATS]
    return ["reconcile", "--ledger", str(world / "ledger"), "--mapping", str(world / "mapping.toml"), *sources]


def test_without_the_packages_the_error_says_what_to_install(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments(small), "--engine", "pyspark://local[2]"]) == 2
    assert "pip install 'credgate[engine]'" in capsys.readouterr().err


def test_an_engine_is_a_uri(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments(small), "--engine", "spark"]) == 2
    assert "expected a URI" in capsys.readouterr().err
