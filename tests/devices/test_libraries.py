"""Where NVIDIA's libraries are looked for."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import pytest

from smelt.devices.cuda import _cublaslt, _cudnn, _vendor_libraries
from smelt.errors import DeviceError, EngineMismatchError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

_PLACES = {
    "cublaslt": (_cublaslt._FOLDERS, ["libcublasLt.so.13", "libcublasLt.so.12"]),  # pyright: ignore[reportPrivateUsage]
    "cudnn": (_cudnn._FOLDERS, ["libcudnn.so.9"]),  # pyright: ignore[reportPrivateUsage]
}


@pytest.mark.parametrize("name", _PLACES)
def test_a_named_folder_comes_before_the_packages_and_those_before_the_loader(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, names = _PLACES[name]
    named, wheel = tmp_path / "named", tmp_path / "nvidia"
    for folder in (named, *(wheel / folder for folder in folders)):
        folder.mkdir(parents=True)
    (named / names[-1]).touch()
    (wheel / folders[0] / names[0]).touch()
    monkeypatch.setenv("SMELT_CUDA_LIBRARIES", str(named))
    spec = ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(wheel)]
    monkeypatch.setattr(importlib.util, "find_spec", {"nvidia": spec}.get)
    found = [str(named / names[-1]), str(wheel / folders[0] / names[0])]
    assert list(_vendor_libraries.paths_to_try(names, folders)) == [*found, *names]


def test_what_is_no_library_is_passed_over(tmp_path: Path) -> None:
    fake = tmp_path / "libcudnn.so.9"
    fake.write_bytes(b"\x7fELF and no more")
    for path in (str(fake), "libc.so.6"):
        assert _vendor_libraries.open_library(path, {"cudnnCreate": ()}, "cudnnGetVersion") is None


def test_the_first_of_the_version_that_is_wanted_is_taken() -> None:
    opened = [None, 91900, 92800]

    def find(wanted: int | None) -> int:
        return int(_vendor_libraries.find_version("cuDNN", "nvidia-x", opened, int, wanted))

    assert [find(wanted) for wanted in (None, 91900, 92800)] == [91900, 91900, 92800]
    with pytest.raises(EngineMismatchError, match=r"requires cuDNN 9\.1\.0, but version 9\.19\.0"):
        find(90100)
    with pytest.raises(DeviceError, match=r"cuDNN 9\.19\.0 is too old: 9\.25\.0 or newer"):
        _vendor_libraries.find_version("cuDNN", "nvidia-x", opened, int, 91900, oldest=92500)
    opened.clear()
    with pytest.raises(MissingExtraError, match="'cuda-libraries'"):
        find(None)
