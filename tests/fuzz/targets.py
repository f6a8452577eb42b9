"""What is fuzzed: how an input is fed to a reader, what is watched, and how inputs are changed.

A target may raise `SmeltError`; anything else that comes out of it is a finding. So are broken
promises that a target checks itself: what was read is written again, and read as the same.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import onnx
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from smelt import ops
from smelt.backends import CodeCache
from smelt.backends.cpu import CpuBackend, target_named
from smelt.builder._embedded_network import read_embedded_network
from smelt.builder._optimization_profiles import optimization_profiles_of
from smelt.builder._plan_recipe import regenerated_header
from smelt.devices.cuda import ABI_VERSION, check_is_whole, resources_of
from smelt.engine import (
    VERSION,
    EngineFile,
    Fingerprint,
    KernelSpec,
    Launch,
    Plan,
    add_trusted_key,
    cache_secret,
    check_signature,
    header_from_data,
    header_to_data,
    parameters,
    read_engine,
    remove_trusted_key,
    serialize_engine,
    show_trusted_keys,
    user_signer,
    verify_partitions,
    verify_plan,
    verify_plans,
)
from smelt.errors import SmeltError
from smelt.importers.caffe import import_caffe, new_message, read_mean
from smelt.importers.onnx import import_onnx
from smelt.inspect import H200, Profile, report_of, report_to_json, report_to_text
from smelt.inspect._kernel_resources import CubinReader
from smelt.ir import Constant, collect_constants, print_graph
from smelt.ops import op_from_json, op_to_json, recipe_from_json
from smelt.runtime._refit import refitted_network_arrays, refitted_weights
from smelt.tuner import TimingCache, check_timings
from smelt.types import (
    SymbolicDim,
    ceil_div,
    dim_from_text,
    evaluate_dim,
    parse_json,
    shared_formula_limit,
    substitute_dim,
    symbols_of,
)
from tests.fuzz import caffe_seeds, dla_seeds, onnx_seeds, seeds, task_seeds, trace_seeds
from tests.fuzz.mutators import (
    message_mutator,
    mutate_bytes,
    mutate_json,
    mutate_tokens,
    mutate_tree,
)
from tests.fuzz.user_op import Fuzzed, make_known
from tests.importers.caffe.builders import random_array
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from smelt.engine import EngineHeader
    from smelt.ir import Array, Op
    from tests.fuzz.mutators import Mutator


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign data."""

    name: str
    modules: tuple[str, ...]
    """Modules, or packages with all their modules, whose lines guide and are reported."""
    run: Callable[[bytes], None]
    mutate: Mutator
    seeds: Callable[[], Iterator[bytes]]
    share: int
    """Part of the time that it gets when all run."""
    not_parsers: tuple[str, ...] = ()
    """Functions of these modules that read nothing foreign, and so are not counted."""

    @property
    def files(self) -> Mapping[str, Path]:
        """The watched files, by module name."""
        found: dict[str, Path] = {}
        for name in self.modules:
            path = Path(importlib.import_module(name).__file__ or "")
            if path.name != "__init__.py":
                found[name] = path
                continue
            for file in sorted(path.parent.glob("*.py")):
                if file.stem != "__init__":
                    found[f"{name}.{file.stem}"] = file
        return found


class BrokenPromiseError(Exception):
    """A reader accepted an input and then something else was wrong with what it made."""


def _require(holds: bool, promise: str) -> None:
    if not holds:
        raise BrokenPromiseError(promise)


@functools.cache
def _folder() -> Path:
    """A folder of this process for the files that a target must be given by path."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# ---- Caffe


def _run_caffe(data: bytes) -> None:
    """A network by its bytes or, every fourth one, by its path; or a mean image."""
    if data.startswith(caffe_seeds.MEAN):
        read_mean(data[4:])
        return
    text, model = _caffe_parts(data)
    dtype = "float32" if len(text) % 3 else "float16"
    if len(text) % 4:
        source = text if len(text) % 8 < 6 else text.decode("utf-8", "surrogateescape") + "\n"
        graph, _ = import_caffe(source, model or None, dtype=dtype)
    else:
        path, weights = _folder() / "net.prototxt", _folder() / "net.caffemodel"
        path.write_bytes(text)
        weights.unlink(missing_ok=True)
        if model:
            weights.write_bytes(model)
        given = weights if model or len(text) % 32 == 0 else None
        graph, blobs = import_caffe(str(path), given, dtype=dtype, outputs=[])
        with contextlib.suppress(SmeltError):
            read_mean(path.with_name("no such mean"))
        with contextlib.suppress(SmeltError):
            import_caffe(path, given, dtype=dtype, outputs=[*list(blobs)[:2], "no such blob"])
    print_graph(graph)


def _mutate_caffe(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    if data.startswith(caffe_seeds.MEAN):
        return caffe_seeds.MEAN + mutate_bytes(data[4:], chance, ())
    text, model = _caffe_parts(data)
    others = [_caffe_parts(chance.choice(corpus)) for _ in range(2)] if corpus else []
    if model and chance.random() < 0.4:
        change = _CAFFEMODEL if chance.random() < 0.6 else mutate_bytes
        model = change(model, chance, [m for _, m in others])
    elif chance.random() < 0.5:
        text = _mutate_network(text, chance, [t for t, _ in others])
    else:
        text = mutate_tokens(text, chance, [t for t, _ in others])
    return len(text).to_bytes(4, "little") + text + model


def _mutate_network(text: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change a prototxt as a message."""
    messages: list[bytes] = []
    for source in (text, *corpus):
        message = new_message("NetParameter")
        try:
            text_format.Parse(source, message, allow_unknown_field=True)
        except (text_format.ParseError, RecursionError, ValueError):
            return mutate_tokens(text, chance, corpus)
        messages.append(message.SerializeToString())
    changed = new_message("NetParameter")
    try:
        changed.ParseFromString(_CAFFEMODEL(messages[0], chance, messages[1:]))
    except DecodeError:
        return mutate_tokens(text, chance, corpus)
    return text_format.MessageToString(changed, as_utf8=True).encode()


def _caffe_parts(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "little")
    return data[4 : 4 + size], data[4 + size :]


_CAFFEMODEL: Final = message_mutator(lambda: new_message("NetParameter"))


# ---- ONNX


def _run_onnx(data: bytes) -> None:
    path = _folder() / "model.onnx"
    path.write_bytes(data)
    with contextlib.suppress(FileExistsError):
        _make_neighbours(path.parent)
    make_known()
    if len(data) % 8 == 4:
        with contextlib.suppress(SmeltError):
            import_onnx(path.with_name("no.onnx"))
    if len(data) % 4 == 0:
        with contextlib.suppress(SmeltError):
            import_onnx(data)
    print_graph(import_onnx(path))


def _make_neighbours(folder: Path) -> None:
    """What models may find beside them: a file that ends in a hole, a link and a folder."""
    with (folder / "data.bin").open("xb") as file:
        file.write(bytes(4096))
        file.truncate(8192)
    (folder / "link.bin").symlink_to("data.bin")
    (folder / "folder").mkdir()


_WORDS: Final = (
    "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "data.bin", "location", "offset", "length",
    "nearest", "linear", "edge", "my", "ai.onnx", "ai.onnx.ml",
    *sorted({schema.name for schema in onnx.defs.get_all_schemas()}),
    *sorted({name for schema in onnx.defs.get_all_schemas() for name in schema.attributes}),
)  # fmt: skip


# ---- engines


def _run_engine(data: bytes) -> None:
    """A file by its bytes, by its path or as an open file; its signature; what inspect shows."""
    if len(data) % 3 == 0:
        path = _folder() / "some.engine"
        for odd in (path.with_name("no.engine"), cast("Any", len(data)), path.parent):
            with contextlib.suppress(SmeltError):
                read_engine(odd)
        path.write_bytes(data)
        file = read_engine(path)
    else:
        file = read_engine(io.BytesIO(data) if len(data) % 3 == 1 else data)
    header, parts = file.header, file.partitions
    again = serialize_engine(header, file.weights, file.code, file.runtime_code, None, b"", parts)
    _require(read_engine(again).header == header, "an engine is read as written")
    with contextlib.suppress(SmeltError):
        verify_plans(header, weights_bytes=file.weights.size, code_bytes=len(file.code))
        verify_partitions(header, [part.header for part in parts])
    if file.signature is not None:
        check_signature(file.signature, file.source)


def _mutate_engine(data: bytes, chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Change the header's tree and write a file that holds it, lengths and checksums right."""
    if chance.random() < 0.25 or len(data) < 64:
        return mutate_bytes(data, chance, corpus)
    start, length = 64, int.from_bytes(data[16:24], "little")
    try:
        tree = mutate_tree(json.loads(data[start : start + length]), chance)
        text = json.dumps(tree, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return mutate_bytes(data, chance, corpus)
    if len(text) > length:
        return _file_of_longer_header(data, text, length)
    return data[:start] + text.ljust(length) + data[start + length :]


def _file_of_longer_header(data: bytes, text: bytes, length: int) -> bytes:
    """The file with a longer header: sections move behind it, and their offsets with them."""
    grown = (len(text) - length + 4096 + 4095) // 4096 * 4096
    tree: Any = json.loads(text)
    with contextlib.suppress(TypeError, KeyError):
        for row in tree["sections"]:
            row["offset"] += grown
    text = json.dumps(tree, separators=(",", ":")).encode().ljust(length + grown)
    size = len(text).to_bytes(8, "little") + (len(data) + grown).to_bytes(8, "little")
    return data[:16] + size + data[32:64] + text + data[64 + length :]


def _run_plan(data: bytes) -> None:
    """A header: read, written again, inspected, refitted, its plans verified."""
    try:
        tree = parse_json(data)
    except ValueError:
        return  # the reader of files says so; tests/engine has that
    header = header_from_data(tree)
    _require(header_from_data(header_to_data(header)) == header, "a header is read as written")
    profile = Profile({layer.name: 1e-6 for layer in header.layers}, {"batch": 2})
    report = report_of(_Headed(header, seeds.CUBINS), peaks=H200, profile=profile)
    _ = report_to_text(report), report_to_json(report)
    for plan in header.plans:
        with contextlib.suppress(SmeltError):
            verify_plan(header, plan, weights_bytes=seeds.WEIGHT_BYTES)
    with contextlib.suppress(SmeltError):
        verify_plans(header, weights_bytes=seeds.WEIGHT_BYTES, code_bytes=seeds.CODE_BYTES)
    _refit(header)


def _refit(header: EngineHeader) -> None:
    """Refit an engine whose weights lie where they may, as those of every loaded engine do."""
    plain = replace(header, plans=(Plan((), (), (), 0, 0),), symbols=(), bindings=())
    old = np.zeros(size := seeds.WEIGHT_BYTES, np.uint8)
    verify_plans(plain, weights_bytes=size, code_bytes=seeds.CODE_BYTES, network_arrays_bytes=size)
    for arrays in _NEW_WEIGHTS:
        with contextlib.suppress(SmeltError):
            refitted_network_arrays(header, old, arrays)
        with contextlib.suppress(SmeltError):
            refitted_weights([header], [old], arrays)


@dataclass(frozen=True, slots=True)
class _Headed:
    header: EngineHeader
    code: bytes


_NEW_WEIGHTS: Final[tuple[dict[str, Array], ...]] = (
    {"w": random_array(8, 4), "b": random_array(4)},
    {"w": random_array(4, 4, 3, 3)},
    {"unknown": random_array(3)},
    {"w": random_array(3), "x": random_array(3)},
)


def _run_program(data: bytes) -> None:
    """What an unsigned engine goes through: its plans are believed if its program gives them."""
    backend, target = CpuBackend(), target_named(seeds.TARGET)
    program = data.decode("utf-8", "replace")
    known = _headers()
    named = [h for h in known if f'"name":"{h[0].name}"' in program] or known[:1]
    for header, weights in named:
        given = replace(header, program=program)
        content = np.frombuffer(weights, np.uint8)
        file = EngineFile(given, content, b"", b"", None, "the engine")
        for plan in regenerated_header(file, backend, target).plans:
            for step in plan.steps:
                if isinstance(step, Launch):
                    backend.generate(step.kernel, target)


def _run_network(data: bytes) -> None:
    """What a retuning builds: the network that an engine keeps, and what was asked of it."""
    file = seeds.retunable_file()
    with contextlib.suppress(SmeltError):
        read_embedded_network(file)  # it keeps none
    text = data.decode("utf-8", "replace")
    graph, options = read_embedded_network(replace(file, header=replace(file.header, network=text)))
    print_graph(graph)
    optimization_profiles_of(graph, options.shapes, options.max_batch_size)


@functools.cache
def _headers() -> tuple[tuple[EngineHeader, bytes], ...]:
    """Headers of small networks, and their weights."""
    return tuple(seeds.header_of(graph) for graph in seeds.graph_seeds())


# ---- ops, texts and dimensions


def _run_op(data: bytes) -> None:
    make_known()
    try:
        kind, tree = json.loads(data)
    except (ValueError, RecursionError, TypeError):
        return
    if kind == "op":
        op = op_from_json(tree)
        text = json.dumps(op_to_json(op))
        _require(json.dumps(op_to_json(op_from_json(json.loads(text)))) == text, "ops stay")
    else:
        made = recipe_from_json(tree, lambda name: Constant(name, random_array(2, 3)))
        print(repr(made), file=io.StringIO())


_KINDS: Final[tuple[type[Op], ...]] = (*ops.ALL_OPS, Fuzzed)
_OPS: Final = {kind.__name__: kind for kind in _KINDS}


def _run_ir(data: bytes) -> None:
    graph = parse_graph(data.decode("utf-8", "replace"), _OPS, _constants())
    text = print_graph(graph)
    again = parse_graph(text, _OPS, {**_constants(), **collect_constants(graph)})
    _require(print_graph(again) == text, "a text stays")


@functools.cache
def _constants() -> Mapping[str, Array]:
    """The large constants of the first inputs, of which a text holds only digits."""
    return {n: array for g in seeds.text_graphs() for n, array in collect_constants(g).items()}


def _run_dim(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        dim = dim_from_text(text)
        first, second = shared_formula_limit(lambda: (dim_from_text(text), dim_from_text(text)))()
        _require(first is second, "a text is read once")
    except ValueError:
        return  # what it promises to raise; its callers say where
    if len(str(dim)) <= 2000:
        _require(dim_from_text(str(dim)) == dim, "a dimension is read as written")
    names = symbols_of(dim)
    values = {name: number + 3 for number, name in enumerate(sorted(names))}
    bound = substitute_dim(dim, dict(values))
    _require(evaluate_dim(dim, values) == bound, "a dimension is a polynomial")
    with contextlib.suppress(SmeltError):
        evaluate_dim(dim, {})
    _require(1 - dim + dim == 1, "a difference and its subtrahend give the minuend")
    if isinstance(dim, SymbolicDim):
        for divisor in (dim, SymbolicDim.symbol("n"), dim * 2):
            with contextlib.suppress(SmeltError):
                _require(divisor * (dim // divisor) == dim, "exact division is exact")
        _require(ceil_div(dim, 2) - dim // 2 in (0, 1) or bool(names), "ceil is near floor")


# ---- small files


def _run_timings(data: bytes) -> None:
    path = _folder() / "timings.json"
    _require(not TimingCache(path.with_name("none.json")).entries, "nothing is known of no file")
    path.write_bytes(data)
    if len(data) % 16 == 0:
        with path.open("r+b") as file:
            file.truncate(1 << 30)  # sparse
    with contextlib.suppress(SmeltError):  # that is no timing cache
        check_timings(path)
    cache = TimingCache(path)
    _require(all(seconds >= 0 for seconds in cache.entries.values()), "seconds are sound")
    cache.put("measured", 1.0)
    cache.save()
    _require(TimingCache(path).get("measured") == 1.0, "a damaged file is replaced")


def _home() -> Path:
    os.environ["SMELT_HOME"] = str(_folder() / "home")
    return _folder() / "home"


def _run_keys(data: bytes) -> None:
    """A public key by its file, its text, a folder; a private key that others may read or not."""
    home = _home()
    file = _folder() / "keys" / "some.pub"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    for source in (file, data.decode("utf-8", "replace")):
        with contextlib.suppress(SmeltError):
            key = add_trusted_key(source, "two\nlines" if len(data) % 16 == 0 else "")
            _require(key.key_id in {k.key_id for k in show_trusted_keys()}, "a key is shown")
            remove_trusted_key(key.key_id)
    secret = home / "keys" / "signing.key"
    user_signer()
    secret.write_bytes(data)
    secret.chmod(0o600 if len(data) % 4 else 0o644)
    try:
        with contextlib.suppress(SmeltError):
            user_signer()
            show_trusted_keys()
    finally:
        secret.unlink()
    places = (file.parent if len(data) % 2 else file, home / "no such")
    os.environ["SMELT_TRUSTED_KEYS"] = os.pathsep.join(map(str, places))
    try:
        show_trusted_keys()
    finally:
        del os.environ["SMELT_TRUSTED_KEYS"]


_KERNEL: Final = KernelSpec("fuzzed", parameters(size=1))


def _run_code(data: bytes) -> None:
    _home()
    cache, target = CodeCache.open("fuzzed"), target_named(seeds.TARGET)
    _require(cache is not None and cache_secret() is not None, "there is a cache")
    if cache is None:
        return
    cache.put(_KERNEL, target, b"object")
    _require(cache.get(_KERNEL, target) == b"object", "an entry is kept")
    (path,) = (_folder() / "home").rglob("fuzzed*.o")
    sound = path.read_bytes()
    path.unlink()
    _require(cache.get(_KERNEL, target) is None, "what is not there is not found")
    path.mkdir()
    _require(cache.get(_KERNEL, target) is None, "a folder is no entry")
    path.rmdir()
    path.write_bytes(data)
    _require(cache.get(_KERNEL, target) is None or data == sound, "no other entry is believed")


_GPU: Final = Fingerprint("cuda", "sm_75,sm_90,sm_1", (), "any", ABI_VERSION, VERSION)


def _run_cubin(data: bytes) -> None:
    """An engine's kernels for three GPUs, two of which have records; then the bytes as a cubin.

    Whole code is what the driver is given.
    """
    symbols = (("k", 0), ("l", 8))
    header = replace(_headers()[0][0], fingerprint=_GPU, symbols=symbols)
    reader = CubinReader(header, data)
    for symbol in ("k", "l", "k", "none"):
        codes = reader.codes(symbol)
        _require(len(codes) == 3, "each architecture is told")
        detail = [code.registers is not None or code.problem for code in codes]
        _require(all(detail), "what is not told has a reason")
    check_is_whole(data)
    resources_of(data, "k")


TARGETS: Final = (
    Target("caffe", ("smelt.importers.caffe", "smelt.importers._protobuf_wire"),
           _run_caffe, _mutate_caffe,
           caffe_seeds.caffe_seeds, 20, ("_field", "_file", "<genexpr>", "one_op")),
    Target("onnx", ("smelt.importers.onnx",), _run_onnx, message_mutator(onnx.ModelProto, _WORDS),
           onnx_seeds.onnx_seeds, 25,
           # Of files beyond 4 MB alone: tests/importers/onnx/test_message_counts.py.
           # Into messages for another library alone: tests/importers/onnx.
           ("check_counts", "_member_messages", "_excess", "embed_data")),
    Target("engine", ("smelt.engine._file",), _run_engine, _mutate_engine,
           seeds.engine_seeds, 10,
           ("SignerLike", "write_engine", "write_atomically", "replace_file", "_write_into",
            "_write_all", "_header_text", "_sign", "check_header")),
    Target(
        "plan",
        ("smelt.engine._header_json", "smelt.engine._plan_verifier", "smelt.engine._plan",
         "smelt.inspect._report_builder", "smelt.inspect._roofline", "smelt.runtime._refit"),
        _run_plan, mutate_json, seeds.plan_seeds, 15,
        ("TypedParameters", "_exactly", "tuple_of", "row", "or_none", "enum_of", "record",
         "record_row", "_check_fields", "_read_dim_text", "tagged",
         "Inspectable", "_signer", "_source_writer", "Plan", "KernelSpec", "parameters", "as_json"),
    ),
    Target("program", ("smelt.builder._plan_recipe", "smelt.builder._graph_json"), _run_program,
           mutate_json, seeds.program_seeds, 10,
           ("plan_recipes_json", "_PlanRecipeWriter", "_constant_to_data", "graph_to_data")),
    Target("network", ("smelt.builder._embedded_network", "smelt.builder._graph_json",
           "smelt.builder._optimization_profiles"), _run_network, mutate_json,
           seeds.network_seeds, 5,
           ("embed_network", "EmbeddedNetwork", "graph_to_data", "shapes_to_data",
            "_spec_to_data", "optimization_profiles_of", "_ranges", "_profile", "_bind",
            "_example_shapes", "<dictcomp>")),
    Target("op", ("smelt.ops._op_json",), _run_op, mutate_json, seeds.op_seeds, 10,
           ("recipe_to_json", "_in_order")),
    Target("ir", ("tests.support.graph_text",), _run_ir, mutate_tokens, seeds.ir_seeds, 10),
    Target("dim", ("smelt.types._dim",), _run_dim, mutate_tokens, seeds.dim_seeds, 2,
           # What others ask of dimensions, and how they are written.
           ("fixed_extent", "fixed_shape", "dim_to_text", "followed_atoms_limit", "may_follow",
            "symbol_of", "guessed_extent")),
    Target("timings", ("smelt.tuner._timing_cache",), _run_timings, mutate_json,
           seeds.timing_seeds, 3, ("TimingCache", "_replace", "check_timings")),
    Target("keys", ("smelt.engine._signing_keys",), _run_keys, mutate_tokens, seeds.key_seeds, 3,
           ("Signer", "user_signer", "cache_secret", "verify_signature", "check_signature",
            "remove_trusted_key", "_other_owner", "_yield_or_warn", "_read_secret",
            "_trusted_keys", "_own_label", "_key_files")),
    Target("cubin", ("smelt.devices.cuda._cubin", "smelt.inspect._kernel_resources"), _run_cubin,
           mutate_bytes, seeds.cubin_seeds, 2),
    Target("code", ("smelt.backends._code_cache",), _run_code, mutate_bytes,
           seeds.code_seeds, 2, ("CodeCache.open", "CodeCache.put", "codegen_version_of")),
    Target("loadable",
           ("smelt.nvdla.loadable", "smelt.nvdla.runtime._network",
            "smelt.nvdla.runtime._emulator", "smelt.nvdla.runtime._atoms"),
           dla_seeds.run_loadable, dla_seeds.mutate_loadable, dla_seeds.loadable_seeds, 10,
           dla_seeds.NOT_PARSERS),
    Target("trace",
           ("smelt.nvdla.traces._parse", "smelt.nvdla.traces._player",
            "smelt.nvdla.traces._trace_files"),
           lambda data: trace_seeds.play_trace(data, _folder()), trace_seeds.mutate_trace,
           trace_seeds.trace_seeds, 6, trace_seeds.NOT_PARSERS),
    Target("task", ("smelt.nvdla.firmware._task", "smelt.nvdla.firmware._graph"),
           task_seeds.run_task, task_seeds.mutate_task, task_seeds.task_seeds, 6),
)  # fmt: skip
