"""Whose machine code runs: keys, signatures and the folders that hold them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from smelt.engine import (
    EngineFile,
    Signer,
    add_trusted_key,
    key_id,
    read_engine,
    remove_trusted_key,
    serialize_engine,
    show_trusted_keys,
    user_signer,
    verify_signature,
)
from smelt.errors import EngineFormatError, TrustError
from tests.support.engines import affine_data, affine_header

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = Signer(b"stranger".ljust(32, b"."))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def file_signed_by(signer: Signer | None) -> EngineFile:
    return read_engine(serialize_engine(affine_header(), affine_data(), b"c", b"r", signer))


def line_of(signer: Signer, label: str) -> str:
    from base64 import b64encode

    return f"smelt-ed25519 {b64encode(signer.public_key).decode()} {label}"


def test_an_engine_that_this_user_signed_is_trusted() -> None:
    key = verify_signature(file_signed_by(user_signer()))
    assert key.origin == "own"


def test_a_users_key_is_made_once_and_is_his_alone(home: Path) -> None:
    first, second = user_signer(), user_signer()
    assert first is not None
    assert second is not None
    assert first.public_key == second.public_key
    assert (home / "keys").stat().st_mode & 0o777 == 0o700
    assert (home / "keys" / "signing.key").stat().st_mode & 0o777 == 0o600


def test_two_processes_make_one_key(home: Path) -> None:
    program = "from smelt.engine import user_signer; print(user_signer().public_key.hex())"
    environment = {**os.environ, "SMELT_HOME": str(home)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1


def test_an_unsigned_engine_is_refused_with_what_to_do() -> None:
    with pytest.raises(TrustError, match=r"not signed.*smelt\.load"):
        verify_signature(file_signed_by(None))


def test_a_strangers_engine_is_refused_until_his_key_is_added() -> None:
    engine = file_signed_by(STRANGER)
    with pytest.raises(TrustError, match=rf"{key_id(STRANGER.public_key)}.*smelt trust add"):
        verify_signature(engine)
    added = add_trusted_key(line_of(STRANGER, "the build server"))
    assert verify_signature(engine).label == "the build server"
    assert remove_trusted_key(added.key_id).public_key == STRANGER.public_key
    with pytest.raises(TrustError):
        verify_signature(engine)


def test_keys_come_from_files_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stranger.pub"
    path.write_text(line_of(STRANGER, "him") + "\n")
    assert add_trusted_key(path).label == "him"
    remove_trusted_key("him")
    for value in (path, tmp_path):
        monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(value))
        assert verify_signature(file_signed_by(STRANGER)).origin == str(path)
    with pytest.raises(TrustError, match="not recorded here"):
        remove_trusted_key("him")


def test_the_list_shows_own_recorded_and_environment_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_signer()
    add_trusted_key(line_of(STRANGER, ""), label="renamed")
    path = tmp_path / "other.pub"
    path.write_text(line_of(Signer(bytes(32)), "other"))
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", f"{path}{os.pathsep}{tmp_path / 'missing'}")
    own, *others = [key.label for key in show_trusted_keys()]
    assert re.fullmatch(r"\S+@\S+|this user", own)  # tells colleagues whose key it is
    assert others == ["renamed", "other"]
    assert all(key.text.startswith("smelt-ed25519 ") for key in show_trusted_keys())


@pytest.mark.parametrize(
    "text", ["smelt-ed25519 AAAA x", "smelt-ed25519 ???", "smelt-ed25519", "smelt-ed25519 "]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(TrustError, match="no public key"):
        add_trusted_key(text)


def test_names_that_fit_no_key_or_two_are_refused() -> None:
    with pytest.raises(TrustError, match="no trusted key"):
        remove_trusted_key("nobody")
    with pytest.raises(TrustError):
        remove_trusted_key("")
    add_trusted_key(line_of(STRANGER, "twin"))
    add_trusted_key(line_of(Signer(bytes(32)), "twin"))
    with pytest.raises(TrustError, match="2 trusted keys"):
        remove_trusted_key("twin")


def test_the_own_key_is_not_removed() -> None:
    signer = user_signer()
    assert signer is not None
    with pytest.raises(TrustError, match="own"):
        remove_trusted_key(key_id(signer.public_key))


def test_a_changed_signature_is_a_damaged_file_not_a_stranger() -> None:
    data = bytearray(serialize_engine(affine_header(), b"", b"c", b"r", user_signer()))
    start = 64 + int.from_bytes(data[16:24], "little")
    data[start + 40] ^= 1
    with pytest.raises(EngineFormatError, match="signature is wrong"):
        verify_signature(read_engine(bytes(data)))


def test_without_a_home_nothing_is_signed_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "file" / "home"))
    with caplog.at_level(logging.WARNING, "smelt"):
        assert user_signer() is None
    assert "not signed" in caplog.text
    assert show_trusted_keys() == ()


def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(home: Path) -> None:
    user_signer()
    path = home / "keys" / "signing.key"
    path.chmod(0o644)
    with pytest.raises(TrustError, match="can be read by others"):
        user_signer()
    path.chmod(0o600)
    path.write_text("not hexadecimal")
    with pytest.raises(TrustError, match="damaged"):
        user_signer()
    path.write_text("00")
    with pytest.raises(TrustError, match="damaged"):
        user_signer()
