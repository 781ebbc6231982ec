"""Who can reach what: tokens, network rules and ports match SECURITY.md."""

import re

import pytest

from raybcgd.cluster.pods import PORTS
from tests.cluster.shipped import CLUSTER, PROFILES, RAY_UP, cluster_spec, objects, pods, ray_up


def policy(profile: str) -> list[dict]:
    """Return the rules of a profile's network policy."""
    rules: list[dict] = objects(profile)["NetworkPolicy/raybcgd"]["spec"]["ingress"]
    return rules


@pytest.mark.parametrize("profile", PROFILES)
def test_pods_require_the_token_and_are_not_exposed(profile: str) -> None:
    found = objects(profile)
    specs = [cluster_spec(profile), found["RayJob/raybcgd-first"]["spec"]["rayClusterSpec"]]
    for spec in specs:
        assert spec["authOptions"] == {"mode": "token"}
        assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    for path in (CLUSTER / "kubernetes" / profile).glob("*.yaml"):
        assert not re.search("LoadBalancer|NodePort|hostPort|hostNetwork|kind: Ingress", path.read_text()), path
    rules = found["NetworkPolicy/raybcgd"]["spec"]
    assert rules["policyTypes"] == ["Ingress"]
    assert all("from" in rule for rule in rules["ingress"])  # a rule without it admits everyone
    policies = [one["spec"]["podSelector"]["matchLabels"] for one in found.values() if one["kind"] == "NetworkPolicy"]
    for template in pods(profile):
        labels = template["metadata"]["labels"]
        assert any(selector.items() <= labels.items() for selector in policies), labels


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_head_stays_up(profile: str) -> None:
    spec = cluster_spec(profile)
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] <= 300
    groups = spec["workerGroupSpecs"]
    assert all(group["minReplicas"] == 0 for group in groups)
    names = [group["groupName"] for group in groups]
    if profile in ("aws-spot", "google-cloud"):
        assert names == ["gpu-spot", "gpu-on-demand"]
        assert groups[0]["priority"] > groups[1]["priority"]
        assert groups[0]["template"]["spec"]["nodeSelector"] != groups[1]["template"]["spec"]["nodeSelector"]
    else:
        assert names == (["cpu-on-demand"] if profile == "no-gpu" else ["gpu-on-demand"])
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]


@pytest.mark.parametrize("profile", PROFILES)
def test_prometheus_can_reach_every_port_that_it_scrapes(profile: str) -> None:
    """Every pod has Ray's metrics and the collector; the head also has the autoscaler's and the dashboard's metrics."""
    admitted = {rule["port"] for rule in policy(profile)[2]["ports"]}
    scraped = {
        endpoint["port"]
        for one in objects(profile).values()
        if one["kind"] == "PodMonitor"
        for endpoint in one["spec"]["podMetricsEndpoints"]
    }
    assert {PORTS[name] for name in scraped} == admitted == {8080, 9464, 44217, 44227}
    spec = cluster_spec(profile)
    declared = [
        {port["name"] for container in group["template"]["spec"]["containers"] for port in container["ports"]}
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    ]
    assert scraped <= declared[0]
    assert all({"metrics", "runs"} <= names for names in declared)


def test_the_security_page_lists_the_open_ports() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \| (.*) \|$", (CLUSTER / "SECURITY.md").read_text(), re.MULTILINE)
    listed = {int(port): (machines, inside) for port, machines, inside in rows}
    within, operator, monitoring = policy("aws-spot")
    assert "ports" not in within  # all ports between the cluster's pods
    assert {rule["port"] for rule in operator["ports"]} == {p for p, (_, pod) in listed.items() if "operator" in pod}
    assert {rule["port"] for rule in monitoring["ports"]} == {
        p for p, (_, pod) in listed.items() if "Prometheus" in pod
    }
    assert [port for port, (machines, _) in listed.items() if "your address" in machines] == [22]
    assert "loopback" in listed[8265][0]


def test_the_readme_starts_ray_on_loopback_with_a_token() -> None:
    readme = (CLUSTER / "README.md").read_text()
    own = readme[readme.index("## Your own machine") : readme.index("## AWS")]
    assert "export RAY_AUTH_MODE=token" in own
    (start,) = re.findall(r"^ray start .*$", own, re.MULTILINE)
    assert "--node-ip-address=127.0.0.1" in start  # --dashboard-host leaves the control store on all interfaces
    assert "--dashboard-host=127.0.0.1" in start


@pytest.mark.parametrize("name", [*(f"kubernetes/{profile}" for profile in PROFILES), *(f"ray-up/{n}" for n in RAY_UP)])
def test_the_readme_lists_every_example(name: str) -> None:
    assert f"({name}.toml)" in (CLUSTER / "README.md").read_text()


def test_the_readme_names_the_role_the_group_and_the_tag_of_the_files() -> None:
    readme = (CLUSTER / "README.md").read_text()
    node = ray_up("aws")["available_node_types"]["head"]["node_config"]
    assert f"--instance-profile-name {node['IamInstanceProfile']['Name']}\n" in readme
    assert f"--group-name {ray_up('aws')['provider']['security_group']['GroupName']} " in readme
    (tag,) = ray_up("gcp")["available_node_types"]["head"]["node_config"]["tags"]["items"]
    assert f"--target-tags {tag} " in readme
