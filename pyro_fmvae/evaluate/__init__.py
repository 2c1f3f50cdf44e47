"""Measures of a trained model; `docs/concepts/measures.md` defines them."""

from pyro_fmvae.evaluate.agreement import (
    Coding,
    cluster_confusion,
    label_agreement,
    majority_accuracy,
    matching_accuracy,
)
from pyro_fmvae.evaluate.amortisation import amortisation_gap
from pyro_fmvae.evaluate.bounds import Evaluable, bound, tighter_bounds
from pyro_fmvae.evaluate.cells import Expression, differential_expression, with_new_batch
from pyro_fmvae.evaluate.classification import (
    Overcall,
    classification_measures,
    overcalled,
    reference_accuracies,
    wilson_interval,
)
from pyro_fmvae.evaluate.disentanglement import DCI, Information, dci, factor_accuracy, mutual_information
from pyro_fmvae.evaluate.edits import Normals, Placement, edit, edit_latent, edit_rows, to_location, transport
from pyro_fmvae.evaluate.encodings import Encodings, encode_split
from pyro_fmvae.evaluate.neighbours import NEAREST, Neighbours
from pyro_fmvae.evaluate.probes import Leakage, leakage, linear_probe, neighbour_probe
from pyro_fmvae.evaluate.recovery import RECOVERED, UnitMatch, match_units
from pyro_fmvae.evaluate.scores import dominating, outlier_scores, rows_without_bound, score_parts, threshold
from pyro_fmvae.evaluate.slabs import Slabs, resample_active, slabs_of
from pyro_fmvae.evaluate.sources import (
    Activity,
    active_latents,
    activity,
    best_correlation,
    block_concentration,
    contrast,
    correlation_matrix,
    per_block,
)
from pyro_fmvae.evaluate.vector_search import LEAST_QUANTISED, VectorIndex, vector_index
from pyro_fmvae.infer.importance import total_correlation

__all__ = [
    "DCI",
    "LEAST_QUANTISED",
    "NEAREST",
    "RECOVERED",
    "Activity",
    "Coding",
    "Encodings",
    "Evaluable",
    "Expression",
    "Information",
    "Leakage",
    "Neighbours",
    "Normals",
    "Overcall",
    "Placement",
    "Slabs",
    "UnitMatch",
    "VectorIndex",
    "active_latents",
    "activity",
    "amortisation_gap",
    "best_correlation",
    "block_concentration",
    "bound",
    "classification_measures",
    "cluster_confusion",
    "contrast",
    "correlation_matrix",
    "dci",
    "differential_expression",
    "dominating",
    "edit",
    "edit_latent",
    "edit_rows",
    "encode_split",
    "factor_accuracy",
    "label_agreement",
    "leakage",
    "linear_probe",
    "majority_accuracy",
    "match_units",
    "matching_accuracy",
    "mutual_information",
    "neighbour_probe",
    "outlier_scores",
    "overcalled",
    "per_block",
    "reference_accuracies",
    "resample_active",
    "rows_without_bound",
    "score_parts",
    "slabs_of",
    "threshold",
    "tighter_bounds",
    "to_location",
    "total_correlation",
    "transport",
    "vector_index",
    "wilson_interval",
    "with_new_batch",
]
