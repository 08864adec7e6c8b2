"""Methods on features of a public frozen backbone. Private images' features leave only through the ledger."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import timm
import torch
from numpy.typing import NDArray

from bench.core.plain_files import user_path
from bench.core.seeds import seeded
from bench.data.datasets import all_datasets, get_dataset, load
from bench.data.index_hash import ranks
from bench.data.known_overlaps import overlap
from bench.data.own_arrays import is_features
from bench.data.splits import map_images
from bench.data.text import is_text, windows
from bench.interface import BenchError, Context, Facts, FitSettings, Method, PublicData, PublicKind, setting
from bench.models.frozen_backbone import BackboneSpec, FrozenBackbone, FrozenTransfer, make_head, random_backbone
from bench.models.pretrained import check_backbone, find_weights, image_size_problem, load_backbone, weights_by_digest
from bench.models.registration import check_model
from bench.models.timm_hub import trained_on
from bench.models.weight_packages import NO_DATA, PACKAGES
from bench.storage.cache import digest_of
from bench.training.pretraining import LazyImages, train_source

PAPER = "TrPATE (IEEE Access 2019)"
SOURCE = "source"
UNLABELLED = "unlabelled images of the target's distribution"
TEXT_NETS = ("text_cnn",)
AS_GIVEN: dict[str, Any] = {"backbone": "features", "weights": "random", "image_size": 0}
"""Settings for data that already are features."""
NO_SOURCE = (
    "weights=source needs a labelled public source, and {} comes with none. Name another data set by "
    "weights=source:NAME, or take pretrained weights."
)
WINDOW = 20  # words per piece of a source's long records, the length of the paper's sentences (section V.B)


@dataclass(frozen=True)
class TransferConfig:
    """Backbone, public weights and image size. Defaults are TrPATE's for CIFAR-10."""

    backbone: str = setting("resnet50_keras", f"{PAPER}, section V.A.1: ResNet50 without its top layer, on ImageNet")
    weights: str = setting(
        "auto", "ours: auto (a package where one is known, else timm's hub), package, hub, file:PATH, random, source "
        "(trained here on the data set's labelled public source) or source:NAME (on another data set)"
    )  # fmt: skip
    weights_sha256: str = setting("", "ours: the expected SHA-256 of the weights; filled in for packages and files")
    image_size: int = setting(
        197, f"{PAPER}, section V.A.1: 32 x 32 images are resized to 197 x 197; 0: the size that pretrained weights "
        "are for, or the data's if the weights are drawn or trained here", ge=0,
    )  # fmt: skip
    precision: Literal["float32", "bfloat16"] = setting("float32", "the paper does not say; bfloat16 is twice as fast")
    source_fraction: float = setting(
        1.0, f"{PAPER}, section V.A.2: ImageNet1x, 0.5x and 0.1x; for sources trained on here", gt=0, le=1
    )
    source_epochs: float = setting(10.0, "ours: the paper does not say how long it trains on its sources", gt=0)

    fraction_of_prior: ClassVar[bool] = False  # whether `source_fraction` also applies to a prior's source

    def check(self) -> None:
        """Raise :class:`BenchError` if a fraction of a source is set without a source."""
        if self.source_fraction != 1 and not self.trained_here and not self.fraction_of_prior:
            raise BenchError(
                "source_fraction selects part of a source that the backbone is trained on here: set "
                "weights=source or source:NAME."
            )

    @property
    def trained_here(self) -> bool:
        """Whether the backbone is trained here, on a public source."""
        return self.weights == SOURCE or self.weights.startswith(f"{SOURCE}:")


T = TypeVar("T", bound=TransferConfig)


class OnBackbone(Method):
    """A method on the features of a frozen public backbone, mixed in before its other base classes."""

    groups = ("transfer",)
    public_data = "a frozen backbone trained on public data"
    public_data_kinds: ClassVar[tuple[PublicKind, ...]] = (PublicKind.TRANSFERRED,)
    _loaded: FrozenBackbone | None = None

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`: a small backbone at a small size, or a small random net."""
        if is_features(facts.shape):
            return dict.fromkeys(("paper", "quick", "tiny"), AS_GIVEN)
        small = max(facts.shape[1:]) <= 28
        quick = {"backbone": "tf_efficientnet_lite0", "image_size": 96 if small else 128, "precision": "bfloat16"}
        paper: dict[str, Any] = {}
        if is_text(facts.shape):  # one epoch over long reviews; more would overfit to their words
            paper = {"backbone": "text_cnn", "weights": SOURCE, "image_size": 0, "source_epochs": 1.0}
        return {"paper": paper, "quick": quick, "tiny": {**AS_GIVEN, "backbone": "small_cnn"}}

    def shares(self, seed: int) -> tuple[str, ...]:
        """Return the name of the features, shared by cells with the same backbone."""
        names = [field.name for field in dataclasses.fields(TransferConfig)]
        meant = {name: getattr(self.config, name) for name in names}
        return (f"features of {self.facts.dataset}, {digest_of(meant)}",)

    def public_words(self) -> str:
        unlabelled = [UNLABELLED] if PublicKind.UNLABELLED in self.public_data_kinds else []
        if uses_no_data(self.config):
            return "; ".join(unlabelled) or "none"
        return "; ".join([words_of(self.config, self.facts), *unlabelled])

    def public_kinds(self) -> tuple[PublicKind, ...]:
        """See :meth:`bench.interface.Method.public_kinds`: a backbone trained on no data set is not public data."""
        if not uses_no_data(self.config):
            return self.public_data_kinds
        others = tuple(kind for kind in self.public_data_kinds if kind is not PublicKind.TRANSFERRED)
        return others or (PublicKind.NONE,)

    def backbone(self, public: PublicData, context: Context) -> FrozenBackbone:
        """Return the backbone, loaded once: an instance serves one cell."""
        if self._loaded is None:
            self._loaded = backbone_of(self.config, self.facts, public, context)
        return self._loaded


def with_digest(config: T, facts: Facts) -> T:
    """Return `config` with its weights named by origin and SHA-256, as far as these are known before a fetch.

    A file is named without its folder and found again by its digest. Raises :class:`BenchError` for an unknown
    backbone, one that cannot take images of the size, and a file that is missing or has another digest.
    """
    config.check()
    if config.weights == "random" or config.trained_here:
        check_model(config.backbone)
        if is_text(facts.shape) != (config.backbone in TEXT_NETS):
            kind, fit = ("sentences", ", ".join(TEXT_NETS)) if is_text(facts.shape) else ("images", "a net of images")
            raise BenchError(f"{facts.dataset} holds {kind}, which {config.backbone} does not take. Use {fit}.")
        if config.trained_here:
            _check_source(config, facts)
        return config
    check_backbone(config.backbone)
    if facts.shape[0] not in (1, 3):
        raise BenchError(
            f"{facts.dataset} has {facts.shape[0]} channels, and {config.weights} weights are for images of three. Use "
            "--set weights=source where the data set has a labelled public source."
        )
    if config.image_size and (problem := image_size_problem(config.backbone, config.image_size)):
        raise BenchError(f"{problem.rstrip('.')}. Use another --set image_size=N, or another --teacher.")
    origin = config.weights
    if origin not in ("auto", "package", "hub") and not origin.startswith("file:"):
        raise BenchError(
            f"weights={origin} is not understood: write auto, package, hub, file:PATH, random, source or source:NAME."
        )
    if origin == "package" and config.backbone not in PACKAGES:
        raise BenchError(
            f"no package with weights of {config.backbone} is known; there is one for {', '.join(PACKAGES)}. Use "
            "weights=hub or weights=file:PATH."
        )
    if origin == "auto":
        origin = "package" if config.backbone in PACKAGES else "hub"
    if origin == "package":
        known = PACKAGES[config.backbone].sha256
        if config.weights_sha256 not in ("", known):
            raise BenchError(
                f"the package's weights of {config.backbone} have SHA-256 {known}, not "
                f"{config.weights_sha256}. Leave weights_sha256 out, or name the file that has it by weights=file:PATH."
            )
        return dataclasses.replace(config, weights="package", weights_sha256=known)
    # A name that is not a file here comes from an earlier plan; the file is found by its digest.
    if origin.startswith("file:") and (not config.weights_sha256 or user_path(origin[5:]).is_file()):
        found = find_weights(config.backbone, origin, config.weights_sha256)
        return dataclasses.replace(config, weights=f"file:{found.path.name}", weights_sha256=found.sha256)
    return dataclasses.replace(config, weights=origin)


def uses_no_data(config: TransferConfig) -> bool:
    """Return whether the backbone was pretrained on no record of any data set."""
    shipped = config.weights in ("auto", "package") and config.backbone in PACKAGES
    return shipped and PACKAGES[config.backbone].trained_on == NO_DATA


def _check_source(config: TransferConfig, facts: Facts) -> None:
    """Refuse a source that is missing, or that is the private data set, under any name."""
    _, _, name = config.weights.partition(":")
    private = all_datasets().get(facts.dataset)
    if not name:
        if private is not None and private.labelled is None:
            raise BenchError(NO_SOURCE.format(facts.dataset))
        return
    source = get_dataset(name)
    if name == facts.dataset or (private is not None and source.store == private.store):
        raise BenchError(
            f"weights={config.weights}: the public source would be the private data set itself, or hold it: both are "
            f"of {source.store}. Name another data set."
        )


def words_of(config: TransferConfig, facts: Facts) -> str:
    """Return a text for the row on the public source of `config` and its possible overlap with the data."""
    if config.weights == "random" and config.backbone == AS_GIVEN["backbone"]:
        return "whatever the features were made with (not examined)"
    if config.weights == "random":
        return f"an untrained {config.backbone}, drawn from a public seed"
    if config.trained_here:
        name, shared = _source_words(config, facts)
        part = "" if config.source_fraction == 1 else f"{config.source_fraction:g} of "
        return f"{config.backbone} trained on {part}{name}, labelled and public (overlap: {shared})"

    if config.weights.startswith("file:"):
        return f"weights of {config.backbone} from a user's file (source not stated; overlap: not examined)"
    if config.weights == "package" and config.backbone in PACKAGES:
        source = PACKAGES[config.backbone].trained_on
    else:
        known = timm.get_pretrained_cfg(config.backbone)  # without a tag, timm uses its default
        source = "" if known is None else trained_on(str(known.tag or ""))
    named = {"imagenet": "ImageNet", "": "public weights of unstated source"}.get(source, source)
    return f"{named} through {config.backbone} (overlap: {overlap(source, facts.dataset)})"


def _source_words(config: TransferConfig, facts: Facts) -> tuple[str, str]:
    _, _, name = config.weights.partition(":")
    if name:
        return name, overlap(name, facts.dataset)
    spec = all_datasets().get(facts.dataset)
    if spec is None or spec.labelled is None:
        return "a labelled source", "not examined"
    return spec.labelled.name, spec.labelled.overlap


def backbone_of(config: TransferConfig, facts: Facts, public: PublicData, context: Context) -> FrozenBackbone:
    """Return the frozen backbone of `config`, fetched, drawn or trained; raise BenchError without matching weights."""
    if config.weights == "random":
        frozen = random_backbone(config.backbone, facts.shape[0], config.image_size, facts.shape, seed=0)
    elif config.trained_here:
        frozen = _trained_here(config, facts, public, context)
    else:
        spec = public_spec(config, context)
        return FrozenBackbone(spec, load_backbone(weights_by_digest(spec.name, spec.sha256), spec.size))
    context.note(_told(frozen.spec))
    return frozen


def public_spec(config: TransferConfig, context: Context) -> BackboneSpec:
    """Return the spec of the pretrained backbone of `config`, its weights fetched and noted; BenchError if missing."""
    if config.weights.startswith("file:") and config.weights_sha256:
        found = weights_by_digest(config.backbone, config.weights_sha256)
    else:
        say = _teller(config.backbone, context)
        found = find_weights(config.backbone, config.weights, config.weights_sha256, progress=say)
    spec = BackboneSpec(
        found.backbone, found.origin, found.sha256, found.source, found.trained_on,  # type: ignore[arg-type]
        config.image_size or found.size, found.mean, found.std, 3, config.precision == "bfloat16",
    )  # fmt: skip
    context.note(_told(spec))
    return spec


def _told(spec: BackboneSpec) -> str:
    size = f" at {spec.size} px" if spec.size else ""
    return f"backbone {spec.name}{size}: {spec.source}, SHA-256 {spec.sha256}"


def _teller(backbone: str, context: Context) -> Any:
    last = [""]

    def say(what: str, done: int, total: int | None) -> None:
        if what != last[0]:
            last[0] = what
            context.progress.say(f"{backbone}: {what}")

    return say


def _trained_here(config: TransferConfig, facts: Facts, public: PublicData, context: Context) -> FrozenBackbone:
    images, labels, classes, name, revision = source_records(config, facts, public)
    if is_text(facts.shape) and isinstance(images, torch.Tensor) and images.shape[1:] != facts.shape:
        pieces, piece_labels = windows(images.numpy(), labels.numpy(), WINDOW)
        images, labels = torch.from_numpy(pieces), torch.from_numpy(piece_labels)
    # Settings are ours, because the paper gives none.
    settings = FitSettings(epochs=config.source_epochs, batch_size=64, optimizer="adam", lr=1e-3)
    return train_source(
        config.backbone, images, labels, classes, name, revision, settings, config.image_size, facts, context,
        fraction=config.source_fraction, bf16=config.precision == "bfloat16",
    )  # fmt: skip


def source_records(
    config: TransferConfig, facts: Facts, public: PublicData
) -> tuple[torch.Tensor | LazyImages, torch.Tensor, int, str, str]:
    """Return images, labels, number of classes, name and revision of a part, drawn by class (section V.A.2)."""
    _, _, name = config.weights.partition(":")
    if not name:
        if public.labelled is None:
            raise BenchError(NO_SOURCE.format(facts.dataset))
        source = public.labelled
        kept = torch.from_numpy(source_part(source.labels.numpy(), config.source_fraction, source.name))
        # Stored with the private set, so its revision is already in every cache key.
        return source.images[kept], source.labels[kept], facts.classes, source.name, ""

    _check_source(config, facts)
    loaded = map_images(load(name))
    which = source_part(loaded.train.labels, config.source_fraction, name)
    labels = torch.from_numpy(loaded.train.labels[which])
    # Records name a user's folder, not its path.
    public_name = f"folder:{Path(name[7:]).name}" if name.startswith("folder:") else name
    return LazyImages(loaded.train, which), labels, loaded.spec.classes, public_name, loaded.revision


def source_part(labels: NDArray[np.int64], fraction: float, name: str) -> NDArray[np.int64]:
    """Return the sorted positions of a `fraction` of each class's records, chosen by a hash of index and `name`.

    Drawn as TrPATE's ImageNet0.1x (section V.A.2); `fraction` is in (0, 1].
    """
    order = ranks(name, len(labels), "source fraction")
    kept = []
    for label in np.unique(labels):
        own = order[labels[order] == label]
        kept.append(own[: max(1, round(fraction * len(own)))])
    return np.sort(np.concatenate(kept)) if kept else order


def make_transfer(
    backbone: FrozenBackbone, facts: Facts, hidden: int, generator: torch.Generator
) -> tuple[FrozenTransfer, dict[str, Any]]:
    """Return a student with a fresh dense head on `backbone`, and its timm options."""
    with seeded(generator):
        head = make_head("dense", backbone.num_features, hidden, facts.classes)
    return FrozenTransfer(backbone, head, facts.classes), transfer_options(backbone, facts, "dense", hidden)


def transfer_options(backbone: FrozenBackbone, facts: Facts, head: str, hidden: int) -> dict[str, Any]:
    """Return the timm options that rebuild a student on this backbone."""
    channels, height, width = facts.shape
    return {
        "num_classes": facts.classes, "in_chans": channels, "img_size": height if height == width else [height, width],
        **backbone.spec.options(), "head": head, "hidden": hidden,
    }  # fmt: skip
