"""Models in plain torch that train fast enough for several runs in one lesson, and the sizes of large ones as data."""

from typing import TYPE_CHECKING, Any

from worldsize.models.shapes import SHAPES, Shape, shape

if TYPE_CHECKING:
    from worldsize.models.transformer import Transformer
    from worldsize.models.vision import small_resnet, vision_net

__all__ = ["SHAPES", "Shape", "Transformer", "shape", "small_resnet", "vision_net"]


def __getattr__(name: str) -> Any:
    # sizes are data: a caller who needs only them need not wait a second for torch
    if name == "Transformer":
        from worldsize.models.transformer import Transformer

        return Transformer
    if name in ("small_resnet", "vision_net"):
        from worldsize.models import vision

        return getattr(vision, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
