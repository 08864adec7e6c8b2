"""What identifies a plug-in: its distribution, its version, and a hash of the modules that it is made of."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bench.core.errors import BenchError
from bench.core.rows import Plugin
from bench.interface.plugin_source import plugin_of
from bench.interface.registry import METHODS
from helpers.plugins import install, source

TREE = {
    "pkg/__init__.py": "",
    "pkg/sub/__init__.py": "from . import near\n",
    "pkg/sub/near.py": "x = 1\n",
    "pkg/sub/method.py": "import numpy\nfrom ..tools import helper\nclass M:\n def f(self):\n  from pkg import late\n",
    "pkg/tools.py": "import beside\nfrom bench.core import types\ndef helper(): ...\n",
    "pkg/late.py": "",
    "pkg/unused.py": "",
    "beside.py": "",
    "stranger.py": "",
}
USED = set(TREE) - {"pkg/unused.py", "stranger.py"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def digest(name: str = "pkg.sub.method") -> Plugin:
    for module in [m for m in sys.modules if m.partition(".")[0] in ("pkg", "beside")]:
        del sys.modules[module]
    importlib.invalidate_caches()
    found = plugin_of(importlib.import_module(name).M)
    assert found is not None
    return found


@pytest.mark.parametrize("name", sorted(TREE))
def test_an_edit_of_any_module_that_is_imported_gives_another_hash(tree: Path, name: str) -> None:
    before = digest()
    assert before == digest()
    assert (before.distribution, before.version) == ("", "")
    (tree / name).write_text(f"{TREE[name]}\n# edited\n")
    assert (digest() != before) == (name in USED)


def test_in_a_folder_of_many_distributions_only_its_own_modules_count(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tree, "")
    before = digest()
    (tree / "beside.py").write_text("y = 2\n")
    assert digest() == before
    (tree / "pkg" / "tools.py").write_text("def helper(): return 2\n")
    assert digest() != before


def test_an_installed_plugin_names_its_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, source().replace('@register_method("noisy-means")\n', "")))
    found = plugin_of(importlib.import_module("noisy_means.method").NoisyMeans)
    sys.modules.pop("noisy_means.method")
    assert found is not None
    assert (found.distribution, found.version) == ("noisy-means-plugin", "1.0")


def test_methods_of_this_project_are_no_plugins() -> None:
    """Nor are a fork's in `methods/`: the keys of all committed records stay."""
    own = [method for method in map(METHODS.get, METHODS.names()) if method.__module__.startswith("bench.methods.")]
    assert {plugin_of(method) for method in own} == {None}


def test_a_class_without_a_file_is_refused() -> None:
    nowhere = type("Nowhere", (), {"__module__": "typed.in"})
    with pytest.raises(BenchError, match="Define it in a Python file"):
        plugin_of(nowhere)


def test_a_module_that_cannot_be_parsed_is_named(tree: Path) -> None:
    (tree / "pkg" / "late.py").write_text("def (")
    with pytest.raises(BenchError, match=r"late\.py, which a plug-in imports, is not valid Python"):
        digest()
