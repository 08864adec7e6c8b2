"""An adaptive attacker's choice of settings on shadow students, and what evaluators name in noise."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from bench.attacks.mi_face import MIFace
from bench.attacks.shared.inversion import ImageFilter
from bench.core.config import Grid, Preset
from bench.core.errors import BenchError
from bench.core.options import GridOptions
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Knowledge, PrivateData
from bench.evaluation.attack.data_roles import AttackData, attack_data, fewer
from bench.evaluation.attack.inversion_tuning import settings_of, tune
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.experiments.data_source import DataSource
from bench.experiments.plan import expand
from bench.interface.registry import ATTACKS
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.training.context import Context

SOURCE = DataSource(Progress())
FACTS = SOURCE.describe("digits").facts


def mi_face(**changes: float) -> MIFace:
    kind = ATTACKS.get("mi-face")
    config = kind.Config(**{**kind.presets(FACTS)["tiny"], "steps": 15, "restarts": 1, **changes})
    made = kind(config, FACTS)
    assert isinstance(made, MIFace)
    return made


def with_others() -> AttackData:
    """Digits, of which the attacker's half stands for other people: a part trains students, the rest judges them."""
    data = fewer(attack_data("digits", SOURCE))
    assert data.disjoint is not None
    images, labels = data.disjoint
    later = torch.arange(len(labels)) % 2 == 1
    private = PrivateData(images[~later], labels[~later], FACTS)
    others = dataclasses.replace(data.material, private=private, test_images=images[later], test_labels=labels[later])
    return dataclasses.replace(data, rehearsal=others)


def test_the_present_settings_are_tried_first_and_each_once() -> None:
    tried = settings_of(mi_face(), 12, {}, 0)
    assert tried[0] == {name: getattr(mi_face().config, name) for name in MIFace.tunable}
    assert len({tuple(values.values()) for values in tried}) == len(tried) == 12
    assert tried == settings_of(mi_face(), 12, {}, 0) != settings_of(mi_face(), 12, {}, 1)
    assert all(set(values) == {"blur"} for values in settings_of(mi_face(), 3, dict.fromkeys(
        ("smoothness", "subspace", "noise"), 0.0), 0))  # fmt: skip


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"--tune 1: mi-face has \d+ settings"):
        settings_of(mi_face(), 1, {}, 0)
    network = ATTACKS.get("inversion-network")
    with pytest.raises(BenchError, match="inversion-network cannot choose its settings, it has none to tune"):
        settings_of(network(network.Config(), FACTS), 4, {}, 0)
    with pytest.raises(BenchError, match="--set fixes all that it could tune"):
        settings_of(mi_face(), 4, dict.fromkeys(MIFace.tunable, 0.0), 0)
    place = Workplace(RunDir(tmp_path), SOURCE, Progress(), AttackOptions(Preset.TINY, tune=2))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    grid = Grid(("nonprivate",), ("digits",), (1.0,), (0,), Preset.TINY)
    (cell,) = expand(grid, SOURCE.describe)
    with pytest.raises(BenchError, match="Name one with --auxiliary"):
        tune(cell, mi_face(), attack_data("digits", SOURCE), place, context)


def test_a_setting_that_works_on_shadow_students_is_chosen_over_one_that_does_not(tmp_path: Path) -> None:
    """A blur of 8 pixels on digits of 8 leaves little of a class, of which shadow students of 76% know something."""
    grid = GridOptions(methods="nonprivate", datasets="digits", preset="tiny", set_=["epochs=60"]).grid()
    (cell,) = expand(grid, SOURCE.describe)
    place = Workplace(RunDir(tmp_path), SOURCE, Progress(), AttackOptions(Preset.TINY, tune=4))
    context = Context(torch.device("cpu"), Streams(0), Cache(tmp_path / "cache", {}), Progress())
    data = with_others()
    useless = mi_face(blur=8.0)
    found = tune(cell, useless, data, place, context)
    told = found.told
    assert found.attack.config.blur != 8.0
    assert told["chosen"] == {name: getattr(found.attack.config, name) for name in MIFace.tunable}
    assert told["named"] == max(row["named"] for row in told["tried"]) > told["named_by_default"]
    assert (told["settings"], told["shadow_students"]) == (4, 2)
    assert tune(cell, useless, data, place, context).told == told
    # The target's own people play no part.
    blank = dataclasses.replace(data.material, private=dataclasses.replace(
        data.material.private, images=torch.zeros_like(data.material.private.images)))  # fmt: skip
    assert tune(cell, useless, dataclasses.replace(data, material=blank), place, context).told == told


def test_a_subspace_holds_what_the_attackers_images_span() -> None:
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(6, 1, 8, 8, generator=generator)
    other = torch.rand(3, 1, 8, 8, generator=generator)

    def look(subspace: int, blur: float = 0.0) -> ImageFilter:
        return ImageFilter(blur, subspace, known, torch.device("cpu"))

    torch.testing.assert_close(look(100)(known), known, atol=1e-5, rtol=0)
    inside = look(2)(other)
    torch.testing.assert_close(look(2)(inside), inside, atol=1e-5, rtol=0)
    assert int(torch.linalg.matrix_rank(inside.flatten(1) - known.flatten(1).mean(0), atol=1e-4)) == 2
    torch.testing.assert_close(look(2, 1.0)(known + other[:1]) - look(2, 1.0)(known),
                               look(2, 1.0).change(other[:1].expand_as(known)), atol=1e-5, rtol=0)  # fmt: skip
    assert look(0)(other) is other
    with pytest.raises(BenchError, match="subspace needs 2 or more images of the attacker"):
        ImageFilter(0.0, 5, None, torch.device("cpu"))


@pytest.mark.parametrize(("subspace", "knows"), [(0, Knowledge.NONE), (4, Knowledge.AUXILIARY)])
def test_eigenfaces_are_knowledge(subspace: int, knows: Knowledge) -> None:
    assert mi_face(subspace=subspace).knows is knows
