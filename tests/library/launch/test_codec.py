import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize.launch.protocol.codec import MAX_DEPTH, MAX_TREE_BYTES, decode, encode

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
)
VIEWS = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.mT if x.ndim >= 2 else x,
    "every second": lambda x: x[::2] if x.ndim else x,
    "repeated without a copy": lambda x: x.expand(3, *x.shape),
    "leaf with a gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
}
thorough = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    numbers = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
    return VIEWS[draw(st.sampled_from(sorted(VIEWS)))](numbers.to(draw(st.sampled_from(DTYPES))))


def values():
    text = st.text(st.characters(), max_size=8)  # lone surrogates too
    leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text, st.binary(max_size=8), tensors())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(text, inner, max_size=4),
            st.dictionaries(st.integers() | text, inner, max_size=4),
        ),
        max_leaves=12,
    )


def is_same(one, other):
    """Equal in type, dtype, shape and every bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and bits(one) == bits(other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return repr(one) == repr(other)


def bits(tensor):
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(
        tensor.detach().flatten()
    )  # of one, any stride will do
    return plain.view(torch.uint8).tolist()


@thorough
@given(values())
def test_a_value_comes_back_as_it_was(value):
    assert is_same(value, decode(encode(value)))


def test_scalars_of_numpy_come_back_as_pythons():
    value = [np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), np.str_("x"), {np.int64(0): np.int8(1)}]
    assert is_same(decode(encode(value)), [0.5, 0.5, 3, True, "x", {0: 1}])


def test_tensors_that_share_storage_come_back_each_whole_and_apart():
    whole = torch.arange(4.0)
    first, again, part = decode(encode([whole, whole, whole[1:3]]))
    first += 10
    assert again.tolist() == [0, 1, 2, 3] and part.tolist() == [1, 2]


def test_views_that_negate_or_conjugate_when_read_come_back_as_they_read():
    z = torch.tensor([1 + 2j])
    conjugate, negated = decode(encode([z.conj(), z.conj().imag]))
    assert conjugate.tolist() == [1 - 2j] and negated.tolist() == [-2]


def test_tensors_come_back_detached_from_a_graph():
    came = decode(encode(torch.nn.Parameter(torch.ones(2)) * 2))
    assert not came.requires_grad and came.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "a rank returned a set, which cannot leave it; return numbers"),
        ([bytearray(b"raw")], "a rank returned a bytearray"),
        ({1.5: "one"}, "a rank returned a dict.*dicts whose keys are strings or integers"),
        ({True: "one"}, "a rank returned a dict"),
        (np.longdouble(1), "a rank returned a longdouble"),
        (np.ones(2), "a rank returned a ndarray"),
        (torch.float32, "a rank returned a dtype"),
        (torch.eye(2).to_sparse(), "sparse.*to_dense"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.zeros(1, dtype=torch.complex128), "torch.complex128 cannot leave a rank; convert it"),
        (torch.zeros([1] * (MAX_DEPTH + 1)), f"{MAX_DEPTH + 1} dimensions"),
        ("x" * MAX_TREE_BYTES, "return long lists as tensors"),
        (10**5000, "4300 digits"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 90 else type(value).__name__,
)
def test_what_cannot_leave_a_rank_is_refused_in_a_sentence(value, words):
    with pytest.raises(ValueError, match=words):
        encode(value)


def test_nesting_is_limited_and_a_circle_is_refused():
    deep = "bottom"
    for _ in range(MAX_DEPTH):
        deep = (deep,)
    assert decode(encode(deep)) == deep
    with pytest.raises(ValueError, match="return it flatter"):
        encode([deep])
    circle = []
    circle.append(circle)
    with pytest.raises(ValueError, match="return it flatter"):
        encode(circle)


def forged(tree, tensors=None, data=b""):
    """Bytes in the shape that `encode` writes, with any content."""
    header = json.dumps({"__metadata__": {"tree": tree}, **(tensors or {})}).encode()
    return len(header).to_bytes(8, "little") + header + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
REFERENCE = '{"tensor": "0"}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        (60).to_bytes(8, "little") + b"[]",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        forged("[" * 100_000),
        forged('{"tuple": [' * (MAX_DEPTH + 1) + "1" + "]}" * (MAX_DEPTH + 1)),
        forged("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)),
        forged("5" * 5000),
        forged("{}"),
        forged("[{}]"),
        forged('{"pickle": "x"}'),
        forged('{"tuple": 5}'),
        forged('{"dict": [1]}'),
        forged('{"dict": {}, "tuple": []}'),
        forged('{"pairs": [[1.5, 2]]}'),
        forged('{"pairs": [[[], 2]]}'),
        forged('{"pairs": [[true, 2]]}'),
        forged('{"pairs": [1]}'),
        forged('{"tensor": ["0"]}', {"0": ONE}, b"\0" * 4),
        forged('{"tensor": "1"}', {"0": ONE}, b"\0" * 4),
        forged('{"bytes": "1"}', {"0": ONE}, b"\0" * 4),
        forged('{"bytes": ["0"]}', {"0": ONE}, b"\0" * 4),
        forged(REFERENCE, {"0": ONE}),
        forged(REFERENCE, {"0": {**ONE, "shape": [2**62]}}, b"\0" * 4),
        forged(REFERENCE, {"0": {**ONE, "shape": [-1]}}, b"\0" * 4),
        forged(REFERENCE, {"0": {**ONE, "shape": [0, 2**62, 4], "data_offsets": [0, 0]}}),
        forged(REFERENCE, {"0": {**ONE, "shape": [1] * 1000}}, b"\0" * 4),  # printing it would recurse
        forged(REFERENCE, {"0": {**ONE, "dtype": "F8_E8M0", "data_offsets": [0, 1]}}, b"\0"),
        forged(REFERENCE, {"0": {**ONE, "data_offsets": [4, 0]}}, b"\0" * 4),
        json.dumps({"__metadata__": None}).encode(),
    ],
    ids=lambda data: ascii(data[8:50]),
)
def test_forged_bytes_are_a_value_error(data):
    with pytest.raises(ValueError, match="the bytes do not encode a value that a rank can return"):
        decode(data)


def is_plain(value):
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(type(key) in (str, int) and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes, torch.Tensor)


@thorough
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda start, at, new, cut: (start[:at] + new + start[at + len(new) :])[: len(start) - cut],
            values().map(encode),
            st.integers(0, 120),
            st.binary(max_size=4),
            st.integers(0, 20),
        ),
        st.builds(
            forged,
            st.text(max_size=20) | st.just(REFERENCE),
            st.dictionaries(
                st.just("0"),
                st.fixed_dictionaries(
                    {
                        "dtype": st.sampled_from(["F32", "BF16", "BOOL", "F4", "F6_E2M3", "C64", "X"]),
                        "shape": st.lists(st.integers(-1, 2**64), max_size=4),
                        "data_offsets": st.lists(st.integers(-1, 2**64), min_size=1, max_size=3),
                    }
                ),
            ),
            st.binary(max_size=16),
        ),
    )
)
def test_any_bytes_give_a_plain_value_or_a_value_error(data):
    try:
        value = decode(data)
    except ValueError:
        return
    assert is_plain(value)
