import os
import stat
from pathlib import Path

import pytest

from credgate import policytrust
from credgate.errors import CredgateError
from credgate.paths import Places
from credgate.policyfile import (
    Effective,
    Found,
    Origin,
    PolicyInvalid,
    PolicyMissing,
    PolicyUnsafe,
    RoleUnknown,
    choose_role,
    effective,
    find_for_run,
    find_policy,
    inside,
    load,
    open_policy,
    read_ceiling,
    shipped_packs,
    untrusted,
)
from credgate.policytrust import PolicyUntrusted, trust
from credgate.prepare import Asked

HARMLESS = """\
version = 1
[endpoint.docs]
host = "docs.example.org"
[[endpoint.docs.allow]]
id = "read"
methods = ["GET"]
paths = ["/**"]
[role.dev]
endpoints = ["docs"]
"""
WRITES = HARMLESS + 'workdir = "write"\n'


class Host:
    """A home, a work tree in it, state and configuration directories, and a place for a ceiling."""

    def __init__(self, root: Path) -> None:
        self.home, self.tree = root / "home", root / "home/project"
        self.places = Places(state=root / "home/.state", config=root / "home/.config")
        self.ceiling = root / "ceiling.toml"
        for folder in (self.tree / "src", self.places.config):
            folder.mkdir(parents=True)

    def write(self, path: Path, text: str, mode: int = 0o600) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def find(self, explicit: str | None = None, *, cwd: Path | None = None, **env: str) -> Found:
        where = cwd or self.tree
        return find_policy(
            explicit=explicit,
            env={"HOME": str(self.home), **env},
            cwd=where,
            workdir=where,
            config_dir=self.places.config,
        )

    def effective(self, found: Found, role: str = "", *, read_only: bool = False) -> Effective:
        return effective(
            found,
            role=role,
            workdir=self.tree,
            state_dir=self.places.state,
            read_only=read_only,
            ceiling=self.ceiling,
        )

    def trust(self, path: Path) -> None:
        trust(path, path.read_bytes(), self.places.state)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_search_order(host: Host) -> None:
    own = host.write(host.places.config / "policy.toml", HARMLESS)
    assert (host.find().path, host.find().origin) == (own, Origin.USER)
    in_tree = host.write(host.tree / "credgate.toml", HARMLESS)
    assert (host.find().path, host.find().origin) == (in_tree, Origin.TREE)
    named = host.write(host.home / "env.toml", HARMLESS)
    assert host.find(CREDGATE_POLICY=str(named)).origin is Origin.ENV
    flag = host.write(host.tree / "src/flag.toml", HARMLESS)
    found = host.find("src/flag.toml", CREDGATE_POLICY=str(named))
    assert (found.path, found.origin) == (flag, Origin.FLAG)


def test_an_empty_variable_is_none(host: Host) -> None:
    own = host.write(host.places.config / "policy.toml", HARMLESS)
    assert host.find(CREDGATE_POLICY="").path == own


def test_no_policy_says_how_to_get_one(host: Host) -> None:
    with pytest.raises(PolicyMissing) as caught:
        host.find()
    assert "credgate init" in caught.value.hint
    assert str(host.places.config / "policy.toml") in caught.value.hint


@pytest.mark.parametrize("variable", [True, False])
def test_a_named_file_that_is_missing_is_no_reason_to_take_the_next(host: Host, variable: bool) -> None:
    host.write(host.places.config / "policy.toml", HARMLESS)
    with pytest.raises(PolicyUnsafe, match="no such file"):
        host.find(None, CREDGATE_POLICY="gone.toml") if variable else host.find("gone.toml")


def test_the_nearest_policy_upwards_counts_up_to_the_repository(host: Host) -> None:
    top = host.write(host.tree / "credgate.toml", HARMLESS)
    assert host.find(cwd=host.tree / "src").path == top
    near = host.write(host.tree / "src/credgate.toml", HARMLESS)
    assert host.find(cwd=host.tree / "src").path == near
    near.unlink()
    (host.tree / "src/.git").mkdir()
    with pytest.raises(PolicyMissing):
        host.find(cwd=host.tree / "src")


def test_a_policy_in_the_home_directory_is_not_the_work_trees(host: Host) -> None:
    host.write(host.home / "credgate.toml", HARMLESS)
    with pytest.raises(PolicyMissing):
        host.find()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o660])
def test_a_file_that_others_can_write_is_refused(host: Host, mode: int) -> None:
    path = host.write(host.places.config / "policy.toml", HARMLESS)
    host.find()
    path.chmod(mode)
    with pytest.raises(PolicyUnsafe, match=f"{mode:04o}"):
        host.find()


def test_a_file_of_another_owner_is_refused(host: Host) -> None:
    path = host.write(host.places.config / "policy.toml", HARMLESS)
    open_policy(path, Origin.USER, frozenset({os.geteuid()}))
    with pytest.raises(PolicyUnsafe, match=f"owner is uid {os.geteuid()}, expected uid 4242"):
        open_policy(path, Origin.USER, frozenset({4242}))


def test_what_is_no_regular_file_is_refused_without_waiting(host: Host) -> None:
    fifo = host.places.config / "policy.toml"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(PolicyUnsafe, match="not a regular file"):
        host.find()
    with pytest.raises(PolicyUnsafe, match="not a regular file"):
        host.find(str(host.tree))


def test_a_second_name_of_the_file_is_refused(host: Host) -> None:
    path = host.write(host.places.config / "policy.toml", HARMLESS)
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)  # one of root's may have several names: no jail can write it
    owners = frozenset({path.stat().st_uid})
    open_policy(path, Origin.USER, owners)
    (host.tree / "other.toml").hardlink_to(path)
    with pytest.raises(PolicyUnsafe, match="2 names"):
        open_policy(path, Origin.USER, owners)


def test_a_dangling_link_is_an_error(host: Host) -> None:
    (host.places.config / "policy.toml").symlink_to("gone")
    with pytest.raises(PolicyUnsafe):
        host.find()


def test_faults_come_with_the_file_and_all_at_once(host: Host) -> None:
    path = host.write(host.places.config / "policy.toml", "version = 2\nfoo = 1\nbar = 2\nbaz = 3\n")
    with pytest.raises(PolicyInvalid) as caught:
        load(host.find())
    assert len(caught.value.problems) == 4
    assert "and 1 more" in caught.value.detail
    assert str(path) in caught.value.hint


def test_packs_are_shipped() -> None:
    assert "github-credential-minting" in shipped_packs()


# trust


def test_a_policy_found_in_the_work_tree_needs_trust(host: Host) -> None:
    path = host.write(host.tree / "credgate.toml", HARMLESS)
    with pytest.raises(PolicyUntrusted, match="not trusted"):
        host.effective(host.find())
    host.trust(path)
    assert host.effective(host.find()).role == "dev"


def test_a_changed_policy_is_refused_with_a_diff(host: Host) -> None:
    path = host.write(host.tree / "credgate.toml", HARMLESS)
    host.trust(path)
    host.write(path, HARMLESS.replace('"GET"', '"GET", "POST"'))
    with pytest.raises(PolicyUntrusted) as caught:
        host.effective(host.find())
    assert '+methods = ["GET", "POST"]' in caught.value.diff.splitlines()
    assert '-methods = ["GET"]' in caught.value.detail
    host.write(path, HARMLESS)
    assert host.effective(host.find()).origin is Origin.TREE


def test_trust_is_for_a_path_and_not_for_a_text(host: Host) -> None:
    host.trust(host.write(host.tree / "credgate.toml", HARMLESS))
    other = host.write(host.tree / "src/credgate.toml", HARMLESS)
    with pytest.raises(PolicyUntrusted):
        host.effective(host.find(cwd=other.parent))


def test_a_policy_that_the_jail_could_write_needs_trust_however_it_was_found(host: Host) -> None:
    path = host.write(host.tree / "p.toml", WRITES)
    found = host.find("p.toml")
    with pytest.raises(PolicyUntrusted):
        host.effective(found)
    assert host.effective(found, read_only=True).path == path
    assert host.effective(host.find(str(host.write(host.home / "p.toml", WRITES)))).role == "dev"
    host.trust(path)
    assert host.effective(found).role == "dev"


def test_a_policy_in_a_tree_that_is_only_read_needs_no_trust(host: Host) -> None:
    host.write(host.tree / "p.toml", HARMLESS)
    assert host.effective(host.find("p.toml")).origin is Origin.FLAG


def test_a_link_out_of_or_into_the_tree_counts_as_inside(host: Host) -> None:
    outside = host.write(host.home / "p.toml", WRITES)
    (host.tree / "link.toml").symlink_to(outside)
    with pytest.raises(PolicyUntrusted):
        host.effective(host.find("link.toml"))
    target = host.write(host.tree / "q.toml", WRITES)
    (host.home / "link.toml").symlink_to(target)
    with pytest.raises(PolicyUntrusted):
        host.effective(host.find(str(host.home / "link.toml")))


def test_inside_compares_whole_names(tmp_path: Path) -> None:
    assert inside(tmp_path / "tree/a", tmp_path / "tree")
    assert inside(tmp_path / "tree/b/../a", tmp_path / "tree")
    assert not inside(tmp_path / "tree2/a", tmp_path / "tree")
    assert not inside(tmp_path / "tree/../a", tmp_path / "tree")


def test_a_trusted_policy_of_the_tree_can_not_define_a_secret(host: Host) -> None:
    text = WRITES.replace("[role.dev]", '[secret.s]\nsource = "env:HOME"\n[role.dev]') + 'read = ["~/.ssh/id"]\n'
    path = host.write(host.tree / "credgate.toml", text)
    host.trust(path)
    with pytest.raises(PolicyInvalid) as caught:
        host.effective(host.find())
    assert {p.where for p in caught.value.problems} == {"secret.s", "role.dev.read"}


def test_the_store_is_private_and_keeps_what_was_there(host: Host) -> None:
    one, two = host.write(host.tree / "a.toml", HARMLESS), host.write(host.tree / "b.toml", WRITES)
    host.trust(one)
    host.trust(two)
    store = host.places.trusted
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    for path in (one, two):
        policytrust.check_trusted(path, path.read_bytes(), host.places.state)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"/a": 1}', '{"/a": {}}', "[" * 20000])
def test_a_broken_store_trusts_nothing(host: Host, text: str) -> None:
    path = host.write(host.tree / "credgate.toml", HARMLESS)
    host.trust(path)
    host.places.trusted.write_text(text)
    with pytest.raises(CredgateError, match="trust_broken"):
        host.effective(host.find())


def test_a_store_that_others_can_write_trusts_nothing(host: Host) -> None:
    path = host.write(host.tree / "credgate.toml", HARMLESS)
    host.trust(path)
    host.places.trusted.chmod(0o666)
    with pytest.raises(CredgateError, match="mode is 0666"):
        host.effective(host.find())


# the ceiling


def test_without_a_ceiling_the_policy_stands_alone(host: Host) -> None:
    host.write(host.places.config / "policy.toml", HARMLESS)
    here = host.effective(host.find())
    assert (here.ceiling, here.policy.ceiling_sha256) == (None, "")


@pytest.fixture
def ceiling(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ceiling whose owner stands for root."""
    monkeypatch.setattr("credgate.policyfile.ROOT", frozenset({os.geteuid()}))
    return host.write(host.ceiling, HARMLESS + 'deadline = "1h"\n')


def test_a_ceiling_narrows(host: Host, ceiling: Path) -> None:
    host.write(host.places.config / "policy.toml", HARMLESS)
    here = host.effective(host.find())
    assert here.ceiling == ceiling
    assert here.policy.roles["dev"].deadline == 3600
    assert here.policy.ceiling_sha256


def test_a_ceiling_refuses_by_name_what_reaches_above_it(host: Host, ceiling: Path) -> None:
    host.write(host.places.config / "policy.toml", HARMLESS.replace('"GET"', '"GET", "POST"'))
    with pytest.raises(PolicyInvalid) as caught:
        host.effective(host.find())
    assert [p.where for p in caught.value.problems] == ["endpoint.docs.allow"]
    ceiling.unlink()
    assert host.effective(host.find()).ceiling is None


def test_a_ceiling_that_is_not_roots_stops_everything(
    host: Host, ceiling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_ceiling(ceiling) is not None
    monkeypatch.setattr("credgate.policyfile.ROOT", frozenset({4242}))
    with pytest.raises(PolicyUnsafe, match="owner"):
        read_ceiling(ceiling)


def test_a_broken_ceiling_stops_everything(host: Host, ceiling: Path) -> None:
    host.write(host.places.config / "policy.toml", HARMLESS)
    host.effective(host.find())
    host.write(ceiling, "version = 3\n")
    with pytest.raises(PolicyInvalid):
        host.effective(host.find())


# roles


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        (HARMLESS, "", "dev"),
        (HARMLESS, "dev", "dev"),
        (HARMLESS + "[role.b]\n", "b", "b"),
        ('default_role = "b"\n' + HARMLESS + "[role.b]\n", "", "b"),
    ],
)
def test_the_role_that_counts(host: Host, text: str, asked: str, expected: str) -> None:
    host.write(host.places.config / "policy.toml", text)
    assert choose_role(load(host.find()), asked) == expected


@pytest.mark.parametrize(
    ("text", "asked", "part"),
    [
        (HARMLESS, "dve", 'did you mean "dev"?'),
        (HARMLESS + "[role.b]\n", "", "--role dev|b"),
        ("version = 1\n", "", "[role.dev]"),
        ("version = 1\n", "dev", "[role.dev]"),
    ],
)
def test_no_role_says_which_there_are(host: Host, text: str, asked: str, part: str) -> None:
    host.write(host.places.config / "policy.toml", text)
    with pytest.raises(RoleUnknown) as caught:
        choose_role(load(host.find()), asked)
    assert part in caught.value.hint


# a run


def _asked(host: Host, policy: str = "", workdir: str = "", role: str = "") -> Asked:
    return Asked(
        argv=("true",),
        cwd=str(host.tree),
        env={"HOME": str(host.home)},
        policy=policy,
        role=role,
        workdir=workdir,
        read_only=False,
        env_names=(),
    )


def test_a_run_finds_its_policy(host: Host) -> None:
    host.write(host.home / "p.toml", WRITES)
    assert find_for_run(_asked(host, "../p.toml"), host.places, host.ceiling).role == "dev"


def test_a_run_without_a_policy_ends_with_125(host: Host) -> None:
    with pytest.raises(PolicyMissing) as caught:
        find_for_run(_asked(host), host.places, host.ceiling)
    assert caught.value.exit_status == 125


def test_a_run_is_judged_by_its_work_tree_and_not_by_its_cwd(host: Host) -> None:
    host.write(host.tree / "src/p.toml", WRITES)
    with pytest.raises(PolicyUntrusted) as caught:
        find_for_run(_asked(host, "src/p.toml", workdir="src"), host.places, host.ceiling)
    assert caught.value.exit_status == 125
    (host.tree / "other").mkdir()
    assert find_for_run(_asked(host, "src/p.toml", workdir="other"), host.places, host.ceiling)


def test_looking_at_a_policy_needs_no_trust(host: Host) -> None:
    host.write(host.tree / "credgate.toml", HARMLESS)
    assert untrusted(host.find(), role="", ceiling=host.ceiling).role == "dev"
