"""The group of commands: help, version, and how errors are told."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import onnx as untyped_onnx
import pytest

from smelt import importers
from smelt.builder import _build
from smelt.cli import _console, _trust
from smelt.cli._build import build
from smelt.cli._console import print_json, print_table, say, show
from smelt.cli._main import commands
from smelt.cli._options import OPTIONS, error_text
from smelt.engine import MAGIC, VERSION
from smelt.errors import Argument, BuildError, InternalError, ShapeError
from smelt.runtime import ExecutionContext
from tests.conftest import ROOT
from tests.support.small_models import inception_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Smelt

onnx: Any = untyped_onnx
COMMANDS = ("build", "run", "bench", "inspect", "compare", "trust")


def _python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=60,
    )


@pytest.mark.parametrize(("tell", "name"), [(say, "stderr"), (show, "stdout")])
def test_a_terminal_gets_lines_that_end_with_words_and_a_file_gets_them_whole(
    tell: Callable[[str], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "error: a:1234:b " + "word " * 20 + "end"
    for is_terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, name, stream)
        tell(text)
        lines = stream.getvalue().splitlines()
        assert " ".join(map(str.strip, lines)) == text
        assert [len(line) <= 80 for line in lines] == ([True, True] if is_terminal else [False])


def test_tables_fit_a_terminal_and_are_a_row_a_line_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ("layer", "ms", "tactic")
    rows = [("one", "0.25", f"conv({', '.join(f'lane{n}=16' for n in range(6))})"), ("b", "10", "")]
    print_table(rows, heads, title="times")
    whole = capsys.readouterr().out

    def narrow_width(_stream: object) -> int:
        return 40

    monkeypatch.setattr(_console, "screen_width", narrow_width)
    print_table(rows, heads, title="times")
    narrow = capsys.readouterr().out
    assert [line.split()[:2] for line in whole.splitlines() if "." in line] == [["one", "0.25"]]
    assert len(whole.splitlines()) == 7
    assert max(map(len, narrow.splitlines())) <= 40
    assert [piece for piece in whole.split() if "─" not in piece] == [
        piece for piece in narrow.split() if "─" not in piece
    ]


def test_what_is_said_gives_no_orders_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b]0;title")
    print_table([["b\x1b[2J"]], ["layer"])
    detail = capsys.readouterr()
    assert "\x1b" not in detail.err + detail.out


@pytest.mark.parametrize(
    "arguments", [("build",), ("build", "no.onnx"), ("run", "m.onnx", "--threads", "many")]
)
def test_errors_on_a_terminal_are_broken_between_words(
    smelt: Smelt, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = smelt(*arguments).err

    def narrow_width(_stream: object) -> int:
        return 24

    monkeypatch.setattr(_console, "screen_width", narrow_width)
    narrow = smelt(*arguments).err
    assert narrow.split() == whole.split()
    assert narrow.count("\n") > whole.count("\n")


def test_what_smelt_warns_of_is_said_as_it_is(smelt: Smelt, model: Path, tmp_path: Path) -> None:
    answer = smelt("build", model, "-o", tmp_path / "m.engine", "--device", "cpu:aarch64")
    assert answer.err.startswith("no tactic is timed: ")


@pytest.mark.parametrize("command", ["run", "bench"])
def test_an_interrupted_command_that_writes_nothing_speaks_of_no_files(
    smelt: Smelt, engine: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExecutionContext, "run", interrupted)
    monkeypatch.setattr(ExecutionContext, "execute", interrupted)
    arguments = ("--input", "image=zeros") if command == "run" else ()
    assert smelt(command, engine, *arguments).err == "interrupted\n"


def _pages(command: click.Command, *names: str) -> list[tuple[str, ...]]:
    parts = getattr(command, "commands", {})
    return [names, *(page for name, part in parts.items() for page in _pages(part, *names, name))]


@pytest.mark.parametrize("names", _pages(commands))
def test_help_fits_a_usual_screen(smelt: Smelt, names: tuple[str, ...]) -> None:
    lines = smelt(*names, "--help").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_the_help_lists_every_command_with_what_it_does(smelt: Smelt) -> None:
    answer = smelt("--help")
    assert answer.code == 0
    lines = {line.split()[0]: line for line in answer.out.splitlines() if line.startswith("  ")}
    for name in COMMANDS:
        assert len(lines[name].split()) > 4, f"{name} does not say what it does"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_teaches_with_examples_of_its_own(smelt: Smelt, name: str) -> None:
    text = smelt(name, "--help").out
    assert "Example" in text
    assert f"  smelt {name} " in text
    assert "\\b" not in text
    assert "\x08" not in text


def _options(command: click.Command) -> list[click.Option]:
    parts = getattr(command, "commands", {}).values()
    own = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return own + [option for part in parts for option in _options(part)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    options = _options(commands.commands[name])
    assert [o.opts for o in options if not o.help] == []
    assert any("--json" in o.opts for o in options)


def test_the_version_is_shown(smelt: Smelt) -> None:
    assert smelt("--version").out == f"smelt {VERSION}\n"


def test_the_package_runs_as_a_module() -> None:
    assert _python("-m", "smelt", "--version").stdout == f"smelt {VERSION}\n"


def test_the_command_line_starts_without_loading_what_builds_or_computes() -> None:
    code = (
        "import sys, smelt.cli; "
        "print([m for m in ('numpy', 'onnx', 'llvmlite', 'google.protobuf', 'rich', 'PIL') "
        "if m in sys.modules])"
    )
    assert _python("-c", code).stdout == "[]\n"


def test_an_unknown_option_is_a_wrong_command_line(smelt: Smelt) -> None:
    answer = smelt("build", "--fast")
    assert answer.code == 2
    assert "No such option" in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    "words",
    [
        "build m.onnx -o m.onnx",
        "build m.onnx -o sub/../m.onnx",
        "build m.onnx -o link.onnx",
        "build m.onnx -o e --timing-cache e",
        "build p.txt --weights w -o w",
        "retune e.engine -o e.engine",
        "run e.engine --input x=x.npz --save x.npz",
        "compare m.onnx --reduce-to m.onnx",
        "compare m.onnx --inputs m.npz --reduce-to m2.onnx --against reference --input x=m2.npz",
        "inspect e.engine --html e.engine",
        "inspect e.engine --html page --svg page",
        "dla run e.engine --output e.engine",
        "dla run t_0.dat --record-trace t.cfg",
        "dla run e.engine --input sub/../t_0.dat --record-trace t.cfg",
        "dla run e.engine --input sub/link --record-trace t.txn",
        "dla run e.engine --output t_12.dat --record-trace t.cfg",
        "build e.engine",
    ],
)
def test_no_file_is_written_over_one_that_is_read(
    smelt: Smelt, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("m.onnx", "p.txt", "w", "e.engine", "x.npz", "m.npz", "t_0.dat")
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    (tmp_path / "sub" / "link").symlink_to("../t_0.dat")
    answer = smelt(*words.split())
    assert answer.code == 2
    assert "is an output and also another file of this command" in answer.err
    assert [(tmp_path / name).read_text() for name in names] == list(names)


@pytest.mark.parametrize(
    "words",
    [
        "build m.onnx -o m.data",
        "build link.onnx -o sub/link",
        "compare m.onnx --reduce-to m.data",
        "inspect m.onnx --html m.data",
        "run m.onnx --save m.data",
    ],
)
def test_no_file_is_written_over_the_external_data_of_a_model(
    smelt: Smelt, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    onnx.save_model(
        inception_model(), "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    (tmp_path / "sub" / "link").symlink_to("../m.data")
    before = (tmp_path / "m.data").read_bytes()
    answer = smelt(*words.split())
    assert answer.code == 2
    assert "is an output and also another file of this command" in answer.err
    assert (tmp_path / "m.data").read_bytes() == before


def test_a_model_is_decoded_for_its_external_data_only_if_a_file_beside_it_is_replaced(
    smelt: Smelt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models" / "m.onnx"
    model.parent.mkdir()
    onnx.save_model(inception_model(), model)
    (model.parent / "old.engine").write_bytes(MAGIC)
    (tmp_path / "elsewhere").touch()
    monkeypatch.setattr(importers, "external_files", None)
    for path in (model.with_name("new"), model.with_name("old.engine"), tmp_path / "elsewhere"):
        answer = smelt("build", model, "-o", path, "--device", "null", "--tune", "none")
        assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    "words",
    [
        "build none.onnx --device gpu",
        "build none.onnx --device cpu:1",
        "build none.onnx --device cuda:sm_1",
        "build none.onnx --device cpu --device cuda:-1",
        "build none.onnx --precision float8",
        "build none.onnx --libraries --self-contained",
        "build none.onnx --max-rounding-error 0",
        "compare none.onnx --max-rounding-error 2",
        "build none.onnx --tune well",
        "build none.onnx --shape 1xbig",
        "build none.onnx --max-batch-size 0",
        "build",
        "retune none.engine",
        "run none.engine --device cpu",
        "run none.onnx --precision float8",
        "run none.onnx --resize large",
        "run none.onnx --input data",
        "bench none.onnx --iterations -1",
        "inspect none.engine --peaks 1",
        "compare none.onnx --precision float8",
        "dla run none --configuration nv_tiny",
        "dla trace none --configuration nv_tiny",
        "trust",
        "lift none",
    ],
)
def test_what_is_wrong_whatever_the_files_and_the_machine_are_gives_2(
    smelt: Smelt, words: str
) -> None:
    answer = smelt(*words.split())
    assert answer.code == 2
    assert answer.out == ""


@pytest.mark.parametrize(
    "words",
    [
        "build none.onnx",
        "build MODEL --output none",
        "build MODEL --shape none=1x3",
        "build MODEL --shape image=2x3x16x16",
        "retune none.engine -o x",
        "retune ENGINE -o x",
        "run none.engine",
        "run ENGINE",
        "run ENGINE --image none.png",
        "run ENGINE --input none=zeros",
        "run ENGINE --input image=none.npy",
        "run ENGINE --labels none",
        "bench none.engine",
        "bench ENGINE --batch 7",
        "inspect none.engine",
        "inspect ENGINE --profile none",
        "compare none.onnx",
        "compare MODEL --tolerance 0 --seed 1",
        "trust remove none",
        "trust add none",
        "dla inspect none",
        "dla run none",
        "dla run ENGINE",
        "dla trace none",
        "dla trace ENGINE",
    ],
)
def test_what_files_or_the_machine_do_not_allow_gives_1(
    smelt: Smelt, words: str, model: Path, engine: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = words.replace("MODEL", str(model)).replace("ENGINE", str(engine))
    assert smelt(*given.split()).code == 1


def test_a_device_may_be_named_twice(smelt: Smelt, engine: Path) -> None:
    assert smelt("inspect", engine, "--html", os.devnull, "--svg", os.devnull).code == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="open files have no names here")
@pytest.mark.parametrize(
    "words", ["inspect ENGINE --html LINK", "inspect ENGINE --svg LINK", "build MODEL -o LINK"]
)
def test_a_link_to_an_open_file_stays_and_the_file_has_what_is_written(
    smelt: Smelt, words: str, model: Path, engine: Path, tmp_path: Path
) -> None:
    link, path = tmp_path / "stdout", tmp_path / "redirected"
    with path.open("wb") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        given = words.replace("MODEL", str(model)).replace("ENGINE", str(engine))
        options = ["--tune", "none"] if "build" in words else []
        answer = smelt(*given.replace("LINK", str(link)).split(), *options)
    assert answer.code == 0, answer.err
    assert link.is_symlink()
    assert path.read_bytes().startswith((b"<!doctype html>", b"<svg", MAGIC))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="open files have no names here")
def test_an_open_file_that_a_command_reads_is_not_written(
    smelt: Smelt, engine: Path, tmp_path: Path
) -> None:
    copy, link = tmp_path / "m.engine", tmp_path / "stdout"
    copy.write_bytes(engine.read_bytes())
    with copy.open("r+b") as file:
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        assert smelt("inspect", copy, "--html", link).code != 0
    assert copy.read_bytes() == engine.read_bytes()


def test_no_summary_of_a_command_is_cut(smelt: Smelt) -> None:
    for words in ([], ["trust"], ["dla"]):
        assert "...\n" not in smelt(*words, "--help").out.partition("Commands:")[2]


def test_an_error_is_one_line_on_standard_error(smelt: Smelt, tmp_path: Path) -> None:
    answer = smelt("run", tmp_path / "none.engine")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(f"error: {tmp_path / 'none.engine'} cannot be read: ")


@pytest.mark.parametrize(
    ("options", "detail"),
    [
        (["--libraries", "--self-contained"], "--libraries, --self-contained"),
        (["--device", "cuda:sm_1"], "--device cuda:sm_90, --device cuda:sm_80,sm_90"),
    ],
)
def test_an_error_that_names_arguments_names_the_options_too(
    smelt: Smelt, model: Path, options: list[str], detail: str
) -> None:
    pytest.importorskip("triton", reason="the extra cuda-build is not installed")
    answer = smelt("build", model, *options)
    assert answer.code
    assert answer.err.endswith(f"\nOn the command line: {detail}\n")


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        (Argument("max_batch_size"), "--max-batch-size"),
        (Argument("max_batch_size", 8), "--max-batch-size 8"),
        (Argument("self_contained", value=True), "--self-contained"),
        (Argument("shapes"), "--shape NAME=1x3x224x224, or 1..8 for a range"),
        (
            Argument("shapes", {"a": (1, 3), "b; c\nd": (2,)}),
            "--shape a=1x3 --shape 'b; c\ufffdd=2', or 1..8 for a range",
        ),
    ],
)
def test_an_argument_of_an_error_or_of_its_cause_is_shown_as_an_option(
    argument: Argument, option: str
) -> None:
    error = BuildError("no precision='int3'")
    assert error_text(error) == "no precision='int3'"
    error.__cause__ = ShapeError("too large", arguments=[argument, argument])
    assert error_text(error) == f"no precision='int3'\nOn the command line: {option}"


def test_an_argument_that_is_no_option_is_left_to_the_message() -> None:
    """An op or a backend of a plugin may name its own."""
    assert (
        error_text(BuildError("give tiles=4", arguments=[Argument("tiles", 4)])) == "give tiles=4"
    )


def test_every_argument_that_an_error_may_name_is_an_option_of_build() -> None:
    sources = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {name for text in sources for name in re.findall(r"\bArgument\(\s*\"(\w+)\"", text)}
    options = {option for parameter in build.params for option in parameter.opts}
    assert named == set(OPTIONS)
    assert options.issuperset(OPTIONS.values())


def test_debugging_shows_where_an_error_came_from(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.engine")
    plain = _python("-m", "smelt", "run", missing)
    assert "Traceback" not in plain.stderr
    for level in ("debug", "verbose"):
        detail = _python("-m", "smelt", "run", missing, SMELT_LOG=level)
        assert "Traceback" in detail.stderr
        assert detail.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
        assert detail.returncode == 1


def test_a_wrong_setting_is_an_error_too(tmp_path: Path) -> None:
    answer = _python("-m", "smelt", "run", str(tmp_path / "x"), SMELT_LOG="loud")
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: SMELT_LOG='loud'")


def test_a_bug_says_that_it_is_one_and_what_to_report(
    smelt: Smelt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_options: object) -> None:
        raise InternalError("the plan has no steps")

    monkeypatch.setattr(_trust.list_keys, "callback", fail)
    answer = smelt("trust", "show")
    assert answer.code == 1
    assert answer.err.startswith("internal error: the plan has no steps\n")
    assert "Please report it" in answer.err
    assert "SMELT_LOG=debug" in answer.err


def test_too_little_memory_is_told_with_what_needs_less(
    smelt: Smelt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(_trust.list_keys, "callback", fail)
    assert smelt("trust", "show").err.startswith("error: there is not enough memory; a smaller")


def test_a_missing_package_is_named_with_how_to_get_it(
    smelt: Smelt, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "onnx" or "importers.onnx." in n]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    answer = smelt("build", model)
    assert answer.code == 1
    assert answer.err.startswith("error: onnx is not installed; run: pip install onnx")


def test_a_picture_needs_pillow_and_says_so(
    smelt: Smelt, engine: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    answer = smelt("run", engine, "--image", picture)
    assert answer.code == 1
    assert answer.err == ("error: pillow is not installed; run: pip install pillow\n")


def test_the_page_of_commands_names_every_key_of_their_answers(
    smelt: Smelt, engine: Path, model: Path, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1].split()[1]: row for row in text.splitlines() if row.startswith("| `")}
    commands_run = {
        "build": ("build", model, "-o", tmp_path / "e", "--tune", "none"),
        "run": ("run", engine, "--input", "image=zeros"),
        "bench": ("bench", engine, "--iterations", "2", "--profile"),
        "compare": ("compare", model, "--tune", "none"),
    }
    for name, arguments in commands_run.items():
        keys = smelt(*arguments, "--json").json
        assert [key for key in keys if f"`{key}`" not in rows[name]] == []


def test_an_engine_runs_where_nothing_that_builds_is_installed(engine: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('llvmlite', 'onnx', 'google.protobuf', 'PIL', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from smelt.cli import main\n"
        "main()"
    )
    arguments = ("run", str(engine), "--input", "image=zeros", "--json")
    done = _python("-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    assert '"prob"' in done.stdout
    built = _python("-c", code, "build", str(engine.with_suffix(".onnx")))
    assert built.returncode == 1


def test_whoever_stops_reading_hears_no_complaint(engine: Path) -> None:
    command = f"{sys.executable} -m smelt inspect {engine} --json | head -c 20"
    done = subprocess.run(  # noqa: S602  (a pipe is what is tested)
        command, shell=True, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""


def test_output_without_a_place_or_letters_is_no_error(engine: Path) -> None:
    command = [sys.executable, "-m", "smelt", "inspect", str(engine)]
    plain = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}
    )
    assert b"conv1" in plain.stdout
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_json_is_exact_in_letters_that_every_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, detail in (("ascii", b"\\u00e9"), ("utf-8", "é".encode())):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
        print_json({"label": "é"})
        assert detail in written.getvalue()


def test_ctrl_c_while_modules_are_loaded_ends_without_a_word() -> None:
    code = (
        "import sys, smelt.cli\n"
        "class Impatient:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'smelt.cli._main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Impatient())\n"
        "smelt.cli.main()"
    )
    done = _python("-c", code)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["run", "bench", "compare"])
def test_what_could_not_run_here_is_refused_before_it_is_built(
    smelt: Smelt, model: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_graph(*_arguments: object, **_options: object) -> None:
        raise AssertionError("it is built")

    monkeypatch.setattr(_build, "build_graph", build_graph)
    answer = smelt(command, model, "--device", "cpu:aarch64")
    assert answer.code == 1
    assert "engines for 'cpu:aarch64' do not run on this machine" in answer.err


def test_a_report_on_a_model_needs_no_machine_that_runs_it(smelt: Smelt, model: Path) -> None:
    answer = smelt("inspect", model, "--device", "cpu:aarch64", "--json")
    assert answer.json["architecture"] == "aarch64"
