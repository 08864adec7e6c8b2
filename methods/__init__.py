"""Methods, in their family's folder."""

from bench.core.listed import Listed

_UNLABELLED = "unlabelled images of the target's distribution"
_SOURCE = "knowledge of a public source, and unlabelled images of the target's distribution"
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

INDEX = {
    "alibi": Listed(
        "label.alibi", "label", "label", "replace", "finite", "the images of the private records", "Malek et al. 2021"
    ),
    "cluster-rr": Listed(
        "label.cluster_rr",
        "label",
        "label",
        "replace",
        "finite",
        "the images of the private records",
        "after Esfandiari et al. 2022",
    ),
    "datalens": Listed(
        "generative.datalens", "generative record", "record", "replace", "finite", "none", "Wang et al. 2021"
    ),
    "dense": Listed("federated.dense", "federated", "client", "replace", _CLIENTS, "none", "Zhang et al. 2022"),
    "dgd": Listed("distillation.dgd", "record", "record", "replace", _DGD, "none", "Ge et al. 2023"),
    "dgd-plus": Listed(
        "distillation.dgd_plus", "record", "record", "replace", _DGD, "none", "Ge et al. 2023; Papernot et al. 2018"
    ),
    "dgd-sound": Listed(
        "distillation.dgd_sound", "record", "record", "replace", "finite", "none", "after Ge et al. 2023"
    ),
    "diet-pate": Listed(
        "pate.diet_pate", "pate-family record", "record", "replace", "finite", "none", "after DIET-PATE (Noise_PATE)"
    ),
    "dp-fc": Listed(
        "linear.dp_fc",
        "record transfer",
        "record",
        "add-remove",
        "finite",
        "a frozen backbone trained on public data; unlabelled images of the target's distribution",
        "after Mehta et al. 2022",
    ),
    "dp-fedavg": Listed(
        "federated.dp_fedavg", "client federated", "client", "add-remove", "finite", "none", "McMahan et al. 2018"
    ),
    "dp-gan": Listed(
        "generative.dp_gan",
        "generative record",
        "record",
        "add-remove",
        "finite",
        "none",
        "Bie et al. 2023; Xie et al. 2018",
    ),
    "dp-kernel": Listed(
        "generative.dp_kernel",
        "generative record",
        "record",
        "add-remove",
        "infinite: the generator follows the gradient of the private batch's mean embedding without noise; the noise changes its length and sign only",
        "none",
        "Jiang et al. 2023",
    ),
    "dp-kernel-sound": Listed(
        "generative.dp_kernel_sound",
        "generative record",
        "record",
        "replace",
        "finite",
        "none",
        "after Jiang et al. 2023",
    ),
    "dp-least-squares": Listed(
        "linear.dp_least_squares",
        "record transfer",
        "record",
        "add-remove",
        "finite",
        _BACKBONE,
        "after Mehta et al. 2022",
    ),
    "dp-linear": Listed(
        "linear.dp_linear",
        "record transfer",
        "record",
        "add-remove",
        "finite",
        _BACKBONE,
        "De et al. 2022; Tramer and Boneh 2021",
    ),
    "dp-linear-gd": Listed(
        "linear.dp_linear_gd", "record transfer", "record", "add-remove", "finite", _BACKBONE, "after De et al. 2022"
    ),
    "dp-merf": Listed(
        "generative.dp_merf", "generative record", "record", "replace", "finite", "none", "Harder et al. 2021"
    ),
    "dp-prototypes": Listed(
        "linear.dp_prototypes",
        "record transfer",
        "record",
        "add-remove",
        "finite",
        _BACKBONE,
        "after Wahdany et al. 2024",
    ),
    "dp-sgd": Listed(
        "dpsgd.dp_sgd", "record", "record", "add-remove", "finite", "none", "Abadi et al. 2016; Tramer and Boneh 2021"
    ),
    "dp-sinkhorn": Listed(
        "generative.dp_sinkhorn", "generative record", "record", "add-remove", "finite", "none", "Cao et al. 2021"
    ),
    "dpdfd": Listed(
        "distillation.dpdfd",
        "record",
        "record",
        "replace",
        "finite",
        "none",
        "Liu et al., IJCAI 2023 (arXiv:2304.12528)",
    ),
    "dpsd": Listed("distillation.dpsd", "record", "record", "replace", "finite", "none", _DPSD),
    "dpsd-label": Listed("distillation.dpsd_label", "query-label", "query-label", "replace", "finite", "none", _DPSD),
    "dpsd-sound": Listed("distillation.dpsd_sound", "record", "record", "replace", "finite", "none", "after " + _DPSD),
    "dpsd-t": Listed(
        "distillation.dpsd_t",
        "record",
        "record",
        "replace",
        "infinite: DPSD-T drives its generator by the teacher without noise, and the student learns from that generator's images",
        "none",
        _DPSD,
    ),
    "dpsur": Listed("dpsgd.dpsur", "record", "record", "add-remove", "finite", "none", "Fu et al. 2024"),
    "fed-adi": Listed(
        "federated.fed_adi",
        "federated",
        "client",
        "replace",
        _CLIENTS,
        "none",
        "Yin et al. 2020 on an ensemble of clients, as in Zhang et al. 2022",
    ),
    "fed-dafl": Listed(
        "federated.fed_dafl",
        "federated",
        "client",
        "replace",
        _CLIENTS,
        "none",
        "Chen et al. 2019 on an ensemble of clients, as in Zhang et al. 2022",
    ),
    "fed-dpsd": Listed("federated.fed_dpsd", "client federated", "client", "replace", "finite", "none", _DPSD),
    "fedavg": Listed("federated.fedavg", "federated", "client", "replace", _SENT, "none", "McMahan et al. 2017"),
    "feddf": Listed("federated.feddf", "federated", "client", "replace", _SENT, _UNLABELLED, "Lin et al. 2020"),
    "g-pate": Listed(
        "generative.g_pate", "generative record", "record", "replace", "finite", "none", "Long et al. 2021"
    ),
    "gep": Listed(
        "dpsgd.gep",
        "record",
        "record",
        "add-remove",
        "finite",
        _UNLABELLED,
        "Yu et al., ICLR 2021; Tramer and Boneh 2021",
    ),
    "gm-dp": Listed("dpsgd.variants", "record", "record", "add-remove", "finite", "none", "McMahan et al. 2018"),
    "gs-wgan": Listed(
        "generative.gs_wgan", "generative record", "record", "replace", "finite", "none", "Chen et al. 2020"
    ),
    "knn-pate": Listed(
        "pate.knn_pate", "record transfer", "record", "add-remove", "finite", _SOURCE, "Zhu et al. 2020"
    ),
    "label-protocol": Listed(
        "label.label_protocol",
        "label",
        "label",
        "replace",
        "finite",
        "the images of the private records",
        "after Yuan et al. 2021",
    ),
    "lp-1st": Listed(
        "label.lp_2st", "label", "label", "replace", "finite", "the images of the private records", "Ghazi et al. 2021"
    ),
    "lp-2st": Listed(
        "label.lp_2st", "label", "label", "replace", "finite", "the images of the private records", "Ghazi et al. 2021"
    ),
    "nonprivate": Listed(
        "nonprivate",
        "",
        "record",
        "replace",
        "infinite: the student is trained on all private records without noise",
        "none",
        "baseline",
    ),
    "nonprivate-transfer": Listed(
        "linear.nonprivate_transfer",
        "transfer",
        "record",
        "replace",
        "infinite: the head is trained on all private records without noise",
        _BACKBONE,
        "baseline of TrPATE (IEEE Access 2019), table 2",
    ),
    "p3gm": Listed(
        "generative.p3gm",
        "generative record",
        "record",
        "add-remove",
        "infinite: the exact mean of the records is subtracted from them, and released with the components",
        "none",
        "Takagi et al. 2021",
    ),
    "p3gm-sound": Listed(
        "generative.p3gm_sound",
        "generative record",
        "record",
        "add-remove",
        "finite",
        "none",
        "after Takagi et al. 2021",
    ),
    "pate": Listed(
        "pate.pate", "pate-family record", "record", "replace", "finite", _UNLABELLED, "Papernot et al. 2017"
    ),
    "pate-bayes": Listed(
        "pate.trpate_bayes",
        "pate-family record",
        "record",
        "replace",
        "finite",
        "unlabelled records of the target's distribution",
        "Wang et al. 2019",
    ),
    "pate-confident": Listed(
        "pate.pate_confident", "pate-family record", "record", "replace", "finite", _UNLABELLED, "Papernot et al. 2018"
    ),
    "pate-fm": Listed(
        "label.pate_fm", "label", "label", "replace", "finite", "the images of the private records", "Malek et al. 2021"
    ),
    "pate-gan": Listed(
        "generative.pate_gan", "generative record", "record", "replace", "finite", "none", "Jordon et al. 2019"
    ),
    "pate-gnmax": Listed(
        "pate.pate_gnmax", "pate-family record", "record", "replace", "finite", _UNLABELLED, "Papernot et al. 2018"
    ),
    "pate-ridge": Listed(
        "pate.pate_ridge", "record", "record", "replace", "finite", "none", "after Papernot et al. 2017"
    ),
    "psg": Listed("generative.psg", "generative record", "record", "add-remove", "finite", "none", "Chen et al. 2022"),
    "rgp": Listed(
        "dpsgd.rgp", "record", "record", "add-remove", "finite", "none", "Yu et al., ICML 2021; Tramer and Boneh 2021"
    ),
    "rr": Listed(
        "label.rr",
        "label",
        "label",
        "replace",
        "finite",
        "the images of the private records",
        "Ghazi et al. 2021, after Warner 1965",
    ),
    "scatter-cnn": Listed(
        "dpsgd.scatter_cnn", "record", "record", "add-remove", "finite", "none", "Tramer and Boneh 2021"
    ),
    "scatter-linear": Listed(
        "dpsgd.scatter_linear", "record", "record", "add-remove", "finite", "none", "Tramer and Boneh 2021"
    ),
    "sim-pe": Listed(
        "generative.sim_pe",
        "generative record",
        "record",
        "add-remove",
        "finite",
        "a simulator: characters in 22 fonts",
        "Lin et al. 2025",
    ),
    "spectral-dp": Listed(
        "dpsgd.spectral_dp",
        "record",
        "record",
        "add-remove",
        "finite",
        "none",
        "Feng et al. 2023; Tramer and Boneh 2021",
    ),
    "topagg": Listed(
        "dpsgd.variants", "record", "record", "add-remove", "finite", "none", "Wang et al. 2021; Tramer and Boneh 2021"
    ),
    "trpate": Listed(
        "pate.trpate", "pate-family record transfer", "record", "replace", "finite", _SOURCE, "Wang et al. 2019"
    ),
    "trpate-bayes": Listed(
        "pate.trpate_bayes",
        "pate-family record transfer",
        "record",
        "replace",
        "finite",
        "unlabelled records of the target's distribution, and a labelled source where one is",
        "Wang et al. 2019",
    ),
    "trpate-confident": Listed(
        "pate.trpate_confident",
        "pate-family record transfer",
        "record",
        "replace",
        "finite",
        _SOURCE,
        "Wang et al. 2019; Papernot et al. 2018",
    ),
    "trpate-gnmax": Listed(
        "pate.trpate_gnmax",
        "pate-family record transfer",
        "record",
        "replace",
        "finite",
        _SOURCE,
        "Wang et al. 2019; Papernot et al. 2018",
    ),
    "tsadp": Listed(
        "dpsgd.variants",
        "record",
        "record",
        "add-remove",
        "finite",
        "none",
        "Papernot et al. 2021; Tramer and Boneh 2021",
    ),
    "zcdp": Listed("dpsgd.zcdp", "record", "record", "add-remove", "finite", "none", "Yu et al. 2019"),
}
"""Index of method names and their listing entries: using a name imports one module, listing imports none.

tests/interface/test_index.py prints the missing entry of an unlisted method.
"""
