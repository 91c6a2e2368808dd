"""Jobs with buckets of Google and Azure, from the task file to the object and back, on local servers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.storage.stored_jobs import Jobs
from support.fakes import azurite
from support.fakes.azurite import ACCOUNT, Azurite
from support.fakes.gcs import FakeGcs
from support.helpers.controllers import Controller, ControllerOn

pytestmark = pytest.mark.fuse


@dataclass(frozen=True)
class Cloud:
    """`secrets`: credentials of the controller that no node may see."""

    store: str
    uri: str
    objects: Callable[[str], dict[str, bytes]]
    make: Callable[[str, dict[str, bytes]], None]
    names: Callable[[], set[str]]
    secrets: tuple[str, ...]


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    with FakeGcs(tmp_path_factory.mktemp("gcs")) as server:
        server.tokens.life_s = 4.0  # a job sees several of them
        yield server


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite | None]:
    """None if azurite is not installed."""
    if azurite.problem():
        yield None
        return
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="module")
def controller(
    gcs: FakeGcs, blobs: Azurite | None, tmp_path_factory: pytest.TempPathFactory, controller_on: ControllerOn
) -> Iterator[Controller]:
    home = tmp_path_factory.mktemp("home")
    config = f"gcs: {{endpoint: '{gcs.url}', credentials: {gcs.key_file}, location: us-east4}}\n"
    if blobs is not None:
        config += f"azure_blob: {{endpoint: '{blobs.endpoint}'}}\n"
    (home / "config.yaml").write_text(config)
    with controller_on(home, environ=dict(blobs.environ) if blobs else {}) as one:
        yield one


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest, gcs: FakeGcs, blobs: Azurite | None) -> Cloud:
    if request.param == "azure":
        if blobs is None:
            pytest.skip(str(azurite.problem()))
        client = blobs.client()

        def fill(name: str, content: dict[str, bytes]) -> None:
            container = client.create_container(name)
            for key, body in content.items():
                container.upload_blob(key, body)

        def names() -> set[str]:
            return {one.name for one in client.list_containers()}

        uri = f"https://{ACCOUNT}.blob.core.windows.net/"
        return Cloud("azure", uri, blobs.objects, fill, names, (azurite.KEY,))

    def make(name: str, content: dict[str, bytes]) -> None:
        gcs.make(name)
        for key, body in content.items():
            gcs.put(name, key, body)

    return Cloud("gcs", "gs://", gcs.objects, make, lambda: set(gcs.state.buckets), ("PRIVATE KEY",))


def test_preempted_job__resumes_from_its_bucket(controller: Controller, cloud: Cloud, gcs: FakeGcs, jobs: Jobs) -> None:
    name = f"goes-on-in-{cloud.store}"
    job = jobs.launch(
        controller, f"/ckpt: {{name: {name}, store: {cloud.store}, mode: MOUNT_CACHED}}", jobs.trainer(30)
    )
    jobs.until_logged(controller, job, " step-0006\n")
    controller.perdure("jobs", "preempt", job, "--notice", "10")
    ended = jobs.until_ended(controller, job)
    log = controller.log(job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    assert ended["recovery_count"] == 1
    starts = [int(line.split()[2]) for line in log.splitlines() if "starts after" in line]
    assert starts[0] == 0
    assert starts[1] >= 6, "what was flushed at the notice is there"
    objects = cloud.objects(name)
    assert set(objects) == {f"step-{i:04}" for i in range(1, 31)}
    assert jobs.digests(objects) == jobs.written(log), "bit for bit"
    if cloud.store == "gcs":
        assert gcs.state.bucket(name).resource["location"] == "US-EAST4"
        assert len(gcs.tokens.made) > 2, "tokens were renewed"


def test_bucket_modes__work_and_a_temporary_bucket_is_deleted(
    controller: Controller, cloud: Cloud, jobs: Jobs, tmp_path: Path
) -> None:
    corpus, made = f"corpus-of-{cloud.store}", f"made-in-{cloud.store}"
    cloud.make(corpus, {"top": b"top", "data/one": b"1" * 300_000, "data/deep/two": b"two"})
    local = tmp_path / "local"
    (local / "sub").mkdir(parents=True)
    (local / "sub" / "three").write_bytes(b"three")
    mounts = f"""
        /copy: "{cloud.uri}{corpus}/data"
        /file: "{cloud.uri}{corpus}/top"
        /mount: {{source: "{cloud.uri}{corpus}/data", mode: MOUNT}}
        /made: {{name: {made}, store: {cloud.store}, source: {local}, mode: MOUNT_CACHED, persistent: false}}
    """
    run = """
        set -e
        cat /copy/deep/two /file /mount/deep/two /made/sub/three; echo
        cmp /copy/one /mount/one
        tail -c 5 /mount/one; echo
        seq 1 200000 > /mount/numbers
        echo changed > /copy/deep/two
        echo more > /made/more
        env
        until [ -e ~/go ]; do sleep 0.1; done
    """
    job = jobs.launch(controller, mounts, run)
    jobs.until_logged(controller, job, "twotoptwothree\n")
    controller.until(lambda: "more" in cloud.objects(made), "the upload")
    (jobs.machine_root(controller, job) / "home/perdure/go").touch()
    ended = jobs.until_ended(controller, job)
    assert ended["status"] == "SUCCEEDED", jobs.explained(controller, ended)
    assert cloud.objects(corpus)["data/numbers"] == b"".join(b"%d\n" % i for i in range(1, 200_001))
    assert cloud.objects(corpus)["data/deep/two"] == b"two"
    controller.until(lambda: made not in cloud.names(), "the bucket's end")
    with sqlite3.connect(controller.home / "perdure.db") as db:
        kept = "\n".join(db.iterdump())
    seen = controller.log(job) + kept + jobs.shown(controller, job) + (controller.home / "controller.log").read_text()
    assert not [secret for secret in (*cloud.secrets, "sig=", "narrowed-") if secret in seen]


@pytest.mark.parametrize("uri", ["gs://not-there", f"https://{ACCOUNT}.blob.core.windows.net/not-there"])
def test_missing_bucket__fails_the_job_with_its_name(
    controller: Controller, blobs: Azurite | None, jobs: Jobs, uri: str
) -> None:
    if blobs is None and uri.startswith("https"):
        pytest.skip(str(azurite.problem()))
    ended = jobs.until_ended(controller, jobs.launch(controller, f'/data: "{uri}"', "true"))
    assert ended["status"] == "FAILED_PRECHECKS", jobs.explained(controller, ended)
    assert "not-there" in ended["message"]
    assert "create it, or correct its name" in ended["message"]
