"""Every op is in the table, is documented and infers the types that its reference returns."""

from __future__ import annotations

import importlib
import inspect
import keyword
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt.ops
from smelt.errors import ShapeError
from smelt.ops import ALL_OPS, Case, Op, Operand
from smelt.ops._attribute_types import field_hints
from smelt.types import SymbolicDim, TensorType, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from types import ModuleType

    from smelt.ops import Array
    from smelt.types import ValueType

_FOLDER = Path(smelt.ops.__file__).parent
_CASES = [
    pytest.param(case, id=f"{cls.name}-{case.name}") for cls in ALL_OPS for case in cls.cases()
]
_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
_every_case = pytest.mark.parametrize("case", _CASES)


def test_the_table_holds_the_ops_of_every_module() -> None:
    defined = {cls for module in _public_modules() for cls in _ops_of(module)}
    assert set(ALL_OPS) == defined
    assert len(ALL_OPS) == len(defined)
    assert list(ALL_OPS) == sorted(ALL_OPS, key=lambda op: op.__name__.lower())


def test_a_module_of_one_op_is_named_after_it_and_a_family_after_none() -> None:
    every_name = {op.name for op in ALL_OPS}
    for module in _public_modules():
        names = [op.name for op in _ops_of(module)]
        stem = module.__name__.rpartition(".")[2]
        if len(names) == 1:
            assert stem == names[0] + ("_" if keyword.iskeyword(names[0]) else "")
        else:
            assert names, stem
            assert stem not in every_name


def _public_modules() -> list[ModuleType]:
    stems = sorted(path.stem for path in _FOLDER.glob("[a-z]*.py"))
    return [importlib.import_module(f"smelt.ops.{stem}") for stem in stems]


def _ops_of(module: ModuleType) -> list[type[Op]]:
    """Return the ops that a module defines, without abstract bases."""
    classes = (cls for _, cls in inspect.getmembers(module, inspect.isclass))
    return [
        cls
        for cls in classes
        if issubclass(cls, Op) and cls.__module__ == module.__name__ and not _is_base(cls)
    ]


def _is_base(cls: type[Op]) -> bool:
    """Return whether a class is abstract, or has ops of its module as subclasses."""
    return inspect.isabstract(cls) or any(
        c.__module__ == cls.__module__ for c in cls.__subclasses__()
    )


@_every_op
def test_an_op_is_exported_by_its_onnx_name(op: type[Op]) -> None:
    assert op.__name__ in smelt.ops.__all__
    assert getattr(smelt.ops, op.__name__) is op
    assert op.name.replace("_", "") == op.__name__.lower()


@_every_op
def test_the_docstring_has_the_four_lines(op: type[Op]) -> None:
    text = inspect.cleandoc(op.__doc__ or "")
    for line in ("Shapes: ", "Dtypes: ", "Raises ShapeError: ", "Source: "):
        assert len(re.findall(f"^{line}", text, re.MULTILINE)) == 1, line


@_every_op
def test_an_op_has_cases_with_names_of_their_own(op: type[Op]) -> None:
    counts = Counter(case.name for case in op.cases())
    assert counts
    assert max(counts.values()) == 1
    assert all(isinstance(case.op, op) for case in op.cases())


@_every_op
def test_cases_are_the_same_every_time(op: type[Op]) -> None:
    for one, two in zip(op.cases(), op.cases(), strict=True):
        for a, b in zip(one.inputs, two.inputs, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                np.testing.assert_array_equal(a, b)


@_every_case
def test_the_inferred_types_are_those_of_the_reference(case: Case) -> None:
    operands = [None if a is None else Operand.constant(a) for a in case.inputs]
    _check(case, case.op.infer(operands), {})


@_every_case
def test_types_are_inferred_without_the_values_of_inputs_that_vary(case: Case) -> None:
    operands = [
        None if a is None else _operand(a, fixed=index in case.constants)
        for index, a in enumerate(case.inputs)
    ]
    _check(case, case.op.infer(operands), {})


@_every_case
def test_a_symbolic_batch_gives_the_same_types_once_it_is_bound(case: Case) -> None:
    batches = {
        a.shape[0]
        for index, a in enumerate(case.inputs)
        if a is not None and a.ndim > 1 and index not in case.constants
    }
    if len(batches) != 1 or batches <= {0, 1}:
        pytest.skip("the inputs have no batch in common")
    (batch,) = batches
    operands = [
        None if a is None else _operand(a, fixed=index in case.constants, batch=batch)
        for index, a in enumerate(case.inputs)
    ]
    try:
        kinds = case.op.infer(operands)
    except ShapeError as error:
        reason = error.message
    else:
        _check(case, kinds, {"batch": batch})
        reason = "symbol"
    assert re.search("symbol|known|constant|depends|follow", reason)


@_every_case
def test_elementwise_ops_have_the_shape_onto_which_their_inputs_broadcast(case: Case) -> None:
    if not case.op.elementwise:
        pytest.skip("not elementwise")
    shapes = [a.shape for a in case.inputs if a is not None]
    (result, *_) = case.op.reference(*case.inputs)
    assert result.shape == np.broadcast_shapes(*shapes)


def _operand(array: Array, *, fixed: bool, batch: int | None = None) -> Operand:
    known = Operand.constant(array)
    if fixed:
        return known
    shape = known.tensor.shape
    if batch is not None and array.ndim > 1 and shape[0] == batch:
        shape = (SymbolicDim.symbol("batch"), *shape[1:])
    # The elements of a short integer vector may follow from shapes, and some ops must know them.
    return Operand(TensorType(known.tensor.dtype, shape), None, known.dims)


def _check(case: Case, kinds: tuple[ValueType, ...], symbols: dict[str, int]) -> None:
    results = case.op.reference(*case.inputs)
    assert len(kinds) == len(results)
    for kind, array in zip(kinds, results, strict=True):
        assert isinstance(kind, TensorType)
        assert array.dtype == kind.dtype.numpy
        assert array.ndim == kind.rank
        for dim, extent in zip(kind.shape, array.shape, strict=True):
            # What a run itself determines has a symbol of its own.
            if symbols_of(dim) <= symbols.keys():
                assert evaluate_dim(dim, symbols) == extent


@pytest.mark.parametrize("cls", ALL_OPS, ids=lambda cls: cls.name)
def test_the_annotation_of_every_attribute_can_be_evaluated(cls: type[Op]) -> None:
    """An annotation that cannot be evaluated turns off the checks of all attributes of its op."""
    assert all(hint is not object for hint in field_hints(cls).values())
