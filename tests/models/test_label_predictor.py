import torch
from torch.testing import assert_close

from pyro_fmvae.learn.coordinate_ascent import ascend
from pyro_fmvae.models import ObservedMixture
from pyro_fmvae.models.label_predictor import Forest, LabelPredictor

N, K, C = 40, 4, 3


def fitted():
    torch.manual_seed(0)
    x, labels = torch.randn(N, 2), torch.randint(C, (N, 1))
    model = ObservedMixture((0, 0), K, N, (C,))
    ascend(model, model.observations(x, labels), (5 * torch.rand(N, K)).softmax(-1))
    model.predictors["label_0"] = predictor = LabelPredictor(2, C, trees=1, nodes=1)
    predictor.forest.probs.copy_(torch.tensor([[0.7, 0.2, 0.1]]))
    predictor.weights.copy_(torch.tensor([0.5, 0.3, 0.2]))
    predictor.powers.copy_(torch.tensor([2.0, 1.0, 0.5]))
    return model, predictor, x


def test_members_are_tempered_weighed_and_tilted():
    model, predictor, x = fitted()
    predictor.tilt.copy_(torch.tensor([1.0, 3.0, 0.5]))
    (own,) = model.own_predictions(model.table(model.observations(x)).softmax(-1))
    scores = x.double() @ predictor.regression.weight.mT + predictor.regression.bias
    powers = [own.square(), scores.exp(), torch.tensor([[0.7, 0.2, 0.1]]).double().sqrt().expand(N, C)]
    mean = sum(w * p / p.sum(-1, keepdim=True) for w, p in zip((0.5, 0.3, 0.2), powers, strict=True))
    expected = mean * torch.tensor([1.0, 3.0, 0.5])
    found, _ = model.responsibilities(x.double())
    assert_close(found, expected / expected.sum(-1, keepdim=True), rtol=1e-6, atol=1e-7)
    assert model.codes(x)[:, 0].tolist() == expected.argmax(-1).tolist()


def test_components_are_those_of_the_predicted_values():
    """Jeffrey's rule by the joint p(r, y | x); with the mixture's own predictions it is p(r | x)."""
    model, predictor, x = fitted()
    gamma = model.table(model.observations(x)).softmax(-1)
    joint = gamma.unsqueeze(-1) * model.probs("label_0")  # [N, K, C]
    said, found = model.responsibilities(x.double())
    expected = (said.unsqueeze(1) * joint / joint.sum(1, keepdim=True)).sum(-1)
    assert_close(found, expected)
    assert not torch.allclose(found, gamma, atol=0.001)
    predictor.weights.copy_(torch.tensor([1.0, 0.0, 0.0]))
    predictor.powers.fill_(1.0)
    assert_close(model.responsibilities(x.double())[1], gamma, rtol=1e-3, atol=1e-4)


def test_the_closing_table_is_told_members_and_accuracies():
    _, predictor, _ = fitted()
    predictor.accuracies.copy_(torch.tensor([0.664, 0.83, 0.5]))
    predictor.known.fill_(1040)
    assert predictor.summary() == (
        "mixture 50%, logistic regression 30%, random forest 20%; "
        "accuracies by cross-validation on the 1,040 labelled rows: 0.66, 0.83, 0.50"
    )


def test_rows_fall_to_leaves_and_trees_are_averaged():
    """A tree of two splits, and one that is a leaf."""
    forest = Forest(trees=2, nodes=6, classes=2)
    forest.roots.copy_(torch.tensor([0, 5]))
    forest.feature[:3] = torch.tensor([1, 0, 0])
    forest.threshold[:3] = torch.tensor([0.5, -1.0, 9.0], dtype=torch.float64)
    forest.below[0], forest.below[1] = torch.tensor([1, 2]), torch.tensor([3, 4])
    forest.probs.copy_(torch.tensor([[9, 9], [9, 9], [0.2, 0.8], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    x = torch.tensor([[-1.0, 0.5], [0.0, 0.5], [0.0, 0.6]])
    assert_close(forest(x), torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.35, 0.65]], dtype=torch.float32))
