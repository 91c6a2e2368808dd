"""Every field of the task YAML is documented, and the generated page contains all of them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.controller.buckets import mounts
from perdure.controller.buckets.service import StorageService
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.azure.cloud import AzureCloud
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.clouds.fake import FakeCloud
from perdure.controller.clouds.gcp.cloud import GcpCloud
from perdure.controller.clouds.kubernetes.cloud import KubernetesCloud
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.reconcile.market_state import MarketState
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.notify_config import ChannelConfig, NotifyConfig
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.submit.compiler import Compiler
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk import Task
from perdure.sdk.spec import file_mount_fields, task_fields
from perdure.sdk.spec.resource_fields import ONE_RESOURCES, RESOURCES
from perdure.sdk.spec.validators import Items, OneOf, Record, Table, Validator

REPOSITORY = Path(__file__).parents[4]


def records_in(validator: Validator) -> list[Record]:
    """The mappings that a value may contain, including the validator itself."""
    match validator:
        case Record():
            parts = [field.validator for field in validator.fields.values()]
        case OneOf():
            parts = list(validator.validators)
        case Items():
            parts = [validator.item]
        case Table():
            parts = [validator.key, validator.value, *validator.known.values()]
        case _:
            return []
    own = [validator] if isinstance(validator, Record) else []
    return own + [record for part in parts for record in records_in(part)]


RECORDS = list(dict.fromkeys([*records_in(task_fields.TASK), *records_in(task_fields.HEADER)]))


@pytest.fixture
def yaml_reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    return importlib.import_module("scripts.docs.yaml_reference")


def test_fields__have_a_meaning() -> None:
    assert len(RECORDS) > 10
    fields = [(name, field) for record in RECORDS for name, field in record.fields.items()]
    assert [name for name, field in fields if not re.fullmatch(r"[A-Z`v].+[.]", field.meaning)] == []
    stated = [(name, [field.no_effect, field.acted_on, field.refused]) for name, field in fields]
    assert [name for name, texts in stated if len(list(filter(None, texts))) > 1] == []
    assert all(field.no_effect.startswith("accepted, but has no effect") for _, field in fields if field.no_effect)


def test_store__acts_on_the_stores_that_the_controller_supports() -> None:
    stores = file_mount_fields.STORAGE.fields["store"].acted_on.split(", ")
    assert {store.lower() for store in stores} == mounts._SUPPORTED


def test_page__has_a_table_with_every_field_of_every_mapping(yaml_reference: ModuleType) -> None:
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", yaml_reference.page(), flags=re.DOTALL | re.MULTILINE))
    documented = {record: title for title, _, record in yaml_reference.SECTIONS}
    assert set(RECORDS) - {ONE_RESOURCES} == set(documented)
    assert ONE_RESOURCES.fields.keys() <= RESOURCES.fields.keys()
    for record, title in documented.items():
        assert re.findall(r"^\| `(\w+)` \|", sections[title], flags=re.MULTILINE) == list(record.fields)


def test_page__tables_are_valid_markdown(yaml_reference: ModuleType) -> None:
    page = yaml_reference.page()
    blocks = re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE)
    assert len(blocks) == len(yaml_reference.SECTIONS) + 1
    for block in blocks:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1
    anchors = {yaml_reference._anchor(title) for title, _, _ in yaml_reference.SECTIONS} | {"what-each-cloud-does"}
    assert set(re.findall(r"\(#([^)]+)\)", page)) <= anchors


def test_page__says_why_a_field_has_no_effect(yaml_reference: ModuleType) -> None:
    page = yaml_reference.page()
    assert "| no effect on jobs, whose machines are always terminated; it acts in `perdure launch` |" in page
    assert re.search(r"^\| `disk_size` \|.*\| AWS, Google Cloud, Azure, Kubernetes \|$", page, flags=re.MULTILINE)


CACHED = "file_mounts: {{/a: {{name: abc, mode: MOUNT_CACHED, config: {{mount_cached: {{{}}}}}}}}}"
# A task with each field of the table of clouds. CLOUD stands for the cloud, @ for the digest of an upload.
EXAMPLES = {
    "name": "name: x",
    "workdir": "workdir: {upload: '@'}",
    "workdir.url": "workdir: {url: 'https://example.com/a.git'}",
    "workdir.ref": "workdir: {url: 'https://example.com/a.git', ref: main}",
    "num_nodes": "num_nodes: 2",
    "resources": "resources: {cpus: 4}",
    "resources.infra": "resources: {infra: CLOUD}",
    "resources.cloud": "resources: {cloud: CLOUD}",
    "resources.region": "resources: {region: a}",
    "resources.zone": "resources: {zone: a}",
    "resources.instance_type": "resources: {instance_type: a}",
    "resources.cpus": "resources: {cpus: 4}",
    "resources.memory": "resources: {memory: 4}",
    "resources.accelerators": "resources: {accelerators: V100}",
    "resources.gpus": "resources: {gpus: V100}",
    "resources.accelerator_args": "resources: {accelerator_args: {tpu_vm: true}}",
    "resources.use_spot": "resources: {use_spot: true}",
    "resources.job_recovery": "resources: {job_recovery: FAILOVER}",
    "resources.job_recovery.strategy": "resources: {job_recovery: {strategy: FAILOVER}}",
    "resources.job_recovery.max_restarts_on_errors": "resources: {job_recovery: {max_restarts_on_errors: 1}}",
    "resources.job_recovery.recover_on_exit_codes": "resources: {job_recovery: {recover_on_exit_codes: 3}}",
    "resources.job_recovery.deadline": "resources: {job_recovery: {deadline: 60h, work: 1h}}",
    "resources.job_recovery.work": "resources: {job_recovery: {strategy: VALUE, work: 1h}}",
    "resources.job_recovery.on_time": "resources: {job_recovery: {deadline: 60h, work: 1h, on_time: 0.99}}",
    "resources.job_recovery.patience": "resources: {job_recovery: {strategy: VALUE, patience: 0.1}}",
    "resources.job_recovery.move_cost": "resources: {job_recovery: {strategy: VALUE, move_cost: 2}}",
    "resources.job_recovery.keep_on_failure": "resources: {job_recovery: {keep_on_failure: 30m}}",
    "resources.job_recovery.stuck_after": "resources: {job_recovery: {stuck_after: 30m}}",
    "resources.job_recovery.restart_when_stuck": "resources: {job_recovery: {restart_when_stuck: 20m}}",
    "resources.job_recovery.max_duration": "resources: {job_recovery: {max_duration: 2d}}",
    "resources.job_recovery.max_cost": "resources: {job_recovery: {max_cost: 100}}",
    "resources.disk_size": "resources: {disk_size: 50}",
    "resources.ephemeral_storage": "resources: {ephemeral_storage: 50}",
    "resources.disk_tier": "resources: {disk_tier: high}",
    "resources.network_tier": "resources: {network_tier: best}",
    "resources.local_disk": "resources: {local_disk: nvme}",
    "resources.max_hourly_cost": "resources: {max_hourly_cost: 2}",
    "resources.ports": "resources: {ports: 80}",
    "resources.labels": "resources: {labels: {a: b}}",
    "resources.image_id": "resources: {image_id: ami-1}",
    "resources.autostop": "resources: {autostop: 5}",
    "resources.autostop.hook": "resources: {autostop: {hook: a}}",
    "resources.hooks": "resources: {hooks: [{run: a}]}",
    "resources.priority": "resources: {priority: 5}",
    "resources.priority_class": "resources: {priority_class: a}",
    "resources.volumes": "resources: {volumes: [{path: /a}]}",
    "resources._cluster_config_overrides": "resources: {_cluster_config_overrides: {a: b}}",
    "resources._docker_login_config": "resources: {_docker_login_config: {password: a}}",
    "resources._is_image_managed": "resources: {_is_image_managed: true}",
    "resources._no_missing_accel_warnings": "resources: {_no_missing_accel_warnings: true}",
    "resources._requires_fuse": "resources: {_requires_fuse: true}",
    "resources.any_of": "resources: {any_of: [{cpus: 1}, {cpus: 2}]}",
    "resources.ordered": "resources: {ordered: [{cpus: 1}, {cpus: 2}]}",
    "file_mounts": "file_mounts: {/a: {upload: '@'}}",
    "file_mounts.*.name": "file_mounts: {/a: {name: abc}}",
    "file_mounts.*.source": "file_mounts: {/a: {source: 'local://abc'}}",
    "file_mounts.*.store": "file_mounts: {/a: {name: abc, store: LOCAL}}",
    "file_mounts.*.persistent": "file_mounts: {/a: {name: abc, persistent: false}}",
    "file_mounts.*.mode": "file_mounts: {/a: {name: abc, mode: COPY}}",
    "file_mounts.*.type": "file_mounts: {/a: {name: abc, mode: MOUNT_CACHED, type: DATASET_RO}}",
    "file_mounts.*.config": "file_mounts: {/a: {name: abc, config: {mount: {read_only: true}}}}",
    "file_mounts.*.config.mount_cached": CACHED.format("transfers: 2"),
    "file_mounts.*.config.mount_cached.transfers": CACHED.format("transfers: 2"),
    "file_mounts.*.config.mount_cached.vfs_read_chunk_streams": CACHED.format("vfs_read_chunk_streams: 2"),
    "file_mounts.*.config.mount_cached.read_only": CACHED.format("read_only: true"),
    "file_mounts.*.config.mount_cached.buffer_size": CACHED.format("buffer_size: 1M"),
    "file_mounts.*.config.mount_cached.vfs_cache_max_size": CACHED.format("vfs_cache_max_size: 1G"),
    "file_mounts.*.config.mount_cached.vfs_cache_max_age": CACHED.format("vfs_cache_max_age: 2h"),
    "file_mounts.*.config.mount_cached.vfs_read_ahead": CACHED.format("vfs_read_ahead: 1M"),
    "file_mounts.*.config.mount_cached.vfs_read_chunk_size": CACHED.format("vfs_read_chunk_size: 1M"),
    "file_mounts.*.config.mount_cached.vfs_write_back": CACHED.format("vfs_write_back: 5s"),
    "file_mounts.*.config.mount_cached.flush_every": CACHED.format("flush_every: 10s"),
    "file_mounts.*.config.mount": "file_mounts: {/a: {name: abc, config: {mount: {read_only: true}}}}",
    "file_mounts.*.config.mount.read_only": "file_mounts: {/a: {name: abc, config: {mount: {read_only: true}}}}",
    "file_mounts.*.config.mount.hf_mount_args": "file_mounts: {/a: {name: abc, config: {mount: {hf_mount_args: [a]}}}}",
    "file_mounts.*.config.disk_size": "file_mounts: {/a: {name: abc, config: {disk_size: 5}}}",
    "file_mounts.*.config.disk_tier": "file_mounts: {/a: {name: abc, config: {disk_tier: low}}}",
    "file_mounts.*.config.storage_type": "file_mounts: {/a: {name: abc, config: {storage_type: a}}}",
    "file_mounts.*.config.attach_mode": "file_mounts: {/a: {name: abc, config: {attach_mode: a}}}",
    "file_mounts.*._bucket_sub_path": "file_mounts: {/a: {source: 'local://abc', _bucket_sub_path: a}}",
    "file_mounts.*._force_delete": "file_mounts: {/a: {name: abc, _force_delete: true}}",
    "file_mounts.*._is_sky_managed": "file_mounts: {/a: {name: abc, _is_sky_managed: true}}",
    "volumes": "volumes: {/a: b}",
    "volume_mounts": "volume_mounts: [{path: /a}]",
    "setup": "setup: a",
    "run": "run: a",
    "runtime": "runtime: {python: '3.11'}",
    "runtime.python": "runtime: {python: '3.11'}",
    "envs": "envs: {A: b}",
    "secrets": "secrets: {A: b}",
    "managed_secrets": "managed_secrets: [{HF_TOKEN: {mount_path: /a}}]",
    "config.hooks": "config: {hooks: [{run: a}]}",
    "config.kubernetes": "config: {kubernetes: {pod_config: {}}}",
    "config.docker": "config: {docker: {run_options: [a]}}",
    "config.*": "config: {aws: {vpc_name: a}}",
    "config.hooks.run": "config: {hooks: [{run: a}]}",
    "config.hooks.events": "config: {hooks: [{run: a, events: [preemption]}]}",
    "config.hooks.timeout": "config: {hooks: [{run: a, timeout: 5}]}",
    "service": "service: {readiness_probe: /}",
    "pool": "pool: {workers: 1}",
    "event_callback": "event_callback: a",
    "notify": "notify: ops",
    "notify.to": "notify: {to: [ops]}",
    "notify.when": "notify: {to: ops, when: job.failed}",
    "sweep": "sweep: {A: [1, 2]}",
    "inputs": "inputs: {a: 1}",
    "outputs": "outputs: {a: 1}",
    "api_server_access": "api_server_access: true",
    "file_mounts_mapping": "file_mounts_mapping: {a: b}",
    "_metadata": "_metadata: {a: b}",
}


BY_VALUE = {
    "resources.image_id": "resources: {image_id: 'skypilot:a'}",
    "config.hooks": "config: {hooks: [{run: a, events: [stop]}]}",
}


@pytest.fixture(scope="module")
def storage() -> StorageService:
    """Plans buckets of the local store, without a database."""
    nothing: Any = None
    return StorageService({"local": nothing}, nothing, "", Path, ManualClock())


def test_cloud_table__has_an_example_of_each_field(yaml_reference: ModuleType) -> None:
    assert list(yaml_reference.effects_by_cloud()) == list(EXAMPLES)


@pytest.mark.parametrize("cloud", [LocalCloud, AwsCloud, GcpCloud, AzureCloud, KubernetesCloud])
def test_cloud_table__says_what_the_controller_does(
    yaml_reference: ModuleType, storage: StorageService, cloud: type[Cloud]
) -> None:
    name = cloud.__name__.removesuffix("Cloud").lower()
    clock = ManualClock()
    seller = FakeCloud(clock, name=name)
    seller.ignores = cloud.ignores
    notify = NotifyConfig({"ops": ChannelConfig("ops", "slack", "https://example.com")}, runs_callbacks=True)
    compiler = Compiler(Keyring(b"k" * 32, "user"), MarketState({name: seller}, clock), storage, notify)

    def effect(text: str) -> str:
        config = Task.from_yaml_str(text.replace("CLOUD", name).replace("@", "0" * 64)).to_yaml_config()
        try:
            warnings = compiler.compile("j", [config], clock.now()).warnings
        except RequestRejected as error:
            return "refused" if "--ignore" in error.fix else error.message
        return "no effect" if [one for one in warnings if "has no effect" in one] else "yes"

    table = {path: effects[name] for path, effects in yaml_reference.effects_by_cloud().items()}
    assert {path: effect(text) for path, text in EXAMPLES.items()} == table
    for path, (values, stated) in yaml_reference._BY_VALUE.items():
        assert effect(BY_VALUE[path]) == stated, values
