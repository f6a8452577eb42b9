"""``smelt inspect``, ``smelt compare`` and ``smelt trust``."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest

from smelt.backends.cpu import processor_text, target_named
from smelt.builder import build
from smelt.compare import _compare as room
from smelt.engine import Signer, TrustedKey, engine_parts, key_id, read_engine, write_engine
from smelt.ops import LeakyRelu, Relu
from tests.support.small_models import save_model, two_inputs_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Smelt


def test_inspecting_shows_layers_and_reference_steps(smelt: Smelt, engine: Path) -> None:
    text = smelt("inspect", engine).out
    assert "reference steps: 0" in text
    assert "conv1 + relu1" in text
    assert "float32/channels_last" in text


def test_the_json_of_an_engine_starts_with_its_reference_steps(smelt: Smelt, engine: Path) -> None:
    detail = smelt("inspect", engine, "--json").json
    assert detail["reference_steps"] == 0
    assert detail["reference_ops"] == []
    assert detail["plans"][0]["layers"][0]["name"]


@pytest.mark.parametrize(
    ("option", "detail"),
    [
        ("--passes", "dead -> (nothing)"),
        ("--tactics", "us  conv("),
        ("--memory", "tensors share"),
        ("--graph", "graph before: 18 nodes"),
        ("--kernels", "kernel"),
        ("--roofline", "no peak rates of"),
        ("--packed-weights", "refitted from"),
    ],
)
def test_each_option_shows_its_part(smelt: Smelt, engine: Path, option: str, detail: str) -> None:
    assert detail in smelt("inspect", engine, option).out
    assert detail in smelt("inspect", engine, "--all").out


def test_who_signed_is_told(
    smelt: Smelt, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "which is trusted here" in smelt("inspect", engine).out
    file = read_engine(engine)
    unsigned = tmp_path / "unsigned.engine"
    write_engine(
        unsigned, engine_parts(file.header, file.weights, file.code, file.runtime_code, None)
    )
    assert "not signed" in smelt("inspect", unsigned).out
    changed = tmp_path / "changed.engine"
    assert file.signature is not None
    changed.write_bytes(engine.read_bytes().replace(file.signature.signature, bytes(64)))
    assert "is invalid" in smelt("inspect", changed).out
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "another user"))
    signer = smelt("inspect", engine, "--json").json["signer"]
    assert (signer["is_right"], signer["is_trusted"]) == (True, False)
    assert (
        f"signed by the key {signer['key_id']}, which is not trusted"
        in smelt("inspect", engine).out
    )


def test_pages_and_pictures_are_written_to_files(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    page, memory, graph = (tmp_path / name for name in ("r.html", "m.svg", "g.svg"))
    answer = smelt("inspect", engine, "--html", page, "--svg", memory)
    assert answer.out == ""
    smelt("inspect", engine, "--svg", graph, "--graph")
    assert page.read_text().startswith("<!doctype html>")
    titles = [ElementTree.parse(path).getroot()[0].text for path in (memory, graph)]  # noqa: S314
    assert titles == ["Memory over time", "The graph after the passes"]


def test_kernels_show_their_text_where_it_is_asked_for(smelt: Smelt, engine: Path) -> None:
    assert "define" not in smelt("inspect", engine, "--all").out
    detail = smelt("inspect", engine, "--source", "--json").json["kernels"]
    text = smelt("inspect", engine, "--source").out
    assert all(source["text"] in text for kernel in detail for source in kernel["sources"])
    assert {source["language"] for kernel in detail for source in kernel["sources"]} == {"LLVM IR"}


def test_kernels_show_their_text_without_a_compiler(smelt: Smelt, engine: Path) -> None:
    code = (
        "import sys; sys.modules['llvmlite'] = None; from smelt.cli import main;"
        "sys.argv = ['smelt', 'inspect', sys.argv[1], '--source']; main()"
    )
    alone = subprocess.run(
        [sys.executable, "-c", code, engine], capture_output=True, text=True, check=True
    )
    assert alone.stdout == smelt("inspect", engine, "--source").out


def test_layers_times_are_shares_of_what_the_device_does_at_best(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    times = tmp_path / "bench.json"
    times.write_text(smelt("bench", engine, "--iterations", "2", "--profile", "--json").out)
    options = ("--profile", times, "--peaks", "1e12,1e12")
    detail = smelt("inspect", engine, *options, "--json").json["plans"][0]
    work = next(layer["work"] for layer in detail["layers"] if layer["name"] == "conv1 + relu1")
    assert work["share_of_bound"] == work["bound_seconds"] / work["measured_seconds"]
    assert detail["work"]["share_of_bound"] > 0
    assert "bounds are those of the given peaks" in smelt("inspect", engine, *options, "--all").out
    assert "roofline: bounds are those" in smelt("inspect", engine, *options).out
    assert smelt("inspect", engine, *options).err == ""
    bench = json.loads(times.read_text())
    bench["layers"][0]["tactic"] = "conv(by=hand)"
    times.write_text(json.dumps(bench))
    assert "its tactics differ for 1 of" in smelt("inspect", engine, *options).err
    bench["sizes"] = {"batch": 8}
    times.write_text(json.dumps(bench))
    assert "measured at batch = 8; this engine runs at fixed sizes" in smelt(
        "inspect", engine, *options
    ).err.replace("\n", " ")
    times.write_text('{"layers": [{"name": "another", "milliseconds": 1}], "sizes": {}}')
    assert "has no times for the layers of this engine" in smelt("inspect", engine, *options).err


def test_an_engine_without_plans_has_nothing_to_draw(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    file, empty = read_engine(engine), tmp_path / "empty.engine"
    header = dataclasses.replace(file.header, plans=())
    write_engine(empty, engine_parts(header, file.weights, file.code, file.runtime_code, None))
    answer = smelt("inspect", empty, "--svg", tmp_path / "m.svg")
    assert (answer.code, "has no plan" in answer.err) == (1, True)
    assert "0 kernels" in smelt("inspect", empty).out


_TIME = '{"layers": [{"name": "conv1 + relu1", "milliseconds": %s}], "sizes": {"batch": %s}}'


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"layers": 3}', '{"layers": [{"name": 1}]}'),
        *(_TIME % pair for pair in (("NaN", 1), ("-1", 1), (10**400, 1), ("1", "Infinity"))),
    ],
)
def test_a_file_without_layers_times_is_told(
    smelt: Smelt, engine: Path, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    answer = smelt("inspect", engine, "--profile", path)
    assert answer.code == 1
    assert "smelt bench ENGINE --profile --json" in answer.err


def test_times_that_were_not_made_are_told(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    assert f"{path} does not exist" in smelt("inspect", engine, "--profile", path).err
    path.write_text('{"median_ms": 1.0, "sizes": {}}')
    assert f"{path} was made without --profile" in smelt("inspect", engine, "--profile", path).err


@pytest.mark.parametrize("rates", ["1", "1,0", "1,2,3", "nan,1", "fast"])
def test_peaks_are_two_rates(smelt: Smelt, engine: Path, rates: str) -> None:
    answer = smelt("inspect", engine, "--peaks", rates)
    assert answer.code == 2
    assert "790e12,4.3e12" in answer.err


def test_a_model_is_built_to_be_inspected(smelt: Smelt, model: Path) -> None:
    assert smelt("inspect", model, "--tune", "none", "--json").json["network"] == "inception"


def test_an_engine_for_another_machine_can_be_inspected(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    file = read_engine(engine)
    foreign = dataclasses.replace(file.header.fingerprint, architecture="vax")
    header = dataclasses.replace(file.header, fingerprint=foreign)
    path = tmp_path / "foreign.engine"
    write_engine(path, engine_parts(header, file.weights, file.code, file.runtime_code, None))
    assert smelt("inspect", path, "--json").json["architecture"] == "vax"
    assert smelt("run", path, "--input", "image=zeros").code == 1


def test_the_processor_that_an_engine_needs_is_told(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    path, level = tmp_path / "many.engine", "x86-64-v3"
    built = smelt("build", model, "-o", path, "--device", f"cpu:{level}", "--tune", "none")
    assert f"for cpu ({level})" in built.err
    assert f"an engine for cpu, {level}, " in smelt("inspect", path).out


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ([], "x86-64-v3"),
        (["gfni", "avxvnni"], "x86-64-v3 with avxvnni, gfni"),
        (
            ["gfni", "avxvnni", "amx-tile", "zz", "y"],
            "x86-64-v3 with amx-tile, avxvnni, gfni, 2 more",
        ),
    ],
)
def test_a_processor_is_told_by_its_level_and_what_it_has_beyond(
    more: list[str], detail: str
) -> None:
    level = target_named("x86-64-v3")
    assert processor_text(level.architecture, [*more, *level.features]) == detail
    assert processor_text("vax", more) == "vax"


def test_a_damaged_engine_is_an_error(smelt: Smelt, engine: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.engine"
    path.write_bytes(engine.read_bytes()[:-100])
    answer = smelt("inspect", path)
    assert answer.code == 1
    assert "copy it again" in answer.err


# ---- compare


def test_a_right_engine_passes_with_exit_code_0(smelt: Smelt, model: Path) -> None:
    answer = smelt("compare", model, "--tune", "none", "--layers")
    assert answer.code == 0
    assert "ok" in answer.out
    assert "17 of 17 intermediate results agree" in answer.out


def test_the_json_of_a_comparison_has_its_documented_keys(smelt: Smelt, model: Path) -> None:
    pytest.importorskip("onnxruntime")
    detail = smelt("compare", model, "--tune", "none", "--against", "onnxruntime", "--json").json
    assert set(detail) == {
        "network", "against", "passed", "outputs", "layers", "first_difference", "reduction",
    }  # fmt: skip
    assert detail["passed"] is True
    assert set(detail["outputs"][0]) == {
        "name", "dtype", "shape", "largest_magnitude", "max_abs_error", "relative_error",
        "tolerance", "is_nondeterministic", "steps", "allowed_steps", "caution", "passed",
    }  # fmt: skip


def test_a_wrong_engine_exits_with_1_and_names_layer_and_smallest_part(
    smelt: Smelt, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(network: Any, **options: Any) -> Any:
        for node in network.nodes:
            if isinstance(node.op, Relu) and node.output.name == "wide_relu":
                node.op = LeakyRelu(alpha=0.5)
        made = build(network, **options)
        for node in network.nodes:
            if isinstance(node.op, LeakyRelu):
                node.op = Relu()
        return made

    monkeypatch.setattr(room, "build", wrong)
    part = tmp_path / "part.onnx"
    options = ("--tune", "none", "--tolerance", "1e-3")
    answer = smelt("compare", model, *options, "--layers", "--reduce-to", part)
    assert answer.code == 1
    assert "DIFFERS" in answer.out
    assert "first difference: layer wide_relu (relu)" in answer.out
    assert "smallest failing part: relu 'wide_relu'" in answer.out
    detail = next(line for line in answer.err.splitlines() if line.startswith("  smelt "))
    assert {"--tolerance 0.001", "--tune none"} <= set(re.findall(r"--t\w+ \S+", detail))
    again = smelt(*shlex.split(detail)[1:], "--json")
    assert again.code == 1
    assert again.json["passed"] is False


def test_where_nothing_fails_no_part_is_saved_and_that_is_said(
    smelt: Smelt, model: Path, tmp_path: Path
) -> None:
    part = tmp_path / "part.onnx"
    answer = smelt("compare", model, "--tune", "none", "--reduce-to", part)
    assert answer.code == 0
    assert f"{part} is not written" in answer.err
    assert not part.exists()


def test_an_output_that_the_model_has_not_names_others(smelt: Smelt, model: Path) -> None:
    answer = smelt("compare", model, "--output", "nosuch")
    assert answer.code == 1
    assert "'prob'" in answer.err


def test_an_engine_is_compared_with_another_and_with_what_was_recorded(
    smelt: Smelt, model: Path, engine: Path, tmp_path: Path
) -> None:
    x, golden = tmp_path / "x.npy", tmp_path / "golden.npz"
    np.save(x, np.random.default_rng(1).random((1, 3, 16, 16), np.float32))
    assert smelt("run", engine, "--input", f"image={x}", "--save", golden).code == 0
    for against in (engine, golden):
        given = ("--against", against, "--input", f"image={x}", "--tune", "none", "--json")
        detail = smelt("compare", model, *given).json
        assert detail["passed"] is True
        assert detail["against"] == str(against)


def test_what_was_recorded_is_compared_on_the_inputs_that_were_saved_with_it(
    smelt: Smelt, model: Path, engine: Path, tmp_path: Path
) -> None:
    inputs, golden = tmp_path / "inputs.npz", tmp_path / "golden.npz"
    given = ("--input", "image=random", "--save", golden, "--save-inputs", inputs)
    assert smelt("run", engine, *given).code == 0
    judged = ("compare", model, "--against", golden, "--tune", "none")
    assert smelt(*judged, "--inputs", inputs).code == 0
    answer = smelt(*judged)
    assert answer.code == 1
    assert "give those inputs: --input image=FILE.npy" in answer.err
    assert "smelt run --save-inputs FILE.npz" in answer.err


@pytest.mark.parametrize("against", ["torch", "missing.npz", "missing.engine"])
def test_who_cannot_answer_is_an_error_before_the_model_is_read(smelt: Smelt, against: str) -> None:
    answer = smelt("compare", "missing.onnx", "--against", against)
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    start = f"error: the network cannot be compared with {against!r}; give reference"
    assert line.startswith(start)


def test_a_caffe_model_is_refused_for_openvino_in_one_line(smelt: Smelt) -> None:
    answer = smelt("compare", "deploy.prototxt", "--against", "openvino")
    assert answer.code == 1
    (line,) = answer.err.splitlines()
    assert line.startswith("error: deploy.prototxt is a Caffe model, and OpenVINO reads only ONNX")


def test_a_part_is_not_written_over_what_is_compared_with(
    smelt: Smelt, model: Path, engine: Path
) -> None:
    answer = smelt("compare", model, "--against", engine, "--reduce-to", engine)
    assert answer.code == 2
    assert "is an output and also another file of this command" in answer.err


def test_given_inputs_bind_open_extents(smelt: Smelt, tmp_path: Path) -> None:
    path = save_model(two_inputs_model(), tmp_path / "two.onnx")
    np.save(tmp_path / "a.npy", np.ones((3, 6), np.float32))
    np.save(tmp_path / "b.npy", np.ones((3, 4), np.float32))
    given = [f"{name}={tmp_path / name}.npy" for name in "ab"]
    answer = smelt(
        "compare", path, "--tune", "none", "--input", given[0], "--input", given[1], "--json"
    )
    assert answer.json["outputs"][0]["shape"] == [3, 4]


# ---- trust


def _colleague() -> TrustedKey:
    return TrustedKey(Signer(bytes(range(32))).public_key, "colleague", "")


def test_keys_are_added_shown_and_removed(smelt: Smelt, engine: Path) -> None:
    assert engine.exists()  # a build has made the user's own key
    key = _colleague()
    added = smelt("trust", "add", key.text)
    assert added.out == f"trusted {key.key_id} colleague\n"
    shown = smelt("trust", "show", "--json").json["keys"]
    assert [k["label"] for k in shown][1:] == ["colleague"]
    assert key.text in [line.strip() for line in smelt("trust", "show").out.splitlines()]
    assert smelt("trust", "remove", "colleague").out == f"removed {key.key_id} colleague\n"
    left = smelt("trust", "show", "--json").json["keys"]
    assert [k["origin"] for k in left] == ["own"]
    own = smelt("trust", "remove", left[0]["id"])
    assert own.code == 1
    assert "is your own key" in own.err


def test_what_show_prints_is_a_file_that_add_takes(
    smelt: Smelt, engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.exists()
    smelt("trust", "add", _colleague().text)
    shown = tmp_path / "shown"
    shown.write_text(smelt("trust", "show").out)
    own = smelt("trust", "show", "--json").json["keys"][0]["id"]
    smelt("trust", "remove", "colleague")
    monkeypatch.setenv("SMELT_HOME", str(tmp_path / "elsewhere"))
    for given in (shown, shown.read_text()):
        assert smelt("trust", "add", given, "--json").json["trusted"]["id"] == own


def test_a_key_may_come_from_a_file_and_get_a_label(smelt: Smelt, tmp_path: Path) -> None:
    key = _colleague()
    path = tmp_path / "colleague.pub"
    path.write_text(key.text)
    detail = smelt("trust", "add", path, "--label", "the colleague", "--json").json
    assert detail["trusted"]["label"] == "the colleague"
    assert smelt("trust", "remove", key_id(key.public_key)).code == 0


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("add", "smelt-ed25519 nonsense"), "the text has no public key"),
        (
            ("add", "none.pub"),
            "'none.pub' is neither a key nor a file with one; a key is a line",
        ),
        (("remove", "nobody"), "there is no trusted key 'nobody'"),
    ],
)
def test_keys_that_are_none_are_told(smelt: Smelt, arguments: tuple[str, ...], detail: str) -> None:
    answer = smelt("trust", *arguments)
    assert answer.code == 1
    assert detail in answer.err


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("compare", "--seed", "-1"),
        ("compare", "--tolerance", "nan"),
        ("bench", "--seconds", "inf"),
        ("run", "--scale", "nan"),
    ],
)
def test_numbers_that_are_none_are_a_wrong_command_line(
    smelt: Smelt, command: str, option: str, value: str
) -> None:
    answer = smelt(command, "m.onnx", option, value)
    assert answer.code == 2
    assert f"Invalid value for '{option}'" in answer.err


@pytest.mark.parametrize("content", [b"no array", b"PK\x03\x04 cut off", b""])
def test_what_is_no_archive_is_never_called_a_pickle(
    smelt: Smelt, model: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    for option in (("--inputs", path), ("--input", f"image={path}")):
        answer = smelt("compare", model, *option)
        assert answer.code == 1
        assert f"{path} cannot be read as" in answer.err
        assert "; write it with numpy.save" in answer.err
