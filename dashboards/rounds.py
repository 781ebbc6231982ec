"""The *Rounds* dashboard: how learning goes."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import RATE, Query, Step, block_heat, graph, heat, number, ours, page, rate


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'run, le')})"


def rounds() -> Dashboard:
    """How learning goes."""
    now = (
        number(
            "Round", "Rounds done, of those planned, which stand beside this.", "none", Query(f"{ours('round')} + 1")
        ),
        number("Rounds planned", "From the config.", "none", Query(ours("planned_rounds"))),
        number(
            "Accuracy",
            "On the test data, after the last round that was evaluated.",
            "percentunit",
            Query(ours("accuracy_ratio")),
            (Step(0.5, "yellow"), Step(0.9, "green")),
            "orange",
        ),
        number("Loss", "On the test data.", "none", Query(ours("loss"))),
        number("Last round", "Its whole time.", "s", Query(ours("last_round_seconds"))),
        number(
            "Time left",
            "The rounds that are left, at the pace of the last half hour.",
            "s",
            Query(
                f"({ours('planned_rounds')} - {ours('round')} - 1) * "
                f"(increase({ours('round_seconds_sum')}[30m]) / increase({ours('round_seconds_count')}[30m]))"
            ),
        ),
    )
    learning = (
        graph(
            "Accuracy",
            "On the test data; dashed, the target to which uploads are counted.",
            "percentunit",
            Query(ours("accuracy_ratio")),
            Query(f"max({ours('target_accuracy_ratio')})", "target"),
        ),
        graph(
            "Loss",
            "On the test data, and the clients' own during local training.",
            "none",
            Query(ours("loss"), "{{run}} test"),
            Query(ours("train_loss"), "{{run}} training"),
        ),
        graph(
            "Upload of a client",
            "Mean over the sampled clients, summed over the rounds, in units of the model's size d.",
            "none",
            Query(ours("uploaded_model_sizes_total")),
        ),
        graph("Step size", "Of local training.", "none", Query(ours("learning_rate"))),
        graph(
            "Accuracy by data phase",
            "On the test data of each phase of block-cyclic data; empty for other data.",
            "percentunit",
            Query(ours("phase_accuracy_ratio"), "{{run}} phase {{data_phase}}"),
        ),
        graph(
            "Clients of a round",
            "Those that took part, and sampled ones a minute whose upload did not count.",
            "none",
            Query(ours("participants"), "{{run}} took part"),
            Query(f"60 * {rate('dropped_clients_total', 'run, reason')}", "{{run}} dropped a minute: {{reason}}"),
        ),
    )
    times = (
        graph(
            "Round by phase",
            "Plan, broadcast, train, reduce, evaluate (as far as anybody waited for it), checkpoint.",
            "s",
            Query(f"avg by (phase) ({ours('phase_seconds')})", "{{phase}}"),
            stacked=True,
        ),
        graph(
            "Time of a round",
            "Median and 95th percentile.",
            "s",
            Query(_quantile(0.5, "round_seconds"), "{{run}} median"),
            Query(_quantile(0.95, "round_seconds"), "{{run}} 95 %"),
        ),
        heat(
            "Time of a client",
            "How many clients took how long for their local training.",
            "s",
            Query(f"sum by (le) (increase({ours('client_seconds_bucket')}[{RATE}]))", "{{le}}"),
            buckets=True,
            span=8,
        ),
        graph(
            "Time on the simulated links",
            "How long a round's traffic would take over the clients' links; empty where these are not known.",
            "s",
            Query(ours("simulated_seconds")),
        ),
    )
    blocks = (
        block_heat(
            "Drift diversity by block",
            "Sum of the squared displacements over the square of their sum: 1/S where the clients agree, more where "
            "they pull apart. Mean of the chosen runs.",
            "drift_diversity",
        ),
        block_heat("Movement by block", "How far the global model moved in the round.", "movement_norm"),
        block_heat("Momentum by block", "Norm of the server's momentum, for methods with one.", "momentum_norm"),
        block_heat("Control variate by block", "Norm of the server's, for methods with one.", "control_variate_norm"),
    )
    rows = (("Now", now), ("Learning", learning), ("Time", times), ("Blocks", blocks))
    return page("raybcgd-rounds", "raybcgd: Rounds", "How learning goes, round by round.", rows)
