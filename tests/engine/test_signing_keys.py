"""Whose machine code runs: keys, signatures and the folders that hold them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from smelt import config
from smelt.engine import (
    EngineFile,
    Signer,
    _signing_keys,
    add_trusted_key,
    cache_secret,
    key_id,
    read_engine,
    remove_trusted_key,
    serialize_engine,
    show_trusted_keys,
    user_signer,
    verify_signature,
)
from smelt.errors import EngineFormatError, TrustError
from smelt.types import Limit, open_file, override
from tests.support.engines import affine_data, affine_header

if TYPE_CHECKING:
    from io import BufferedReader

STRANGER = Signer(b"stranger".ljust(32, b"."))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def file_signed_by(signer: Signer | None) -> EngineFile:
    return read_engine(serialize_engine(affine_header(), affine_data(), b"c", b"r", signer))


def line_of(key: Signer | bytes, label: str) -> str:
    public = key if isinstance(key, bytes) else key.public_key
    return f"smelt-ed25519 {b64encode(public).decode()} {label}"


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
    with pytest.raises(TrustError, match="not stored here"):
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


# y of the points whose order divides 8, of which two differ in the sign of x where x is not 0.
PRIME = 2**255 - 19
ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDERS = (1, PRIME - 1, 0, ORDER_8, PRIME - ORDER_8)


@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("y", [*SMALL_ORDERS, PRIME, PRIME + 1, PRIME + 3, 2**255 - 1])
def test_a_key_under_which_anybody_can_sign_or_with_two_encodings_is_refused(
    y: int,
    sign: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = line_of((y | sign << 255).to_bytes(32, "little"), "everybody")
    with pytest.raises(TrustError, match="anybody can sign"):
        add_trusted_key(line)
    path = tmp_path / "weak.pub"
    path.write_text(line)
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(path))
    assert show_trusted_keys() == ()
    assert "anybody can sign" in caplog.text


class Forger(Signer):
    """Signs without a secret, by the key that every message verifies under."""

    def __init__(self) -> None:
        super().__init__(bytes(32))
        self.public_key = (1).to_bytes(32, "little")

    @override
    def sign(self, message: bytes) -> bytes:
        return self.public_key + bytes(32)


def test_an_engine_signed_without_a_secret_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "everybody.pub"
    path.write_text(line_of(Forger(), "everybody"))
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(path))
    with pytest.raises(TrustError, match="not trusted here"):
        verify_signature(file_signed_by(Forger()))


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
    with pytest.raises(TrustError, match=r"your own key, .*signing\.key: delete that file"):
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
    with pytest.raises(TrustError, match="can be read by other users"):
        user_signer()
    path.chmod(0o600)
    path.write_text("not hexadecimal")
    with pytest.raises(TrustError, match="damaged"):
        user_signer()
    path.write_text("00")
    with pytest.raises(TrustError, match="damaged"):
        user_signer()


# ---- files and directories that others may write


@pytest.fixture
def stranger_key(home: Path) -> Path:
    """A recorded key of a stranger, beside which another key stays trusted."""
    add_trusted_key(line_of(Signer(bytes(32)), "sound"))
    added = add_trusted_key(line_of(STRANGER, "stranger"))
    return home / "keys" / "trusted" / f"{added.key_id}.pub"


def labels() -> list[str]:
    return [key.label for key in show_trusted_keys()]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_key_file_that_others_may_write_is_not_trusted(
    stranger_key: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert stranger_key.stat().st_mode & 0o777 == 0o600
    stranger_key.chmod(mode)
    assert labels() == ["sound"]
    assert f"chmod go-w {stranger_key}" in caplog.text
    stranger_key.chmod(0o644)
    assert sorted(labels()) == ["sound", "stranger"]


def test_a_directory_of_keys_that_others_may_write_is_not_trusted(
    stranger_key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger_key.parent.chmod(0o777)
    assert labels() == []
    assert f"chmod go-w {stranger_key.parent}" in caplog.text
    with pytest.raises(TrustError, match="not trusted here"):
        verify_signature(file_signed_by(STRANGER))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives files away")
def test_what_another_user_owns_is_not_trusted(
    stranger_key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(stranger_key, 12345, -1)
    assert labels() == ["sound"]
    assert "it is owned by another user" in caplog.text
    os.chown(stranger_key.parent, 12345, -1)
    assert labels() == []


def test_a_link_in_the_directory_of_keys_is_not_trusted(
    stranger_key: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "elsewhere.pub"
    stranger_key.rename(elsewhere)
    stranger_key.symlink_to(elsewhere)
    assert labels() == ["sound"]
    assert "symbolic link" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"smelt-ed25519 ???", b"\0" * 5000])
def test_a_broken_key_leaves_the_others_as_they_are(
    stranger_key: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    user_signer()
    (stranger_key.parent / "0.pub").write_bytes(content)
    (stranger_key.parent / "1.pub").mkdir()
    (stranger_key.parent / "2.pub").symlink_to("2.pub")
    assert sorted(labels()[1:]) == ["sound", "stranger"]
    assert "0.pub" in caplog.text
    assert "1.pub" in caplog.text
    assert verify_signature(file_signed_by(STRANGER)).label == "stranger"
    assert remove_trusted_key("stranger").public_key == STRANGER.public_key


def test_an_own_key_that_is_broken_leaves_the_others_as_they_are(
    stranger_key: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    user_signer()
    own = home / "keys" / "signing.key"
    own.write_text("broken")
    assert verify_signature(file_signed_by(STRANGER)).label == "stranger"
    assert str(own) in caplog.text
    with pytest.raises(TrustError, match="damaged"):
        user_signer()
    own.unlink()
    own.symlink_to(stranger_key)
    with pytest.raises(TrustError, match="symbolic link"):
        user_signer()


def test_keys_of_the_environment_are_asked_as_those_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "more"
    folder.mkdir(mode=0o755)
    path = folder / "stranger.pub"
    path.write_text(line_of(STRANGER, "him"))
    path.chmod(0o644)
    for named in (path, folder):
        monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(named))
        folder.chmod(0o755)
        assert labels() == ["him"]
        folder.chmod(0o775)
        assert labels() == []
    assert f"chmod go-w {folder}" in caplog.text
    folder.chmod(0o755)
    link = tmp_path / "link.pub"
    link.symlink_to(path)
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(link))
    assert labels() == ["him"]
    path.chmod(0o666)
    assert labels() == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("given", ["link", "folder", "folder above"])
def test_a_key_behind_a_link_or_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    sound = tmp_path / "stranger.pub"
    sound.write_text(line_of(STRANGER, "him"))
    link = tmp_path / "above" / "folder" / "link.pub"
    link.parent.mkdir(parents=True)
    link.symlink_to(sound)
    if given == "folder above":
        link.unlink()
        sound.rename(link)
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(link))
    assert labels() == ["him"]
    owned = {"link": link, "folder": link.parent, "folder above": link.parent.parent}[given]
    os.lchown(owned, 12345, -1)
    assert labels() == []
    assert f"{owned} is owned by another user" in caplog.text


def test_a_key_that_is_replaced_after_it_was_opened_is_not_trusted(
    stranger_key: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = config.other_writers

    def replace(path: Path, *, num_parents: int | None = 0) -> str:
        if path == stranger_key:
            other = path.with_suffix(".new")
            other.write_bytes(path.read_bytes())
            other.rename(path)
        return asked(path, num_parents=num_parents)

    monkeypatch.setattr(config, "other_writers", replace)
    assert labels() == ["sound"]
    assert "replaced while it was opened" in caplog.text


def are_same(*_: os.stat_result) -> bool:
    return True


class Exchange:
    """A neighbour who may write above a home: he exchanges it with his own while a key is opened.

    Every path that is checked leads to the user's own files; only the open file is another's.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.other = home, home.with_name("other")
        monkeypatch.setenv("SMELT_HOME", str(self.other))
        signer = user_signer()
        monkeypatch.setenv("SMELT_HOME", str(home))
        assert signer is not None
        self.public_key = signer.public_key
        monkeypatch.setattr(_signing_keys, "open_file", self.open_file)

    def open_file(self, path: Path, limit: Limit) -> BufferedReader:
        self.exchange()
        try:
            return open_file(path, limit)
        finally:
            self.exchange()

    def exchange(self) -> None:
        aside = self.home.with_name("aside")
        self.home.rename(aside)
        self.other.rename(self.home)
        aside.rename(self.other)


def test_a_home_that_is_exchanged_while_its_key_is_opened_gives_no_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    user_signer()
    cache_secret()
    theirs = Exchange(home, monkeypatch).other / "keys" / "cache.key"
    theirs.write_text("00" * 32)
    theirs.chmod(0o600)
    for read in (user_signer, cache_secret):
        with pytest.raises(TrustError, match=r"is not your key: it was replaced while it was op"):
            read()
    assert show_trusted_keys() == ()
    assert "it was replaced while it was opened" in caplog.text


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("name", ["signing.key", "cache.key", "trusted"])
def test_a_neighbours_file_is_no_key_even_if_the_path_leads_to_it_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    user_signer()
    cache_secret()
    path = home / "keys" / name
    if name == "trusted":
        path = Path(add_trusted_key(line_of(STRANGER, "him")).origin)
    exchange = Exchange(home, monkeypatch)
    theirs = exchange.other / path.relative_to(home)
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_bytes(path.read_bytes())
    theirs.chmod(0o600)
    os.chown(theirs, 12345, -1)
    monkeypatch.setattr("os.path.samestat", are_same)  # a second exchange, in time
    if name == "trusted":
        assert "him" not in labels()
        assert "it is owned by another user" in caplog.text
        return
    with pytest.raises(TrustError, match="is not your key: it is owned by another user"):
        (user_signer if name == "signing.key" else cache_secret)()


def test_a_key_that_others_may_read_is_refused_by_what_was_opened(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_signer()
    exchange = Exchange(home, monkeypatch)
    (exchange.other / "keys" / "signing.key").chmod(0o644)
    with pytest.raises(TrustError, match="can be read by other users"):
        user_signer()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_key_that_is_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key.pub")
    with pytest.raises(TrustError, match="it is a pipe; it must be a regular file"):
        add_trusted_key(tmp_path / "key.pub")
