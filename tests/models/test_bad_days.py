"""Built engines where something is missing, full, shared, hostile or in a hurry."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from tests.support.small_networks import answers, pictures, small_network, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt import Engine

ROOT = Path(__file__).resolve().parents[2]
_PREFACE = """
    import sys
    import numpy as np
    import smelt
    from tests.support.small_networks import answers, pictures, small_network

    def check(engine):
        image = pictures(1)
        with engine.create_context(threads=2) as context:
            (made,) = context.run({"data": image}).values()
        np.testing.assert_allclose(made, answers(small_network(), image), atol=1e-5)
"""


def _start(code: str, **environment: str | None) -> subprocess.Popen[str]:
    """A Python of its own; None removes a variable."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src")))}
    for name, value in environment.items():
        given.pop(name, None)
        if value is not None:
            given[name] = value
    text = textwrap.dedent(_PREFACE) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("home", [None, "", "/proc/1/nowhere", os.devnull])
@pytest.mark.slow
def test_without_a_home_one_builds_saves_unsigned_and_runs(
    home: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "small.engine"
    code = f"""
        smelt.build(small_network(), tune="fast").save({str(path)!r})
        check(smelt.load({str(path)!r}))
        try:
            smelt.Engine.load({str(path)!r})
        except smelt.TrustError as error:
            print("refused:", error)
    """
    out, err = _finish(_start(code, HOME=home, SMELT_HOME=None, USERPROFILE=home))
    assert "refused:" in out
    assert "the engine is not signed" in err


@pytest.mark.slow
def test_two_processes_that_build_at_once_share_the_caches(tmp_path: Path) -> None:
    code = """
        for _ in range(3):
            check(smelt.build(small_network(), tune="fast"))
    """
    home = str(tmp_path)
    both = [_start(code, HOME=home) for _ in range(2)]
    for process in both:
        assert _finish(process) == ("", "")
    before = _contents(tmp_path)
    assert any(path.suffix == ".json" for path in before)
    assert _finish(_start(code, HOME=home)) == ("", "")
    assert _contents(tmp_path) == before
    assert not [path for path in before if "part" in path.name or "tmp" in path.name]


def _contents(folder: Path) -> set[Path]:
    return {path for path in (folder / ".smelt").rglob("*") if path.is_file()}


_FULL = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (@, @))
"""


def test_on_a_full_disc_a_save_fails_whole_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "small.engine"
    path.write_bytes(b"old")
    code = (
        _FULL.replace("@", "20000")
        + f"""
    engine = smelt.build(small_network(), tune="none")
    try:
        engine.save({str(path)!r})
    except smelt.SmeltError as error:
        print(error)
    check(engine)
    """
    )
    out, _ = _finish(_start(code, HOME=str(tmp_path / "home")))
    assert str(path) in out
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["small.engine"]


def test_on_a_full_disc_a_build_goes_without_its_caches(tmp_path: Path) -> None:
    code = (
        _FULL.replace("@", "100")
        + """
    check(smelt.build(small_network(), tune="fast"))
    """
    )
    _finish(_start(code, HOME=str(tmp_path)))
    for path in _contents(tmp_path):
        assert path.stat().st_size <= 100


@pytest.mark.parametrize("what", ["context", "stream", "engine"])
def test_a_program_may_end_without_closing_anything(what: str) -> None:
    code = f"""
        engine = smelt.build(small_network(), tune="none", max_batch_size=4)
        context = engine.create_context(threads=3)
        images = pictures(4)
        context.run({{"data": images}})
        if {what!r} == "stream":
            stream = smelt.Stream("cpu")
            result = np.zeros((4, 10), np.float32)
            for _ in range(50):
                context.enqueue(4, [images, result], stream)
        if {what!r} == "engine":
            engine.close()
            context.run({{"data": images}})
    """
    assert _finish(_start(code)) == ("", "")


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "link" or done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smelt.build(small_network(), tune="none", progress=interrupt).save(tmp_path / "a.engine")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with smelt.build(small_network(), tune="none", max_batch_size=2) as built:
        yield built


def _readonly(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = images.copy()
    copy.flags.writeable = False
    return copy


_ARRANGEMENTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "fortran order": np.asfortranarray,
    "negative strides": lambda x: np.ascontiguousarray(x[:, ::-1, :, ::-1])[:, ::-1, :, ::-1],
    "every second column": lambda x: np.repeat(x, 2, axis=3)[:, :, :, ::2],
    "channels last in memory": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(
        0, 3, 1, 2
    ),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": _readonly,
    "a byte off": lambda x: _misaligned(x),
}


def _misaligned(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    memory = np.zeros(images.nbytes + 1, np.uint8)[1:]
    moved = memory.view(np.float32).reshape(images.shape)
    moved[...] = images
    return moved


@pytest.mark.parametrize("name", _ARRANGEMENTS)
def test_any_arrangement_of_the_input_in_memory_gives_the_same_answer(
    name: str, engine: Engine
) -> None:
    images = pictures(2)
    arranged = _ARRANGEMENTS[name](images)
    before = arranged.copy()
    with engine.create_context() as context:
        (wanted,) = context.run({"data": np.ascontiguousarray(arranged)}).values()
        (made,) = context.run({"data": arranged}).values()
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(arranged, before)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bool", "object", "complex64"])
def test_an_input_of_another_dtype_is_refused_by_name(dtype: str, engine: Engine) -> None:
    with (
        engine.create_context() as context,
        pytest.raises(smelt.BindingError, match=r"data.*float32"),
    ):
        context.run({"data": pictures(1).astype(dtype)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_poison_what_they_touch_and_nothing_else(
    value: float,
) -> None:
    filters = weights(16, 3, 3, 3)
    filters[5, 1, 0, 2] = value
    net = smelt.NetworkDefinition("poisoned")
    x = net.add_input("data", "float32", (3, 20, 20))
    y = net.add_convolution(x, 16, (3, 3), filters, padding=1, name="conv")
    net.mark_output(y)
    image = pictures(1)
    with smelt.build(net, tune="none") as engine, engine.create_context() as context:
        (made,) = context.run({"data": image}).values()
    wanted = answers(net, image)
    np.testing.assert_array_equal(np.isfinite(made), np.isfinite(wanted))
    finite = np.isfinite(wanted)
    assert not finite.all()
    np.testing.assert_allclose(made[finite], wanted[finite], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made[~finite], wanted[~finite])
