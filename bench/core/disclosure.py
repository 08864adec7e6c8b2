"""Rules on what may leave a private data set: what is printed, recorded and drawn, and who may read the files.

A public benchmark has nothing to hide. For any other data set, only what the ledger releases may be shown; everything
else stays in the run directory's cache (mode 0700 for all data) or is dropped.

Other modules ask a :class:`Disclosure` one of the questions below, never whether the data is public, so that this file
alone decides the answer: `Facts.disclosure` and `Record.disclosure`.
"""

from __future__ import annotations

from dataclasses import dataclass

PRIVATE_FIGURES = "measured on private records: keep these figures private, or account for them"
"""Note on a record of an attack or audit, which measures private data without noise by design."""


class _IfPublic:
    """An answer that is yes for a public benchmark, and no for other data."""

    def __get__(self, policy: Disclosure, owner: type) -> bool:
        return policy.public_benchmark


@dataclass(frozen=True, slots=True)
class Disclosure:
    """The policy for one data set, which is a public benchmark or not."""

    public_benchmark: bool

    data_figures = _IfPublic()
    """Whether records may state noiseless figures of private data, such as a data-dependent epsilon."""
    test_labels = _IfPublic()
    """Whether records may state figures of the test records beyond the accuracy, such as class frequencies."""
    pool_labels = _IfPublic()
    """Whether the held-back labels of the public pool are public too."""
    messages = _IfPublic()
    """Whether records may quote exceptions and tracebacks, whose text may hold records or their file names."""
    exact_costs = _IfPublic()
    """Whether records may state the exact start, time and memory, which may depend on the data."""
    noise_salt = _IfPublic()
    """Whether the salt of the noise may be chosen and recorded; whoever knows it can subtract the noise."""
    pictures = _IfPublic()
    """Whether pictures may show records, reconstructions by nets without privacy, and names of classes."""
    publishable = _IfPublic()
    """Whether a row of the board may come from the data."""

    @property
    def owner_only(self) -> bool:
        """Whether only the owner may read records, released files, logs and pages (mode 0600 in folders of 0700)."""
        return not self.public_benchmark

    @property
    def file_mode(self) -> int:
        """The mode of a file with results."""
        return 0o600 if self.owner_only else 0o644

    @property
    def withheld(self) -> str:
        """A description of what records leave out; "" for nothing."""
        if self.public_benchmark:
            return ""
        return (
            "epsilons that depend on the records, class frequencies, answers' accuracy, exact times, the noise's salt, "
            "pictures, texts of errors; no row can be published; files are readable by you alone"
        )

    def log(self, key: str) -> str:
        """Return the traceback's place in a run directory: the cache, which is never published, for private text."""
        return f"logs/{key}.log" if self.messages else f"cache/{key}.log"
