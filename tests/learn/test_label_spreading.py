import numpy as np
import pytest
import torch
from sklearn.semi_supervised import LabelSpreading

from pyro_fmvae.data import Split
from pyro_fmvae.learn import label_spreading
from pyro_fmvae.learn.label_spreading import predictors_of_unlearnt, spread_labels
from pyro_fmvae.models.label_predictor import weighted_mean


def blobs(apart, per_blob=60, known=10, dim=5):
    """Three clouds of points, the labels of some of them, and all labels: x, labels, truth [N, 1]."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(3).repeat(per_blob)
    x = torch.randn(3 * per_blob, dim, generator=generator) + apart * torch.eye(3, dim)[truth]
    labels = torch.where(torch.arange(len(truth)) < 3 * known, truth, -1)
    return Split(x.float()), labels[:, None], truth[:, None]


def test_points_of_clear_clusters_get_the_label_of_their_cluster():
    split, labels, truth = blobs(apart=20)
    assert torch.equal(spread_labels(split, labels, 0.9), truth)


def spirals():
    """Two spirals, one in the other: neighbours tell them apart, lines and boxes of so few points do not."""
    truth = torch.arange(400) % 2
    turned = 4 * np.pi * torch.linspace(0.2, 1, 400) ** 0.5
    angle = turned + np.pi * truth
    return turned[:, None] * torch.stack([angle.cos(), angle.sin()], -1), truth


def slope():
    """The side of a plane through a ball of many dimensions: a line tells it, neighbours do not."""
    x = torch.randn(400, 40, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(-1) > 0).long()


def switches():
    """Two switches among coordinates that vary more: a forest tells whether both are the same."""
    generator = torch.Generator().manual_seed(0)
    switch = torch.randint(0, 2, (400, 2), generator=generator)
    x = torch.cat([switch.float(), 20 * torch.randn(400, 3, generator=generator)], -1)
    return x, (switch[:, 0] == switch[:, 1]).long()


@pytest.mark.parametrize(("points", "teacher"), [(spirals, 0), (slope, 1), (switches, 2)])
def test_it_is_enough_that_one_teacher_can_tell(points, teacher, monkeypatch):
    x, truth = points()
    known = torch.arange(400) % (16 if points is spirals else 6) < 2
    labels = torch.where(known, truth, -1)[:, None]
    of_all = label_spreading._Points.teachers

    def told(some):
        monkeypatch.setattr(label_spreading._Points, "teachers", lambda *args: some(of_all(*args)))
        spread = spread_labels(Split(x.float()), labels, 0.9)[:, 0]
        taken = (labels[:, 0] < 0) & (spread >= 0)
        return taken.double().mean(), (spread == truth)[taken].double().mean()

    share, right = told(lambda teachers: teachers)
    assert share > 0.2 and right > 0.85
    others, _ = told(lambda teachers: [one for number, one in enumerate(teachers) if number != teacher])
    assert others < share / 2


def test_neighbours_tell_what_scikit_learns_spreading_does():
    split, labels, _ = blobs(apart=5)
    fitted = LabelSpreading(kernel="knn", n_neighbors=7).fit(split.x.double().numpy(), labels[:, 0].numpy())
    told = label_spreading._by_neighbours(label_spreading._Points(split).graph, 3, labels[:, 0])
    assert told.numpy() == pytest.approx(fitted.label_distributions_)


def test_the_surer_points_are_told(monkeypatch):
    """One teacher, which is right where it is sure: of as many points as of the hidden labels."""
    truth, sure = torch.arange(300) % 2, torch.arange(300) % 5 < 3
    says = torch.where(sure, truth, 1 - truth)
    probs = torch.nn.functional.one_hot(says).double() * torch.where(sure, 0.9, 0.6)[:, None]
    probs = probs + (1 - probs.sum(-1, keepdim=True)) * (probs == 0)
    monkeypatch.setattr(label_spreading._Points, "teachers", lambda *_: [lambda labels: probs])
    labels = torch.where(torch.arange(300) < 100, truth, -1)
    found = spread_labels(Split(torch.zeros(300, 2).float()), labels[:, None], 0.9)[:, 0]
    assert torch.equal(found, torch.where(sure, truth, labels))


def test_labels_that_nothing_tells_stay_unknown():
    split, labels, _ = blobs(apart=0)
    assert torch.equal(spread_labels(split, labels, 0.9), labels)


def test_what_is_spread_is_right_as_often_as_was_asked_for():
    split, labels, truth = blobs(apart=2, per_blob=300, known=60)
    spread = spread_labels(split, labels, 0.95)
    taken = (labels < 0) & (spread >= 0)
    every = spread_labels(split, labels, 0.5)
    assert 0 < taken.sum() < ((labels < 0) & (every >= 0)).sum()
    right, all_right = ((found == truth)[labels < 0].sum() for found in (spread, every))
    wrong = taken.sum() - right
    assert right / taken.sum() > all_right / (every >= 0)[labels < 0].sum()
    assert wrong <= 0.05 * taken.sum() + 4 * (0.05 * 0.95 * taken.sum()) ** 0.5


def test_columns_are_spread_each_for_itself_and_known_labels_stay():
    split, labels, truth = blobs(apart=20)
    noise = torch.randint(0, 2, truth.shape, generator=torch.Generator().manual_seed(1))
    other = torch.where(labels >= 0, noise, -1)
    labels[0] = 2  # a wrong one
    spread = spread_labels(split, torch.cat([labels, other], -1), 0.9)
    assert (spread[1:, 0] == truth[1:, 0]).all() and spread[0, 0] == 2
    assert torch.equal(spread[:, 1:], other)


@pytest.mark.parametrize("known", [0, 1, 3])
def test_few_labels_prove_nothing(known):
    split, labels, _ = blobs(apart=20, known=known)
    assert torch.equal(spread_labels(split, labels, 0.95), labels)


def test_images_are_compared_by_their_principal_components_and_the_argument_is_left_alone():
    split, labels, truth = blobs(apart=20, dim=100)
    before = labels.clone()
    assert torch.equal(spread_labels(Split(split.x.reshape(-1, 10, 10)), labels, 0.9), truth)
    assert torch.equal(labels, before)


def test_nothing_is_spread_without_a_share_without_neighbours_or_with_gaps():
    split, labels, _ = blobs(apart=20)
    gap = Split(split.x.clone().index_fill_(0, torch.tensor([0]), torch.nan))
    few = torch.arange(7)
    assert torch.equal(spread_labels(split, labels, 0.0), labels)
    assert torch.equal(spread_labels(gap, labels, 0.5), labels)
    assert torch.equal(spread_labels(split.select(few), labels[few], 0.5), labels[few])


def test_labels_are_spread_once(monkeypatch):
    """Options that depend on the data spread the labels, and so does the training."""
    split, labels, _ = blobs(apart=20)
    found = spread_labels(split, labels, 0.9)
    monkeypatch.setattr("sklearn.neighbors.kneighbors_graph", None)
    assert torch.equal(spread_labels(split, labels, 0.8), found)
    with pytest.raises(TypeError):
        spread_labels(Split(split.x.flip(0)), labels, 0.9)
    monkeypatch.setattr(label_spreading, "_spread", None)
    assert torch.equal(spread_labels(split, labels, 0.9), found)
    with pytest.raises(TypeError):
        spread_labels(split, labels, 0.7)


@pytest.mark.parametrize(("known", "spread"), [(29, True), (30, False)])
def test_nothing_is_spread_where_half_of_the_points_have_a_label(known, spread):
    split, labels, truth = blobs(apart=20, known=known)
    assert torch.equal(spread_labels(split, labels, 0.9), truth if spread else labels)


@pytest.mark.parametrize("size", [40, 100])  # more than 64 numbers are seen as principal components
def test_labels_that_a_model_has_not_learnt_are_predicted_without_it(size):
    """The predictor is that of scikit-learn's classifiers, weighed by the stack, and tells new points."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(300) % 3
    x = (torch.randn(300, size, generator=generator) + 5 * torch.eye(3, size)[truth]).float()
    labels = torch.where(torch.arange(300) < 60, truth, -1)[:, None].expand(-1, 3)
    split, known, new = Split(x[:200]), labels[:200].clone(), x[200:]
    known[:, 2] = -1  # nothing to learn from
    learnt, not_learnt = truth[:200], torch.zeros(200, dtype=torch.int64)
    found = predictors_of_unlearnt(split, known, torch.stack([learnt, not_learnt, not_learnt], -1))
    assert list(found) == [1]
    predictor, points = found[1], label_spreading._points(split)
    probs = predictor(new.double(), torch.full((100, 3), 1 / 3))
    assert (probs.argmax(-1) == truth[200:]).double().mean() > 0.9
    regression, forest = label_spreading.classifiers(3, label_spreading.SEED)
    seen = new.double().numpy() if points.pca is None else points.pca.transform(new.double().numpy())
    members = [
        classifier.fit(x[:60].numpy(), truth[:60].numpy()).predict_proba(y)
        for classifier, x, y in (
            (regression, points.components, seen),
            (forest, points.numbers, new.numpy()),
        )
    ]
    expected = weighted_mean(torch.from_numpy(np.stack(members)), predictor.powers[1:], predictor.weights[1:])
    assert torch.allclose(probs, expected)
    assert not torch.equal(predictor.powers[1:], torch.ones(2))  # they are calibrated
    assert predictor.accuracies[0] == pytest.approx(1 / 3) and predictor.known == 60


def test_a_model_that_is_as_right_as_the_others_predicts_by_itself():
    """Where nothing tells the labels, it may be wrong of most of them; nor are 5,000 points looked at."""
    x, truth = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).float(), torch.arange(200) % 2
    told = torch.where(torch.arange(200) % 5 == 0, 1 - truth, truth)[:, None]
    labels = torch.where(torch.arange(200) < 80, truth, -1)[:, None]
    assert predictors_of_unlearnt(Split(x), labels, told) == {}
    split, labels, truth = blobs(apart=20, known=20)
    one_wrong, three_wrong = truth.clone(), truth.clone()
    one_wrong[0], three_wrong[:3] = 1, torch.tensor([[1], [2], [0]])
    assert predictors_of_unlearnt(split, labels, one_wrong) == {}  # which is chance
    assert list(predictors_of_unlearnt(split, labels, three_wrong)) == [0]
    many = Split(torch.zeros(5001, 1).float())
    assert predictors_of_unlearnt(many, torch.zeros(5001, 1).long(), torch.ones(5001, 1).long()) == {}
