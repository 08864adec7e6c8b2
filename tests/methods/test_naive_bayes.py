from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.naive_bayes import GaussianNB, MultinomialNB

from bench.core.errors import BenchError
from bench.core.types import Facts, Released
from bench.data.splits import partition
from bench.experiments.release import load_released, save_released
from bench.methods.pate import naive_bayes as nb
from bench.methods.shared.transfer import source_part
from bench.models.build import build, features_and_logits
from bench.models.gaussian_nb import NEVER, GaussianHead, set_gaussians
from bench.models.rebuild import make_student
from bench.models.registration import model_options
from bench.models.text_nets import set_words
from bench.training.loop import FitSettings, accuracy, fit, predict
from helpers.sentences import WORDS, counted, sentences

numbers = hnp.arrays(np.uint8, st.tuples(st.integers(0, 6), st.just(2), st.just(1), st.integers(1, 5)),
                     elements=st.integers(0, 9))  # fmt: skip


# --- words ------------------------------------------------------------------------------------------------------------


@given(numbers)
def test_only_words_of_the_vocabulary_are_counted(images: np.ndarray[Any, Any]) -> None:
    alone = nb.group_counts(images, np.arange(len(images)), len(images), 5)
    assert np.array_equal(alone, counted(images, 5).reshape(len(images), 5))


@given(numbers, st.data())
def test_a_posterior_is_prior_and_counts_in_any_order(images: np.ndarray[Any, Any], data: st.DataObject) -> None:
    count = len(images)
    groups = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)), dtype=np.int64)
    order = np.array(data.draw(st.permutations(range(count))), dtype=np.int64)
    cut = data.draw(st.integers(0, count))
    whole = nb.group_counts(images, groups, 3, 5)
    assert np.array_equal(whole, nb.group_counts(images[order], groups[order], 3, 5))
    parts = [nb.group_counts(images[half], groups[half], 3, 5) for half in (slice(cut), slice(cut, None))]
    assert np.array_equal(whole, parts[0] + parts[1])
    for group in range(3):
        assert np.array_equal(whole[group], counted(images[groups == group], 5).reshape(-1, 5).sum(0))


def test_flat_words_are_sklearns_multinomial_naive_bayes() -> None:
    images, labels = sentences(60), np.random.default_rng(1).integers(0, 3, 60)
    labels[:3] = [0, 1, 2]
    theirs = MultinomialNB(alpha=1.0, fit_prior=False).fit(counted(images), labels)
    table = nb.log_means(1 + nb.group_counts(images, labels, 3, WORDS))
    assert np.allclose(table, theirs.feature_log_prob_)
    queries = sentences(50, seed=2)
    assert np.array_equal(nb.word_votes(queries, table[None]).argmax(1), theirs.predict(counted(queries)))


def test_the_means_are_dirichlets() -> None:
    from scipy.stats import dirichlet

    alpha = np.array([0.5, 3.0, 1.5])
    assert np.allclose(np.exp(nb.log_means(alpha)), dirichlet.mean(alpha))


def word_ensemble(images: Any, labels: Any, teachers: int, prior: Any, queries: Any) -> list[np.ndarray[Any, Any]]:
    groups = nb.record_groups(labels, 2, partition(len(images), teachers, "test"))
    counts = nb.group_counts(images, groups, teachers * 2, WORDS).reshape(teachers, 2, WORDS)
    return [nb.word_votes(queries, nb.log_means(prior + one[None])) for one in counts]


def test_votes_are_those_of_single_teachers_and_one_record_moves_one_of_them() -> None:
    images, labels, queries = sentences(40), np.arange(40) % 2, sentences(200, seed=3)
    parts = partition(40, 5, "test")
    groups = nb.record_groups(labels, 2, parts)
    counts = nb.group_counts(images, groups, 10, WORDS).reshape(5, 2, WORDS)
    whole = nb.word_votes(queries, nb.log_means(1 + counts))
    single = word_ensemble(images, labels, 5, 1, queries)
    assert np.array_equal(whole, sum(single))
    for teacher, part in enumerate(parts):
        chosen = np.flatnonzero(groups // 2 == teacher)
        assert np.array_equal(chosen, part)
    changed, other = images.copy(), labels.copy()
    changed[7], other[7] = sentences(1, seed=9)[0], 1 - labels[7]
    after = word_ensemble(changed, other, 5, 1, queries)
    (moved,) = [i for i in range(5) if not np.array_equal(single[i], after[i])]
    assert 7 in parts[moved]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = sentences(50), np.arange(50) % 2
    features = np.random.default_rng(0).normal(size=(50, 7))
    groups = nb.record_groups(labels, 2, partition(50, 4, "test"))
    prior = nb.pool_prior(features, 2, 1.0, 1.0)

    def everything() -> list[np.ndarray[Any, Any]]:
        counts = nb.group_counts(images, groups, 8, WORDS).reshape(4, 2, WORDS)
        fitted = nb.gaussian_posterior(features, groups, 4, prior, 1e-3)
        return [counts, nb.word_votes(images, nb.log_means(1 + counts)), nb.gaussian_votes(features, fitted)]

    large = everything()
    monkeypatch.setattr(nb, "CHUNK_BYTES", 8 * 60)
    for first, second in zip(large, everything(), strict=True):
        assert np.array_equal(first, second)


def test_parts_of_the_source_are_nested_and_fair_to_classes() -> None:
    labels = np.array([0] * 30 + [1] * 10)
    tenth, half, whole = (source_part(labels, f, "imdb") for f in (0.1, 0.5, 1.0))
    assert np.bincount(labels[tenth]).tolist() == [3, 1]
    assert np.bincount(labels[half]).tolist() == [15, 5]
    assert whole.tolist() == list(range(40))
    assert set(tenth) < set(half)


# --- features ---------------------------------------------------------------------------------------------------------


def test_flat_features_are_sklearns_gaussian_naive_bayes() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 3
    features = random.normal(size=(90, 8)) * random.uniform(0.1, 3, 8) + labels[:, None] + 100
    floor = 0.01
    theirs = GaussianNB(priors=[1 / 3] * 3, var_smoothing=floor / features.var(0).max()).fit(features, labels)
    fitted = nb.gaussian_posterior(features, labels, 1, nb.flat_prior(3, 8), floor)
    assert np.allclose(fitted.mean[0], theirs.theta_)
    assert np.allclose(fitted.variance[0], theirs.var_)
    queries = random.normal(size=(200, 8)) + 101
    scores = nb.gaussian_scores(queries, fitted, queries.mean(0))[:, 0]
    joint = theirs.predict_joint_log_proba(queries) - np.log(1 / 3) + 4 * np.log(2 * np.pi)
    assert np.allclose(scores, joint)
    assert np.array_equal(nb.gaussian_votes(queries, fitted).argmax(1), theirs.predict(queries))


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0, 20), st.floats(0, 20))
def test_the_gaussian_posterior_is_that_of_record_after_record(seed: int, kappa: float, nu: float) -> None:
    """A conjugate posterior is the same whether it takes records one by one or at once."""
    random = np.random.default_rng(seed)
    features, labels = random.normal(2, 3, (9, 2)), np.array([0, 1, 0, 0, 1, 1, 1, 0, 1])
    prior = nb.GaussianPrior(random.normal(size=(2, 2)), random.uniform(0.5, 2, (2, 2)), kappa, nu)
    whole = nb.gaussian_posterior(features, labels, 1, prior, 1e-9)
    for label in (0, 1):
        m, v, k, n = prior.mean[label], prior.variance[label], kappa, nu
        for x in features[labels == label]:
            v = (n * v + k / (k + 1) * (x - m) ** 2) / (n + 1)
            m, k, n = (k * m + x) / (k + 1), k + 1, n + 1
        assert np.allclose(whole.mean[0, label], m)
        assert np.allclose(whole.variance[0, label], v + 1e-9)


def test_a_class_without_records_is_never_voted_for_under_the_flat_prior() -> None:
    features, labels = np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 2])
    flat = nb.gaussian_posterior(features, labels, 1, nb.flat_prior(3, 1), 0.1)
    assert flat.known.tolist() == [[True, False, True]]
    queries = np.linspace(-5, 9, 50)[:, None]
    assert nb.gaussian_votes(queries, flat)[:, 1].sum() == 0
    informed = nb.gaussian_posterior(features, labels, 1, nb.pool_prior(features, 3, 1.0, 1.0), 0.1)
    assert informed.known.all()
    assert informed.mean[0, 1, 0] == features.mean()


def test_source_prior_has_the_moments_of_its_classes() -> None:
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(40, 3)), np.arange(40) % 2
    prior = nb.source_prior(features, labels, 3, 2.0, 4.0)
    for label in (0, 1):
        assert np.allclose(prior.mean[label], features[labels == label].mean(0))
        assert np.allclose(prior.variance[label], features[labels == label].var(0))
    assert np.allclose(prior.mean[2], features.mean(0))
    assert (prior.kappa, prior.nu) == (2.0, 4.0)


def test_one_record_moves_one_teachers_gaussians() -> None:
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(60, 5)), random.integers(0, 3, 60)
    parts = partition(60, 6, "test")
    prior = nb.pool_prior(random.normal(size=(10, 5)), 3, 1.0, 1.0)
    changed, other = features.copy(), labels.copy()
    changed[11], other[11] = 50.0, (labels[11] + 1) % 3
    first, second = (
        nb.gaussian_posterior(x, nb.record_groups(y, 3, parts), 6, prior, 1e-3)
        for x, y in ((features, labels), (changed, other))
    )
    same = [np.array_equal(first.mean[t], second.mean[t]) for t in range(6)]
    assert same.count(False) == 1
    assert 11 in parts[same.index(False)]
    queries = random.normal(size=(100, 5))
    assert np.abs(nb.gaussian_votes(queries, first) - nb.gaussian_votes(queries, second)).sum(1).max() <= 2
    assert nb.gaussian_votes(queries, first).sum(1).tolist() == [6] * 100


# --- nets -------------------------------------------------------------------------------------------------------------


def test_the_words_net_predicts_as_the_table_does() -> None:
    images, labels = sentences(60), np.arange(60) % 2
    table = nb.log_means(1 + nb.group_counts(images, labels, 2, WORDS))
    net = build("naive_bayes_words", 2, 2, (1, 12), vocabulary=WORDS)
    set_words(net, torch.from_numpy(table))
    logits = predict(net, torch.from_numpy(images))
    assert np.allclose(logits.numpy(), counted(images) @ table.T, atol=1e-4)
    features, _ = features_and_logits(net, torch.from_numpy(images).float() / 255)
    assert np.array_equal(features.numpy(), counted(images))


def test_every_word_number_survives_the_way_to_a_float() -> None:
    pairs = np.arange(5_002)
    images = np.stack([pairs // 256, pairs % 256])[None, :, None].astype(np.uint8)
    net = build("naive_bayes_words", 2, 2, (1, 5_002))
    assert net.forward_features(torch.from_numpy(images).float() / 255).tolist() == [[1.0] * 5_000]


def test_the_gaussian_net_predicts_as_the_scores_do() -> None:
    random = np.random.default_rng(0)
    features, labels = random.uniform(size=(60, 4)), np.arange(60) % 2
    fitted = nb.gaussian_posterior(features, labels, 1, nb.flat_prior(3, 4), 1e-2)
    net = build("naive_bayes_pixels", 3, 1, 2)
    head = net.get_classifier()
    assert isinstance(head, GaussianHead)
    set_gaussians(head, *(torch.from_numpy(a[0]) for a in (fitted.mean, fitted.variance, fitted.known)))
    logits = predict(net, torch.from_numpy(features.reshape(-1, 1, 2, 2))).numpy()
    scores = nb.gaussian_scores(features, fitted, features.mean(0))[:, 0]
    assert np.allclose(logits[:, :2], scores[:, :2], atol=1e-3)
    assert (logits[:, 2] == np.float32(NEVER)).all()


@pytest.mark.parametrize("name", ["text_cnn", "naive_bayes_words"])
def test_nets_refuse_images_that_are_no_sentences(name: str) -> None:
    with pytest.raises(BenchError, match=f"{name} takes sentences"):
        build(name, 10, 1, 28)
    with pytest.raises(BenchError, match="text data set"):
        build(name, 2, 2, (1, 8))(torch.rand(3, 3, 8, 8))


def test_text_cnn_is_table_4s() -> None:
    net = build("text_cnn", 2, 2, (1, 64))
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert shapes["embedding.weight"] == (5_002, 50)
    assert shapes["convolution.weight"] == (250, 50, 3)
    assert shapes["hidden.0.weight"] == (250, 250)
    assert shapes["head.weight"] == (2, 250)
    images = torch.from_numpy(sentences(5)).float() / 255
    features, logits = features_and_logits(net.eval(), images)
    assert features.shape == (5, 250)
    assert logits.shape == (5, 2)
    bare = build("text_cnn", 0, 2, (1, 64)).eval()
    bare.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith(("hidden", "head"))})
    assert torch.equal(bare(images), net.forward_features(images))
    assert model_options("text_cnn", 2, 2, (1, 64))["img_size"] == [1, 64]


def test_padding_does_not_change_a_sentences_features() -> None:
    net = build("text_cnn", 0, 2, (1, 12)).eval()
    short = torch.from_numpy(sentences(6)).float() / 255
    long = torch.cat([short, torch.zeros(6, 2, 1, 30)], dim=3)
    assert torch.allclose(net(short), net(long), atol=1e-6)


@pytest.mark.parametrize("name", ["text_cnn", "naive_bayes_words"])
def test_nets_train_are_released_and_come_back(name: str, tmp_path: Path) -> None:
    facts = Facts("movie-review", 80, 10, 10, 2, (2, 1, 12))
    net, options = make_student(name, facts, torch.Generator().manual_seed(0))
    images = torch.from_numpy(sentences(80))
    labels = torch.from_numpy((counted(sentences(80))[:, :15].sum(1) > 4).astype(np.int64))
    fitting = FitSettings(steps=60, batch_size=20, optimizer="adam", lr=0.01)
    fit(net, images, labels, fitting, torch.Generator().manual_seed(1))
    assert accuracy(net, images, labels) > 0.9
    last = images.contiguous(memory_format=torch.channels_last)
    assert torch.equal(predict(net, images), predict(net, last))
    save_released(Released(net, name, options), tmp_path / "x.safetensors")
    again = load_released(tmp_path / "x.safetensors")
    assert torch.equal(predict(net, images), predict(again.student, images))
