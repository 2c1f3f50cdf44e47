"""Images with the active latents of an example, and other values (Tonolini et al., 2019)."""

from matplotlib.figure import Figure
from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.evaluate.slabs import resample_active, slabs_of
from pyro_fmvae.figures.rows import Decoder, Row, check_codes, decode_images, image_rows
from pyro_fmvae.figures.tiles import Array, as_images

_HEADINGS = ("example", "reconstruction", "the same latents active, values drawn anew")


def conditional_samples(
    decode: Decoder, x: Array, z: Tensor, latents: Tensor, draws: int = 8, seed: int = 0
) -> Figure:
    """A row for each example: itself, its reconstruction, and images with the same active latents.

    Which latents are zero is kept. The values of the others are drawn from normals with the mean and the
    standard deviation of each latent's non-zero values over a data set. The caller's random numbers go on as
    if nothing had been drawn.

    Args:
        decode: z [n, J] to images in [0, 1].
        x: the examples, [n, H, W] or [n, H, W, 3]; values beyond [0, 1] are clipped.
        z: their codes, [n, J], exact zeros where a latent is off.
        latents: codes of a data set, [N, J].
        draws: images of each.
        seed: of the draws.

    Raises:
        ValueError: shapes that don't fit, ``draws`` < 1, or a decoder that does not give images.
    """
    originals = as_images("x", x)
    check_codes(z, latents)
    with seeded(seed):
        drawn = resample_active(z, slabs_of(latents), draws)
    reconstructed, others = decode_images(decode, z), decode_images(decode, drawn.flatten(0, 1))
    if originals.shape != reconstructed.shape:
        raise ValueError(f"x: expected shape {list(reconstructed.shape)}, got {list(originals.shape)}")
    labels = [f"{count} of {z.shape[1]} active" for count in (z != 0).sum(1).tolist()]
    rows = [
        Row(label, (originals[n, None], reconstructed[n, None], others[n :: len(z)]))
        for n, label in enumerate(labels)
    ]
    note = "Values are drawn from a normal with mean and variance of the latent's non-zero values."
    return image_rows(rows, _HEADINGS, note)
