"""The package's metadata: one version, and how to cite it."""

from __future__ import annotations

import re
import tomllib

import yaml

import bench
from helpers.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    attribute = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    path = ROOT / f"{attribute.rpartition('.')[0].replace('.', '/')}.py"
    (stated,) = re.findall(r'^__version__ = "(.+)"$', path.read_text(), flags=re.MULTILINE)
    assert stated == bench.__version__
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == bench.__version__


def test_the_citation_names_this_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # all that the format requires
    assert citation["title"] == PROJECT["project"]["name"]
    assert citation["version"] == bench.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"] == [{"name": "private-student-bench maintainers"}]
