"""The certificate database that Chromium and its kind read below the home: made by the NSS library that they use.

Run as a program (standard library only, a process of its own: C code parses there, and the daemon holds secrets):
`browserstore.py DIRECTORY CA.pem`. Exit status 3 where the host has no NSS; then it has no such browser either.
"""

import ctypes
import ssl
import subprocess
import sys
from pathlib import Path

INSIDE = ".pki/nssdb"  # below the home; opened for writing, or not at all (measured: SEC_ERROR_READ_ONLY)
FILES = ("cert9.db", "key4.db", "pkcs11.txt")
NO_LIBRARY, TIMEOUT = 3, 30.0
_TRUSTED_CA = 0x08 | 0x10  # certt.h: CERTDB_VALID_CA, CERTDB_TRUSTED_CA; certutil shows them as "C"


class _Item(ctypes.Structure):
    """SECItem of seccomon.h."""

    _fields_ = (("type", ctypes.c_int), ("data", ctypes.c_char_p), ("len", ctypes.c_uint))


class _Trust(ctypes.Structure):
    """CERTCertTrust of certt.h: for TLS servers, mail, code."""

    _fields_ = (("ssl", ctypes.c_uint), ("email", ctypes.c_uint), ("code", ctypes.c_uint))


class StoreError(Exception):
    """The database could not be made; the message says by which call."""


def make(folder: Path, ca: Path) -> bool:
    """Fill the empty directory `folder`; False where the host has no NSS. Raises StoreError."""
    argv = [sys.executable, "-I", __file__, str(folder), str(ca)]
    try:
        done = subprocess.run(argv, env={}, capture_output=True, timeout=TIMEOUT, check=False, cwd="/")
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"no end within {TIMEOUT:g} s") from error
    if done.returncode not in (0, NO_LIBRARY):
        raise StoreError(done.stderr.decode("utf-8", "replace").strip()[-200:] or f"exit status {done.returncode}")
    return done.returncode == 0


def _pointer(nss: ctypes.CDLL, name: str, *arguments: object) -> ctypes.c_void_p:
    function = getattr(nss, name)
    function.restype = ctypes.c_void_p
    found = function(*arguments)
    if not found:
        raise StoreError(name)
    return ctypes.c_void_p(found)


def _done(name: str, status: int) -> None:
    if status != 0:  # SECStatus of seccomon.h
        raise StoreError(name)


def _write(nss: ctypes.CDLL, folder: str, der: bytes) -> None:
    _done("NSS_Initialize", nss.NSS_Initialize(f"sql:{folder}".encode(), b"", b"", b"secmod.db", 0))
    slot = _pointer(nss, "PK11_GetInternalKeySlot")
    if nss.PK11_NeedUserInit(slot):
        _done("PK11_InitPin", nss.PK11_InitPin(slot, None, b""))
    database = _pointer(nss, "CERT_GetDefaultCertDB")
    item = _Item(0, der, len(der))
    certificate = _pointer(nss, "CERT_NewTempCertificate", database, ctypes.byref(item), None, 0, 1)
    _done("PK11_ImportCert", nss.PK11_ImportCert(slot, certificate, ctypes.c_ulong(0), b"credgate", 0))
    trust = _Trust(_TRUSTED_CA, 0, 0)
    _done("CERT_ChangeCertTrust", nss.CERT_ChangeCertTrust(database, certificate, ctypes.byref(trust)))
    nss.CERT_DestroyCertificate(certificate)
    nss.PK11_FreeSlot(slot)
    _done("NSS_Shutdown", nss.NSS_Shutdown())


def main(folder: str, ca: str) -> int:
    """What the process of its own does."""
    try:
        nss = ctypes.CDLL("libnss3.so")
    except OSError:
        return NO_LIBRARY
    try:
        _write(nss, folder, ssl.PEM_cert_to_DER_cert(Path(ca).read_text("ascii")))
    except StoreError as error:
        sys.stderr.write(f"{error} failed\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
