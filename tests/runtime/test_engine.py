"""Engines: written, read, trusted or not, refitted, shared, closed."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import textwrap
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.engine import (
    RuntimeChecks,
    Signer,
    read_engine,
    serialize_engine,
)
from smelt.errors import (
    BindingError,
    ContextError,
    EngineFormatError,
    EngineMismatchError,
    ShapeError,
    SmeltError,
    TrustError,
)
from smelt.network import NetworkDefinition
from smelt.runtime import Engine
from smelt.types import DType, SymbolicDim
from tests.support.engines import (
    BATCH,
    COLUMNS,
    MAX_BATCH,
    affine,
    affine_data,
    affine_engine,
    affine_header,
    affine_weights,
    batch_of,
    code_image,
    counting_header,
    host_header,
    runtime_bytes,
)

X = batch_of(3)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def result_of(engine: Engine, x: Any = X) -> Any:
    with engine.create_context(threads=2) as context:
        return context.run({"x": x})["y"]


@pytest.mark.requirement("G-43", "G-44")
def test_an_engine_runs_the_same_after_serialisation(tmp_path: Path) -> None:
    engine = affine_engine()
    path = tmp_path / "m.engine"
    engine.save(path)
    stream = io.BytesIO()
    engine.save(stream)
    for source in (path, str(path), path.read_bytes(), engine.serialize(), stream.getvalue()):
        loaded = Engine.load(source)
        np.testing.assert_array_equal(result_of(loaded), result_of(engine))
        np.testing.assert_array_equal(result_of(loaded), affine(X))
        assert loaded.header == engine.header
        assert loaded.serialize() == engine.serialize()
    with path.open("rb") as file:
        np.testing.assert_array_equal(result_of(Engine.load(file)), affine(X))


def start_addresses(path: Path) -> list[tuple[int, int]]:
    """The addresses at which this process has mapped a file."""
    with Path("/proc/self/maps").open() as file:
        spans = [row.split()[0].split("-") for row in file if str(path) in row]
    return [(int(low, 16), int(high, 16)) for low, high in spans]


def test_a_file_is_copied_and_mapped_only_for_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "m.engine"
    affine_engine().save(path)
    copied = Engine.load(path)
    assert not start_addresses(path)
    mapped = Engine.load(path, mapped=True)
    address = mapped.loaded_code.weights.address
    assert any(low <= address < high for low, high in start_addresses(path))
    np.testing.assert_array_equal(result_of(mapped), result_of(copied))


@pytest.mark.parametrize("harm", ["truncate", "rewrite"])
def test_a_file_that_changes_behind_an_engine_changes_no_answer(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "m.engine"
    affine_engine().save(path)
    held = np.array(np.frombuffer(path.read_bytes(), np.uint8))
    by_path, by_buffer = Engine.load(path), Engine.load(held)
    with path.open("r+b") as file:
        if harm == "truncate":
            file.truncate(10)
        else:
            file.write(b"\xff" * path.stat().st_size)
    held[:] = 255
    for engine in (by_path, by_buffer):
        np.testing.assert_array_equal(result_of(engine), affine(X))
        np.testing.assert_array_equal(result_of(Engine.load(engine.serialize())), affine(X))


def test_a_file_that_others_may_write_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "m.engine"
    path.parent.mkdir(mode=0o755)
    affine_engine().save(path)
    path.chmod(0o664)
    with pytest.raises(TrustError, match=r"is writable by others \(chmod go-w .*m\.engine\)"):
        Engine.load(path, mapped=True)
    path.chmod(0o644)
    path.parent.chmod(0o777)
    for name in (path, tmp_path / "link"):
        if name != path:
            name.symlink_to(path)
        with pytest.raises(TrustError, match=r"folder is writable by others \("):
            Engine.load(name, mapped=True)
    path.parent.chmod(0o1777)  # where nobody exchanges what is another's
    assert Engine.load(path, mapped=True).name == "affine"
    with pytest.raises(EngineFormatError, match="requires the path of a file"):
        Engine.load(path.read_bytes(), mapped=True)


def test_what_is_loaded_without_a_question_is_not_signed_unasked() -> None:
    stranger = Signer(b"stranger".ljust(32, b"."))
    parts = (affine_header(), affine_data(), code_image()[0], runtime_bytes())
    for signer in (None, stranger):
        engine = Engine.load(serialize_engine(*parts, signer), trust="always")
        assert read_engine(engine.serialize()).signature is None
        engine.refit({"a": affine_weights()[0]})
        assert read_engine(engine.serialize()).signature is None
        with pytest.raises(TrustError):
            Engine.load(engine.serialize())
        np.testing.assert_array_equal(
            result_of(Engine.load(engine.serialize(sign=True))), affine(X)
        )


def test_a_trusted_engine_is_signed_again_when_it_is_refitted(tmp_path: Path) -> None:
    engine = Engine.load(affine_engine().serialize())
    engine.refit({"a": affine_weights()[0] * 2})
    engine.save(tmp_path / "m.engine")
    assert Engine.load(tmp_path / "m.engine").name == "affine"
    engine.save(tmp_path / "m.engine", sign=False)
    assert read_engine(tmp_path / "m.engine").signature is None


def test_who_has_no_key_cannot_ask_for_a_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(TrustError, match="SMELT_HOME"):
        affine_engine().save(tmp_path / "m.engine", sign=True)
    assert not (tmp_path / "m.engine").exists()
    affine_engine().save(tmp_path / "m.engine")
    assert "not signed" in caplog.text


def test_an_unsigned_engine_is_refused_by_the_bare_runtime() -> None:
    header, data = affine_header(), affine_data()
    unsigned = serialize_engine(header, data, code_image()[0], runtime_bytes(), None)
    with pytest.raises(TrustError, match=r"smelt\.load"):
        Engine.load(unsigned)


def test_a_strangers_engine_is_refused_until_he_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = affine_engine().serialize()
    public = Engine.load(engine)
    np.testing.assert_array_equal(result_of(public), affine(X))
    from smelt.engine import show_trusted_keys

    line = show_trusted_keys()[0].text
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "other"))
    with pytest.raises(TrustError, match="not trusted here"):
        Engine.load(engine)
    (tmp_path / "his.pub").write_text(line)
    monkeypatch.setenv("SMELT_TRUSTED_KEYS", str(tmp_path / "his.pub"))
    loaded = Engine.load(engine)
    np.testing.assert_array_equal(result_of(loaded), affine(X))
    assert loaded.serialize() == engine, "his signature stays on what is unchanged"


def test_a_changed_engine_is_refused_even_if_all_are_trusted() -> None:
    data = bytearray(affine_engine().serialize())
    data[-20] ^= 1
    with pytest.raises(EngineFormatError, match="checksum"):
        Engine.load(bytes(data))


def test_trust_is_one_of_two_words() -> None:
    with pytest.raises(SmeltError, match="it must be one of signed, always"):
        Engine.load(b"", trust="sure")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.requirement("G-45")
def test_an_engine_for_another_machine_or_version_is_refused() -> None:
    fingerprint = affine_header().fingerprint
    for changed in (
        replace(fingerprint, version="0.0.1"),
        replace(fingerprint, architecture="sparc"),
        replace(fingerprint, device="dla"),
    ):
        other = affine_header(fingerprint=changed)
        signed = serialize_engine(
            other, affine_data(), code_image()[0], runtime_bytes(), Signer(bytes(32))
        )
        file = read_engine(signed)
        with pytest.raises(EngineMismatchError):
            Engine(file)


def test_an_unsound_plan_is_refused_whoever_signed_it() -> None:
    (plan,) = affine_header().plans
    with pytest.raises(EngineFormatError, match="beyond the end of the arena"):
        affine_engine(plans=(replace(plan, arena_bytes=100),))


@pytest.mark.requirement("G-48")
def test_an_engine_tells_its_bindings() -> None:
    engine = affine_engine()
    assert [tensor.name for tensor in engine.inputs] == ["x"]
    assert [tensor.name for tensor in engine.outputs] == ["y"]
    assert engine.inputs[0].dtype is DType.FLOAT32
    assert engine.inputs[0].shape == (BATCH, COLUMNS)
    assert [engine.binding_index(name) for name in ("x", "y")] == [0, 1]
    assert (engine.name, engine.device, engine.max_batch_size) == ("affine", "cpu", MAX_BATCH)
    assert [layer.name for layer in engine.layers] == ["scale1 + relu1", "shift1"]
    with pytest.raises(ContextError, match="no binding 'z'; it has: x, y"):
        engine.binding_index("z")


def test_a_closed_engine_makes_no_context_and_lets_others_finish() -> None:
    with affine_engine() as engine:
        context = engine.create_context()
    engine.close()
    np.testing.assert_array_equal(context.run({"x": X})["y"], affine(X))
    with pytest.raises(ContextError, match="closed"):
        engine.create_context()
    context.close()


def test_an_engine_goes_when_nobody_holds_it() -> None:
    engine = affine_engine()
    context = engine.create_context()
    code = weakref.ref(engine.loaded_code)
    del engine
    gc.collect()
    assert code() is not None
    np.testing.assert_array_equal(context.run({"x": X})["y"], affine(X))
    context.close()
    del context
    gc.collect()
    assert code() is None


def test_refitted_weights_are_used_by_old_and_new_contexts() -> None:
    engine = affine_engine()
    a, b = affine_weights()
    with engine.create_context() as context:
        np.testing.assert_array_equal(context.run({"x": X})["y"], X * a + b)
        engine.refit({"a": 2 * a})
        np.testing.assert_array_equal(context.run({"x": X})["y"], X * (2 * a) + b)
        engine.refit({"a": a, "b": b + 1})
        np.testing.assert_array_equal(context.run({"x": X})["y"], X * a + (b + 1))
        np.testing.assert_array_equal(result_of(Engine.load(engine.serialize())), X * a + (b + 1))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"c": np.zeros(COLUMNS, np.float32)}, "no refittable weight c"),
        (
            {"a": np.zeros(3, np.float32)},
            r"new a float32\[3\] does not fit: .* float32\[24\] is expected",
        ),
        ({"a": np.zeros(COLUMNS, np.float64)}, "the new a float64"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arrays: dict[str, Any], words: str) -> None:
    engine = affine_engine()
    with pytest.raises(BindingError, match=words):
        engine.refit(arrays)
    np.testing.assert_array_equal(result_of(engine), affine(X))


# ---- host steps, several plans


def test_host_steps_run_between_native_ones() -> None:
    a, b = affine_weights()
    profile: dict[str, float] = {}

    class Profiler:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            profile[name] = milliseconds

    engine = Engine.create(host_header(), affine_data(), code_image()[0], runtime_bytes())
    with engine.create_context(threads=2) as context:
        context.profiler = Profiler()
        for rows in (6, 1, 4):
            x = batch_of(rows, rows)
            np.testing.assert_array_equal(context.run({"x": x})["y"], np.maximum(x * a, 0) + b)
    assert profile["scale1 + relu1"] > 0
    assert profile["shift1"] > 0


def test_sizes_that_a_run_decides_trim_the_outputs() -> None:
    engine = Engine.create(counting_header(), b"", code_image()[0], runtime_bytes())
    with engine.create_context() as context:
        for seed in range(5):
            x = (batch_of(5, seed)[:, :4] > 0.5).astype(np.float32)
            np.testing.assert_array_equal(context.run({"x": x})["y"], np.array(np.nonzero(x)))
        assert context.run({"x": np.zeros((1, 4), np.float32)})["y"].shape == (2, 0)
        with pytest.raises(ShapeError, match=r"count is 24.*maximum 20"):
            context.run({"x": np.ones((6, 4), np.float32)})


def test_the_plan_is_chosen_by_the_inputs_shapes() -> None:
    header = affine_header(max_batch_size=None)
    (plan,) = header.plans
    plans = tuple(replace(plan, symbols=(("batch", n, n),)) for n in (2, 5))
    engine = affine_engine(plans=plans, max_batch_size=None)
    with engine.create_context() as context:
        for rows in (2, 5, 2):
            x = batch_of(rows)
            np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))
        message = "batch = 3; its plans are for batch 2 to 2; or batch 5 to 5"
        with pytest.raises(BindingError, match=message):
            context.run({"x": batch_of(3)})


def test_addresses_do_not_bind_a_dynamic_extent() -> None:
    header = affine_header()
    (plan,) = header.plans
    rows = SymbolicDim.symbol("rows")
    bindings = tuple(replace(b, shape=(rows, COLUMNS)) for b in header.bindings)
    from smelt.types import substitute_dim

    def renamed(step: Any) -> Any:
        operands = tuple(
            replace(v, shape=tuple(substitute_dim(d, {"batch": rows}) for d in v.shape))
            for v in step.operands
        )
        return replace(step, operands=operands, chunks=rows)

    plan = replace(plan, symbols=(("rows", 1, 6),), steps=tuple(map(renamed, plan.steps)))
    engine = affine_engine(plans=(plan,), bindings=bindings, max_batch_size=None)
    x, y = batch_of(3), np.zeros((3, COLUMNS), np.float32)
    with engine.create_context() as context:
        context.execute(1, [x, y])
        np.testing.assert_array_equal(y, affine(x))
        with pytest.raises(BindingError, match="extent rows, from 1 to 6, does not follow"):
            context.execute(1, [x.ctypes.data, y.ctypes.data])
        with pytest.raises(ContextError, match=r"shapes of the arrays: .*batch size 1, not 3"):
            context.execute(3, [x, y])


@pytest.mark.requirement("G-23")
def test_an_engine_runs_in_a_process_without_the_compiler(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "m.engine"
    affine_engine().save(path)
    np.save(tmp_path / "x.npy", X)
    program = textwrap.dedent("""
        import sys
        for name in ("llvmlite", "onnx", "google", "google.protobuf", "rich", "click"):
            sys.modules[name] = None
        import numpy as np
        from smelt.runtime import Engine
        with Engine.load(sys.argv[1]).create_context() as context:
            y = context.run({"x": np.load(sys.argv[2])})["y"]
        np.save(sys.argv[3], y)
    """)
    subprocess.run(
        [sys.executable, "-c", program, path, tmp_path / "x.npy", tmp_path / "y.npy"],
        check=True,
        env={**os.environ, "SMELT_HOME": str(home), "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
    )
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), affine(X))


def test_an_engine_made_for_another_machine_is_saved_but_does_not_run(tmp_path: Path) -> None:
    header = affine_header()
    foreign = replace(header, fingerprint=replace(header.fingerprint, architecture="riscv64"))
    code, _ = code_image()
    engine = Engine.create(foreign, affine_data(), code, runtime_bytes())
    engine.save(tmp_path / "foreign.engine")
    assert read_engine(tmp_path / "foreign.engine").header == foreign
    with pytest.raises(EngineMismatchError, match="riscv64"):
        engine.create_context()
    with pytest.raises(EngineMismatchError, match="riscv64"):
        Engine.load(tmp_path / "foreign.engine")


def test_what_runs_must_check_is_found_once_for_all_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    collect = RuntimeChecks.__init__

    def count(self: RuntimeChecks, *arguments: Any) -> None:
        made.append(self)
        collect(self, *arguments)

    monkeypatch.setattr(RuntimeChecks, "__init__", count)
    net = NetworkDefinition("open", batch="explicit")
    net.mark_output(net.add_activation(net.add_input("x", "float32", ("n", 3)), "relu", name="y"))
    engine = smelt.build(net, shapes={"x": ((1, 3), (2, 3), (9, 3))}, tune="none")
    for _ in range(2):
        with engine.create_context() as context:
            context.run({"x": np.ones((2, 3), np.float32)})
    assert len(made) == 1
