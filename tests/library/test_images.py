"""The images that lessons train on, and the model that they train."""

import gzip
import hashlib

import numpy as np
import pytest
import torch
from cifar10_files import write_cifar10

from worldsize import images, models


def test_cifar10_is_read_where_its_files_are(tmp_path, monkeypatch):
    labels, pixels = write_cifar10(tmp_path)
    monkeypatch.setenv("WORLDSIZE_CIFAR10", str(tmp_path))
    got, got_labels = images.load_cifar10()
    assert got.shape == (40, 3, 32, 32) and got.dtype == torch.float32
    assert got_labels.tolist() == labels.tolist() and got_labels.dtype == torch.int64
    for channel in range(3):  # a shift and a scale of its own
        assert abs(got[:, channel].mean()) < 1e-5 and abs(got[:, channel].std() - 1) < 1e-5
        assert np.corrcoef(got[:, channel].ravel(), pixels[:, channel].ravel())[0, 1] == pytest.approx(1)


@pytest.mark.parametrize("spoilt", ["missing", "short", "label 10", "empty"])
def test_files_that_are_not_cifar10_are_refused(tmp_path, monkeypatch, spoilt):
    monkeypatch.delenv("WORLDSIZE_CIFAR10", raising=False)
    said = r"data_batch_1\.bin is not a file of CIFAR-10's binary version"
    if spoilt == "missing":
        said = "set WORLDSIZE_CIFAR10 to its folder"
    else:
        contents = {"short": bytes(3072), "label 10": bytes([10]) + bytes(3072), "empty": b""}[spoilt]
        (tmp_path / "data_batch_1.bin").write_bytes(contents)
    with pytest.raises(ValueError, match=said):
        images.load_cifar10(tmp_path)
    if spoilt == "missing":
        with pytest.raises(ValueError, match=said):
            images.load_cifar10()


def test_digits_are_real_images_with_balanced_labels():
    pixels, labels = images.load_digits()
    assert pixels.shape == (1797, 1, 8, 8)
    assert pixels.dtype == torch.float32
    assert abs(pixels.mean()) < 1e-5 and abs(pixels.std() - 1) < 1e-5
    assert len(pixels.unique()) == 17  # 16 grey levels and black, shifted and scaled
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_those_of_the_published_test_part():
    """The table is byte for byte scikit-learn's copy of it."""
    table = gzip.decompress(images._DIGITS.read_bytes())
    assert hashlib.sha256(table).hexdigest() == "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
    pixels, _ = images.load_digits()
    first = (pixels[0, 0] - pixels.min()) / (pixels.max() - pixels.min()) * 16
    assert first.round().int().flatten().tolist() == [int(value) for value in table.split(b"\n")[0].split(b",")[:64]]


def test_digits_come_with_their_licence():
    notice = (images._DIGITS.parent / "NOTICE").read_text()
    assert "CC BY 4.0" in notice and "BSD-3-Clause" in notice and images._DIGITS.name in notice


def test_vision_net_is_the_same_for_the_same_seed_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    first, second, other = models.vision_net(seed=3), models.vision_net(seed=3), models.vision_net(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)


def test_vision_net_learns_the_digits():
    pixels, labels = (tensor[:400] for tensor in images.load_digits())
    model = models.vision_net(width=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
    accuracy = (model(pixels).argmax(dim=1) == labels).float().mean()
    assert accuracy > 0.85
