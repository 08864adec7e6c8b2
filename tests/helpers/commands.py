"""The command line in this process: the output and status of `python -m bench`, without a new interpreter."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from bench.cli.main import main
from bench.interface.registry import ATTACKS, METHODS, PLUGIN


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, named as `subprocess.CompletedProcess` does."""

    returncode: int
    stdout: str
    stderr: str


@contextmanager
def registries_restored() -> Iterator[None]:
    """Unregister, at the end, the plug-ins registered in between."""
    before = set(sys.modules)
    with ExitStack() as stack:
        for registry in (METHODS, ATTACKS):
            for name in registry.names():
                registry.get(name)  # a module that is imported later registers nothing when it is imported again
            stack.enter_context(mock.patch.dict(registry.members))  # the only way to unregister
            stack.enter_context(mock.patch.dict(registry.broken))
        try:
            yield
        finally:
            for name in [name for name in set(sys.modules) - before if name.startswith(PLUGIN)]:
                del sys.modules[name]


def bench(*words: str | Path) -> Done:
    """Run ``python -m bench WORDS`` here. Restores torch's settings, the environment and the registries.

    Tests of signals, of killed processes and of the entry point itself start a process instead.
    """
    output, errors = io.StringIO(), io.StringIO()
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as stack:
        stack.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
        stack.callback(torch.set_num_threads, threads)
        stack.enter_context(registries_restored())
        stack.enter_context(mock.patch.dict(os.environ))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(mock.patch.object(sys, "argv", ["bench", *map(str, words)]))
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(redirect_stderr(errors))
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return Done(status, output.getvalue(), errors.getvalue())


def refused(*words: str) -> str:
    """Return the error output of a command that must fail with status 2 and a single message."""
    done = bench(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
