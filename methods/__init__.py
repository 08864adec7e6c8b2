"""Methods, in their family's folder."""

from functools import partial

from bench.core.listed import Listed

_UNLABELLED = "unlabelled images of the target's distribution"
_SOURCE = f"knowledge of a public source, and {_UNLABELLED}"
_BACKBONE = "a frozen backbone trained on public data"
_CLIENTS = "infinite: the student and the images it learns from are made from the clients' models without noise"
_SENT = "infinite: the clients send their models to the server without noise"
_DGD = (
    "infinite: DGD trains its data-free generator against a classifier that was fitted to all private records "
    "without noise; the label queries are not all that depends on them"
)
_DPSD = (
    "Liu, Ge, Wang, Li, Liu, Privacy-Preserving Model Transcription with Differentially Private Synthetic Distillation"
)

_dp_sgd = partial(Listed, adjacency="add-remove")
_federated = partial(Listed, groups="federated", unit="client")
_generative = partial(Listed, groups="generative record")
_sampled = partial(Listed, groups="generative record", adjacency="add-remove")
_label = partial(Listed, groups="label", unit="label", public_data="the images of the private records")
_pate = partial(Listed, groups="pate-family record", public_data=_UNLABELLED)
_transfer = partial(Listed, groups="record transfer", adjacency="add-remove", public_data=_BACKBONE)
_trpate = partial(Listed, groups="pate-family record transfer", public_data=_SOURCE)

# fmt: off
INDEX = {
    "alibi": _label("label.alibi", "Malek et al. 2021"),
    "class-gaussians": _sampled("generative.class_gaussians", "after Chanyaswad et al. 2019"),
    "cluster-rr": _label("label.cluster_rr", "after Esfandiari et al. 2022"),
    "datalens": _generative("generative.datalens", "Wang et al. 2021"),
    "dense": _federated("federated.dense", "Zhang et al. 2022", proven=_CLIENTS),
    "dgd": Listed("distillation.dgd", "Ge et al. 2023", proven=_DGD),
    "dgd-plus": Listed("distillation.dgd_plus", "Ge et al. 2023; Papernot et al. 2018", proven=_DGD),
    "dgd-sound": Listed("distillation.dgd_sound", "after Ge et al. 2023"),
    "diet-pate": Listed("pate.diet_pate", "after DIET-PATE (Noise_PATE)", groups="pate-family record"),
    "dp-fc": _dp_sgd("linear.dp_fc", "after Mehta et al. 2022", groups="record transfer",
        public_data="a frozen backbone trained on public data; unlabelled images of the target's distribution"),
    "dp-fedavg": _dp_sgd("federated.dp_fedavg", "McMahan et al. 2018", groups="client federated", unit="client"),
    "dp-gan": _sampled("generative.dp_gan", "Bie et al. 2023; Xie et al. 2018"),
    "dp-kernel": _sampled("generative.dp_kernel", "Jiang et al. 2023",
        proven="infinite: the generator follows the gradient of the private batch's mean embedding without noise; the noise changes its length and sign only"),
    "dp-kernel-sound": _generative("generative.dp_kernel_sound", "after Jiang et al. 2023"),
    "dp-least-squares": _transfer("linear.dp_least_squares", "after Mehta et al. 2022"),
    "dp-linear": _transfer("linear.dp_linear", "De et al. 2022; Tramer and Boneh 2021"),
    "dp-linear-gd": _transfer("linear.dp_linear_gd", "after De et al. 2022"),
    "dp-merf": _generative("generative.dp_merf", "Harder et al. 2021"),
    "dp-prototypes": _transfer("linear.dp_prototypes", "after Wahdany et al. 2024"),
    "dp-sgd": _dp_sgd("dpsgd.dp_sgd", "Abadi et al. 2016; Tramer and Boneh 2021"),
    "dp-sinkhorn": _sampled("generative.dp_sinkhorn", "Cao et al. 2021"),
    "dpdfd": Listed("distillation.dpdfd", "Liu et al., IJCAI 2023 (arXiv:2304.12528)"),
    "dpsd": Listed("distillation.dpsd", _DPSD),
    "dpsd-label": Listed("distillation.dpsd_label", _DPSD, groups="query-label", unit="query-label"),
    "dpsd-sound": Listed("distillation.dpsd_sound", f"after {_DPSD}"),
    "dpsd-t": Listed("distillation.dpsd_t", _DPSD,
        proven="infinite: DPSD-T drives its generator by the teacher without noise, and the student learns from that generator's images"),
    "dpsur": _dp_sgd("dpsgd.dpsur", "Fu et al. 2024"),
    "fed-adi": _federated("federated.fed_adi", "Yin et al. 2020 on an ensemble of clients, as in Zhang et al. 2022", proven=_CLIENTS),
    "fed-dafl": _federated("federated.fed_dafl", "Chen et al. 2019 on an ensemble of clients, as in Zhang et al. 2022", proven=_CLIENTS),
    "fed-dpsd": Listed("federated.fed_dpsd", _DPSD, groups="client federated", unit="client"),
    "fedavg": _federated("federated.fedavg", "McMahan et al. 2017", proven=_SENT),
    "feddf": _federated("federated.feddf", "Lin et al. 2020", proven=_SENT, public_data=_UNLABELLED),
    "g-pate": _generative("generative.g_pate", "Long et al. 2021"),
    "gep": _dp_sgd("dpsgd.gep", "Yu et al., ICLR 2021; Tramer and Boneh 2021", public_data=_UNLABELLED),
    "gm-dp": _dp_sgd("dpsgd.variants", "McMahan et al. 2018"),
    "gs-wgan": _generative("generative.gs_wgan", "Chen et al. 2020"),
    "knn-pate": _dp_sgd("pate.knn_pate", "Zhu et al. 2020", groups="record transfer", public_data=_SOURCE),
    "label-protocol": _label("label.label_protocol", "after Yuan et al. 2021"),
    "lp-1st": _label("label.lp_2st", "Ghazi et al. 2021"),
    "lp-2st": _label("label.lp_2st", "Ghazi et al. 2021"),
    "nonprivate": Listed("nonprivate", "baseline", groups="",
        proven="infinite: the student is trained on all private records without noise"),
    "nonprivate-transfer": Listed("linear.nonprivate_transfer", "baseline of TrPATE (IEEE Access 2019), table 2", groups="transfer",
        proven="infinite: the head is trained on all private records without noise", public_data=_BACKBONE),
    "p3gm": _sampled("generative.p3gm", "Takagi et al. 2021",
        proven="infinite: the exact mean of the records is subtracted from them, and released with the components"),
    "p3gm-sound": _sampled("generative.p3gm_sound", "after Takagi et al. 2021"),
    "pate": _pate("pate.pate", "Papernot et al. 2017"),
    "pate-bayes": Listed("pate.trpate_bayes", "Wang et al. 2019", groups="pate-family record",
        public_data="unlabelled records of the target's distribution"),
    "pate-confident": _pate("pate.pate_confident", "Papernot et al. 2018"),
    "pate-fm": _label("label.pate_fm", "Malek et al. 2021"),
    "pate-gan": _generative("generative.pate_gan", "Jordon et al. 2019"),
    "pate-gnmax": _pate("pate.pate_gnmax", "Papernot et al. 2018"),
    "pate-ridge": Listed("pate.pate_ridge", "after Papernot et al. 2017"),
    "psg": _sampled("generative.psg", "Chen et al. 2022"),
    "rgp": _dp_sgd("dpsgd.rgp", "Yu et al., ICML 2021; Tramer and Boneh 2021"),
    "rr": _label("label.rr", "Ghazi et al. 2021, after Warner 1965"),
    "scatter-cnn": _dp_sgd("dpsgd.scatter", "Tramer and Boneh 2021"),
    "scatter-linear": _dp_sgd("dpsgd.scatter", "Tramer and Boneh 2021"),
    "sim-pe": _sampled("generative.sim_pe", "Lin et al. 2025", public_data="a simulator: characters in 22 fonts, or shapes"),
    "spectral-dp": _dp_sgd("dpsgd.spectral_dp", "Feng et al. 2023; Tramer and Boneh 2021"),
    "topagg": _dp_sgd("dpsgd.variants", "Wang et al. 2021; Tramer and Boneh 2021"),
    "trpate": _trpate("pate.trpate", "Wang et al. 2019"),
    "trpate-bayes": Listed("pate.trpate_bayes", "Wang et al. 2019", groups="pate-family record transfer",
        public_data="unlabelled records of the target's distribution, and a labelled source where one is"),
    "trpate-confident": _trpate("pate.trpate", "Wang et al. 2019; Papernot et al. 2018"),
    "trpate-gnmax": _trpate("pate.trpate", "Wang et al. 2019; Papernot et al. 2018"),
    "tsadp": _dp_sgd("dpsgd.variants", "Papernot et al. 2021; Tramer and Boneh 2021"),
    "zcdp": _dp_sgd("dpsgd.zcdp", "Yu et al. 2019"),
}
# fmt: on
"""Listing entry by method name: using a method imports only its module, listing methods imports none.

tests/interface/test_index.py prints the missing entry of an unlisted method.
"""
