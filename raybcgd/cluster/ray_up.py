"""Files for `ray up` on AWS and Google Cloud."""

from typing import Any

from raybcgd.cluster.settings import AwsValues, GcpValues, Values
from raybcgd.cluster.versions import ray_image

Object = dict[str, Any]

SOURCE = "~/raybcgd-source"
SENT = ("raybcgd", "constraints.txt", "pyproject.toml", "README.md", "LICENSE")
"""What the installation needs. Ray hashes and syncs every file, so nothing else is sent."""
MONITORING = ("cluster/monitoring", "dashboards")
"""What Prometheus and Grafana on the head need."""
_HOST_FOLDERS = "/tmp/ray /tmp/raybcgd-discovery /var/tmp/raybcgd-runs"
_WAIT_FOR_GPU = (
    # The driver is installed on the first start. Ray runs `nvidia-smi` once and, if it fails, starts a container
    # without GPUs.
    "timeout 900 bash -c 'while lspci | grep -qi nvidia && ! nvidia-smi > /dev/null 2>&1; do sleep 5; done'"
)


def aws_file(values: Values, aws: AwsValues) -> Object:
    """Return the cluster file for AWS."""
    provider = {
        "type": "aws",
        "region": aws.region,
        "availability_zone": ",".join(aws.zones),
        "cache_stopped_nodes": False,  # the disk of a stopped machine still costs money
        # Ray does not change a group that already has rules. A group created by Ray allows SSH from anywhere.
        "security_group": {"GroupName": aws.security_group},
    }
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": aws.disk_gib, "VolumeType": "gp3"}}
    common = {
        "ImageId": aws.machine_image,
        # The head starts the workers and passes this role on to them. Ray's default role does not permit that.
        "IamInstanceProfile": {"Name": aws.instance_profile},
        "BlockDeviceMappings": [disk],
    }
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    worker = {"InstanceType": aws.worker_type, **common}
    return _file(values, provider, {"InstanceType": aws.head_type, **common}, worker, spot)


def gcp_file(values: Values, gcp: GcpValues) -> Object:
    """Return the cluster file for Google Cloud."""
    provider = {
        "type": "gcp",
        "region": gcp.region,
        "availability_zone": gcp.zone,
        "project_id": gcp.project,
        "cache_stopped_nodes": False,
    }
    disk = {
        "boot": True,
        "autoDelete": True,
        "type": "PERSISTENT",
        "initializeParams": {"diskSizeGb": gcp.disk_gib, "sourceImage": gcp.machine_image},
    }
    account = {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    common: Object = {"tags": {"items": [values.name]}, "disks": [disk], "serviceAccounts": [account]}
    worker: Object = {"machineType": gcp.worker_type, **common}
    if values.workers.gpus:
        worker["guestAccelerators"] = [
            {"acceleratorType": gcp.accelerator, "acceleratorCount": values.workers.gpus},
        ]
        worker["metadata"] = {"items": [{"key": "install-nvidia-driver", "value": "True"}]}
    worker["scheduling"] = {"onHostMaintenance": "TERMINATE"}
    spot = {"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}}
    return _file(values, provider, {"machineType": gcp.head_type, **common}, worker, spot)


def _file(values: Values, provider: Object, head: Object, worker: Object, spot: Object) -> Object:
    """Return a cluster file. `spot` holds the settings that make a worker a spot machine."""
    workers = values.workers
    kind, gpus = ("gpu", {"GPU": workers.gpus}) if workers.gpus else ("cpu", {})
    node = {
        "min_workers": 0,
        "max_workers": workers.max_nodes,
        # Without `memory`, the autoscaler would add no node for hosts that request memory.
        "resources": {"CPU": workers.cpus, **gpus, "memory": values.ray_memory_bytes},
    }
    types: Object = {"head": {"resources": {"CPU": 0}, "node_config": head}}
    if workers.spot:
        types[f"{kind}_spot"] = {**node, "priority": 10, "node_config": {**worker, **spot}}
    if workers.on_demand:
        types[f"{kind}_on_demand"] = {**node, "priority": 0, "node_config": worker}
    return {
        "cluster_name": values.name,
        "max_workers": workers.max_nodes,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": workers.idle_minutes,
        "provider": provider,
        "auth": {"ssh_user": "ubuntu"},
        "docker": _docker(values),
        "available_node_types": types,
        "head_node_type": "head",
        "file_mounts": _mounts(),
        "rsync_exclude": ["**/__pycache__"],
        "initialization_commands": [f"sudo mkdir -p -m 1777 {_HOST_FOLDERS}", _WAIT_FOR_GPU],
        "setup_commands": setup_commands(),
        "head_start_ray_commands": ["ray stop", _start_head()],
        "worker_start_ray_commands": ["ray stop", *_start_worker(values)],
    }


def _docker(values: Values) -> Object:
    return {
        "head_image": ray_image(gpu=False),
        "worker_image": ray_image(gpu=values.workers.gpus > 0),
        "container_name": "raybcgd",
        "pull_before_run": True,
        "run_options": [
            "--ulimit nofile=65536:65536",
            "--env RAY_AUTH_MODE=token",
            # Prometheus runs on the machine and reads these folders. Ray removes a container when it stops, so the
            # runs are stored on the machine, too.
            "--volume /tmp/ray:/tmp/ray",
            "--volume /tmp/raybcgd-discovery:/tmp/raybcgd-discovery",
            "--volume /var/tmp/raybcgd-runs:/home/ray/raybcgd-runs",
        ],
    }


def _mounts() -> dict[str, str]:
    """Return the files to send: the token, the package, and what monitoring needs."""
    sent = {f"{SOURCE}/{name}": name for name in (*SENT, *MONITORING)}
    return {"~/.ray/auth_token": "~/.ray/auth_token", **sent}


def setup_commands() -> list[str]:
    """Return the commands that install the package on every node.

    Docker creates the parent folders of mounted files as root, so pip cannot write there and builds in a copy.
    """
    sources = " ".join(f"{SOURCE}/{name}" for name in SENT)
    copy = f"rm -rf ~/raybcgd-build && mkdir ~/raybcgd-build && cp -r --no-preserve=mode {sources} ~/raybcgd-build"
    return [f"{copy} && pip install --quiet --constraint ~/raybcgd-build/constraints.txt ~/raybcgd-build"]


def _start_head() -> str:
    # The dashboard accepts jobs, so it listens on loopback only. `ray dashboard` forwards it to your machine over SSH.
    return (
        "ray start --head --port=6379 --num-cpus=0 --metrics-export-port=8080 --dashboard-host=127.0.0.1 "
        "--autoscaling-config=~/ray_bootstrap_config.yaml"
    )


def _start_worker(values: Values) -> list[str]:
    mps = "CUDA_MPS_LOG_DIRECTORY=/tmp/nvidia-mps-log nvidia-cuda-mps-control -d || true"
    # Prometheus on the head finds the workers by their port 8081, and the collector of each at 9464. The collector
    # serves the metrics of runs on that node, such as the points of a sweep.
    start = "ray start --address=$RAY_HEAD_IP:6379 --metrics-export-port=8081"
    collector = "setsid nohup python -m raybcgd.record.collector --host 0.0.0.0 > /tmp/raybcgd-collector.log 2>&1 &"
    return [*([mps] if values.mps else []), start, collector]


def aws_policy(values: Values, aws: AwsValues) -> Object:
    """Return the policy of the instance profile: start workers, and read and write the bucket."""
    bucket = (values.storage.bucket or "").removeprefix("s3://").split("/")[0]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"},
            {"Effect": "Allow", "Action": "iam:PassRole", "Resource": f"arn:aws:iam::*:role/{aws.instance_profile}"},
            {
                "Effect": "Allow",
                "Action": "ssm:GetParameters",
                "Resource": "arn:aws:ssm:*::parameter/aws/service/deeplearning/*",
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
                "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
            },
        ],
    }
