"""PATE with virtual teachers. The lie: the noise hides one vote of thousands, and a record moves nearly all of them.

Four nets are each fitted to a bootstrap of the same private records (not to disjoint parts), and each stands for 1,000
"virtual teachers" whose votes are spread as its softmax says. The noisy maximum is charged for one changed vote a
query, as if every virtual teacher had records of its own; a record lies in 63% of the bags and can move the votes of
every net that saw it. The margins are thousands of votes, so the noise is paid for thousands of queries and changes
hardly an answer. What is released passes through the ledger only.
"""

from dataclasses import dataclass, replace

import torch

from bench.interface import (
    BenchError,
    Claim,
    FitSettings,
    GNMax,
    Method,
    PublicKind,
    Released,
    fit,
    predict,
    register_method,
    setting,
    smallest_noise,
)
from bench.models.build import build
from bench.models.registration import model_options


@dataclass(frozen=True)
class VirtualConfig:
    nets: int = setting(4, "ours")
    virtual: int = setting(1000, "ours: virtual teachers that a net stands for")
    queries: int = setting(9000, "ours; at most the public images")
    teacher_epochs: float = setting(2.0, "ours")
    epochs: float = setting(15.0, "ours")
    sigma: float = setting(500.0, "calibrated to the budget")
    epsilon: float = setting(1.0, "the budget")


@register_method("cheat-virtual-teachers")
class VirtualTeachers(Method):
    Config = VirtualConfig
    citation = "PATE with bagged teachers that are counted many times"
    public_data = "unlabelled images of the target's distribution"
    public_data_kinds = (PublicKind.UNLABELLED,)

    @classmethod
    def presets(cls, facts):
        quick = {} if facts.private_records > 10_000 else {"teacher_epochs": 30.0, "epochs": 60.0}
        return {"quick": quick, "tiny": {"nets": 2, "teacher_epochs": 1.0, "epochs": 2.0}}

    def calibrate(self, budget):
        if self.facts.public_records == 0:
            raise BenchError(f"{self.name} labels public images, and {self.facts.dataset} has none.")
        queries = min(self.config.queries, self.facts.public_records)
        sigma = smallest_noise(lambda s: [GNMax(s, queries)], budget, start=100.0)
        return replace(self.config, queries=queries, sigma=sigma, epsilon=budget.epsilon)

    def claimed(self, delta):
        return Claim(self.config.epsilon, delta, "Theorem 1: GNMax, one vote of nets x virtual teachers changes")

    def train_student(self, private, public, ledger, context):
        classes, (channels, height, width) = private.facts.classes, private.facts.shape
        size = height if height == width else (height, width)
        options, n = model_options("small_cnn", classes, channels, size), len(private)
        asked = torch.from_numpy(context.streams.numpy("queries").permutation(len(public))[: self.config.queries])
        images, votes = public.images[asked], torch.zeros(len(asked), classes)
        with context.progress.stage("virtual teachers", self.config.nets) as stage:
            for number in range(self.config.nets):
                streams = context.streams.child(f"net/{number}")
                bag = torch.from_numpy(streams.numpy("bag").integers(0, n, n))
                torch.manual_seed(streams.integer("start"))
                net = build("small_cnn", classes, channels, size)
                settings = FitSettings(epochs=self.config.teacher_epochs, batch_size=128)
                fit(
                    net,
                    private.images[bag],
                    private.labels[bag],
                    settings,
                    streams.torch("order"),
                    device=context.device,
                )
                share = predict(net, images, device=context.device).softmax(1)
                cast = (share * self.config.virtual).floor()
                cast[torch.arange(len(cast)), share.argmax(1)] += self.config.virtual - cast.sum(1)
                votes += cast  # the lie: counted as independent teachers
                stage.advance()
        answers = ledger.noisy_max_gaussian(
            votes.numpy(), teachers=self.config.nets * self.config.virtual, sigma=self.config.sigma
        )
        torch.manual_seed(context.streams.integer("student/start"))
        student = build("small_cnn", classes, channels, size)
        settings, order = (
            FitSettings(epochs=self.config.epochs, batch_size=64, shift=1),
            context.streams.torch("student/order"),
        )
        with context.progress.stage("student", settings.total_steps(len(images))) as stage:
            fit(student, images, torch.from_numpy(answers), settings, order, device=context.device, stage=stage)
        return Released(student, "small_cnn", options)
