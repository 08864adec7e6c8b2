"""SHA-256 of the decoded arrays of every data set that was fetched and looked at; see :mod:`bench.data.catalog`."""

from __future__ import annotations

PINS: dict[str, dict[str, str]] = {
    "mnist": {
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train_labels": "e474323ac02fc156161b0bbb1f8c9cfeb327a74bcd9f9680a8385269a24f566c",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test_labels": "2fd8de6bdb8d11780b4b96dc57847bcfe6953f7c32aa48bfcd8237c3b7847243",
    },
    "fmnist": {
        "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "train_labels": "e3245b63f7c40d1c8b652835f19744d970c1613b40ddac6bcfc87b9c46e16a0b",
        "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "test_labels": "d51d859896c55775b9e9e219b77ff03bcec1b6ac322f313544dc3f9e7bc94fae",
    },
    "cifar10": {
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
    },
    "chest-xray": {
        "train_images": "3cebf488d1cbe8ee0a863103634e97f6e034bd7b8567fa18486b1cd9b6a7948b",
        "train_labels": "10de11f22e32ca6be3e1e508839c7f95eb99d6c7c92b8d98ec42e6bb7b8af9b9",
        "test_images": "b1848ad89b2831271bcee4dfaadef26e3fffc32b078afbad78f32d1f33e6dae2",
        "test_labels": "22b5016198188fa06f8ebfea4520c3a1df4a550c1928a30f10ddcd447247d976",
    },
    "att-faces": {
        "train_images": "aff4764162757b34fcd8e88a72b9daeafca57bcf2df60a903f0419b5a8583b60",
        "train_labels": "db93fee61cd35fe03c7dd2de9e055a3616c8c30f98e63dc1f0ee5849cc1cf269",
        "test_images": "a1ec8b89b8889a5d6433a41663c2e56fe145ab33ce3b8d46cf74a330cff12766",
        "test_labels": "b5083ae5cb7c40a8fc1bc2d7cf41fdacd8b504c30ca664bec7a6d6de37203ad9",
    },
    "movie-review": {
        "train_images": "7e510a82a2e57c74dff8ffa53d790a4b035e7963d21c3e8fa001e431059469be",
        "train_labels": "bd84dda421eee9e8d7471e29c42b3c4a8a13f9043a04172e088ee46586163c0f",
        "test_images": "300afde496945add97489c6b159b53ba6fe8396604f98630641c98b4ab13365f",
        "test_labels": "80ddb87317a6303763df78e896488360a04478b477afb278ccbe80090a0b79d3",
        "source_images": "ead0cf0c80bec37baf5b65fbcae2b3f331ce0bdf1bb4d784d16a298eab13d9e3",
        "source_labels": "82ab65b9803953c4fd8be401ab3328d10bae787b1256f8a8f09b96d514bf3435",
    },
    "digits": {
        "train_images": "fad2ca36759b7f5642c42dd5715556f6be3b1c815f54680ebef527df5b15ee54",
        "train_labels": "c83ed9e7d5dd4057046050e142cc2ba5a78c99a1c5d8e7d59e89c4bfd55c2e4e",
        "test_images": "acaa8b7a6f81bee06e1069dde89bace2bbdd502a84b13125e2005b378ad830e1",
        "test_labels": "64bd8f5c00b2496865d81f41a9c38fb9a5625eda586b7a1516430c13cb40992a",
    },
}
