"""What `mkdocs build` needs besides its settings: the pages lie in the repository as the site shows them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/**/*.md",
    "leaderboards/*.md",
    "docs/pictures/*",
    "docs/schemas/*",
    "docs/*.css",
    "leaderboards/*.csv",
    "leaderboards/*.svg",
)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")
ROLE = re.compile(r":\w+:`~?([^`]+)`")


def on_files(files: Files, *, config: Any) -> Files:
    """Replace the pages of docs/ by those of the repository, at their places there, so that their links hold."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for path in sorted((ROOT / "docs").glob("*.ipynb")):
        page = path.relative_to(ROOT).with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=_notebook(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links to notebooks at their pages, and leave links to other files of the repository as text."""

    def link(found: re.Match[str]) -> str:
        text, target, _ = found.groups()
        name = os.path.normpath(os.path.join(os.path.dirname(page.file.src_uri), target))
        if name.endswith(".ipynb"):
            return f"[{text}]({target.removesuffix('.ipynb')}.md)"
        if files.get_file_from_path(name) is None and (ROOT / name).exists():
            return text
        return found[0]

    return LINK.sub(link, markdown)


def _notebook(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if picture := data.get("image/png"):
                parts.append(f"![plot](data:image/png;base64,{picture.strip()})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain'])}\n```")
    return "\n\n".join(parts)


class PlainRoles(griffe.Extension):
    """Shows Sphinx's cross references of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
