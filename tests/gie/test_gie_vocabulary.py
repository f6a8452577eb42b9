"""Numbers, names and the rules of the logger, as documented."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

import smelt
from smelt import gie
from smelt.errors import BuildError, ContextError, GraphError, SmeltError
from tests.support.gie import RecordingLogger, buffers_for, build, small_network

if TYPE_CHECKING:
    from enum import IntEnum

NUMBERS: list[tuple[type[IntEnum], str]] = [
    (
        gie.LayerType,
        (
            "CONVOLUTION FULLY_CONNECTED ACTIVATION POOLING LRN SCALE SOFTMAX DECONVOLUTION "
            "CONCATENATION ELEMENTWISE"
        ),
    ),
    (gie.ActivationType, "RELU SIGMOID TANH"),
    (gie.PoolingType, "MAX AVERAGE"),
    (gie.ScaleMode, "UNIFORM CHANNEL ELEMENTWISE"),
    (gie.ElementWiseOperation, "SUM PROD MAX"),
    (gie.DataType, "FLOAT HALF"),
]


@pytest.mark.requirement("GX-1", "GX-2")
@pytest.mark.parametrize(("enumeration", "names"), NUMBERS)
def test_enumerations_count_from_zero_in_the_documented_order(
    enumeration: type[IntEnum], names: str
) -> None:
    assert {member.name: int(member) for member in enumeration} == {
        name: number for number, name in enumerate(names.split())
    }


@pytest.mark.requirement("GX-1", "G-35")
def test_severities_have_the_documented_numbers() -> None:
    documented = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO")
    assert [int(gie.Severity[name]) for name in documented] == [0, 1, 2, 3]


def test_half2_is_the_guides_other_name_of_half() -> None:
    assert gie.DataType["HALF2"] is gie.DataType.HALF
    assert [kind.dtype.value for kind in gie.DataType] == ["float32", "float16"]


def test_smelt_offers_the_facade_as_an_attribute() -> None:
    assert smelt.gie is gie


# ---- the logger


@pytest.mark.requirement("G-34", "G-36", "G-33")
def test_logger_hears_of_every_stage_and_of_the_layers_by_name() -> None:
    logger = RecordingLogger()
    build(small_network(), logger)
    text = "\n".join(logger.texts(gie.Severity.INFO))
    assert "conv + relu -> conv + relu: Conv | Relu" in text
    last = text.splitlines()[-1]
    assert last.startswith("small: ")
    assert "conv + relu" in last
    assert not logger.texts(gie.Severity.ERROR)


@pytest.mark.requirement("G-34", "G-36")
def test_logger_hears_what_builder_and_runtime_raise() -> None:
    logger = RecordingLogger(quiet=True)
    builder, runtime = gie.create_infer_builder(logger), gie.create_infer_runtime(logger)
    with pytest.raises(BuildError, match="no output"):
        builder.build_cuda_engine(builder.create_network())
    with pytest.raises(SmeltError):
        runtime.deserialize_cuda_engine(b"no engine at all")
    kinds = [severity for severity, _ in logger.messages]
    assert kinds == [gie.Severity.ERROR] * 2
    assert "no output" in logger.messages[0][1]


@pytest.mark.requirement("G-35", "G-36")
def test_application_that_suppresses_information_still_gets_warnings() -> None:
    quiet, all_ears = RecordingLogger(quiet=True), RecordingLogger()
    for logger in (quiet, all_ears):
        build(small_network(), logger, half2_mode=True)
    assert [kind for kind, _ in quiet.messages] == [gie.Severity.WARNING]
    assert len(all_ears.messages) > len(quiet.messages)
    assert {kind for kind, _ in all_ears.messages} == {gie.Severity.WARNING, gie.Severity.INFO}


@pytest.mark.requirement("GX-1")
def test_logger_of_the_first_builder_serves_all_until_the_last_one_is_gone() -> None:
    first, second = RecordingLogger(), RecordingLogger()
    builder = gie.create_infer_builder(first)
    runtime = gie.create_infer_runtime(second)
    assert runtime.logger is first
    for logger in (first, second):
        assert logger.texts(gie.Severity.WARNING) == [
            "another logger is already in use and is kept; the new one is ignored"
        ]
    builder.destroy()
    assert gie.create_infer_builder(second).logger is first  # the runtime has it still
    runtime.destroy()
    gc.collect()
    assert gie.create_infer_runtime(second).logger is second


def test_users_that_nobody_holds_give_their_logger_free() -> None:
    def forgetful() -> None:
        gie.create_infer_builder(RecordingLogger())

    forgetful()
    gc.collect()
    logger = RecordingLogger()
    assert gie.create_infer_builder(logger).logger is logger


def test_what_cannot_log_is_no_logger() -> None:
    with pytest.raises(SmeltError, match="str is not a logger"):
        gie.create_infer_builder(cast("Any", "print"))


def test_handlers_and_level_of_logging_are_as_before_a_build() -> None:
    root = logging.getLogger("smelt")
    before = (root.level, list(root.handlers))
    build(small_network())
    assert (root.level, list(root.handlers)) == before


def test_builder_runtime_and_parser_serve_no_more_once_destroyed() -> None:
    builder = gie.create_infer_builder(RecordingLogger())
    runtime = gie.create_infer_runtime(builder.logger)
    parser = gie.create_caffe_parser()
    network = small_network()
    data = builder.build_cuda_engine(network).serialize()
    for thing in (builder, runtime, parser):
        thing.destroy()
        thing.destroy()
    with pytest.raises(ContextError, match="destroyed"):
        builder.build_cuda_engine(network)
    with pytest.raises(ContextError, match="destroyed"):
        runtime.deserialize_cuda_engine(data)
    with pytest.raises(ContextError, match="destroyed"):
        parser.parse("a", "b", builder.create_network())


def test_with_blocks_end_lives_as_destroy_does() -> None:
    logger, network = RecordingLogger(), small_network()
    with (
        gie.create_infer_builder(logger) as builder,
        builder.build_cuda_engine(network) as engine,
        gie.create_infer_runtime(logger) as runtime,
        runtime.deserialize_cuda_engine(engine.serialize()) as again,
        again.create_execution_context() as context,
    ):
        assert context.execute(1, buffers_for(again, 1, {}))
    for use in (
        lambda: builder.build_cuda_engine(network),
        engine.create_execution_context,
        lambda: context.execute(1, [None, None]),
    ):
        with pytest.raises(ContextError, match=r"destroyed|closed"):
            use()


@pytest.mark.requirement("G-37", "G-40", "GX-7")
def test_builder_makes_networks_and_engines_and_shows_its_options() -> None:
    builder = gie.create_infer_builder(RecordingLogger())
    assert not builder.debug_sync
    assert not builder.half2_mode
    assert builder.max_batch_size == 1
    assert not builder.platform_has_fast_fp16
    builder.device = "cuda:1"
    assert builder.platform_has_fast_fp16
    builder.device = "cpu"
    builder.set_max_batch_size(3)
    builder.set_max_workspace_size(1 << 22)
    builder.set_debug_sync(True)
    builder.set_min_find_iterations(7)
    builder.set_average_find_iterations(2)
    builder.set_half2_mode(True)
    assert (builder.max_batch_size, builder.max_workspace_size) == (3, 1 << 22)
    assert (builder.min_find_iterations, builder.average_find_iterations) == (7, 2)
    assert (builder.debug_sync, builder.half2_mode) == (True, True)
    network = builder.create_network()
    assert (network.nb_layers, network.nb_inputs, network.nb_outputs) == (0, 0, 0)
    assert builder.create_network() is not network
    x = network.add_input("data", gie.DataType.FLOAT, (2, 3, 3))
    made = network.add_activation(x, gie.ActivationType.TANH)
    network.mark_output(cast("Any", made.get_output(0)))
    engine = builder.build_cuda_engine(network)
    assert isinstance(engine, gie.CudaEngine)
    assert engine.max_batch_size == 3


@pytest.mark.parametrize(("option", "value"), [("max_batch_size", 0), ("max_workspace_size", -1)])
def test_options_that_make_no_sense_are_refused_at_the_build(option: str, value: int) -> None:
    with pytest.raises(BuildError, match=str(value)):
        build(small_network(), None, **{option: value})


def test_iterations_that_are_not_positive_are_refused_at_the_build() -> None:
    for option in ("min_find_iterations", "average_find_iterations"):
        with pytest.raises(BuildError, match="integer of at least 1"):
            build(small_network(), None, **{option: 0})


def test_parsing_into_a_network_with_layers_is_refused() -> None:
    network = small_network()
    with pytest.raises(GraphError, match="already has layers"):
        network.fill(smelt.NetworkDefinition("other"))
