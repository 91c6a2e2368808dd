"""Every accepted form of each field, and its canonical form."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from perdure.sdk import StoreType, Task
from perdure.sdk.spec.buckets import STORES
from perdure.sdk.spec.infra import CLOUDS

RESOURCES: list[tuple[str, dict[str, Any]]] = [
    ("{}", {}),
    ("", {}),
    # places
    ("infra: aws", {"infra": "aws"}),
    ("infra: AWS/us-east-1", {"infra": "aws/us-east-1"}),
    ("infra: gcp/us-central1/us-central1-a", {"infra": "gcp/us-central1/us-central1-a"}),
    ("infra: gcp/*/us-central1-a", {"infra": "gcp/*/us-central1-a"}),
    ("infra: '*'", {}),
    ("infra: '*/*/*'", {}),
    ("infra: '*/us-east-1'", {"infra": "*/us-east-1"}),
    ("infra: aws/*", {"infra": "aws"}),
    ("infra: k8s", {"infra": "kubernetes"}),
    ("infra: kubernetes/my-context", {"infra": "kubernetes/my-context"}),
    (
        "infra: k8s/arn:aws:eks:us-east-1:123:cluster/prod",
        {"infra": "kubernetes/arn:aws:eks:us-east-1:123:cluster/prod"},
    ),
    ("infra: ssh/my-pool", {"infra": "ssh/my-pool"}),
    ("infra: local/local-1/local-1a", {"infra": "local/local-1/local-1a"}),
    ("cloud: GCP", {"infra": "gcp"}),
    ("{cloud: aws, region: us-east-1, zone: us-east-1a}", {"infra": "aws/us-east-1/us-east-1a"}),
    ("{region: us-east-1}", {"infra": "*/us-east-1"}),
    ("{cloud: aws, zone: us-east-1a}", {"infra": "aws/*/us-east-1a"}),
    ("{cloud: , region: }", {}),
    # sizes
    ("cpus: 4", {"cpus": "4"}),
    ("cpus: '4'", {"cpus": "4"}),
    ("cpus: 4+", {"cpus": "4+"}),
    ("cpus: 0.5", {"cpus": "0.5"}),
    ("memory: 32", {"memory": "32"}),
    ("memory: 32+", {"memory": "32+"}),
    ("memory: 64GB", {"memory": "64"}),
    ("memory: 64GiB+", {"memory": "64+"}),
    ("memory: 512MB", {"memory": "0.5"}),
    ("memory: 1tb", {"memory": "1024"}),
    ("disk_size: 100", {"disk_size": 100}),
    ("disk_size: 100GB", {"disk_size": 100}),
    ("disk_size: 1TB", {"disk_size": 1024}),
    ("disk_size: 1500MB", {"disk_size": 2}),
    ("ephemeral_storage: 50", {"ephemeral_storage": 50}),
    ("disk_tier: Best", {"disk_tier": "best"}),
    ("disk_tier: none", {}),
    ("network_tier: STANDARD", {"network_tier": "standard"}),
    ("max_hourly_cost: 2.5", {"max_hourly_cost": 2.5}),
    # accelerators
    ("accelerators: A100", {"accelerators": {"A100": 1}}),
    ("accelerators: A100:8", {"accelerators": {"A100": 8}}),
    ("accelerators: 'a100: 8'", {"accelerators": {"A100": 8}}),
    ("accelerators: A100:0.5", {"accelerators": {"A100": 0.5}}),
    ("accelerators: {A100: 8}", {"accelerators": {"A100": 8}}),
    ("accelerators: {A100: }", {"accelerators": {"A100": 1}}),
    ("accelerators: {A100: 8.0}", {"accelerators": {"A100": 8}}),
    ("accelerators: [H100:8]", {"accelerators": {"H100": 8}}),
    ("accelerators: [H100:8, A100:8]", {"accelerators": ["H100:8", "A100:8"]}),
    ("accelerators: [H100:8, {A100: 4}, H100:8]", {"accelerators": ["H100:8", "A100:4"]}),
    ("accelerators: {A100: 8, H100: 4}", {"accelerators": {"A100:8": None, "H100:4": None}}),
    ("accelerators: {A100:1, A100:8}", {"accelerators": {"A100:1": None, "A100:8": None}}),
    ("accelerators: !!set {L4, T4}", {"accelerators": {"L4:1": None, "T4:1": None}}),
    ("accelerators: A100:1 H100:1", {"accelerators": {"A100:1": None, "H100:1": None}}),
    ("accelerators: [A100, a100:1]", {"accelerators": {"A100": 1}}),
    ("accelerators: 80GB+", {"accelerators": {"80GB+": 1}}),
    ("accelerators: 40gb+:4", {"accelerators": {"40GB+": 4}}),
    ("accelerators: NVIDIA:80GB+", {"accelerators": {"nvidia:80GB+": 1}}),
    ("accelerators: {'nvidia:80GB': 2}", {"accelerators": {"nvidia:80GB": 2}}),
    ("accelerators: ['80GB:2', T4]", {"accelerators": ["80GB:2", "T4:1"]}),
    ("gpus: V100:2", {"accelerators": {"V100": 2}}),
    ("accelerators: MyChip-9:2", {"accelerators": {"MyChip-9": 2}}),
    ("accelerators: tpu-v2-8", {"accelerators": {"tpu-v2-8": 1}}),
    (
        "{accelerators: tpu-v2-8, accelerator_args: {runtime_version: r, tpu_vm: true}}",
        {"accelerators": {"tpu-v2-8": 1}, "accelerator_args": {"runtime_version": "r", "tpu_vm": True}},
    ),
    # the market, recovery
    ("use_spot: true", {"use_spot": True}),
    ("use_spot: false", {}),
    ("job_recovery: failover", {"job_recovery": {"strategy": "FAILOVER"}}),
    ("job_recovery: EAGER_NEXT_REGION", {"job_recovery": {"strategy": "EAGER_NEXT_REGION"}}),
    ("job_recovery: none", {}),
    ("job_recovery:", {}),
    ("job_recovery: {strategy: }", {}),
    (
        "job_recovery: {strategy: null, max_restarts_on_errors: 3, recover_on_exit_codes: 33}",
        {"job_recovery": {"max_restarts_on_errors": 3, "recover_on_exit_codes": [33]}},
    ),
    (
        "job_recovery: {strategy: Cheapest, recover_on_exit_codes: [0, 255]}",
        {"job_recovery": {"strategy": "CHEAPEST", "recover_on_exit_codes": [0, 255]}},
    ),
    ("job_recovery: {max_restarts_on_errors: 0}", {}),
    # the rest
    ("instance_type: p3.2xlarge", {"instance_type": "p3.2xlarge"}),
    ("image_id: docker:ubuntu:22.04", {"image_id": "docker:ubuntu:22.04"}),
    ("image_id: {us-east-1: ami-1}", {"image_id": {"us-east-1": "ami-1"}}),
    ("image_id: null", {}),
    ("image_id: {}", {}),
    ("labels: {team: vision}", {"labels": {"team": "vision"}}),
    ("local_disk: nvme:1000+", {"local_disk": "nvme:1000+"}),
    ("ports: 8080", {"ports": ["8080"]}),
    ("ports: 8080-8090", {"ports": ["8080-8090"]}),
    ("ports: [80, '443', 8080-8090]", {"ports": ["80", "443", "8080-8090"]}),
    ("autostop: true", {"autostop": True}),
    ("autostop: false", {}),
    ("autostop: 0", {"autostop": 0}),
    ("autostop: 10", {"autostop": 10}),
    ("autostop: 10m", {"autostop": "10m"}),
    ("autostop: 1w", {"autostop": "1w"}),
    (
        "autostop: {idle_minutes: 10, down: true, wait_for: jobs, hook: 'echo', hook_timeout: 5}",
        {"autostop": {"idle_minutes": 10, "down": True, "wait_for": "jobs", "hook": "echo", "hook_timeout": 5}},
    ),
    ("priority: -1000", {"priority": -1000}),
    ("priority: 1000", {"priority": 1000}),
    ("priority_class: high", {"priority_class": "high"}),
    ("volumes: [{path: /mnt, name: v, disk_size: 10}]", {"volumes": [{"path": "/mnt", "name": "v", "disk_size": 10}]}),
    # alternatives
    (
        "any_of: [{infra: aws}, {infra: gcp}]",
        {"any_of": [{"infra": "aws"}, {"infra": "gcp"}]},
    ),
    (
        "{accelerators: A100:8, ordered: [{infra: aws, use_spot: true}, {cloud: gcp}]}",
        {
            "ordered": [
                {"accelerators": {"A100": 8}, "infra": "aws", "use_spot": True},
                {"accelerators": {"A100": 8}, "infra": "gcp"},
            ]
        },
    ),
    (
        "{use_spot: true, infra: aws, gpus: T4, any_of: [{cloud: gcp, use_spot: false}, {accelerators: L4}]}",
        {
            "any_of": [
                {"infra": "gcp", "accelerators": {"T4": 1}},
                {"infra": "aws", "accelerators": {"L4": 1}, "use_spot": True},
            ]
        },
    ),
    ("{any_of: [{infra: aws}]}", {"infra": "aws"}),
    ("{any_of: [{infra: aws}, {cloud: AWS}]}", {"infra": "aws"}),
    (
        "{job_recovery: failover, any_of: [{cpus: 1}, {cpus: 2}]}",
        {
            "any_of": [
                {"job_recovery": {"strategy": "FAILOVER"}, "cpus": "1"},
                {"job_recovery": {"strategy": "FAILOVER"}, "cpus": "2"},
            ]
        },
    ),
]


@pytest.mark.parametrize(("text", "canonical"), RESOURCES)
def test_resources__accept_every_form(text: str, canonical: dict[str, Any]) -> None:
    body = f"resources: {text}" if text.startswith("{") else "resources:\n  " + text
    task = Task.from_yaml_str(body + "\nrun: x\n")
    assert task.to_yaml_config().get("resources", {}) == canonical
    assert task.resources.to_yaml_config() == canonical
    assert Task.from_yaml_config(task.to_yaml_config()) == task


TASK_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("name: my-task_1.2", {"name": "my-task_1.2"}),
    ("workdir: .", {"workdir": "."}),
    ("workdir: {url: 'https://github.com/a/b'}", {"workdir": {"url": "https://github.com/a/b"}}),
    ("workdir: {url: git@github.com:a/b, ref: main}", {"workdir": {"url": "git@github.com:a/b", "ref": "main"}}),
    ("workdir: {upload: abc}", {"workdir": {"upload": "abc"}}),
    ("num_nodes: 1", {}),
    ("num_nodes: 4", {"num_nodes": 4}),
    ("setup:", {}),
    ("run: ''", {}),
    # variables
    (
        "envs: {A: text, B: 1, C: 1.0, D: true, E: 2024-01-01, F: ''}",
        {"envs": {"A": "text", "B": "1", "C": "1.0", "D": "True", "E": "2024-01-01", "F": ""}},
    ),
    ("secrets: {A: x}", {"secrets": {"A": "x"}}),
    ("secrets: {'secrets:A': x}", {"secrets": {"A": "x"}}),
    ("envs: {}", {}),
    # what has no effect is kept
    ("volumes: {/mnt: my-volume}", {"volumes": {"/mnt": "my-volume"}}),
    ("volumes: {/mnt: {name: v, size: 10}}", {"volumes": {"/mnt": {"name": "v", "size": 10}}}),
    ("managed_secrets: [a]", {"managed_secrets": ["a"]}),
    ("managed_secrets: [{a: {mount_path: /a}}, b]", {"managed_secrets": [{"a": {"mount_path": "/a"}}, "b"]}),
    (
        "config: {hooks: [{run: x, events: [stop], timeout: 5}]}",
        {"config": {"hooks": [{"run": "x", "events": ["stop"], "timeout": 5}]}},
    ),
    # what SkyPilot adds when it writes a YAML
    ("_metadata: {git_commit: abc}", {"_metadata": {"git_commit": "abc"}}),
    ("file_mounts_mapping: {a: b}", {"file_mounts_mapping": {"a": "b"}}),
    ("volume_mounts: [{path: /v}]", {"volume_mounts": [{"path": "/v"}]}),
    ("config: {aws: {1: [true, null]}}", {"config": {"aws": {"1": [True, None]}}}),
    ("service: {readiness_probe: /}", {"service": {"readiness_probe": {"path": "/"}}}),
    ("pool: {workers: 2}", {"pool": {"workers": 2}}),
    ("event_callback: echo", {"event_callback": "echo"}),
    ("notify: ops", {"notify": ["ops"]}),
    ("sweep: {LR: [1e-3, 0.1], MODE: [a, true]}", {"sweep": {"LR": ["1e-3", "0.1"], "MODE": ["a", "True"]}}),
    ("notify: [ops, chat]", {"notify": ["ops", "chat"]}),
    ("notify: {to: ops, when: job.*}", {"notify": {"to": ["ops"], "when": ["job.*"]}}),
    ("inputs: {'s3://a': 1.5}", {"inputs": {"s3://a": 1.5}}),
    ("outputs: {'s3://a': 2}", {"outputs": {"s3://a": 2}}),
    ("api_server_access: false", {"api_server_access": False}),
    # mounts
    ("file_mounts: {~/.vimrc: ~/.vimrc}", {"file_mounts": {"~/.vimrc": "~/.vimrc"}}),
    ("file_mounts: {/a: {upload: x, is_file: true}}", {"file_mounts": {"/a": {"upload": "x", "is_file": True}}}),
    ("file_mounts: {/a: {name: my-bucket}}", {"file_mounts": {"/a": {"name": "my-bucket", "mode": "MOUNT"}}}),
    (
        "file_mounts: {/a: {name: , source: 's3://b/p', mode: copy}}",
        {"file_mounts": {"/a": {"source": "s3://b/p", "mode": "COPY"}}},
    ),
    (
        "file_mounts: {/a: {name: my-bucket, source: [./x, ~/y], store: s3, persistent: false}}",
        {
            "file_mounts": {
                "/a": {
                    "name": "my-bucket",
                    "source": ["./x", "~/y"],
                    "store": "S3",
                    "persistent": False,
                    "mode": "MOUNT",
                }
            }
        },
    ),
    (
        "file_mounts: {/a: {name: my-bucket, persistent: true, source: ./x}}",
        {"file_mounts": {"/a": {"name": "my-bucket", "source": "./x", "mode": "MOUNT"}}},
    ),
    (
        "file_mounts: {/a: {name: my-bucket, mode: Mount_Cached, type: model_checkpoint_rw, config: {mount_cached: "
        "{transfers: 4, buffer_size: 64M, vfs_write_back: 1s, vfs_read_chunk_streams: 0, read_only: false}}}}",
        {
            "file_mounts": {
                "/a": {
                    "name": "my-bucket",
                    "mode": "MOUNT_CACHED",
                    "type": "MODEL_CHECKPOINT_RW",
                    "config": {
                        "mount_cached": {
                            "transfers": 4,
                            "buffer_size": "64M",
                            "vfs_write_back": "1s",
                            "vfs_read_chunk_streams": 0,
                            "read_only": False,
                        }
                    },
                }
            }
        },
    ),
    (
        "file_mounts: {/a: {source: 's3://b', _bucket_sub_path: job-1/, _force_delete: true}}",
        {"file_mounts": {"/a": {"source": "s3://b/job-1", "mode": "MOUNT", "_force_delete": True}}},
    ),
    (
        "file_mounts: {/a: {source: 's3://b/job-1', _bucket_sub_path: job-1}}",
        {"file_mounts": {"/a": {"source": "s3://b/job-1", "mode": "MOUNT"}}},
    ),
    (
        "resources: {_docker_login_config: {username: ada, password: hunter2, server: s}}",
        {"resources": {"_docker_login_config": dict.fromkeys(("username", "password", "server"), "<redacted>")}},
    ),
    (
        "file_mounts: {/a: {source: 'hf://datasets/o/n', config: {mount: {read_only: true}}}}",
        {
            "file_mounts": {
                "/a": {"source": "hf://datasets/o/n", "mode": "MOUNT", "config": {"mount": {"read_only": True}}}
            }
        },
    ),
]


@pytest.mark.parametrize(("text", "canonical"), TASK_FIELDS)
def test_task__accepts_every_form(text: str, canonical: dict[str, Any]) -> None:
    task = Task.from_yaml_str(text)
    assert task.to_yaml_config() == canonical
    again = Task.from_yaml_config(yaml.safe_load(yaml.safe_dump(task.to_yaml_config())))
    assert again == task


def test_schema__has_every_store_and_cloud() -> None:
    assert {store.value for store in StoreType} == set(STORES)
    assert len(CLOUDS) == 26
    for cloud in CLOUDS:
        (option,) = Task.from_yaml_config({"resources": {"cloud": cloud.upper()}}).resources
        assert option.cloud == cloud
