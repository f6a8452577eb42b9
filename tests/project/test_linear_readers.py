"""What a file repeats costs a reader time in proportion: the promise is 10 seconds for any file."""

from __future__ import annotations

import contextlib
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx import helper

import smelt
from smelt.devices import DeviceName
from smelt.importers.caffe._prototxt import parse_prototxt
from smelt.importers.onnx import import_onnx
from smelt.importers.onnx._types import SymbolTable
from smelt.ir import Graph
from smelt.nvdla.loadable import (
    Address,
    Blob,
    Interface,
    Loadable,
    Memory,
    NetworkDescriptor,
    Task,
    format_text,
    interpret,
)
from smelt.nvdla.traces import run_trace
from smelt.nvdla.traces._parse import parse_data
from smelt.ops import Relu
from smelt.types import DType, TensorType, TextTable, read_array, similar_names, wrap_words
from tests.importers.onnx.one_node import float_info

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import FunctionProto, ModelProto

SECONDS = 10


def _array_header(folder: Path) -> object:
    """Digits without commas: the pattern of the header once tried every way to group them."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1" * 64 + b"), }!\n"
    path = folder / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return read_array(path)


def _backslashes(folder: Path) -> object:
    """One string of backslashes, which protobuf unescapes in quadratic time."""
    path = folder / "net.prototxt"
    path.write_text('name: "' + "\\" * 400_000 + '"\n')
    return smelt.network_from_caffe(path, b"")


def _quotes_in_a_string_without_an_end(_: Path) -> object:
    """Escaped quotes on one line, each of which could begin a string that has no end."""
    return parse_prototxt('layer { name: "' + '\\"' * 200_000, "the text")


def _unknown_fields_of_a_line(_: Path) -> object:
    """Unknown fields on one line, for each of which protobuf formats an error with the line."""
    return parse_prototxt("a:1 " * 60_000 + "layer { }", "the text")


def _blanks_in_data(folder: Path) -> object:
    """Blanks behind the colon of a row of NVDLA data."""
    return parse_data(b"{offset:0, size:4, payload:" + b" " * 400_000 + b"}", 1 << 20)


def _digits_in_device(folder: Path) -> object:
    """Digits in the name of a device, which an engine's header may hold."""
    return DeviceName.from_text("0" * 400_000 + "x")


def _stages_and_rules(_: Path) -> object:
    """Stages of the network, which every rule of a layer is compared with."""
    rules = 'include { stage: "x" } ' * 20_000
    stages = 'stage: "" ' * 20_000
    text = f'state {{ {stages}}} layer {{ name: "a" type: "ReLU" {rules}}}'
    return parse_prototxt(text, "the text")


def _entries_of_a_called_function(_: Path) -> object:
    """Imports and inputs of a function, which each of its calls reads."""
    body = [helper.make_node("Relu", ["a"], ["o"])]
    inputs = ["a", *map(str, range(100_000))]
    function = helper.make_function("f", "F", inputs, ["o"], body, [helper.make_opsetid("", 17)])
    return import_onnx(_calls(function, 400))


def _names_in_a_repeated_function(_: Path) -> object:
    """Inputs of a node in a function that is called often."""
    body = [helper.make_node("Concat", ["a"] * 60_000, ["b"], axis=0)]
    body.append(helper.make_node("Relu", ["a"], ["o"]))
    function = helper.make_function("f", "F", ["a"], ["o"], body, [helper.make_opsetid("", 17)])
    return import_onnx(_calls(function, 300))


def _calls(function: FunctionProto, count: int) -> ModelProto:
    """A model that calls a function repeatedly, each time with the last result."""
    nodes = [
        helper.make_node("F", ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"], domain="f")
        for i in range(count)
    ]
    graph = helper.make_graph(
        nodes, "g", [float_info("x", [2])], [float_info(f"v{count - 1}", [2])]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)


def _symbols_of_one_identifier(_: Path) -> object:
    """Names of extents that become one identifier, which is numbered."""
    symbols = SymbolTable()
    return [symbols.named(chr(0x4E00 + i % 200) + chr(0x4E00 + i // 200)) for i in range(20_000)]


def _long_names_like_a_missing_output(_: Path) -> object:
    """Names that are long permutations of each other, with which a hint compares a name."""
    letters = [chr(0x100 + i) for i in range(100)] * 80
    shuffle = np.random.default_rng(1).permutation
    names = ["".join(shuffle(letters)) for _ in range(80)]
    return similar_names(names[0], names[1:])


def _many_names_like_a_missing_output(_: Path) -> object:
    """Many short names, which are compared with a name."""
    return similar_names("ab" * 20, ["ba" * 20 + str(i) for i in range(200_000)])


def _data_layers(_: Path) -> object:
    """Data layers, each of which looks for the convolution that reads it."""
    layers = "".join(f'layer{{type:"Data"top:"a{i}"}}' for i in range(20_000))
    return smelt.network_from_caffe(layers)


def _tops_of_an_input_layer(_: Path) -> object:
    """Tops of an Input layer, each of which is an input if a layer reads it."""
    tops = "".join(f'top:"a{i}"' for i in range(60_000))
    readers = 'layer{type:"ReLU"bottom:"a0"top:"b"}' + 'layer{type:"Silence"bottom:"a0"}' * 8000
    return smelt.network_from_caffe(
        f'layer{{name:"in"type:"Input"{tops}input_param{{shape{{dim:1}}}}}}' + readers
    )


def _accents(_: Path) -> object:
    """Characters without a width, which no line is too narrow for."""
    return wrap_words("a" * 200 + "\u0301" * 40_000, 80)


def _blank_line(_: Path) -> object:
    """Blanks wider than the screen, before which no line is broken."""
    return wrap_words(" " * 300_000, 80)


def _wide_table(_: Path) -> object:
    """A column that is narrowed to fit beside another one, which cannot be."""
    return list(TextTable(list("abcdefghij"), [["x" * 3_000_000, *["y " * 100] * 9]]).lines(None))


def _addresses_of_one_memory(_: Path) -> object:
    """Addresses of a task, at each of which the version of a blob is looked for."""
    count = 25_000
    task = Task(id=0, interface=Interface.DLA1, instance=0, address_list=(0,) * count)
    memory = Memory(id=0, size=1 << 20, contents=("",) * count, offsets=(0,) * count)
    address = Address(id=0, mem_id=0, offset=0, size=0)
    return interpret(Loadable(tasks=(task,), memories=(memory,), addresses=(address,)))


def _tasks_of_one_memory(_: Path) -> object:
    """Tasks whose network is in one memory, each of which reads all blobs of the memory."""
    count = 15_000
    task = Task(id=0, interface=Interface.DLA1, instance=0, address_list=(0,))
    tasks = [replace(task, id=number) for number in range(count)]
    contents = ("network", *("",) * count)
    memory = Memory(id=0, size=1 << 20, contents=contents, offsets=(0,) * len(contents))
    address = Address(id=0, mem_id=0, offset=0, size=0)
    data = NetworkDescriptor().to_bytes()
    blob = Blob(name="network", size=len(data), data=data)
    return interpret(
        Loadable(tasks=tuple(tasks), memories=(memory,), addresses=(address,), blobs=(blob,))
    )


def _shared_string(_: Path) -> object:
    """A long text that is the name of every blob of a memory, which the report lists."""
    count = 30_000
    text = "x" * 100_000
    memory = Memory(id=0, flags=2, contents=(text, *("",) * count))
    data = bytearray(Loadable(memories=(memory,)).to_bytes())
    start = data.index(struct.pack("<I", len(text)) + text.encode())
    vector = data.index(struct.pack("<I", count + 1))
    for at in range(vector + 4, vector + 4 + 4 * (count + 1), 4):
        struct.pack_into("<I", data, at, start - at)
    return format_text(interpret(Loadable.from_bytes(data)))


def _rows_and_commands(folder: Path) -> object:
    """Rows of a data file, all of which each command of a trace loads."""
    (folder / "x.dat").write_text("{offset:0, size:1, payload:0x00}\n" * 4000)
    path = folder / "x.txn"
    path.write_text("load_mem 0 0 x.dat\n" * 3000)
    return run_trace(path)


def _folded_nodes(_: Path) -> object:
    """Nodes that are removed as soon as they are added, because their results are constants."""
    graph = Graph("g")
    value = graph.add_input("x", TensorType(DType.FLOAT32, (1,)))
    for index in range(25_000):
        graph.add(Relu(), value, name=str(index))
    for index in range(25_000):
        graph.remove(graph.add(Relu(), value, name=f"removed{index}"))
    return graph.remove_unused()


@pytest.mark.parametrize(
    "read",
    [
        _array_header,
        _backslashes,
        _quotes_in_a_string_without_an_end,
        _unknown_fields_of_a_line,
        _blanks_in_data,
        _digits_in_device,
        _stages_and_rules,
        _entries_of_a_called_function,
        _names_in_a_repeated_function,
        _symbols_of_one_identifier,
        _long_names_like_a_missing_output,
        _many_names_like_a_missing_output,
        _data_layers,
        _tops_of_an_input_layer,
        _accents,
        _blank_line,
        _wide_table,
        _addresses_of_one_memory,
        _tasks_of_one_memory,
        _shared_string,
        _rows_and_commands,
        _folded_nodes,
    ],
)
@pytest.mark.slow
def test_a_reader_takes_time_in_proportion_to_what_is_repeated(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    start = time.process_time()
    # A reader of arrays raises ValueError: its callers say where.
    with contextlib.suppress(smelt.SmeltError, ValueError):
        read(tmp_path)
    assert time.process_time() - start < SECONDS


def test_adjacent_bytes_of_data_are_told_apart() -> None:
    assert parse_data(b"{offset:0, size:2, payload:0x120x34}", 16) == [(0, b"\x12\x34")]
    assert parse_data(b"0x12 0x340x56\n", 16) == [(0, b"\x12\x34\x56")]
