"""The command ``edit``: change properties of an image."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from jsonargparse import ArgumentParser

from pyro_fmvae import figures
from pyro_fmvae.app.commands.command import Command, add_device, add_run
from pyro_fmvae.app.commands.factor_settings import open_factorial, parse_settings
from pyro_fmvae.app.commands.output_files import output_file, save_pixels
from pyro_fmvae.app.runs.factor_names import values_of
from pyro_fmvae.app.runs.run import Run
from pyro_fmvae.data import whole
from pyro_fmvae.data.own.folder import read_image
from pyro_fmvae.evaluate import edit_latent
from pyro_fmvae.evaluate.randomness import resolve_device

TITLES = ("image", "redrawn", "edited")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of :func:`edit`."""
    add_run(parser)
    parser.add_argument("--image", type=str, required=True, help="image of any size")
    parser.add_argument("--set", type=str, required=True, help="new values, by name or number: hat=1,6=3")
    parser.add_argument("--out", type=str, required=True, help=".png file to write, in the run's resolution")
    parser.add_argument(
        "--compare", type=str | None, help=".png file for image, reconstruction and edit side by side"
    )
    add_device(parser)


def edit(run: str, image: str, set: str, out: str, compare: str | None, device: str) -> int:
    """Encode an image, give some factors other components, decode, and write the result.

    The other factors keep their latent variables.

    Raises:
        ValueError: a run without factors or images, an unreadable image, or a bad setting or file name.
    """
    opened = open_factorial(run, "edit")
    if not opened.recipe.image:
        raise ValueError(
            f"run: only images can be edited, {opened.folder} was trained on none; "
            "'pyro-fmvae explore' and, in Python, 'run.edit' change rows of tables"
        )
    changes = parse_settings(set, opened, argument="set")
    target = output_file(opened, out, [".png"], image=image)
    if compare is not None:
        output_file(opened, compare, [".png"], "compare", image=image, out=out)
    place = resolve_device(device)
    x = whole(read_image(Path(image), opened.recipe.preprocessing), place)[0]
    model = opened.load_model(place)
    codes = model.codes(x)
    with torch.no_grad():
        z = model.posterior(x).mean
        decoded = model.observation.mean(model.decoder(torch.cat([z, edit_latent(model, z, changes, codes)])))
    pictures = opened.recipe.preprocessing.undo(torch.cat([x, decoded])).cpu()
    save_pixels(target, pictures[-1])
    if compare is not None:
        figures.save(figures.sample_grid(pictures, 1, len(TITLES), TITLES), Path(compare))
    redrawn, edited = pictures.clamp(0, 1)[-2:]
    moved = f"pixels moved by {(edited - redrawn).abs().mean():.1%} of their range on average"
    print(f"wrote {target}: {_change(opened, codes[0].tolist(), changes)}; {moved}")
    return 0


def _change(run: Run, codes: list[int], changes: Mapping[int, int]) -> str:
    """Describe the changes to an image of these codes, by the names of factors and values."""
    texts = []
    for factor, component in changes.items():
        before, after = values_of(factor, np.array([codes[factor], component]), run)
        change = f"{after} already" if component == codes[factor] else f"{before} became {after}"
        texts.append(f"{run.recipe.factor_names[factor]}: {change}")
    same = all(component == codes[factor] for factor, component in changes.items())
    return ("nothing changed, " if same else "") + ", ".join(texts)


COMMAND = Command(
    "edit",
    "change properties of an image",
    "Encode an image, give some factors other components, and decode.",
    add_arguments,
    edit,
)
