"""Paths of the attack table, and the patterns of rules."""

import pytest

from rules.paths import MAX_SEGMENTS, Ambiguity, Path, PathError, PathPattern, normal_form, readings_of

AMBIGUOUS = {
    "dot segment": b"/ok/../admin",
    "dot segment last": b"/ok/..",
    "single dot": b"/ok/./admin",
    "escaped dots": b"/ok/%2e%2e/admin",
    "escaped dots upper": b"/ok/%2E%2E/admin",
    "half escaped dots": b"/ok/.%2e/admin",
    "doubly escaped dots": b"/ok/%252e%252e/admin",
    "doubly escaped slash": b"/ok%252fadmin",
    "triply escaped": b"/ok/%25252e/admin",
    "parameter and dots": b"/ok/..;/admin",
    "parameter": b"/ok;p=1/admin",
    "escaped semicolon": b"/ok/..%3b/admin",
    "two slashes": b"//admin",
    "two slashes inside": b"/ok//admin",
    "two slashes at the end": b"/ok//",
    "backslash": b"/ok\\admin",
    "escaped backslash": b"/ok/..%5cadmin",
    "fragment": b"/ok#/admin",
    "escaped NUL": b"/ok%00/admin",
    "escaped LF": b"/ok%0a/admin",
    "escaped DEL": b"/ok%7f",
    "NUL": b"/ok\x00",
    "tab": b"/ok\tadmin",
    "blank": b"/ok admin",
    "CR LF": b"/x HTTP/1.1\r\nHost:evil\r\n\r\nGET /smug",
    "full-width": "/ok/\uff0f..\uff0fadmin".encode(),
    "full-width escaped": b"/ok/%ef%bc%8f..%ef%bc%8fadmin",
    "full-width dots escaped": b"/ok/%ef%bc%8e%ef%bc%8e/admin",
    "full-width percent escaped": b"/ok/%ef%bc%852e/admin",
    "two dot leader": b"/ok/%e2%80%a5/admin",
    "overlong dot": b"/ok/%c0%ae%c0%ae/admin",
    "overlong slash": b"/ok%c0%afadmin",
    "half a character": b"/ok/%e2%82",
    "raw latin-1": b"/ok/\xe9",
    "escaped letter": b"/%61dmin",
    "escaped digit": b"/%31",
    "escaped tilde": b"/%7Ehome",
    "escaped hyphen": b"/a%2db",
    "broken escape": b"/ok%zz",
    "short escape": b"/ok%2",
    "dots behind an escaped slash": b"/ok%2f..%2fadmin",
    "empty segment by an escaped slash": b"/ok%2f/admin",
    "two escaped slashes": b"/ok%2f%2Fadmin",
    "no slash first": b"ok",
    "empty": b"",
    "asterisk": b"*",
    "absolute": b"https://evil/a",
    "quote": b'/a"b',
    "angle": b"/a<b>",
    "braces": b"/a{b}",
}


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_path_that_two_servers_could_read_differently_is_refused(raw: bytes) -> None:
    normal = normal_form(raw)
    assert isinstance(normal, Ambiguity)
    assert normal.why


@pytest.mark.parametrize(
    ("raw", "slash"),
    [
        (b"/", False),
        (b"/a", False),
        (b"/a/", False),
        (b"/repos/acme/app/issues", False),
        (b"/@scope%2fname", True),
        (b"/@scope%2Fname", True),
        (b"/model/anthropic.x%3A0/invoke", False),
        (b"/a%20b", False),
        (b"/caf%C3%A9", False),
        (b"/100%25", False),
        (b"/100%25-off", False),
        (b"/C%23/x", False),
        (b"/...", False),
        (b"/a..b/.git", False),
        (b"/a:b/c@d/e=f,g+h!$&'()*", False),
        (b"/a[1]|^", False),
    ],
)
def test_a_path_in_normal_form_is_taken_as_it_is(raw: bytes, slash: bool) -> None:
    assert normal_form(raw) == Path(text=raw.decode(), encoded_slash=slash)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("/a/b", ["/a/b"], ["/a", "/a/b/", "/a/b/c", "/A/b", "/a/bc", "/"]),
        ("/a/*", ["/a/b", "/a/b.c"], ["/a", "/a/", "/a/b/c", "/a/b/"]),
        ("/v1/*", ["/v1/messages"], ["/v1/admin/secrets", "/v1/"]),
        ("/*/b", ["/x/b"], ["/b", "/x/y/b"]),
        ("/a/**", ["/a", "/a/", "/a/b", "/a/b/c/"], ["/ab", "/b", "/"]),
        ("/**", ["/", "/a", "/a/b/c"], []),
        ("/a/**/z", ["/a/z", "/a/b/z", "/a/b/c/z"], ["/a", "/a/b", "/z", "/a/z/"]),
        ("/**/*/git-upload-pack", ["/x/git-upload-pack", "/a/b.git/git-upload-pack"], ["/git-upload-pack", "/a/x"]),
        ("/", ["/"], ["/a"]),
        ("/a/", ["/a/"], ["/a"]),
        ("/@acme%2fpkg", ["/@acme%2fpkg", "/@acme%2Fpkg"], ["/@acme/pkg"]),
        ("/*", ["/@acme%2fpkg"], ["/@acme/pkg"]),
        ("/a.b", ["/a.b"], ["/axb"]),
    ],
)
def test_patterns_cover_whole_segments(pattern: str, inside: list[str], outside: list[str]) -> None:
    parsed = PathPattern.parse(pattern)
    assert [path for path in inside if not parsed.matches(path)] == []
    assert [path for path in outside if parsed.matches(path)] == []


@pytest.mark.parametrize(
    "path",
    [
        "/user/keys",
        "/user/keys/",
        "/USER/Keys",
        "/user%2fkeys",
        "/user%2Fkeys",
        "/user/keys%3Fa",
        "/user/keys%23",
        "/user/keys.json",
        "/user/keys.",
        "/user/keys%20",
        "/user%20/keys",
    ],
)
def test_a_deny_rule_sees_through_other_readings_of_a_path(path: str) -> None:
    pattern = PathPattern.parse("/user/keys")
    assert pattern.could_mean(readings_of(path))
    assert pattern.matches(path) is (path == "/user/keys")


@pytest.mark.parametrize("path", ["/user/key", "/user/keys/1", "/users/keys", "/", "/keys"])
def test_a_deny_rule_covers_no_other_path(path: str) -> None:
    assert not PathPattern.parse("/user/keys").could_mean(readings_of(path))


def test_a_deny_pattern_with_an_escaped_slash_covers_both_forms() -> None:
    pattern = PathPattern.parse("/@acme%2Fpkg")
    assert pattern.could_mean(readings_of("/@acme%2fpkg"))
    assert pattern.could_mean(readings_of("/@acme/pkg"))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "slash"),
        ("a/b", 'write "/a/b"'),
        ("/a?b=c", "query"),
        ("/a//b", "empty segment"),
        ("/a/../b", "dot segment"),
        ("/a/*.git", "whole segment"),
        ("/a**", "whole segment"),
        ("/a/***", "whole segment"),
        ("/%61", "needs none"),
        ("/é", "does not belong"),
        ("/\ud800", "does not belong"),
    ],
)
def test_a_pattern_out_of_normal_form_is_refused(text: str, word: str) -> None:
    with pytest.raises(PathError) as caught:
        PathPattern.parse(text)
    assert word in str(caught.value)


def test_many_double_wildcards_stay_cheap() -> None:
    pattern = PathPattern.parse("/**/a" * 50)
    assert not pattern.matches("/a" * 255 + "/b")


def test_the_number_of_segments_is_bounded() -> None:
    assert isinstance(normal_form(b"/a" * MAX_SEGMENTS), Path)
    assert isinstance(normal_form(b"/a" * (MAX_SEGMENTS + 1)), Ambiguity)


def test_readings_of_blanks_stay_cheap() -> None:
    assert len(readings_of("/" + "%20" * 2700)) < 12


@pytest.mark.parametrize("path", ["/user/keys", "/user/keys/", "/User/Keys", "/user/keys.json"])
def test_who_closes_a_path_by_its_last_slash_closes_it_without_too(path: str) -> None:
    pattern = PathPattern.parse("/user/keys/")
    assert pattern.could_mean(readings_of(path))
    assert not pattern.could_mean(readings_of("/user"))
    assert not pattern.could_mean(readings_of("/user/keys/1"))
    assert PathPattern.parse("/").could_mean(readings_of("/"))
    assert not PathPattern.parse("/").could_mean(readings_of("/user"))
