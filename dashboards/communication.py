"""The *Communication* dashboard: what travels."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import Query, Step, graph, heat, number, ours, page, rate

_PER_BLOCK = "{{run}} block {{block}}"


def communication() -> Dashboard:
    """What travels."""
    now = (
        number("Uploaded", "By all clients.", "decbytes", Query(ours("uploaded_bytes_total"))),
        number("Downloaded", "By all clients.", "decbytes", Query(ours("downloaded_bytes_total"))),
        number("Size of the model", "d, its coordinates.", "short", Query(ours("parameters"))),
        number(
            "Upload to target",
            "Mean upload of a sampled client until the target accuracy was first reached, in d.",
            "none",
            Query(ours("target_model_sizes")),
        ),
        number("Rounds to target", "Until the target accuracy was reached.", "none", Query(ours("target_rounds"))),
        number(
            "Fewer floats than FedAvg",
            "FedAvg's upload in as many rounds, d a client and round, over this run's: how much less a round costs.",
            "none",
            Query(f"({ours('round')} + 1) / {ours('uploaded_model_sizes_total')}"),
            (Step(1.5, "green"),),
        ),
    )
    totals = (
        graph(
            "Floats uploaded",
            "Values sent by all clients, in whatever precision.",
            "short",
            Query(ours("uploaded_floats_total")),
        ),
        graph(
            "Floats downloaded",
            "Values in the broadcasts to all clients.",
            "short",
            Query(ours("downloaded_floats_total")),
        ),
        graph(
            "Compression",
            "Bytes of the uploads without a codec over the bytes sent.",
            "none",
            Query(ours("compression_ratio")),
            steps=(Step(1, "orange"),),
        ),
        graph(
            "Bytes a second",
            "Uploads and downloads of all clients.",
            "Bps",
            Query(rate("uploaded_bytes_total"), "{{run}} up"),
            Query(rate("downloaded_bytes_total"), "{{run}} down"),
        ),
        graph(
            "Ratio to FedAvg",
            "Upload of a sampled client so far over FedAvg's, which is d in every round.",
            "percentunit",
            Query(f"{ours('uploaded_model_sizes_total')} / ({ours('round')} + 1)"),
            steps=(Step(1, "orange"),),
            span=16,
        ),
    )
    blocks = (
        graph(
            "Floats uploaded by block",
            "By all clients; every client sends the shared block.",
            "short",
            Query(ours("block_uploaded_floats_total"), _PER_BLOCK),
        ),
        graph(
            "Bytes uploaded by block",
            "The same in bytes; what a codec adds is shared out in proportion.",
            "decbytes",
            Query(ours("block_uploaded_bytes_total"), _PER_BLOCK),
        ),
        graph(
            "Floats downloaded by block",
            "The broadcast is whole, so this is the blocks' size.",
            "short",
            Query(ours("block_downloaded_floats_total"), _PER_BLOCK),
        ),
        heat(
            "Upload by block and time",
            "Floats a second.",
            "short",
            Query(rate("block_uploaded_floats_total", "block"), "{{block}}"),
            span=24,
        ),
    )
    rows = (("Now", now), ("In all", totals), ("Blocks", blocks))
    return page("raybcgd-communication", "raybcgd: Communication", "What clients send and receive.", rows)
