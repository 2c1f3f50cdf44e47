"""Means of a factor's components, beside their nearest training pictures."""

from collections.abc import Mapping

import torch

from pyro_fmvae.figures.components import share_caption
from pyro_fmvae.figures.factors import Factors
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.figures.rows import Row, image_rows
from pyro_fmvae.figures.tiles import Array, as_images

_NOTE = "Means differ in the block of this factor alone; all others stay at their most used component."


def nearest_pictures(factors: Factors, factor: int, nearest: Mapping[int, Array]) -> Figure:
    """A row for each component of a factor: the image of its mean, and training pictures.

    Args:
        factors: factors of a model of images.
        factor: index of the factor.
        nearest: component → its nearest training pictures, [n, H, W] or [n, H, W, 3] in [0, 1], in the order
            of the rows.

    Raises:
        ValueError: an unknown factor, no component, or what are no images.
    """
    factors.check_factor("factor", factor)
    if not nearest:
        raise ValueError("nearest: expected the pictures of at least one component, got none")
    means = as_images("decode", factors.at_components(factor, torch.tensor(list(nearest))))
    rows = [
        Row(
            f"{factors.component_name(factor, k)}: {share_caption(factors, factor, k)}",
            [means[number : number + 1], as_images("nearest", pictures)],
        )
        for number, (k, pictures) in enumerate(nearest.items())
    ]
    return image_rows(rows, [factors.names[factor], "nearest training pictures"], _NOTE)
