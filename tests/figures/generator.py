"""A generator whose images show the component and the noise of each block of z."""

import numpy as np
import torch
from matplotlib.image import BboxImage

from pyro_fmvae.figures import Factors

SIZES, DIM = (2, 3, 5), 2
STD = 0.25


class Generator:
    """Block i of z is (component, noise): pixel (0, i) of the image shows component / K_i, (1, i) the noise.

    The noise is uniform in [0, 1], so that nothing is clipped. ``decoded`` records every z that it was given.
    """

    def __init__(self, sizes=SIZES, colour=False):
        self.sizes, self.colour, self.decoded = sizes, colour, []

    def decode(self, z):
        self.decoded.append(z.clone())
        component, noise = z.unflatten(1, (len(self.sizes), DIM)).unbind(-1)
        image = torch.stack([component / torch.tensor(self.sizes), noise], 1)
        return image[..., None].expand(-1, -1, -1, 3) if self.colour else image

    def sample_latent(self, num, codes):
        assert codes.shape == (num, len(self.sizes)) and codes.dtype == torch.int64
        return torch.stack([codes.to(torch.get_default_dtype()), torch.rand(codes.shape)], -1).flatten(1)

    def std(self, z):
        return torch.full_like(self.decode(z), STD)

    def draw(self, z):
        return 1 - self.decode(z)

    def factors(self, **changes):
        means = [torch.stack([torch.arange(float(k)), torch.full((k,), 0.5)], -1) for k in self.sizes]
        shares = [torch.arange(1.0, k + 1) for k in self.sizes]
        return Factors(
            **{
                "decode": self.decode,
                "sample_latent": self.sample_latent,
                "means": means,
                "shares": shares,
                "std": self.std,
                "draw": self.draw,
                **changes,
            }
        )


def drawn(figure):
    """The images on a page, in the order in which they were placed."""
    return figure.findobj(BboxImage)


def corners(figure):
    """Left and top of every image in pixels: [n, 2]."""
    figure.canvas.draw()
    height = figure.canvas.get_width_height()[1]
    boxes = [image.get_window_extent() for image in drawn(figure)]
    return np.array([(round(box.x0), round(height - box.y1)) for box in boxes])


def grid(figure):
    """All images by row and column of the page: an array [rows, columns, ...]; None where there is none."""
    places = corners(figure)
    tops, lefts = (sorted(set(places[:, axis])) for axis in (1, 0))
    pictures = [np.asarray(image.get_array()) for image in drawn(figure)]
    assert len(pictures) == len(tops) * len(lefts)
    order = np.lexsort((places[:, 0], places[:, 1]))
    shown = np.stack([pictures[n] for n in order])
    return shown.reshape(len(tops), len(lefts), *shown.shape[1:])


def pale(figure):
    """Mask of the images of the page that are washed out: bool [rows, columns]."""
    places = corners(figure)
    order = np.lexsort((places[:, 0], places[:, 1]))
    faded = np.array([drawn(figure)[n].get_alpha() is not None for n in order])
    return faded.reshape(len(set(places[:, 1])), -1)


def texts(figure):
    return [text.get_text() for text in figure.texts]


def overlaps(figure):
    """Texts that leave the page, overlap each other or cover an image."""
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts if text.get_text()]
    images = [(f"image {n}", image.get_window_extent(renderer)) for n, image in enumerate(drawn(figure))]
    width, height = figure.canvas.get_width_height()
    outside = [t for t, b in boxes + images if b.x0 < 0 or b.y0 < 0 or b.x1 > width or b.y1 > height]
    return outside + [
        (s, t)
        for i, (s, a) in enumerate(boxes)
        for t, b in boxes[:i] + images
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]
