"""The Caffe parser in the documented vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import gie
from smelt.errors import ContextError, ModelFormatError, UnsupportedError
from smelt.importers.caffe import new_message
from smelt.interp import interpret
from tests.support.gie import MNIST, found, numbers, parse_mnist

if TYPE_CHECKING:
    from pathlib import Path

FILES = (MNIST / "mnist.prototxt", MNIST / "mnist.caffemodel")


@pytest.mark.requirement("G-18", "GX-9")
def test_parser_fills_the_network_and_finds_tensors_by_the_names_of_blobs() -> None:
    network = gie.InferNetwork()
    blobs = gie.create_caffe_parser().parse(*FILES, network, gie.DataType.FLOAT)
    assert network.nb_layers == 8
    assert network.nb_inputs == 1
    for name in ("data", "conv1", "pool2", "ip1", "prob"):
        assert found(blobs, name).name == name
    assert blobs.find("nothing") is None
    assert found(blobs, "conv1").shape == (12, 24, 24)


@pytest.mark.requirement("G-18", "GX-9")
def test_dictionary_serves_on_after_its_parser() -> None:
    network = gie.InferNetwork()
    parser = gie.create_caffe_parser()
    blobs = parser.parse(str(FILES[0]), str(FILES[1]), network)
    parser.destroy()
    gie.shutdown_protobuf_library()
    network.mark_output(found(blobs, "prob"))
    assert network.nb_outputs == 1


@pytest.mark.requirement("G-19", "G-63")
def test_weights_are_kept_in_the_precision_that_is_asked_for() -> None:
    networks = {kind: gie.InferNetwork() for kind in gie.DataType}
    kept: dict[gie.DataType, set[str]] = {}
    for kind, network in networks.items():
        network.mark_output(found(parse_mnist(network, kind), "prob"))
        sources = [s for c in network.graph.constants() for s in c.sources()]
        kept[kind] = {str(s.array.dtype) for s in sources if s.array.size > 20}
    assert kept == {gie.DataType.FLOAT: {"float32"}, gie.DataType.HALF: {"float16"}}
    x = numbers(1, 1, 28, 28)
    exact, rounded = (interpret(n.graph, {"data": x})["prob"] for n in networks.values())
    assert 0 < np.abs(exact - rounded).max() < 1e-2


@pytest.mark.requirement("GX-9")
def test_mean_files_are_read_as_blobs_of_four_extents(tmp_path: Path) -> None:
    mean = numbers(3, 4, 5)
    blob = new_message("BlobProto")
    blob.num, blob.channels, blob.height, blob.width = 1, *mean.shape
    blob.data.extend(mean.ravel().tolist())
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob.SerializeToString())
    read = gie.create_caffe_parser().parse_binary_proto(path)
    assert read.get_dimensions() == (1, 3, 4, 5)
    assert read.get_data().dtype == np.float32
    assert np.array_equal(read.get_data()[0], mean)
    read.destroy()
    assert read.get_data().size == 0
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ModelFormatError, match=r"mean\.binaryproto"):
        gie.create_caffe_parser().parse_binary_proto(path)


@pytest.mark.requirement("GX-9")
def test_models_larger_than_the_protobuf_buffer_are_refused_until_it_is_raised() -> None:
    parser, network = gie.create_caffe_parser(), gie.InferNetwork()
    size = FILES[1].stat().st_size
    parser.set_protobuf_buffer_size(size - 1)
    with pytest.raises(ModelFormatError, match="enlarge the buffer with set_protobuf_buffer_size"):
        parser.parse(*FILES, network)
    assert network.nb_layers == 0
    parser.set_protobuf_buffer_size(size)
    parser.parse(*FILES, network)
    assert network.nb_layers == 8


def test_destroyed_parser_reads_nothing() -> None:
    parser = gie.create_caffe_parser()
    parser.destroy()
    with pytest.raises(ContextError, match="destroyed"):
        parser.parse_binary_proto(FILES[1])


@pytest.mark.requirement("G-14")
def test_layers_that_cannot_be_imported_are_named_and_leave_the_network_empty(
    tmp_path: Path,
) -> None:
    deploy = tmp_path / "deploy.prototxt"
    deploy.write_text(
        'input: "data" input_dim: 1 input_dim: 1 input_dim: 2 input_dim: 2\n'
        'layer { name: "odd" type: "Conundrum" bottom: "data" top: "odd" }\n'
        'layer { name: "even" type: "Enigma" bottom: "odd" top: "even" }\n'
    )
    network = gie.InferNetwork()
    with pytest.raises(UnsupportedError) as caught:
        gie.create_caffe_parser().parse(deploy, FILES[1], network)
    for word in ("odd", "Conundrum", "even", "Enigma"):
        assert word in str(caught.value)
    assert network.nb_layers == 0
