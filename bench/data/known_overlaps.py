"""Known overlaps of public sources and private data sets. The guarantee does not cover private records in both."""

from __future__ import annotations

WITH_IMAGENET = {
    "cifar10": "classes in common: all but deer; the images were collected apart, duplicates not searched",
    "cifar100": "many classes in common; the images were collected apart, duplicates not searched",
    "stl10": "STL-10's labelled images were taken from ImageNet: private records may lie in the source",
    "fmnist": "photographs of clothes in some classes; no image in common is known",
    "mnist": "no class and no image in common is known",
    "svhn": "no class and no image in common is known",
    "chest-xray": "no class and no image in common is known",
}
UNKNOWN = "not examined"


def overlap(source: str, dataset: str) -> str:
    """Return a description of the known overlap between the public `source` and `dataset`."""
    if source == dataset:
        return "the source is the private set itself"
    if source == "imagenet":
        return WITH_IMAGENET.get(dataset, UNKNOWN)
    if source == "imagenet-21k" and dataset in WITH_IMAGENET:
        return f"holds ImageNet-1k, of which: {WITH_IMAGENET[dataset]}; the rest not examined"
    return UNKNOWN
