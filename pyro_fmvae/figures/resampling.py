"""Images with the active latents of an example, but new values (Tonolini et al., 2019)."""

from torch import Tensor

from pyro_fmvae.evaluate.randomness import seeded
from pyro_fmvae.evaluate.slabs import resample_active, slabs_of
from pyro_fmvae.figures.page import Figure
from pyro_fmvae.figures.rows import Decoder, Row, check_codes, decode_images, image_rows
from pyro_fmvae.figures.tiles import Array, as_images

_HEADINGS = ("example", "reconstruction", "the same latents active, values drawn anew")


def conditional_samples(
    decode: Decoder, x: Array, z: Tensor, latents: Tensor, draws: int = 8, seed: int = 0
) -> Figure:
    """A row for each example: itself, its reconstruction, and images with the same active latents.

    Inactive latents stay zero. The values of active ones are drawn from normals with the mean and standard
    deviation of each latent's non-zero values in a data set. The caller's random generators are left alone.

    Args:
        decode: maps z [n, J] to images in [0, 1].
        x: the examples, [n, H, W] or [n, H, W, 3]; values outside [0, 1] are clipped.
        z: their codes, [n, J], exactly zero where a latent is off.
        latents: codes of a data set, [N, J].
        draws: number of new images of each.
        seed: seed of the draws.

    Raises:
        ValueError: tensors of other shapes, ``draws`` < 1, or a decoder that does not return images.
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
