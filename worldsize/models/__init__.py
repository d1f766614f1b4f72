"""Models in plain torch that train fast enough for several runs in one lesson, and the sizes of large ones as data."""

from worldsize.models.shapes import SHAPES, Shape, shape
from worldsize.models.transformer import Transformer
from worldsize.models.vision import small_resnet, vision_net

__all__ = ["SHAPES", "Shape", "Transformer", "shape", "small_resnet", "vision_net"]
