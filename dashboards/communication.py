"""The *Communication* dashboard: what clients send and receive."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import Panels, Query, Step, graph, heat_map, number, page, rate

_PER_BLOCK = "{{run}} block {{block}}"


def _now() -> Panels:
    return (
        number("Uploaded", "Bytes uploaded by all clients.", "decbytes", "raybcgd_traffic_upload_bytes_total"),
        number("Downloaded", "Bytes downloaded by all clients.", "decbytes", "raybcgd_traffic_download_bytes_total"),
        number("Model size", "d, the number of coordinates.", "short", "raybcgd_parameters"),
        number(
            "Upload to target",
            "Mean upload per sampled client until the target accuracy was first reached, in units of d.",
            "none",
            "raybcgd_target_upload_d",
        ),
        number(
            "Rounds to target", "Rounds until the target accuracy was first reached.", "none", "raybcgd_target_rounds"
        ),
        number(
            "Saving over FedAvg",
            "FedAvg's upload (d per client and round) divided by this run's, for the same number of rounds.",
            "none",
            "(raybcgd_round + 1) / raybcgd_traffic_upload_d_total",
            (Step(1.5, "green"),),
        ),
    )


def _totals() -> Panels:
    return (
        graph(
            "Values uploaded",
            "Values uploaded by all clients, in any precision.",
            "short",
            "raybcgd_traffic_upload_floats_total",
        ),
        graph(
            "Values downloaded",
            "Values downloaded by all clients.",
            "short",
            "raybcgd_traffic_download_floats_total",
        ),
        graph(
            "Compression ratio",
            "Bytes of the uploads without a codec, divided by the bytes sent.",
            "none",
            "raybcgd_traffic_compression_ratio",
            steps=(Step(1, "orange"),),
        ),
        graph(
            "Throughput",
            "Bytes per second, summed over all clients.",
            "Bps",
            Query(rate("raybcgd_traffic_upload_bytes_total"), "{{run}} upload"),
            Query(rate("raybcgd_traffic_download_bytes_total"), "{{run}} download"),
        ),
        graph(
            "Upload relative to FedAvg",
            "Mean upload per sampled client so far, relative to FedAvg, which uploads d per round.",
            "percentunit",
            "raybcgd_traffic_upload_d_total / (raybcgd_round + 1)",
            steps=(Step(1, "orange"),),
            span=16,
        ),
    )


def _blocks() -> Panels:
    return (
        graph(
            "Values uploaded by block",
            "Summed over all clients. Every client uploads the shared block.",
            "short",
            Query("raybcgd_blocks_upload_floats_total", _PER_BLOCK),
        ),
        graph(
            "Bytes uploaded by block",
            "Summed over all clients. A codec's overhead is split in proportion to the values.",
            "decbytes",
            Query("raybcgd_blocks_upload_bytes_total", _PER_BLOCK),
        ),
        graph(
            "Values downloaded by block",
            "Summed over all clients. The broadcast contains every block, so this follows the block sizes.",
            "short",
            Query("raybcgd_blocks_download_floats_total", _PER_BLOCK),
        ),
        heat_map(
            "Upload rate by block",
            "Values uploaded per second.",
            "short",
            Query(rate("raybcgd_blocks_upload_floats_total", "block"), "{{block}}"),
            span=24,
        ),
    )


def communication() -> Dashboard:
    """Return the dashboard."""
    rows = {"Now": _now(), "Totals": _totals(), "Blocks": _blocks()}
    return page("raybcgd-communication", "raybcgd: Communication", "What clients send and receive.", rows)
