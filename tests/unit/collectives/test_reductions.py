"""Operations: what they compute, and what they refuse by name."""

import itertools
import warnings

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.dtypes import dtype_code, dtype_of
from ftcomm.collectives.op_argument import reduction
from ftcomm.collectives.reductions import make_reducer
from ftcomm.protocol.signature import DTYPE_NAMES, OpCode


def combined(op, dtype, left, right):
    left, right = np.array(left, dtype), np.array(right, dtype)
    out = np.empty_like(left)
    reducer = make_reducer(op, np.dtype(dtype))
    reducer.combine(left, right, out)
    reducer.finish(out, 2)
    return out.tolist()


@pytest.mark.parametrize(
    ("op", "dtype", "left", "right", "wanted"),
    [
        ("lor", "bool", [True, False], [True, False], [True, False]),
        ("land", "bool", [True, False], [True, True], [True, False]),
        ("sum", "uint8", [200], [100], [44]),
        ("sum", "int8", [127], [1], [-128]),
        ("prod", "int32", [1 << 30], [4], [0]),
        ("min", "float32", [1.0, -2.0], [3.0, -4.0], [1.0, -4.0]),
        ("max", "bool", [True, False], [False, False], [True, False]),
        ("mean", "float16", [1.0], [2.0], [1.5]),
        ("mean", "complex64", [1 + 2j], [3 + 4j], [2 + 3j]),
        ("band", "int16", [6], [3], [2]),
        ("bor", "uint64", [6], [3], [7]),
        ("bxor", "bool", [True], [True], [False]),
        ("land", "int64", [5, 0], [7, 7], [1, 0]),
        ("lor", "uint8", [5, 0], [0, 0], [1, 0]),
    ],
)
def test_an_operation_computes_and_keeps_the_dtype(op, dtype, left, right, wanted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert combined(op, dtype, left, right) == wanted


BITS = {
    "float16": np.array([0x7E01, 0xFE02, 0x7C00, 0xFC00, 0x3C00, 0x8000], np.uint16),
    "float32": np.array([0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 1, 1 << 31], np.uint32),
    "float64": np.array([0x7FF8 << 48, (0xFFF8 << 48) + 1, 0x7FF0 << 48, 1, 1 << 63], np.uint64),
}
BITS["complex64"], BITS["complex128"] = BITS["float32"], BITS["float64"]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op, dtype in itertools.product(("sum", "prod", "mean", "min", "max"), BITS)
        if op not in {"min", "max"} or not dtype.startswith("complex")
    ],
)
def test_in_place_or_not_the_bits_are_the_same(op, dtype):
    reducer = make_reducer(op, np.dtype(dtype))
    rng = np.random.default_rng(5)
    with np.errstate(all="ignore"):
        for size in [1] * 100 + [2, 3, 4, 7, 16, 33]:
            words = size * (1 + dtype.startswith("complex"))
            left, right = (rng.choice(BITS[dtype], words).view(dtype) for _ in range(2))
            apart, first, second = np.empty_like(left), left.copy(), right.copy()
            reducer.combine(left, right, apart)
            reducer.combine(first, right, first)
            reducer.combine(left, second, second)
            assert apart.tobytes() == first.tobytes() == second.tobytes(), (left, right)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("min", "complex64"),
        ("max", "complex128"),
        ("mean", "int32"),
        ("mean", "bool"),
        ("band", "float32"),
        ("bxor", "complex64"),
        ("land", "float64"),
        ("lor", "complex64"),
    ],
)
def test_an_undefined_pair_is_refused_by_name(op, dtype):
    with pytest.raises(TypeError, match=f"op '{op}' is not defined for dtype {dtype}"):
        make_reducer(op, np.dtype(dtype))


COUNT = r"op='lor' \(is any true\) or op='land' \(are all\), or x.astype\(int\), int\(x\)"
MEAN = r"x.astype\(float\), float\(x\) of a Python number, or op='sum', and divide by"
REMEDIES = {
    "sum of bools": ("sum", [True, False], f"make it a logical or: pass {COUNT}"),
    "product of bools": ("prod", [True, False], f"make it a logical and: pass {COUNT}"),
    "Python's sum of bools": (sum, [True, False], COUNT),
    "a Python bool": ("sum", True, COUNT),
    "a numpy bool": ("sum", np.True_, COUNT),
    "mean of integers": ("mean", [1, 2], MEAN),
    "mean of bytes": ("mean", np.zeros(2, np.uint8), MEAN),
    "mean of a Python int": ("mean", 3, MEAN),
    "mean of bools": ("mean", [True], MEAN),
    "any of floats": (any, [1.0], "pass x != 0"),
    "least complex number": (min, [1j], "have no order: pass abs"),
}


@pytest.mark.parametrize("what", REMEDIES)
@pytest.mark.parametrize("call", ["allreduce", "reduce", "iallreduce", "ireduce"])
def test_what_would_be_another_result_is_refused_with_the_remedy(what, call):
    op, x, words = REMEDIES[what]
    with ftcomm.init("none") as comm:
        with pytest.raises(TypeError, match=words):
            getattr(comm, call)(x, op)
        assert comm.seqno == 0


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble", "object", "U3", "S3", "M8[s]"])
def test_dtypes_that_are_not_carried_are_named(dtype):
    refused = np.dtype(dtype)
    for call in (lambda: dtype_code(refused), lambda: make_reducer("sum", refused)):
        with pytest.raises(TypeError, match="is not carried") as caught:
            call()
        assert refused.name in str(caught.value)
    with pytest.raises(TypeError, match="is not carried"):
        make_reducer(reduction(pow, name="pow"), refused)


def test_codes_and_dtypes_are_inverse_and_cover_the_wire_table():
    for code, name in DTYPE_NAMES.items():
        if name not in ("none", "bfloat16"):  # the latter is of an optional package
            assert dtype_of(code) == np.dtype(name)
            assert dtype_code(np.dtype(name)) == code
    assert dtype_code(np.dtype(">f4")) == dtype_code(np.dtype("f4"))
    for code in (0, 99):
        with pytest.raises(ValueError, match="wire code"):
            dtype_of(code)


def test_unknown_names_and_things_that_are_not_operations_are_refused():
    with pytest.raises(ValueError, match="no operation is called 'average'"):
        make_reducer("average", np.dtype("f4"))
    with pytest.raises(TypeError, match=r"a name, an ftcomm\.Op or an ftcomm\.reduction"):
        make_reducer(3, np.dtype("f4"))


def hypotenuse(accumulator, operand):
    return np.hypot(accumulator, operand)


def test_a_function_is_called_with_read_only_cells_and_named_by_a_digest():
    op = reduction(hypotenuse, name="hypotenuse")
    reducer = make_reducer(op, np.dtype("f8"))
    out = np.empty(2)
    reducer.combine(np.array([3.0, 5.0]), np.array([4.0, 12.0]), out)
    assert out.tolist() == [5.0, 13.0]
    assert (reducer.op, reducer.whole) == (OpCode.FUNCTION, False)
    assert reducer.op_hash == op.hash != reduction(hypotenuse, name="other").hash


def test_a_function_that_writes_to_its_operands_fails_and_spoils_nothing():
    def in_place(accumulator, operand):
        accumulator += operand
        return accumulator

    own = np.ones(2)
    with pytest.raises(ValueError, match="read-only"):
        make_reducer(reduction(in_place, name="add"), np.dtype("f8")).combine(own, own, np.empty(2))
    assert own.tolist() == [1.0, 1.0]
    assert own.flags.writeable


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize(
    "force",
    [
        lambda array: array.setflags(write=True),
        lambda array: array.base.setflags(write=True),
        lambda array: memoryview(array).__setitem__((0,) * array.ndim, 7.0),
        lambda array: np.ndarray(array.shape, array.dtype, array.base).fill(7.0),
    ],
    ids=["setflags", "base", "memoryview", "ndarray"],
)
def test_a_function_cannot_make_its_operands_writable(force, elementwise):
    """They are the log's, or memory that other ranks have too."""
    refused = []

    def forcing(accumulator, operand):
        for array in (accumulator, operand):
            try:
                force(array)
            except (ValueError, TypeError, AttributeError) as error:
                refused.append(type(error))
        return np.add(accumulator, operand)

    op = reduction(forcing, name="forcing", elementwise=elementwise)
    operands, out = (np.ones(2), np.ones(2)), np.empty(2)
    make_reducer(op, np.dtype("f8"), shape=(2, 1)).combine(*operands, out)
    assert (out.tolist(), [part.tolist() for part in operands]) == ([2.0, 2.0], [[1.0, 1.0]] * 2)
    assert len(refused) == 2


def test_a_function_must_return_the_same_shape_and_dtype():
    for wrong in (lambda a, b: (a + b).astype("f4"), lambda a, b: a[:1]):
        with pytest.raises(TypeError, match="reduction function returned"):
            make_reducer(reduction(wrong, name="wrong"), np.dtype("f8")).combine(
                np.ones(2), np.ones(2), np.empty(2)
            )


def test_the_result_of_a_group_of_one_is_finished_like_any_other():
    recvbuf = np.array([5, 0], np.int32)
    make_reducer("land", np.dtype("int32")).finish(recvbuf, 1)
    assert recvbuf.tolist() == [1, 0]


def test_a_reduction_with_needs_is_another_operation_and_sees_whole_arrays():
    def keep_first(a, b):
        assert a.shape == b.shape == (2, 3)
        return a

    needs = {}, {"commutative": False}, {"elementwise": False}
    ops = [reduction(keep_first, name="first", **need) for need in needs]
    plain, whole, ordered = (make_reducer(op, np.dtype("f8"), shape=(2, 3)) for op in ops)
    assert (plain.whole, whole.whole, ordered.whole) == (False, True, True)
    assert len({plain.op_hash, whole.op_hash, ordered.op_hash}) == 3
    out = np.zeros(6)
    whole.combine(np.arange(6.0), np.ones(6), out)
    assert out.tolist() == [0, 1, 2, 3, 4, 5]
