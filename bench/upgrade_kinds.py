"""Kinds of public data of records that were written before records had a field for them.

Newer records state what their method declares; see :class:`bench.interface.PublicKind`. Older ones have words alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.interface import PublicKind

if TYPE_CHECKING:
    from bench.record import Record

ON_A_BACKBONE = frozenset(
    {"dp-linear", "dp-linear-gd", "nonprivate-transfer", "trpate", "trpate-confident", "trpate-gnmax"}
)
"""Methods that always learn on the features of a frozen backbone, whatever their words say of its weights."""


def public_kinds_of_words(words: str, method: str = "", *, transferred: bool = False) -> list[PublicKind]:
    """Return the kinds of public data that `words`, the ``public_data`` of an old record of `method`, speak of.

    Give `transferred` where the record's config names a backbone. Never empty.
    """
    kinds = []
    lower = words.lower()
    if transferred or method in ON_A_BACKBONE or "imagenet" in lower or " trained on " in f" {lower} ":
        kinds.append(PublicKind.TRANSFERRED)
    if "prior from" in lower or ("labelled" in lower.replace("unlabelled", "") and not kinds):
        kinds.append(PublicKind.LABELLED)
    if "unlabelled" in lower:
        kinds.append(PublicKind.UNLABELLED)
    if "private" in lower:
        kinds.append(PublicKind.PRIVATE_IMAGES)
    if kinds:
        return kinds
    if lower.strip() in ("", "none"):
        return [PublicKind.NONE]
    return [PublicKind.NOT_STATED if "not stated" in lower else PublicKind.OTHER]


def public_kinds_of(record: Record) -> list[PublicKind]:
    """Return the kinds that `record` states, or those that its words speak of where it states none."""
    return list(record.public_kinds) or public_kinds_of_words(
        record.public_data, record.method, transferred=bool(record.config.get("backbone"))
    )
