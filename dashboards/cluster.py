"""The *Cluster* dashboard: what it runs on."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.kit import OURS, Query, Step, graph, number, ours, page


def cluster() -> Dashboard:
    """What it runs on."""
    lost = (Step(1, "orange"), Step(5, "red"))
    now = (
        number("Hosts", "Up after the last round.", "none", Query(ours("hosts"))),
        number(
            "Hosts pending",
            "Asked for and not up.",
            "none",
            Query(ours("pending_hosts")),
            (Step(1, "orange"),),
            "green",
        ),
        number(
            "Hosts restarted", "In place of lost ones.", "none", Query(ours("restarted_hosts_total")), lost, "green"
        ),
        number(
            "Jobs retried", "Because their host was lost.", "none", Query(ours("retried_jobs_total")), lost, "green"
        ),
        number(
            "Checkpoint age",
            "Since the last one was saved, or since the start.",
            "s",
            Query(f"time() - {ours('checkpoint_timestamp_seconds')}"),
            (Step(1800, "orange"), Step(3600, "red")),
            "green",
        ),
        number(
            "Since the last round",
            "A run that hangs shows here first.",
            "s",
            Query(f"time() - {ours('round_timestamp_seconds')}"),
            (Step(600, "orange"), Step(1800, "red")),
            "green",
        ),
    )
    hosts = (
        graph(
            "Hosts",
            "Up, and asked for but not up: what autoscaling is still to bring.",
            "none",
            Query(ours("hosts"), "{{run}} up"),
            Query(ours("pending_hosts"), "{{run}} pending"),
        ),
        graph(
            "Failures",
            "In the last five minutes: hosts restarted, jobs done again, clients moved to another host.",
            "none",
            Query(f"increase({ours('restarted_hosts_total')}[5m])", "{{run}} restarted"),
            Query(f"increase({ours('retried_jobs_total')}[5m])", "{{run}} retried"),
            Query(f"increase({ours('rehomed_clients_total')}[5m])", "{{run}} re-homed"),
        ),
        graph("Queue", "Most jobs that waited for a host at once.", "none", Query(ours("queued_jobs"))),
    )
    memory = (
        graph(
            "Object store",
            "In use on all nodes, and its capacity.",
            "bytes",
            Query(ours("object_store_bytes"), "{{run}} in use"),
            Query(f"max({ours('object_store_capacity_bytes')})", "capacity"),
        ),
        graph(
            "Client states",
            "In the hosts' memory and in files.",
            "bytes",
            Query(ours("state_memory_bytes"), "{{run}} memory"),
            Query(ours("state_disk_bytes"), "{{run}} files"),
        ),
        graph(
            "Device memory",
            "Most that the hosts have held on their accelerators; empty on CPUs.",
            "bytes",
            Query(ours("device_memory_bytes")),
        ),
    )
    ray = (
        graph(
            "GPUs given out",
            "Ray's logical GPUs: used and free.",
            "none",
            Query('sum by (State) (ray_resources{Name="GPU", State=~"USED|AVAILABLE"})', "{{State}}"),
            stacked=True,
        ),
        graph(
            "GPU utilisation",
            "Of every GPU, from Ray's own metrics.",
            "percent",
            Query("ray_node_gpus_utilization", "{{instance}} GPU {{GpuIndex}}"),
        ),
        graph(
            "GPU memory",
            "In use on every GPU, from Ray's own metrics.",
            "decmbytes",
            Query("ray_node_gram_used", "{{instance}} GPU {{GpuIndex}}"),
        ),
        graph("CPU", "Of every node.", "percent", Query("ray_node_cpu_utilization", "{{instance}}")),
        graph(
            "Memory",
            "Share in use on every node.",
            "percentunit",
            Query("ray_node_mem_used / ray_node_mem_total", "{{instance}}"),
            steps=(Step(0.9, "red"),),
        ),
        graph(
            "Autoscaling",
            "Nodes that are up, being started, and lately lost.",
            "none",
            Query("sum(autoscaler_active_nodes)", "up"),
            Query("sum(autoscaler_pending_nodes)", "starting"),
            Query("sum(autoscaler_recently_failed_nodes)", "lost"),
        ),
    )
    self_watch = (
        graph(
            "Cost of these metrics",
            "Share of the rounds' time that goes into them, since the start; a tenth of a per cent is usual.",
            "percentunit",
            Query(f"{ours('exporter_seconds_total')} / {ours('round_seconds_sum')}"),
            steps=(Step(0.01, "red"),),
        ),
        graph("Endpoints", "1: Prometheus reaches the run.", "none", Query('up{job="raybcgd"}', "{{instance}}")),
        graph(
            "Running for",
            "Since the start, or since the run was resumed.",
            "s",
            Query(f"time() - raybcgd_start_timestamp_seconds{OURS}"),
        ),
    )
    rows = (("Now", now), ("Hosts", hosts), ("Memory", memory), ("Ray", ray), ("Monitoring", self_watch))
    return page("raybcgd-cluster", "raybcgd: Cluster", "Hosts, memory, GPUs, autoscaling and failures.", rows)
