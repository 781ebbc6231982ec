"""The *Cluster* dashboard: hosts, memory, GPUs, autoscaling and failures."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import Panels, Query, Step, graph, number, page

_FEW = (Step(1, "orange"), Step(5, "red"))


def _now() -> Panels:
    return (
        number("Hosts", "Hosts that are up.", "none", "raybcgd_hosts_up"),
        number(
            "Hosts pending",
            "Hosts requested but not up yet.",
            "none",
            "raybcgd_hosts_pending",
            (Step(1, "orange"),),
            "green",
        ),
        number(
            "Hosts restarted",
            "Hosts started to replace lost ones.",
            "none",
            "raybcgd_hosts_restarted_total",
            _FEW,
            "green",
        ),
        number(
            "Tasks retried",
            "Client tasks repeated because their host was lost.",
            "none",
            "raybcgd_hosts_retried_tasks_total",
            _FEW,
            "green",
        ),
        number(
            "Checkpoint age",
            "Time since the last checkpoint; before the first one, since the start.",
            "s",
            "time() - raybcgd_checkpoint_timestamp_seconds",
            (Step(1800, "orange"), Step(3600, "red")),
            "green",
        ),
        number(
            "Since the last round",
            "Time since the last round finished. A stalled run shows up here first.",
            "s",
            "time() - raybcgd_round_timestamp_seconds",
            (Step(600, "orange"), Step(1800, "red")),
            "green",
        ),
    )


def _hosts() -> Panels:
    return (
        graph(
            "Hosts",
            "Hosts that are up, and hosts requested but not up yet.",
            "none",
            Query("raybcgd_hosts_up", "{{run}} up"),
            Query("raybcgd_hosts_pending", "{{run}} pending"),
            span=6,
        ),
        graph(
            "Failures",
            "Hosts restarted and tasks retried over the last 5 minutes.",
            "none",
            Query("increase(raybcgd_hosts_restarted_total[5m])", "{{run}} hosts restarted"),
            Query("increase(raybcgd_hosts_retried_tasks_total[5m])", "{{run}} tasks retried"),
            span=6,
        ),
        graph(
            "Queue", "Maximum number of waiting client tasks per round.", "none", "raybcgd_hosts_queued_tasks", span=6
        ),
        graph(
            "Clients moved",
            "Clients that moved to another host over the last 5 minutes, mostly to balance the load.",
            "none",
            "increase(raybcgd_hosts_rehomed_clients_total[5m])",
            span=6,
        ),
    )


def _memory() -> Panels:
    return (
        graph(
            "Object store",
            "Ray's object store on all nodes: memory in use and capacity.",
            "bytes",
            Query("raybcgd_hosts_object_store_bytes", "{{run}} in use"),
            Query("max(raybcgd_hosts_object_store_capacity_bytes)", "capacity"),
        ),
        graph(
            "Client states",
            "Client states in the hosts' memory and in files.",
            "bytes",
            Query("raybcgd_hosts_state_memory_bytes", "{{run}} memory"),
            Query("raybcgd_hosts_state_disk_bytes", "{{run}} files"),
        ),
        graph(
            "Accelerator memory",
            "Sum of the hosts' peak accelerator memory. Empty on CPUs.",
            "bytes",
            "raybcgd_hosts_device_memory_bytes",
        ),
        graph(
            "Reserved accelerator memory",
            "Sum of the accelerator memory that the hosts' processes reserved, at their peaks. Empty on CPUs.",
            "bytes",
            "raybcgd_hosts_device_reserved_bytes",
        ),
    )


def _ray() -> Panels:
    return (
        graph(
            "GPU allocation",
            "Ray's logical GPUs, used and available.",
            "none",
            Query('sum by (State) (ray_resources{Name="GPU", State=~"USED|AVAILABLE"})', "{{State}}"),
            stacked=True,
        ),
        graph(
            "GPU utilisation",
            "Utilisation per GPU, reported by Ray.",
            "percent",
            Query("ray_node_gpus_utilization", "{{instance}} GPU {{GpuIndex}}"),
        ),
        graph(
            "GPU memory",
            "Memory in use per GPU, reported by Ray.",
            "mbytes",  # Ray reports MiB
            Query("ray_node_gram_used", "{{instance}} GPU {{GpuIndex}}"),
        ),
        graph("CPU", "CPU utilisation per node.", "percent", Query("ray_node_cpu_utilization", "{{instance}}")),
        graph(
            "Memory",
            "Share of memory in use per node.",
            "percentunit",
            Query("ray_node_mem_used / ray_node_mem_total", "{{instance}}"),
            steps=(Step(0.9, "red"),),
        ),
        graph(
            "Autoscaling",
            "Nodes that are up, starting, or recently failed.",
            "none",
            Query("sum(autoscaler_active_nodes)", "up"),
            Query("sum(autoscaler_pending_nodes)", "starting"),
            Query("sum(autoscaler_recently_failed_nodes)", "failed"),
        ),
    )


def _monitoring() -> Panels:
    return (
        graph(
            "Exporter overhead",
            "Time spent on metrics, as a share of the total round time. About 0.1 % is normal.",
            "percentunit",
            "raybcgd_exporter_seconds_total / raybcgd_timing_round_seconds_sum",
            steps=(Step(0.01, "red"),),
        ),
        graph(
            "Runs up",
            "1 if the run responds, 0 if it was killed.",
            "none",
            Query('up{job="raybcgd", run!=""} or raybcgd_run_up', "{{run}}"),
        ),
        graph("Uptime", "Time since the run started or resumed.", "s", "time() - raybcgd_start_timestamp_seconds"),
    )


def cluster() -> Dashboard:
    """Return the dashboard."""
    rows = {"Now": _now(), "Hosts": _hosts(), "Memory": _memory(), "Ray": _ray(), "Monitoring": _monitoring()}
    return page("raybcgd-cluster", "raybcgd: Cluster", "Hosts, memory, GPUs, autoscaling and failures.", rows)
