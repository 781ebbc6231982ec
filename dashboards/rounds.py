"""The *Rounds* dashboard: accuracy, loss, time and blocks, round by round."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import RATE, Panels, Query, Step, block_heat_map, graph, heat_map, number, page, rate


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'run, le')})"


def _now() -> Panels:
    mean_round = "increase(raybcgd_timing_round_seconds_sum[30m]) / increase(raybcgd_timing_round_seconds_count[30m])"
    return (
        number("Rounds finished", "Number of finished rounds.", "none", "raybcgd_round + 1"),
        number("Rounds planned", "Number of rounds that the config allows.", "none", "raybcgd_planned_rounds"),
        number(
            "Accuracy",
            "Test accuracy after the last evaluated round.",
            "percentunit",
            "raybcgd_quality_accuracy",
            (Step(0.5, "yellow"), Step(0.9, "green")),
            "orange",
        ),
        number("Loss", "Test loss after the last evaluated round.", "none", "raybcgd_quality_loss"),
        number("Last round", "Duration of the last round.", "s", "raybcgd_timing_last_round_seconds"),
        number(
            "Time remaining",
            "Remaining rounds times the mean round time of the last 30 minutes.",
            "s",
            f"(raybcgd_planned_rounds - raybcgd_round - 1) * ({mean_round})",
        ),
    )


def _learning() -> Panels:
    return (
        graph(
            "Accuracy",
            "Test accuracy. The dashed line is the target accuracy.",
            "percentunit",
            "raybcgd_quality_accuracy",
            Query("max(raybcgd_target_accuracy)", "target"),
        ),
        graph(
            "Loss",
            "Test loss, and the clients' mean loss during local training.",
            "none",
            Query("raybcgd_quality_loss", "{{run}} test"),
            Query("raybcgd_quality_train_loss", "{{run}} training"),
        ),
        graph(
            "Upload per client",
            "Mean upload per sampled client, summed over the rounds, in units of the model size d.",
            "none",
            "raybcgd_traffic_upload_d_total",
        ),
        graph("Learning rate", "Step size of local training.", "none", "raybcgd_lr"),
        graph(
            "Accuracy by data phase",
            "Test accuracy on each phase of block-cyclic data. Empty for other data.",
            "percentunit",
            Query("raybcgd_quality_accuracy_by_phase", "{{run}} phase {{data_phase}}"),
        ),
        graph(
            "Accuracy of the clients",
            "Accuracy on the clients' own training samples: mean, worst tenth and standard deviation. Empty without "
            "`evaluation.clients`.",
            "percentunit",
            Query("raybcgd_quality_client_accuracy", "{{run}} {{statistic}}"),
        ),
        graph(
            "Custom metrics",
            'Values of `evaluation.metrics` on the test data, and "rmse" for regression.',
            "none",
            Query("raybcgd_quality_metrics", "{{run}} {{metric}}"),
        ),
        graph(
            "Clients per round",
            "Participants per round, and dropped clients per minute by reason.",
            "none",
            Query("raybcgd_participants", "{{run}} participants"),
            Query(f"60 * {rate('raybcgd_dropped_clients_total', 'run, reason')}", "{{run}} dropped/min: {{reason}}"),
        ),
    )


def _times() -> Panels:
    return (
        graph(
            "Round by stage",
            "Duration of each stage, averaged over the selected runs. Hosts evaluate a model before they train the "
            "next round, so most of the evaluation time counts as training.",
            "s",
            Query("avg by (stage) (raybcgd_timing_stage_seconds)", "{{stage}}"),
            stacked=True,
        ),
        graph(
            "Round time",
            "Median and 95th percentile of the round time.",
            "s",
            Query(_quantile(0.5, "raybcgd_timing_round_seconds"), "{{run}} median"),
            Query(_quantile(0.95, "raybcgd_timing_round_seconds"), "{{run}} 95th percentile"),
        ),
        heat_map(
            "Training time per client",
            "Number of clients by local training time.",
            "s",
            Query(f"sum by (le) (increase(raybcgd_client_seconds_bucket[{RATE}]))", "{{le}}"),
            buckets=True,
            span=8,
        ),
        graph(
            "Simulated transfer time",
            "Time to transfer the round's traffic over the clients' links. Empty if `cohort.links` is not set.",
            "s",
            "raybcgd_traffic_simulated_seconds",
        ),
    )


def _blocks() -> Panels:
    return (
        block_heat_map(
            "Drift diversity by block",
            "Sum of the clients' squared displacements divided by the squared norm of their sum, averaged over the "
            "selected runs: 1/S if all S clients agree, higher if they diverge.",
            "raybcgd_blocks_drift_diversity",
        ),
        block_heat_map(
            "Movement by block", "Distance that the global model moved in the round.", "raybcgd_blocks_movement"
        ),
        block_heat_map(
            "Momentum by block",
            "Norm of the server's momentum. Empty for methods without momentum.",
            "raybcgd_blocks_momentum",
        ),
        block_heat_map(
            "Control variate by block",
            "Norm of the server's control variate. Empty for methods without one.",
            "raybcgd_blocks_control_variate",
        ),
    )


def rounds() -> Dashboard:
    """Return the dashboard."""
    rows = {"Now": _now(), "Learning": _learning(), "Time": _times(), "Blocks": _blocks()}
    return page("raybcgd-rounds", "raybcgd: Rounds", "Accuracy, loss, time and blocks, round by round.", rows)
