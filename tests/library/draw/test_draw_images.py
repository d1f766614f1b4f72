"""Every kind of picture looks as it did when somebody last looked at it.

After a change that is meant: `python tests/support/draw_references.py`, look at what it wrote, and commit that.
"""

import shutil
from pathlib import Path

import matplotlib
import pytest
from draw_references import REFERENCES, save
from drawings import DRAWINGS
from matplotlib.testing.compare import compare_images
from needs import give_up
from PIL import Image
from repository import ROOT

from worldsize import draw

TOLERANCE = 0.3  # root mean square over all pixels, of 255; one version of matplotlib draws the same everywhere
KEPT = ROOT / "build" / "figures"
NO_PICTURES = {"Picture", "Table", "crossovers", "live_bytes", "table"}


def difference(name: str, folder: Path) -> str | None:
    """What differs from the reference beyond the tolerance, with the picture and the difference kept under build/."""
    reference, drawn = REFERENCES / f"{name}.png", folder / f"{name}.png"
    save(DRAWINGS[name](), drawn)
    found = compare_images(str(reference), str(drawn), TOLERANCE)
    if found:
        KEPT.mkdir(parents=True, exist_ok=True)
        for image in folder.glob(f"{name}*.png"):
            shutil.copy(image, KEPT)
    return found and (
        f"{found}\nBoth are kept in {KEPT}. If the change is meant: python tests/support/draw_references.py {name}"
    )


@pytest.mark.parametrize("name", DRAWINGS)
def test_picture_looks_as_it_did(name, tmp_path):
    drawn_by = Image.open(REFERENCES / f"{name}.png").info["Software"].split(",")[0]
    if drawn_by != f"Matplotlib version{matplotlib.__version__}":
        give_up(
            "images", f"The reference is by {drawn_by}; this is {matplotlib.__version__}, which may draw otherwise."
        )
    assert difference(name, tmp_path) is None


def test_every_kind_of_picture_has_a_reference():
    kinds = set(draw.__all__) - NO_PICTURES
    assert kinds <= set(DRAWINGS)
    assert {path.stem for path in REFERENCES.glob("*.png")} == set(DRAWINGS)


def test_references_are_small():
    assert [path.name for path in REFERENCES.glob("*.png") if path.stat().st_size > 32_000] == []


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_missing_line_is_a_difference(name, tmp_path, monkeypatch):
    """The tolerance is small enough: the same picture without one of its marks does not pass."""
    drawn = DRAWINGS[name]()
    axes = drawn.axes[0]
    mark = next(iter([*axes.lines, *axes.collections, *axes.patches]))
    mark.remove()
    monkeypatch.setitem(DRAWINGS, name, lambda: drawn)
    monkeypatch.setattr("test_draw_images.KEPT", tmp_path / "kept")
    found = difference(name, tmp_path)
    assert found is not None and f"python tests/support/draw_references.py {name}" in found
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {f"{name}.png", f"{name}-failed-diff.png"}


def test_every_picture_says_in_a_sentence_what_to_see():
    for name, drawing in DRAWINGS.items():
        alt = drawing().alt
        assert 80 < len(alt) < 1200 and alt.endswith("."), f"{name}: {alt}"
