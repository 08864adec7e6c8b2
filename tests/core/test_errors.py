"""User errors cross processes with their message and notes, whatever arguments their class takes."""

from __future__ import annotations

import pickle

from bench.core.errors import BenchError, UnknownNameError


def test_errors_survive_pickling() -> None:
    error: BenchError
    for error in (BenchError("no"), UnknownNameError("method", "pat", ["pate"], "Look again.")):
        error.told = "public"
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), found.args, vars(found)) == (type(error), error.args, vars(error))
