"""Training with Big Data on SkyPilot: the model in the bucket, the same with preemptions, and the model as a service.

Tigris is a local S3 server. The demonstration's scripts contain the guide's code word for word, where it is complete.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e.storage.s3_server import KEY_ID, SECRET, S3Server
from perdure.agent.storage.fuse import fuse_problem
from seeds.conftest import CONFIG
from seeds.documents import TIGRIS
from seeds.image import STAND_INS, Computer, computer
from support.helpers.ports import unused_port
from support.helpers.services import HAS_HAPROXY

COPY_ENV = TIGRIS.take("cp .env.example .env")
LAUNCH = TIGRIS.take("sky launch -n test allatonce.yaml")
SERVE = TIGRIS.take("sky serve up -n mymodel service.yaml --env-file .env")
CURL = TIGRIS.take("curl 3.84.15.251:30001/v1/chat/completions")
CLIENT = TIGRIS.take("from openai import OpenAI")
SERVE_DOWN = TIGRIS.take("sky serve down mymodel")
DEMO = STAND_INS / "skypilot-training-demo"
EXCERPTS = {
    "import-dataset.py": (
        TIGRIS.take('dataset = load_dataset(dataset_name, split="train", streaming=True)'),
        TIGRIS.take("ds = standardize_dataset(ds)"),
        TIGRIS.take('ds.save_to_disk(f"s3://{bucket_name}/standardized'),
    ),
    "import-model.py": (TIGRIS.take("model, tokenizer = FastLanguageModel.from_pretrained("),),
    "pretokenize.py": (TIGRIS.take("def prechew(examples):"),),
    "dotrain.py": (
        TIGRIS.take('model = FastLanguageModel.from_pretrained(f"{home_folder}'),
        TIGRIS.take("# Make a LoRA model stacked"),
        TIGRIS.take("# Save the LoRA model for later use"),
    ),
}
PLACES = [
    f"{folder}/{name}"
    for folder, names in (
        *((f"{kind}/mlabonne/FineTome-100k/{n}", ("data.json",)) for kind in ("raw", "standardized") for n in range(3)),
        ("standardized/mlabonne/FineTome-100k", ("_DONE",)),
        ("models/Qwen/Qwen2.5-0.5B", ("model.safetensors", "tokenizer.json", "_DONE")),
        *((f"model-ready/Qwen/Qwen2.5-0.5B/mlabonne/FineTome-100k/{n}", ("data.json",)) for n in range(3)),
        ("model-ready/Qwen/Qwen2.5-0.5B/mlabonne/FineTome-100k", ("info.json", "_DONE")),
        *(
            (f"done/Qwen/Qwen2.5-0.5B/mlabonne/FineTome-100k/{n}", ("model.safetensors", "tokenizer.json"))
            for n in ("lora_model", "fused")
        ),
        ("done/Qwen/Qwen2.5-0.5B/mlabonne/FineTome-100k", ("_DONE",)),
    )
    for name in names
]


@dataclass(frozen=True)
class Tigris:
    """A computer with the demonstration as its project, and the server of its buckets."""

    computer: Computer
    server: S3Server

    def write_env(self, bucket: str) -> None:
        """Copy `.env.example` and fill it in, as the guide says."""
        self.computer.user.types(COPY_ENV.here)
        env = self.computer.project / ".env"
        text = env.read_text().replace("AWS_ACCESS_KEY_ID=", f"AWS_ACCESS_KEY_ID={KEY_ID}")
        text = text.replace("AWS_SECRET_ACCESS_KEY=", f"AWS_SECRET_ACCESS_KEY={SECRET}")
        text = re.sub("(AWS_ENDPOINT_URL_S3=).*", rf"\1{self.server.endpoint}", text)
        env.write_text(text.replace("=mybucket", f"={bucket}"))

    def set_pace(self, seconds: float) -> None:
        (self.computer.image / "seconds-per-shard").write_text(f"{seconds}\n")


@pytest.fixture(scope="module")
def tigris(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tigris]:
    problem = fuse_problem() or ("" if os.geteuid() == 0 else "its task installs a program, which needs root")
    if problem:
        pytest.skip(problem)
    folder = tmp_path_factory.mktemp("tigris")
    server = S3Server(unused_port(), folder / "moto.log")
    server.start()
    try:
        with computer(folder, CONFIG) as one:
            shutil.copytree(DEMO, one.project, dirs_exist_ok=True)
            subprocess.run(["git", "init", "--quiet"], cwd=one.project, check=True)
            yield Tigris(one, server)
    finally:
        server.stop()


@pytest.mark.parametrize("script", EXCERPTS)
def test_scripts__contain_the_code_of_the_guide(script: str) -> None:
    lines = [line.strip() for line in (DEMO / script).read_text().splitlines()]
    for excerpt in EXCERPTS[script]:
        printed = [line.strip() for line in excerpt.here.splitlines()]
        assert any(lines[at : at + len(printed)] == printed for at in range(len(lines))), excerpt


@dataclass(frozen=True)
class Trained:
    """What the launch of the guide has printed, and the bucket that has the model."""

    screen: str
    bucket: str


@pytest.fixture(scope="module")
def trained(tigris: Tigris) -> Trained:
    bucket = tigris.server.new_bucket()
    tigris.write_env(bucket)
    tigris.set_pace(0)
    return Trained(tigris.computer.user.types(LAUNCH.here), bucket)


@pytest.mark.fuse
@pytest.mark.slow
def test_guide__trains_into_the_bucket_and_ends_the_machine(tigris: Tigris, trained: Trained) -> None:
    bucket, screen, user = trained.bucket, trained.screen, tigris.computer.user
    assert ".env" in screen, "it says that .gitignore keeps .env at home"
    assert SECRET not in screen
    (name,) = re.findall(r"^Cluster: (\S+)$", screen, flags=re.MULTILINE)
    status = user.types("perdure status")
    assert "T4:1" in status, "the first of the list that there is"
    assert " 15m (down) " in status
    objects = tigris.server.objects(bucket)
    assert sorted(objects) == sorted(PLACES)
    user.types(f"perdure autostop {name} -i 0 --down")  # instead of waiting for fifteen minutes
    tigris.computer.controller.until(lambda: name not in user.types("perdure status"), "the end of the machine")
    assert tigris.server.objects(bucket) == objects


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_guide__ends_with_the_same_objects_after_a_preemption_in_each_script(tigris: Tigris) -> None:
    """The same task as a managed job on spot machines; each script writes `_DONE` last, so that half of it is none."""
    expected, bucket = tigris.server.new_bucket(), tigris.server.new_bucket()
    for target, pace in ((expected, 0.0), (bucket, 1.0)):
        tigris.write_env(target)
        tigris.set_pace(pace)
        words = "perdure jobs launch -n test allatonce.yaml --env-file .env --workdir . --use-spot"
        with tigris.computer.user.at(words) as terminal:
            if target == bucket:
                for begun in (
                    "imported shard 0\n",
                    "saved Qwen2.5-0.5B\n",
                    "pretokenized shard 0\n",
                    "trained shard 0",
                ):
                    terminal.wait_for(begun)
                    job = re.findall(r"Job (\d+)", terminal.screen)[0]
                    tigris.computer.controller.perdure("jobs", "preempt", job, "--kill")
            assert terminal.end() == 0, terminal.screen
    assert tigris.computer.controller.job(int(job))["recovery_count"] == 4
    assert tigris.server.objects(bucket) == tigris.server.objects(expected)


@pytest.mark.fuse
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not HAS_HAPROXY, reason="HAProxy is not installed: run scripts/ensure-haproxy.sh")
def test_guide__serves_the_model_to_its_clients_and_ends_it(tigris: Tigris, trained: Trained) -> None:
    """The address is the one that `serve up` prints, and callers send the token that it names: the changes to make."""
    computer, user = tigris.computer, tigris.computer.user
    tigris.write_env(trained.bucket)
    screen = user.types(SERVE.here)
    (endpoint,) = re.findall(r"http://127\.0\.0\.1:30\d{3}", screen.partition("endpoint:")[2].splitlines()[0])
    token = user.types("perdure serve status mymodel --token").strip()
    authorization = f" -H 'Authorization: Bearer {token}'"
    answer = user.types(CURL.here.replace("3.84.15.251:30001", endpoint) + authorization, limit_s=120)
    weight = re.search(r"I weigh (\d+), and you asked: Who are you\?", answer)
    assert weight is not None, answer
    assert int(weight[1]) > 1, "the model that was trained, not the one that was downloaded"
    program = CLIENT.here.replace("http://3.84.15.251:30001", endpoint).replace("token-abc123", token)
    computer.write("client.py", program)
    assert f"I weigh {weight[1]}, and you asked: Hello!" in user.types("python client.py")
    assert "terminated" in user.types(SERVE_DOWN.here)
    no_machine = lambda: not list(computer.controller.home.glob("local/instances/*/machine"))  # noqa: E731
    user.types("perdure down --all --yes")
    computer.controller.until(no_machine, "the end of every machine")
