"""What the targets serve: a git repository, two wheels and their index, two npm packages. Built on the fly."""

import base64
import hashlib
import json
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = "acme/app.git"
README = "An app of Acme.\n"
WHEELS = {"acme-greeting": "acme-words>=1", "acme-words": ""}
PACKAGES = {"@acme/greeting": {"acme-words": "^1.0.0"}, "acme-words": {}}


def make_repository(root: Path, env: Mapping[str, str]) -> Path:
    """A bare repository with one commit on main, which takes pushes."""
    bare = root / REPOSITORY
    work = root.parent / "git-seed"
    identity = ["-c", "user.name=Acme", "-c", "user.email=acme@acme.example"]
    work.mkdir()
    (work / "README").write_text(README)
    for argv in (
        ["git", "init", "-q", "--bare", "--initial-branch=main", str(bare)],
        ["git", "-C", str(bare), "config", "http.receivepack", "true"],
        ["git", "init", "-q", "--initial-branch=main", str(work)],
        ["git", "-C", str(work), "add", "README"],
        ["git", "-C", str(work), *identity, "commit", "-q", "-m", "Say what it is"],
        ["git", "-C", str(work), "push", "-q", str(bare), "main"],
    ):
        subprocess.run(argv, env=env, check=True, capture_output=True, timeout=30)
    return bare


def restore_repository(bare: Path, env: Mapping[str, str]) -> None:
    """Takes back what tests pushed: main is its first commit again, and the only branch."""
    git = ["git", "-C", str(bare)]
    listed = subprocess.run([*git, "for-each-ref", "--format=%(refname)"], env=env, check=True, capture_output=True)
    first = subprocess.run([*git, "rev-list", "--max-parents=0", "main"], env=env, check=True, capture_output=True)
    orders = [f"delete {ref}" for ref in listed.stdout.decode().split() if ref != "refs/heads/main"]
    orders.append(f"update refs/heads/main {first.stdout.decode().split()[-1]}")
    text = "".join(f"{order}\n" for order in orders).encode()
    subprocess.run([*git, "update-ref", "--stdin"], input=text, env=env, check=True, capture_output=True, timeout=30)


def make_index(root: Path) -> None:
    """`root`/simple/ (PEP 503, with hashes) and the wheels it links to."""
    files = root / "files"
    files.mkdir(parents=True)
    for name, requires in WHEELS.items():
        wheel = _make_wheel(files, name, requires)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        page = root / "simple" / name / "index.html"
        page.parent.mkdir(parents=True)
        link = f'<a href="../../files/{wheel.name}#sha256={digest}">{wheel.name}</a>'
        page.write_text(f"<!DOCTYPE html><html><body>{link}</body></html>\n")


def _make_wheel(directory: Path, name: str, requires: str) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-1.0.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{module}.py": 'HELLO = "hello"\n',
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_record_digest(text)},{len(text)}\n" for path, text in files.items())
    path = directory / f"{module}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(inside, text)
    return path


def _record_digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_npm_package(directory: Path, name: str) -> Path:
    """The directory of a package that `npm publish` takes."""
    package = directory / name.replace("/", "-")
    package.mkdir(parents=True)
    about = {"name": name, "version": "1.0.0", "main": "index.js", "dependencies": PACKAGES[name], "license": "MIT"}
    (package / "package.json").write_text(json.dumps(about))
    (package / "index.js").write_text('module.exports = "hello";\n')
    return package
