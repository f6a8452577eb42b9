"""Arrays go into a tensor's memory and come out again, in every atom size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.loadable import DataCategory, DataType
from smelt.nvdla.runtime import (
    Dims4,
    NvDlaTensor,
    PixelFormat,
    array_from_tensor,
    dtype_of_tensor,
    write_tensor,
)


def _tensor(
    dims: tuple[int, int, int],
    data_type: int,
    atom_bytes: int,
    category: int = DataCategory.FEATURE,
    pixel_format: int = PixelFormat.FEATURE,
) -> NvDlaTensor:
    channel, height, width = dims
    line = width * atom_bytes
    strides = (1, line, height * line, 0, 0, 0, 0, 0)
    return NvDlaTensor(
        "t", 0, Dims4(1, channel, height, width), 3, data_type, category, pixel_format, 0, strides
    )


@given(
    st.tuples(st.integers(1, 70), st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([DataType.INT8, DataType.INT16, DataType.HALF, DataType.UINT8]),
    st.sampled_from([8, 16, 32]),
)
def test_an_array_survives_memory(
    dims: tuple[int, int, int], data_type: DataType, atom_bytes: int
) -> None:
    tensor = _tensor(dims, data_type, atom_bytes)
    dtype = dtype_of_tensor(tensor)
    array = np.arange(np.prod(dims)).reshape(dims).astype(np.uint8).astype(dtype)
    lanes = atom_bytes // dtype.itemsize
    memory = np.full(-(-dims[0] // lanes) * tensor.stride[2], 0xEE, np.uint8)
    write_tensor(tensor, array, memory, atom_bytes=atom_bytes)
    np.testing.assert_array_equal(array_from_tensor(tensor, memory, atom_bytes=atom_bytes), array)
    atoms = memory.view(dtype).reshape(-1, dims[1], dims[2], lanes)
    last = dims[0] - 1
    np.testing.assert_array_equal(atoms[last // lanes, :, :, last % lanes], array[last])
    assert np.count_nonzero(memory != 0xEE) <= array.nbytes, "lanes beyond the last stay"


def test_the_four_components_of_a_pixel_lie_side_by_side() -> None:
    tensor = _tensor((4, 2, 3), DataType.INT8, 4, DataCategory.IMAGE, PixelFormat.A8B8G8R8)
    memory = np.zeros(24, np.uint8)
    array = np.arange(24, dtype=np.int8).reshape(4, 2, 3)
    write_tensor(tensor, array, memory)
    assert memory[:4].tolist() == [0, 6, 12, 18]
    np.testing.assert_array_equal(array_from_tensor(tensor, memory), array)


def test_what_does_not_fit_is_refused() -> None:
    tensor = _tensor((4, 2, 3), DataType.INT8, 32)
    for memory, array, status in (
        (np.zeros(192, np.uint8), np.zeros((4, 3, 2), np.int8), NvError.BAD_PARAMETER),
        (np.zeros(128, np.uint8), np.zeros((4, 2, 3), np.int8), NvError.INVALID_ADDRESS),
        (np.zeros(8, np.uint8), np.zeros((4, 2, 3), np.int8), NvError.INVALID_SIZE),
    ):
        with pytest.raises(NvdlaError) as caught:
            write_tensor(tensor, array, memory)
        assert caught.value.status is status
    for unfit in (np.zeros((4, 2, 3)), np.full((4, 2, 3), 128)):
        with pytest.raises(NvdlaError, match="quantised") as caught:
            write_tensor(tensor, unfit, np.zeros(192, np.uint8))
        assert caught.value.status is NvError.BAD_VALUE
    with pytest.raises(NvdlaError) as caught:
        dtype_of_tensor(_tensor((1, 1, 1), DataType.FLOAT, 32))
    assert caught.value.status is NvError.NOT_SUPPORTED


@pytest.mark.parametrize("dtype", ["<U3", "S3", "complex64", "datetime64[s]", "V2"])
@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.INT8])
def test_only_numbers_go_into_a_tensor(dtype: str, data_type: DataType) -> None:
    tensor = _tensor((4, 2, 3), data_type, 32)
    array = np.zeros((4, 2, 3), dtype)
    with pytest.raises(NvdlaError, match="bool, integers or floats; the array has") as caught:
        write_tensor(tensor, array, np.zeros(192, np.uint8))
    assert caught.value.status is NvError.BAD_PARAMETER


def test_truth_values_are_zeros_and_ones() -> None:
    tensor = _tensor((4, 2, 3), DataType.INT8, 32)
    memory = np.zeros(192, np.uint8)
    write_tensor(tensor, np.ones((4, 2, 3), np.bool_), memory)
    assert array_from_tensor(tensor, memory).sum() == 24
