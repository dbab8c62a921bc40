"""The probe of copies: an overlay as a run on a copy has one, beside where copies are kept."""

from pathlib import Path

import pytest

from tests.credgate.test_doctor import NO_CALL, probe

_AT = "os.environ['CREDGATE_PROBE_AT'] = {at!r}\n"
_STRAIGHT = """
import jail.mountcalls
jail.mountcalls.filesystem = lambda kind, options, attributes: os.open(options["lowerdir"], os.O_RDONLY)
"""


@pytest.mark.needs("userns")
def test_the_probe_of_copies_looks_where_they_are_kept_and_leaves_nothing(tmp_path: Path):
    at = _AT.format(at=str(tmp_path / "state/copies"))
    good = probe("copies", at)
    assert good["ok"] is True
    assert f"(tried in {tmp_path})" in str(good["detail"])
    straight = probe("copies", at + _STRAIGHT)
    assert straight["ok"] is False
    assert "came elsewhere" in str(straight["detail"])
    assert not [*tmp_path.iterdir()]


@pytest.mark.needs("userns")
@pytest.mark.parametrize(
    ("number", "hint"), [("ENODEV", "modprobe overlay"), ("EINVAL", "XDG_STATE_HOME"), ("ENOSYS", "filter")]
)
def test_the_probe_of_copies_says_what_is_in_the_way(tmp_path: Path, number: str, hint: str):
    closed = probe("copies", _AT.format(at=str(tmp_path)) + NO_CALL.format(names=["fsopen"], error=number))
    assert closed["ok"] is False
    assert hint in str(closed["mend"])
