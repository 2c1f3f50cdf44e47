"""Parsing of the command line; what the commands do is in :mod:`pyro_fmvae.commands`."""

import re
import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, NoReturn

import torch
from jsonargparse import ArgumentParser, Namespace

from pyro_fmvae import commands
from pyro_fmvae.commands.drawing import FigureName
from pyro_fmvae.config import TrainConfig
from pyro_fmvae.runs.run import DERIVED

PROGRAM = "pyro-fmvae"
INTERRUPTED = 130
POSITIONAL = ("run", "figure")
TYPES = {"float": "a number", "int": "an integer", "bool": "true or false", "str": "text"}


class UsageError(Exception):
    """Arguments that could not be understood."""


class _Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UsageError(_translate(message))


def run_command(arguments: Sequence[str]) -> int:
    """Parse and run.

    Returns:
        The exit status: 0; 2 for bad input, with one line on standard error; 130 after Ctrl-C.
    """
    try:
        namespace = build_parser().parse_args(list(arguments))
        return _dispatch(namespace)
    except UsageError as error:
        return _complain(f"{_one_line(error)} (see {PROGRAM} --help)")
    except (ValueError, OSError, MemoryError) as error:
        return _complain(_one_line(error))
    except RuntimeError as error:
        if not _is_memory(error):
            raise
        return _complain(f"not enough memory: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped", file=sys.stderr)
        return INTERRUPTED


def build_parser() -> ArgumentParser:
    """The parser with its subcommands."""
    parser = _Parser(prog=PROGRAM, description="Factorial mixture VAEs, from training to edited images.")
    subcommands = parser.add_subcommands(dest="command")
    for name, subparser, text in (
        ("train", _train_parser(), "train a model; without options, on generated smileys"),
        ("evaluate", _evaluate_parser(), "print measures of a run as one JSON object"),
        ("sample", _sample_parser(), "draw from a run's model"),
        ("draw", _draw_parser(), "draw a figure of a run's model"),
        ("encode", _encode_parser(), "write codes, responsibilities and means of data"),
        ("score", _score_parser(), "write outlier scores of data"),
        ("edit", _edit_parser(), "change properties of an image"),
        ("restore", _restore_parser(), "denoise and inpaint an image by its patches"),
        ("judge", _judge_parser(), "let a classifier judge what a run generates and edits"),
    ):
        subcommands.add_subcommand(name, subparser, help=text)
    return parser


def _train_parser() -> ArgumentParser:
    parser = _Parser(description="Train a model. Defaults that depend on the data are chosen by it.")
    parser.add_argument("--config", action="config", help="YAML or JSON file with any of these options")
    for option in fields(TrainConfig):
        flag = _flag(option.name)
        kind = _PARSERS.get(option.name, option.type)
        bare: dict[str, Any] = {"nargs": "?", "const": True} if kind in (bool, bool | None) else {}
        parser.add_argument(flag, type=kind, default=option.default, help=option.metadata["help"], **bare)
    parser.add_argument("--" + DERIVED, type=dict | None, help=SUPPRESS)  # of a run's config.json; not read
    parser.add_argument("--out", type=str | None, help="folder of the run; default: a new one in runs/")
    parser.add_argument("--resume", type=str | None, metavar="RUN", help="continue an interrupted run")
    return parser


def _evaluate_parser() -> ArgumentParser:
    parser = _Parser(description="Evaluate a run.")
    _add_run(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--num-samples", type=int, default=0, help="draws per point, for tighter bounds")
    parser.add_argument("--points", type=int | None, help="evaluate the first so many points; default: all")
    text = "add the bound after so many steps on each point's own posterior, and the gap to the encoder's"
    parser.add_argument("--free-steps", type=int, default=0, help=text)
    text = "add leakage, disentanglement and what each factor tells of each label"
    parser.add_argument("--probes", type=bool, default=False, nargs="?", const=True, help=text)
    return parser


def _sample_parser() -> ArgumentParser:
    parser = _Parser(description="Draw from a run's model: a grid of images (.png), or arrays (.npz).")
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--out", type=str, required=True, help="file to write: .png or .npz")
    parser.add_argument("--codes", type=str | None, help="component of each factor, * to draw it: 0,1,*,*")
    parser.add_argument("--grid", type=str, default="8x8", help="rows x columns")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, ... or auto")
    return parser


def _draw_parser() -> ArgumentParser:
    parser = _Parser(description="Draw a figure of a run on images: .png, or .gif for traversal.")
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("figure", type=FigureName, help="which one")
    parser.add_argument("--out", type=str | None, help="file to write; default: one in RUN/figures")
    parser.add_argument("--factors", type=str | None, help="names or numbers: hair,body or 0,3")
    parser.add_argument("--rows", type=int | None, help="draws shown")
    parser.add_argument("--draws", type=int | None, help="of clusters and pairs: draws of z per mean")
    parser.add_argument("--most", type=int | None, help="components shown of a factor, the most used ones")
    parser.add_argument("--hold", type=str | None, help="of pairs: components of other factors: hat=1,6=3")
    parser.add_argument("--data-root", type=str | None, help="of information: folder of published data sets")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, ... or auto")
    return parser


def _encode_parser() -> ArgumentParser:
    parser = _Parser(description="Encode data: responsibilities, codes and means, in row order.")
    _add_run(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz")
    return parser


def _score_parser() -> ArgumentParser:
    parser = _Parser(description="Write outlier scores of data, thresholds, and what lies above them (.npz).")
    _add_run(parser)
    parser.add_argument("--out", type=str, required=True, help="file to write: .npz")
    text = "share of the training points that a threshold is not to be exceeded by"
    parser.add_argument("--quantile", type=float, default=0.95, help=text)
    parser.add_argument("--num-samples", type=int, default=16, help="draws per point")
    parser.add_argument("--points", type=int | None, help="score the first so many points; default: all")
    text = "take thresholds from the first so many training points"
    parser.add_argument("--train-points", type=int, default=5000, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    return parser


def _edit_parser() -> ArgumentParser:
    parser = _Parser(description="Encode an image, give some factors other components, and decode.")
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--image", type=str, required=True, help="file of any size")
    parser.add_argument("--set", type=str, required=True, help="what to change, by name or number: hat=1,6=3")
    parser.add_argument("--out", type=str, required=True, help="file to write: .png, in the run's resolution")
    parser.add_argument("--compare", type=str | None, help="file for image, reconstruction and edit: .png")
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, ... or auto")
    return parser


def _restore_parser() -> ArgumentParser:
    text = "Denoise and inpaint an image by a run on plain patches: train with --patch-size 8 --whiten false."
    parser = _Parser(description=text)
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--image", type=str, required=True, help="file of any size; colours become grey")
    parser.add_argument("--out", type=str, required=True, help="file to write: .png")
    parser.add_argument("--compare", type=str | None, help="file for image, damaged and restored one: .png")
    text = "image of the same size, black where pixels of the image are missing"
    parser.add_argument("--mask", type=str | None, help=text)
    text = "standard deviation of noise to add first; greys are in [0, 1]"
    parser.add_argument("--noise", type=float, default=0.0, help=text)
    parser.add_argument("--missing", type=float, default=0.0, help="share of pixels to remove first")
    parser.add_argument("--stride", type=int, default=1, help="pixels from one patch to the next")
    parser.add_argument("--seed", type=int, default=0, help="of the damage and of draws")
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, ... or auto")
    return parser


def _judge_parser() -> ArgumentParser:
    parser = _Parser(description="Judge generated and edited images of a run with labelled factors.")
    _add_run(parser)
    parser.add_argument("--samples", type=int, default=500, help="images to generate")
    parser.add_argument("--edits", type=int, default=500, help="real images to edit, at most")
    parser.add_argument("--sheet", type=int, default=54, help="images on the sheet for people; 0: no sheet")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    return parser


def _add_run(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=str, help="folder of a run")
    parser.add_argument("--data", type=str | None, help="name or file; default: what the run was trained on")
    parser.add_argument("--data-root", type=str | None, help="folder of published data sets")
    split = "of the run's data or of a named data set; a file is taken whole"
    parser.add_argument(
        "--split", type=Literal["train", "valid", "test", "unseen"], default="test", help=split
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, ... or auto")


class _List:
    """Parser of values separated by commas; an object, since its name is what ``--help`` shows.

    Args:
        name: of the values.
        convert: one of them.
        example: of several.
    """

    def __init__(self, name: str, convert: Callable[[Any], Any], example: str) -> None:
        self.name, self.convert, self.example = name, convert, example

    def __call__(self, text: Any) -> tuple[Any, ...]:
        parts = text if isinstance(text, list | tuple) else str(text).split(",")
        try:
            return tuple(self.convert(part) for part in parts)
        except (ValueError, TypeError):
            expected = f"expected {self.name} separated by commas, such as {self.example}"
            raise ArgumentTypeError(f"{expected}, got '{text}'") from None

    def __repr__(self) -> str:
        return self.name


_SIZES = _List("sizes", int, "2,2,64")
_PARSERS: dict[str, Any] = {
    "factors": _SIZES,
    "hidden": _SIZES,
    "label_names": _List("names", lambda part: str(part).strip(), "hat,eyes"),
    "slope": _List("numbers", float, "50,200"),
    "warm_up": _List("shares", float, "0,0.1"),
}


def _dispatch(namespace: Namespace) -> int:
    options = namespace[namespace.command]
    if namespace.command == "train":
        given = {option.name: getattr(options, option.name) for option in fields(TrainConfig)}
        if options.resume is not None:
            return _resume(options, given)
        return commands.train(TrainConfig(**given), options.out)
    return getattr(commands, namespace.command)(**vars(options))


def _resume(options: Namespace, given: dict[str, Any]) -> int:
    free = ("data_root", "device", "eager", "compile")
    changed = [
        _flag(option.name)
        for option in fields(TrainConfig)
        if option.name not in free and given[option.name] != option.default
    ]
    if options.out is not None:
        changed.append("--out")
    if changed:
        raise UsageError(f"--resume continues a run as it was started: {', '.join(changed)} can't be changed")
    return commands.resume(options.resume, **{name: given[name] for name in free})


def _translate(message: str) -> str:
    """What jsonargparse complains of, without the types of Python; what is not recognised stays as it is."""
    message = " ".join(message.split())
    if required := re.match("the following arguments are required: (.*)", message):
        names = [name.rpartition(".")[2] for name in required[1].split(", ")]
        return f"required: {', '.join(map(_flag, names))}"
    message = re.sub(r"^argument (--[\w-]+): ", r"\1: ", message)
    if not (found := re.match(r'Parser key "([\w.]+)": (.*)', message)):
        return message
    flag, text = _flag(found[1].rpartition(".")[2]), found[2]
    wrong = re.search(r"(?:Got|Given) value: (.*)", text)
    types = text[: wrong.start()].partition("Given value type")[0] if wrong else ""
    wanted = [choices.replace("'", "") for choices in re.findall(r"Literal\[(.*?)\]", types)]
    expected = [f"one of {choices}" for choices in wanted]
    expected += [TYPES[name] for name in re.findall(r"<class '(\w+)'>", types) if name in TYPES]
    if not (wrong and expected):
        return f"{flag}: {text}"
    return f"{flag}: expected {' or '.join(dict.fromkeys(expected))}, got '{wrong[1]}'"


def _flag(name: str) -> str:
    return name if name in POSITIONAL else "--" + name.replace("_", "-")


def _is_memory(error: RuntimeError) -> bool:
    """Whether memory ran out, or no memory could be as large: on the CPU, torch says so in the text alone."""
    texts = ("allocate memory", "Storage size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _complain(message: str) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return 2
