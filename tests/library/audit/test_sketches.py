"""Sketches of tensors."""

import math

import pytest
import torch

from worldsize.audit import sketches
from worldsize.audit.sketches import difference, factor, sketch


@pytest.mark.parametrize("shape", [(3,), (1024,), (40, 100), (5, 1024), (0,), ()])
def test_equal_tensors_have_equal_sketches(shape):
    tensor = torch.randn(shape)
    assert sketch(tensor) == sketch(tensor.clone()) and difference(sketch(tensor), sketch(tensor.clone())) == 0


@pytest.mark.parametrize("size", [7, 1500, 20_000])
def test_a_difference_is_estimated(size):
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(size, generator=generator)
    other = one + 0.01 * torch.randn(size, generator=generator)
    true = float((one - other).norm() / one.norm())
    assert true / 3 < difference(sketch(one), sketch(other)) < 3 * true


def test_one_element_in_a_million_is_seen():
    one = torch.randn(1 << 20)
    other = one.clone()
    other[12_345] += 1
    assert difference(sketch(one), sketch(other)) > 1e-4


def test_rows_that_change_places_are_seen():
    one = torch.randn(4, 1024)
    assert difference(sketch(one), sketch(one[[1, 0, 2, 3]])) > 0.1


def test_a_factor_is_found():
    one = torch.randn(3000)
    assert factor(sketch(4 * one), sketch(one)) == pytest.approx(4, rel=1e-4)
    assert factor(sketch(torch.randn(3000)), sketch(one)) is None


def test_infinite_and_missing_numbers():
    bad = sketch(torch.tensor([1.0, math.nan]))
    assert not sketches.is_finite(bad) and difference(bad, sketch(torch.ones(2))) == math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_has_a_sketch(dtype):
    assert sketch(torch.ones(5).to(dtype))[0] == pytest.approx(5**0.5)
