"""Groups of methods that `--methods` accepts: they follow from the classes, and leave out what cannot run."""

from __future__ import annotations

from pathlib import Path

from bench.interface.registry import METHODS, groups_of, method_groups, methods_named
from helpers.commands import bench


def test_groups_follow_from_unit_and_base_classes() -> None:
    assert groups_of(METHODS.get("trpate-gnmax")) == {"record", "transfer", "pate-family"}
    assert groups_of(METHODS.get("fed-dpsd")) == {"client", "federated"}
    assert groups_of(METHODS.get("nonprivate")) == set(), "it has no unit of privacy"
    groups = method_groups()
    assert groups["client"] == ["dp-fedavg", "fed-dpsd"]
    assert groups["federated"] == ["dense", "dp-fedavg", "fed-adi", "fed-dafl", "fed-dpsd", "fedavg", "feddf"]
    assert next(iter(groups.items())) == ("all", METHODS.names())
    assert all(name in METHODS for names in groups.values() for name in names)
    assert not set(groups) & set(METHODS.names()), "a method's name would hide the group"


def test_a_method_named_itself_stays_so_in_any_order() -> None:
    for words in (("pate", "client", "dp-sgd"), ("dp-sgd", "client", "dp-sgd")):
        assert methods_named(words)["dp-sgd"]
        assert methods_named(words)["fed-dpsd"] is False
    assert list(methods_named(["dpsd", "client"])) == ["dpsd", "dp-fedavg", "fed-dpsd"]
    assert methods_named(["some.py", "unknown"]) == {"some.py": True, "unknown": True}


def test_what_cannot_run_is_left_out_of_a_group_and_refused_by_name(tmp_path: Path) -> None:
    # The PATE methods' tiny presets do not reach an epsilon of 0.001; gnmax asks at least one query.
    words = ("-d", "digits", "-e", "0.001", "-p", "tiny", "--dry-run", "-o", str(tmp_path))
    group, alone = bench("run", "-m", "pate-family", *words), bench("run", "-m", "pate-gnmax", *words)
    assert "left out: pate-gnmax on digits, eps 0.001 claimed: " in group.stderr
    assert "pate-gnmax" not in group.stdout
    assert "refused" in alone.stdout
