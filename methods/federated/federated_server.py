"""The base of federated methods whose server makes images and distils the clients' models on them."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from bench.interface import Context, Facts, Ledger, PrivateData, PublicData, Released, make_student
from bench.methods.federated.family import Federated, client_parts, first_models, net_of, quick_clients
from bench.methods.federated.server_distillation import Ensemble, Server, Synthesiser, distil
from bench.methods.shared.settings_checks import SHOWN, student_depends


class DistillingServer(Federated):
    """One round: clients send their models, the server makes images from them and distils them into a student."""

    bypass = "the student and the images it learns from are made from the clients' models without noise"
    quick_server: ClassVar[Mapping[str, Any]]
    """The changes of ``quick`` for the server."""
    tiny_server: ClassVar[Mapping[str, Any]]
    """The further changes of ``tiny`` for the server."""

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        quick = {**quick_clients(facts), **cls.quick_server}
        tiny = {"clients": 3, "local_epochs": 1.0, "epochs": 2, "batch": 16}
        return {"quick": quick, "tiny": {**quick, **tiny, **cls.tiny_server}}

    @abc.abstractmethod
    def synthesiser(self, server: Server) -> Synthesiser:
        """Return the maker of the images."""

    def train_student(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Released:
        """Train local models, then a student on images made from them, declared as a bypass."""
        ledger.bypass(self.bypass)
        facts, streams = private.facts, context.streams
        student, options = make_student(self.config.student, facts, streams.torch("student/start"))
        parts = client_parts(self.config.clients, self.config.concentration, private, context)
        models = [
            net_of(self.config, facts, state, context) for state in first_models(self.config, private, parts, context)
        ]
        random = streams.torch("server")
        server = Server(Ensemble(models).eval(), student.to(context.device), facts, random, context.device)
        depends = {"method": self.name, **student_depends(self.config, context)}
        with context.stage("server", depends, self.config.epochs, "distillation") as (checkpoint, stage):
            images = distil(self.config, server, self.synthesiser(server), stage, checkpoint)
        return Released(student, self.config.student, options, extras={"synthetic_images": images[:SHOWN]})
