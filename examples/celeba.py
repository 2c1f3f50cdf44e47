"""A factorial mixture VAE on a folder in CelebA's layout: Male, Eyeglasses and Smiling, from a few labels.

    python examples/celeba.py [--generate 2000] [--width 0.25] [--iterations 800] [--labels 0.4] [--seed 0]
    python examples/celeba.py --data-root path/to/data --width 1 --iterations 300000 --out faces
    python examples/celeba.py --width 1 --iterations 0                    # how long would it take here?

Without ``--data-root`` the script draws a small data set in the layout of CelebA: JPEGs of 178 x 218 pixels
with cartoon faces, and the two text files. ``--data-root`` is a folder with ``celeba/img_align_celeba`` and
the two files beside it. With ``--generate`` the drawn faces are written there, and kept.

The script prints the times of decoding and of a step, and extrapolates them to all 162,770 training images
and to the 300,000 iterations of the paper (Paquet et al., 2018, Section 4.2). Then it trains by the functions
behind ``pyro-fmvae train`` and leaves a run in ``--out``. ``pyro-fmvae draw``, ``sample`` and other commands
take this run, unless they need the data of a temporary folder. Finally the script prints how often the
components of the first three factors agree with the attributes of test images.
"""

import argparse
import math
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from pyro_fmvae.app.recipes import configure
from pyro_fmvae.app.runs import FIGURES, Run, Trainer, load_data, resolve_device, train
from pyro_fmvae.data import Batches
from pyro_fmvae.data.sets import celeba
from pyro_fmvae.evaluate import label_agreement
from pyro_fmvae.learn import endless

LABELS = ("Male", "Eyeglasses", "Smiling")  # of the factors, in this order
COLUMNS = """
5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair
Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup
High_Cheekbones Male Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose
Receding_Hairline Rosy_Cheeks Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat
Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young
"""
GENERATED, FEWEST = 2000, 10  # images; with fewer than ten, a split would be empty
SIZE = (178, 218)
ALL_IMAGES, TRAINING_IMAGES, PAPER_ITERATIONS = 202_599, 162_770, 300_000
WARM_UP = 3  # steps that are not timed: the first one captures

SKIN = np.array([[246, 214, 188], [228, 180, 140], [190, 135, 95], [120, 78, 52]])
HAIR = np.array([[24, 20, 18], [86, 54, 32], [150, 98, 50], [222, 186, 112], [150, 70, 40], [165, 165, 165]])


def colour(rgb, shade=1.0):
    return tuple(int(value) for value in np.clip(np.asarray(rgb) * shade, 0, 255))


def face(rng, male, glasses, smiling):
    """One picture: attributes are 0 or 1; colours, position, sizes and shapes are drawn from ``rng``."""
    ground = np.linspace(rng.uniform(20, 235, 3), rng.uniform(20, 235, 3), SIZE[1])[:, None]
    image = Image.fromarray(np.broadcast_to(ground, (*SIZE[::-1], 3)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    tone = rng.uniform(0, len(SKIN) - 1)
    skin = SKIN[int(tone)] + (tone % 1) * (SKIN[int(tone) + 1] - SKIN[int(tone)])
    hair = np.clip(HAIR[rng.integers(len(HAIR))] + rng.normal(0, 8, 3), 0, 255)
    x, y = SIZE[0] / 2 + rng.normal(0, 3), 114 + rng.normal(0, 3)
    across, down = rng.normal(40, 2) + 2 * male, rng.normal(53, 2)

    def oval(dx, dy, width, height, fill, part=draw.ellipse, **more):
        box = (x + dx - width, y + dy - height, x + dx + width, y + dy + height)
        part(box, fill=colour(fill), **more)

    if not male:  # behind the face, down to the shoulders
        length = rng.normal(62, 8)
        oval(0, -8, across + 17, down + 12, hair)
        oval(0, length - 25, across + 17, length - 20, hair, draw.rounded_rectangle, radius=18)
    oval(0, down + 50, 78, 42, rng.uniform(20, 235, 3))  # clothes
    oval(0, down + 2, 15, 22, 0.85 * skin, draw.rectangle)  # neck
    for side in (-1, 1):
        oval(side * across, 2, 6, 10, 0.92 * skin)
    if male:
        oval(0, -12, across + 4, down - 4, hair)
        oval(0, 23, across - 4, down - 22, skin, draw.rounded_rectangle, radius=14)  # a square jaw
    oval(0, 0, across, down, skin)
    parting = rng.normal(34, 4)  # degrees from the middle of the head to where the hair begins
    oval(0, -1, across + 5, down + 6, hair, draw.chord, start=180 + parting, end=360 - parting)
    for side in (-1, 1):
        eye = side * (19 + rng.normal(0, 0.5))
        oval(eye, -6, 8, 4.5, (245, 245, 245))
        oval(eye, -6, 3.5, 3.5, (45, 35, 30))
        oval(eye, -18, 10, 1.5 + male, 0.6 * hair)
    oval(0, 10, 5, 9, 0.88 * skin)  # nose
    lips = (150, 85, 75) if male else (195, 50, 70)
    if smiling:
        oval(0, 22, rng.normal(20, 1), 14, lips, draw.chord, start=10, end=170)
        oval(0, 23, 15, 9, (250, 250, 250), draw.chord, start=15, end=165)
    else:
        oval(0, 30, rng.normal(13, 1), 3, lips)
    if glasses:
        frame = {"outline": colour(rng.uniform(0, 60, 3)), "width": 4}
        rim = draw.rectangle if rng.random() < 0.5 else draw.ellipse
        for side in (-1, 1):
            box = (x + side * 20 - 15, y - 18, x + side * 20 + 15, y + 7)
            rim(box, **frame)
            draw.line((x + side * 35, y - 8, x + side * across, y - 11), frame["outline"], 4)
        draw.line((x - 5, y - 7, x + 5, y - 7), frame["outline"], 4)
    noise = rng.normal(0, 3, (*SIZE[::-1], 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def generate(root, count, seed):
    """Write ``count`` faces and the two text files in CelebA's layout: 80 % for training, 10 % to test."""
    folder = root / celeba.FOLDER
    (folder / celeba.IMAGES).mkdir(parents=True)
    names = COLUMNS.split()
    values = np.full((count, len(names)), -1)
    places = [names.index(name) for name in LABELS]
    partition = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        attributes = rng.integers(0, 2, len(LABELS))
        values[number, places] = 2 * attributes - 1
        name = f"{number + 1:06d}.jpg"
        face(rng, *attributes).save(folder / celeba.IMAGES / name, quality=92)
        partition.append((name, max(0, 10 * number // count - 7)))
    rows = [f"{name} " + " ".join(map(str, row)) for (name, _), row in zip(partition, values, strict=True)]
    (folder / celeba.ATTRIBUTES).write_text("\n".join([str(count), " ".join(names), *rows]) + "\n")
    (folder / celeba.PARTITION).write_text("".join(f"{name} {part}\n" for name, part in partition))


def timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def report_loading(config, root):
    """Load the data; print the time, also extrapolated to all images."""
    cache = root / celeba.FOLDER / celeba.CACHE
    before = set(cache.glob("*.npy"))
    dataset, seconds = timed(load_data, config, root)
    count = sum(len(split) for split in (dataset.train, dataset.valid, dataset.test))
    if set(cache.glob("*.npy")) - before:
        print(
            f"decoded and cached {count:,} images in {seconds:.1f} s, {1e3 * seconds / count:.2f} ms each: "
            f"for all {ALL_IMAGES:,}, {duration(ALL_IMAGES * seconds / count)}"
        )
        seconds = timed(load_data, config, root)[1]
    print(f"loaded {count:,} decoded images in {seconds:.2f} s", flush=True)
    return dataset


def step_times(run, dataset, device, count):
    """Seconds of ``count`` steps of the joint phase on full batches, including loading of the batch."""
    trainer = Trainer(run, dataset, device)
    joint = next(phase for phase in trainer.phases if phase.name == "joint")
    joint.enter()
    full = min(run.config.batch_size, len(dataset.train))
    source = (batch for batch in endless(trainer.batches) if len(batch[0]) == full)
    seconds = [timed(lambda: joint.step(*next(source)))[1] for _ in range(WARM_UP + count)]
    return full, seconds[WARM_UP:]


def duration(seconds):
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} seconds"


def report_speed(run, dataset, device, count):
    """Print the time of a step, also extrapolated to the whole training."""
    size, seconds = step_times(run, dataset, device, count)
    median, how = statistics.median(seconds), "compiled" if run.config.compile else "captured"
    print(
        f"a step on {size} images, width {run.config.width:g}, {how}, on {device}: "
        f"median {median:.3f} s, least {min(seconds):.3f} s ({count} steps)"
    )
    steps = math.ceil(len(dataset.train) / size)
    print(f"an epoch of this folder: {steps} steps, {duration(steps * median)}")
    steps = math.ceil(TRAINING_IMAGES / size)
    print(f"an epoch of all {TRAINING_IMAGES:,} training images: {steps:,} steps, {duration(steps * median)}")
    print(f"the paper's {PAPER_ITERATIONS:,} iterations: {duration(PAPER_ITERATIONS * median)}", flush=True)


def report_accuracy(run, dataset, device):
    """Print how often the components of labelled factors agree with the attributes of test images."""
    model, test = run.load_model(device), dataset.split("test")
    batches = Batches(test, 500, shuffle=False, device=device)
    found = label_agreement(model, batches, LABELS, run.recipe.factors_of(LABELS))["accuracy"]
    print(f"attribute    accuracy on {len(test):,} test images   its commoner value")
    for column, name in enumerate(LABELS):
        share = test.labels[:, column].float().mean().item()
        print(f"  {name:<12}{found.get(name, math.nan):>10.3f}{max(share, 1 - share):>28.3f}")


def configuration(options, root):
    n = options.iterations
    return configure(
        data="celeba",
        data_root=str(root),
        factors=options.factors,
        factor_dim=options.dim,
        label_names=LABELS,
        labels=options.labels,
        label_weight=1000.0,
        kl_weight=20.0,
        width=options.width,
        pretrain_iterations=n // 2,
        prior_iterations=n // 10,
        joint_iterations=max(n, 1),
        refine_iterations=n // 4,
        compile=options.compile,
        seed=options.seed,
        device=options.device,
    )


def run_all(options, root):
    if options.generate:
        _, seconds = timed(generate, root, options.generate, options.seed)
        print(f"drew {options.generate:,} faces into {root / celeba.FOLDER} in {seconds:.1f} s")
    config = configuration(options, root)
    dataset = report_loading(config, root)
    device = resolve_device(options.device)
    report_speed(Run.new(options.out, config, dataset), dataset, device, options.timed_steps)
    if options.iterations:
        _, status = train(config, out=str(options.out))
        if status:  # Ctrl-C
            raise SystemExit(status)
        report_accuracy(Run.open(options.out), dataset, device)
        print(f"figures in {options.out / FIGURES}")


def sizes(text):
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected sizes such as 2,2,2,64,64, got '{text}'") from None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path, help="folder that holds celeba/; default: a temporary one")
    parser.add_argument("--generate", type=int, metavar="N", help=f"draw N faces; default: {GENERATED}, once")
    parser.add_argument("--width", type=float, default=0.25, help="width of the networks; 1 in the paper")
    parser.add_argument("--factors", type=sizes, default=(2, 2, 2, 64, 64), help="components of each factor")
    parser.add_argument("--dim", type=int, default=64, help="dimensions of each factor")
    parser.add_argument("--labels", type=float, default=0.4, help="share of training images with labels")
    parser.add_argument(
        "--iterations",
        type=int,
        default=800,
        help="iterations of the joint phase, which set those of others; 0 for no training",
    )
    parser.add_argument("--timed-steps", type=int, default=20, help="steps to time before training")
    parser.add_argument("--compile", action="store_true", help="compile the captured steps")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... or auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("celeba-run"), help="folder of the run")
    options = parser.parse_args()
    if options.out.exists():
        parser.error(f"--out: {options.out} exists already")
    if options.generate is None and options.data_root is None:
        options.generate = GENERATED
    if options.generate is not None and options.generate < FEWEST:
        parser.error(f"--generate: expected at least {FEWEST} images, got {options.generate}")
    if options.generate and options.data_root and (options.data_root / celeba.FOLDER).exists():
        parser.error(f"--generate: {options.data_root / celeba.FOLDER} exists already")
    if options.timed_steps < 1 or options.iterations < 0:
        parser.error("--timed-steps, --iterations: expected at least 1, and at least 0")
    with ExitStack() as stack:
        temporary = options.data_root or stack.enter_context(tempfile.TemporaryDirectory(prefix="faces-"))
        try:
            run_all(options, Path(temporary).resolve())
        except (ValueError, OSError) as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
