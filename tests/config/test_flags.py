"""The flags, and where smelt may write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smelt import config
from smelt.errors import SmeltError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_every_flag_has_its_own_prefixed_variable() -> None:
    assert len({flag.variable for flag in config.FLAGS}) == len(config.FLAGS)
    others = [f.variable for f in config.FLAGS if not f.variable.startswith("SMELT_")]
    assert others == ["OMP_NUM_THREADS"]


def test_the_home_directory_is_made_for_its_owner_alone(home: Path) -> None:
    made = config.home_directory()
    assert made == home / ".smelt"
    assert (home / ".smelt").stat().st_mode & 0o777 == 0o700


def test_cache_and_keys_live_in_the_home_directory(home: Path) -> None:
    assert config.cache_directory() == home / ".smelt" / "cache"
    assert config.keys_directory() == home / ".smelt" / "keys"


def test_variables_move_home_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "elsewhere"))
    assert config.cache_directory() == tmp_path / "elsewhere" / "cache"
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "scratch"))
    assert config.cache_directory() == tmp_path / "scratch"


def test_without_a_home_there_is_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    assert config.home_directory() is None
    assert config.cache_directory() is None
    assert config.keys_directory() is None


def test_a_home_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    assert config.keys_directory() is None
    assert not (tmp_path / "absent").exists()


def test_a_home_that_cannot_be_made_is_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert config.home_directory() is None


def test_a_directory_that_others_may_write_to_is_not_used(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / ".smelt").mkdir()
    (home / ".smelt").chmod(0o777)
    assert config.home_directory() is None
    assert "is writable by others" in caplog.text


def test_a_number_of_threads_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.thread_count() is None
    monkeypatch.setenv("SMELT_THREADS", " 3 ")
    assert config.thread_count() == 3


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999999999", "\N{SUPERSCRIPT TWO}"])
def test_a_bad_number_of_threads_is_refused_with_advice(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_THREADS", text)
    with pytest.raises(SmeltError, match=r"^SMELT_THREADS=.* or unset it$"):
        config.thread_count()


@pytest.mark.parametrize(("text", "threads"), [("2", 2), ("4,2", 4), (" 8 , 1", 8), ("", None)])
def test_openmps_number_of_threads_is_read_where_ours_is_not_set(
    text: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert config.thread_count() == threads
    monkeypatch.setenv("SMELT_THREADS", "3")
    assert config.thread_count() == 3


@pytest.mark.parametrize("text", ["0", "many", "-2", ",2", "4096"])
def test_what_openmp_could_not_mean_either_is_ignored_with_a_warning(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert [config.thread_count(), config.thread_count()] == [None, None]
    (detail,) = caplog.messages
    assert detail.startswith(f"OMP_NUM_THREADS={text!r} in the environment: ")
    assert detail.endswith("smelt ignores the variable")


@pytest.mark.parametrize(("text", "enabled"), [("1", False), ("off", True), ("", True)])
def test_the_code_cache_can_be_switched_off(
    text: str, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_NO_CODE_CACHE", text)
    assert config.code_cache_enabled() is enabled


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_NO_CODE_CACHE", "perhaps")
    with pytest.raises(SmeltError, match="it is neither on nor off"):
        config.code_cache_enabled()


def test_severities_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOG", "Internal-Error")
    assert config.log_level() == "internal_error"


def test_trusted_keys_are_a_list_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.pub", tmp_path / "b"
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", f"{first}:{second}:")
    assert config.trusted_keys() == (first, second)


@pytest.mark.parametrize("variable", ["SMELT_HOME", "SMELT_CACHE_DIR"])
def test_a_directory_that_was_asked_for_and_cannot_be_used_is_told_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
) -> None:
    path = tmp_path / "file"
    path.write_text("in the way")
    monkeypatch.setenv(variable, str(path))
    assert [config.cache_directory(), config.cache_directory()] == [None, None]
    assert caplog.messages == [f"{variable}={path} is not used: File exists"]
