"""Tensors and arrays on one memory, and the bits of half-precision sums."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ftcomm  # noqa: E402 - skipped before, where torch is missing
import ftcomm.torch as ft  # noqa: E402 - likewise

CARRIED = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64,
    torch.complex128, torch.bfloat16,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_bfloat16() -> None:
    pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_an_array_is_the_tensors_memory(dtype: object) -> None:
    tensor = torch.ones(3, 4).to(dtype)
    array = ft.as_array(tensor)
    array[1, 2] = 0
    assert tensor[1, 2] == 0
    back = ft.as_tensor(array)
    assert (back.dtype, back.data_ptr(), back.shape) == (dtype, tensor.data_ptr(), tensor.shape)


def test_a_view_keeps_its_strides_and_its_memory() -> None:
    array = ft.as_array(torch.arange(6.0).reshape(2, 3).t())
    assert (array.shape, array.tolist()) == ((3, 2), [[0, 3], [1, 4], [2, 5]])


def test_a_parameter_and_an_empty_tensor_are_carried() -> None:
    assert ft.as_array(torch.nn.Parameter(torch.ones(2))).tolist() == [1, 1]
    assert ft.as_array(torch.zeros(0, 3)).shape == (0, 3)
    assert ft.as_array(torch.tensor(5)).shape == ()


def test_fsdp_may_resize_a_storage_that_was_seen_as_an_array() -> None:
    """Seen to fail with `Tensor.numpy()`."""
    tensor = torch.ones(4)
    ft.as_array(tensor)
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().size() == 0


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(2, device="meta"), r"on meta, .* no values; call to_empty\(device='cpu'\) of"),
        (torch.zeros(2).to_sparse(), r"the tensor is sparse_coo; pass \.to_dense\(\) of it"),
        (torch.zeros(2).to(torch.float8_e4m3fn), r"tensors of float8_e4m3fn are not carried"),
        (torch.zeros(2, dtype=torch.complex64).conj(), r"lazy conjugate; pass \.resolve_conj\(\)"),
        ([1.0], r"expected a tensor, got list"),
    ],
)
def test_what_is_not_carried_is_refused_by_name(tensor: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        ft.as_array(tensor)


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_a_tensor_whose_memory_was_freed_is_refused(part: slice) -> None:
    """A view of it would be read and written at an address near zero."""
    whole = torch.ones(4)
    tensor = whole[part]
    whole.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match="the tensor's memory was freed, as by FSDP"):
        ft.as_array(tensor)


def test_a_tensor_that_torch_traces_is_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - it takes long

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(TypeError, match=r"type FakeTensor, has no memory .* call ftcomm outside"):
        ft.as_array(fake)
    with pytest.raises(TypeError, match="of type Tensor, has no memory of its own"):
        torch.func.vmap(ft.as_array)(torch.ones(3, 2))


def test_a_read_only_array_becomes_no_tensor() -> None:
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="the array is read-only"):
        ft.as_tensor(array)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sum_of_half_precision_has_the_bits_of_torch(dtype: object) -> None:
    """All pairs of exponents that stay finite, both signs, and ties: what one addition may meet."""
    from tests.helpers.reference import expected_ring  # noqa: PLC0415 - torch is there

    generator = torch.Generator().manual_seed(5)
    bits = torch.randint(0, 2**15, (2, 200_000), generator=generator, dtype=torch.int32)
    sign = torch.randint(0, 2, bits.shape, generator=generator, dtype=torch.int32) << 15
    left, right = (bits | sign).to(torch.int16).view(dtype)
    left, right = (torch.nan_to_num(side, 0.0, 1.0, -1.0) for side in (left, right))
    reducer = make_reducer_of(left)
    total = expected_ring([ft.as_array(left), ft.as_array(right)], reducer)
    assert torch.equal(ft.as_tensor(total).view(torch.int16), (left + right).view(torch.int16))


def make_reducer_of(tensor: torch.Tensor) -> object:
    from ftcomm.collectives.bfloat16 import bfloat16_reducer  # noqa: PLC0415 - as above
    from ftcomm.collectives.reductions import make_reducer  # noqa: PLC0415 - as above

    array = ft.as_array(tensor)
    if tensor.dtype is torch.bfloat16:
        return bfloat16_reducer("sum")
    return make_reducer("sum", array.dtype, shape=array.shape)


def test_states_and_objects_hold_tensors() -> None:
    with ftcomm.init("none") as comm:
        sent = {"w": torch.arange(3.0), "b": torch.ones(2).bfloat16()}
        got = comm.broadcast_object(sent)
        assert all(torch.equal(got[name], sent[name]) for name in sent)
        assert got["b"].dtype is torch.bfloat16
        comm.load_checkpoint()
        comm.checkpoint(sent)


def test_collectives_take_tensors_of_the_host_and_refuse_others_by_name() -> None:
    with ftcomm.init("none") as comm:
        weight = torch.nn.Parameter(torch.ones(2, 3))
        assert comm.allreduce(weight).tolist() == [[1, 1, 1]] * 2
        assert comm.broadcast(weight.detach().T).tolist() == [[1, 1]] * 3
        assert comm.allreduce(torch.ones(2, dtype=torch.bfloat16)).dtype.name == "bfloat16"
        for odd, words in (
            (torch.ones(2).to_sparse(), "the tensor is sparse_coo"),
            (torch.ones(2, device="meta"), "the tensor is on meta"),
            (torch.ones(2).to(torch.float8_e4m3fn), "tensors of float8_e4m3fn are not carried"),
        ):
            with pytest.raises(TypeError, match=words):
                comm.allreduce(odd)
        with pytest.raises(TypeError, match=r"pass ftcomm\.torch\.as_array\(out\)"):
            comm.allreduce(np.ones(2), out=torch.ones(2))
        assert comm.seqno == 3
