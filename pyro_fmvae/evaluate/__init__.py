"""Measures of a trained model; `docs/measures.md` defines them."""

from pyro_fmvae.evaluate.agreement import Coding, label_agreement, majority_accuracy, matching_accuracy
from pyro_fmvae.evaluate.bounds import Evaluable, bound, tighter_bounds
from pyro_fmvae.evaluate.disentanglement import DCI, Information, dci, factor_accuracy, mutual_information
from pyro_fmvae.evaluate.editing import Normals, Placement, edit_latent, to_location, transport
from pyro_fmvae.evaluate.encodings import Encodings, encode_split
from pyro_fmvae.evaluate.judge import Judge, load_judge, save_judge, train_judge
from pyro_fmvae.evaluate.judged import Edits, Generation, judged_edits, judged_generation
from pyro_fmvae.evaluate.probes import Leakage, leakage, linear_probe, neighbour_probe

__all__ = [
    "DCI",
    "Coding",
    "Edits",
    "Encodings",
    "Evaluable",
    "Generation",
    "Information",
    "Judge",
    "Leakage",
    "Normals",
    "Placement",
    "bound",
    "dci",
    "edit_latent",
    "encode_split",
    "factor_accuracy",
    "judged_edits",
    "judged_generation",
    "label_agreement",
    "leakage",
    "linear_probe",
    "load_judge",
    "majority_accuracy",
    "matching_accuracy",
    "mutual_information",
    "neighbour_probe",
    "save_judge",
    "tighter_bounds",
    "to_location",
    "train_judge",
    "transport",
]
