"""Several views of each training image: options, and what makes a view of an image."""

from dataclasses import dataclass

from torch import nn

from pyro_fmvae.data import Dataset, Preprocessing, RandomPhoto
from pyro_fmvae.nn import RandomThickness
from pyro_fmvae.recipes.declarations import NUMBERS, option
from pyro_fmvae.recipes.networks import NetworkOptions, warp
from pyro_fmvae.recipes.options import refuse
from pyro_fmvae.recipes.ranges import count, share

MOST_VIEWS = 64


@dataclass(frozen=True)
class ViewOptions(NetworkOptions):
    """Options of a model whose views of a point share its assignments."""

    views: int = option(
        1, "views of each training image, changed at random, that share its components", count(1, MOST_VIEWS)
    )
    view_strength: float = option(
        0.0, "strength, up to 1, of changes to the views, which the decoder explains too", share
    )
    per_view: tuple[int, ...] = option(
        (), "factors, from 0, whose components differ from view to view, such as 1,2", parse=NUMBERS
    )


def check_views(config: ViewOptions, dataset: Dataset, labelled: int) -> None:
    """Check that views fit the data and the other options.

    Args:
        config: resolved.
        dataset: with the training images.
        labelled: number of leading factors that have labels.

    Raises:
        ValueError: views of data that are no images, that nothing tells apart, or with labels of their own.
    """
    if config.views == 1:
        refuse(config, ("view_strength", "per_view"), "--views")
        return
    if not dataset.preprocessing.image:
        raise ValueError(f"views: expected images, the data are of shape {dataset.event_shape}")
    if not (config.view_strength or config.distortion):
        raise ValueError("views: expected a --view-strength or a --distortion that tells them apart")
    assert config.factors is not None
    if not set(config.per_view) <= set(range(labelled, len(config.factors))):
        given, last = ",".join(map(str, config.per_view)), len(config.factors) - 1
        raise ValueError(f"per_view: expected factors without labels, of 0..{last}, got {given}")


def view_of(strength: float, preprocessing: Preprocessing) -> nn.Module | None:
    """Make a transform from an image of that kind to a view of it; None: an image is a view of itself.

    Photographs are cropped, mirrored and recoloured; other images are warped, and their strokes become
    thicker or thinner.
    """
    if not strength:
        return None
    if len(preprocessing.event_shape) == 3:
        height, width, _ = preprocessing.event_shape
        return RandomPhoto(strength, height, width, preprocessing.signed)
    smooth = not preprocessing.binary
    moved = warp(strength, preprocessing, interpolate=smooth)
    assert moved is not None
    return nn.Sequential(moved, RandomThickness(strength, smooth))
