"""One task: what a task YAML says, as an object.

A task holds its canonical configuration, which is what goes to the controller. Every change is read as YAML is, so a
`Task` that exists is a task that can be launched.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, Self, TypeGuard

from perdure.sdk import buckets
from perdure.sdk.problems import Problem, TaskError, field_name
from perdure.sdk.reading import Config, read_task
from perdure.sdk.resources import Alternatives, Resources
from perdure.sdk.storage import Storage
from perdure.sdk.yaml_reader import Document, read_file, read_text

Variables = Mapping[str, object] | Iterable[tuple[str, object]]
Mount = str | dict[str, Any]


class Collector(Protocol):
    """What `with Dag():` puts up to hear of tasks."""

    def add(self, task: Task) -> None: ...

    def add_edge(self, before: Task, after: Task) -> None: ...


open_dag: ContextVar[Collector | None] = ContextVar("open_dag", default=None)


class Task:
    """What to run, on what, with which files and variables. Every method that takes values raises `TaskError`."""

    def __init__(
        self,
        name: str | None = None,
        *,
        setup: str | Sequence[str] | None = None,
        run: str | Sequence[str] | None = None,
        envs: Variables | None = None,
        secrets: Variables | None = None,
        workdir: str | dict[str, str] | None = None,
        num_nodes: int | None = None,
        file_mounts: Mapping[str, Mount | Storage] | None = None,
        storage_mounts: Mapping[str, Storage] | None = None,
        volumes: dict[str, Any] | None = None,
        resources: Resources | Iterable[Resources] | None = None,
        event_callback: str | None = None,
        api_server_access: bool | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        mounts = {**_mount_configs(file_mounts), **_mount_configs(storage_mounts)}
        given: Config = {
            "name": name,
            "workdir": workdir,
            "num_nodes": num_nodes,
            "resources": Alternatives.of(resources).to_yaml_config(),
            "file_mounts": mounts,
            "volumes": volumes,
            "setup": _script(setup),
            "run": _script(run),
            "envs": dict(envs) if envs else None,
            "secrets": dict(secrets) if secrets else None,
            "event_callback": event_callback,
            "api_server_access": api_server_access,
            "config": config,
        }
        self._adopt(*read_task(Document(given)))
        self._announce()

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """The task of a file with one document. `envs` and `secrets` are put over the YAML's own."""
        return cls._from_document(_only(read_file(path)), envs, secrets)

    @classmethod
    def from_yaml_str(cls, text: str, *, envs: Variables | None = None, secrets: Variables | None = None) -> Self:
        """As `from_yaml`, from the YAML itself."""
        return cls._from_document(_only(read_text(text)), envs, secrets)

    @classmethod
    def from_yaml_config(
        cls, config: Mapping[str, Any], *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """As `from_yaml`, from the mapping that the YAML stands for."""
        return cls._from_document(Document(dict(config)), envs, secrets)

    @classmethod
    def from_document(
        cls, document: Document, *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """As `from_yaml`, from one document of a text; an open `with Dag()` does not hear of it."""
        task = cls.__new__(cls)
        task._adopt(*read_task(document, envs=dict(envs or {}), secrets=dict(secrets or {})))
        return task

    def to_yaml_config(self, *, redact_secrets: bool = False) -> Config:
        """The canonical configuration: plain JSON values. `Task.from_yaml_config` of it gives an equal task."""
        config = copy.deepcopy(self._config)
        if redact_secrets and "secrets" in config:
            config["secrets"] = dict.fromkeys(config["secrets"], "<redacted>")
        return config

    # What the task says. Each is a copy: a task changes through its methods.

    @property
    def name(self) -> str | None:
        return self._config.get("name")

    @name.setter
    def name(self, name: str | None) -> None:
        self.update(name=name)

    @property
    def setup(self) -> str | None:
        return self._config.get("setup")

    @property
    def run(self) -> str | None:
        return self._config.get("run")

    @property
    def workdir(self) -> Mount | None:
        """A local path, or `{"url", "ref"}` of a git repository, or `{"upload": sha256}`."""
        return copy.copy(self._config.get("workdir"))

    @property
    def num_nodes(self) -> int:
        return int(self._config.get("num_nodes", 1))

    @property
    def envs(self) -> dict[str, str]:
        return dict(self._config.get("envs", {}))

    @property
    def secrets(self) -> dict[str, str]:
        return dict(self._config.get("secrets", {}))

    @property
    def file_mounts(self) -> dict[str, Mount]:
        """Where → a local path, a bucket's URI (copied), or `{"upload", "is_file"}`."""
        return {path: mount for path, mount in self._mounts().items() if not _is_storage(mount)}

    @property
    def storage_mounts(self) -> dict[str, Storage]:
        """Where → a bucket."""
        mounts = self._mounts().items()
        return {path: Storage.from_yaml_config(mount) for path, mount in mounts if _is_storage(mount)}

    @property
    def resources(self) -> Alternatives:
        return Alternatives.from_canonical(self._config.get("resources"))

    @property
    def priority(self) -> int:
        """-1000 to 1000; a job of higher priority is placed first."""
        return self.resources.options[0].priority or 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the task says that has no effect, one line each."""
        return tuple(str(warning) for warning in self._warnings)

    def update(self, **fields: Any) -> Self:
        """Set whole fields of the YAML; None removes one. Nothing changes if the result is wrong."""
        config, warnings = read_task(Document(self.to_yaml_config() | fields))
        self._adopt(config, _still_true(self._warnings, warnings))
        return self

    def set_resources(self, resources: Resources | Iterable[Resources]) -> Self:
        return self.update(resources=Alternatives.of(resources).to_yaml_config())

    def set_file_mounts(self, file_mounts: Mapping[str, Mount] | None) -> Self:
        """Replace all file mounts; storage mounts stay."""
        kept = {path: mount for path, mount in self._mounts().items() if _is_storage(mount)}
        return self.update(file_mounts=kept | _mount_configs(file_mounts))

    def set_storage_mounts(self, storage_mounts: Mapping[str, Storage] | None) -> Self:
        """Replace all storage mounts; file mounts stay."""
        return self.update(file_mounts={**self.file_mounts, **_mount_configs(storage_mounts)})

    def set_volumes(self, volumes: dict[str, Any] | None) -> Self:
        return self.update(volumes=volumes)

    def update_file_mounts(self, file_mounts: Mapping[str, Mount | Storage]) -> Self:
        return self.update(file_mounts={**self._mounts(), **_mount_configs(file_mounts)})

    def update_envs(self, envs: Variables | None) -> Self:
        return self.update(envs={**self.envs, **dict(envs or {})})

    def update_secrets(self, secrets: Variables | None) -> Self:
        return self.update(secrets={**self.secrets, **dict(secrets or {})})

    def check_local_paths(self) -> list[Problem]:
        """What is wrong with the local paths that the task names. Relative ones start at the current directory."""
        problems = []
        if isinstance(self.workdir, str) and not os.path.isdir(os.path.expanduser(self.workdir)):
            kind = "is not a directory" if os.path.exists(os.path.expanduser(self.workdir)) else "does not exist"
            problems.append(_missing(("workdir",), f"{self.workdir!r} {kind}"))
        for path, mount in self.file_mounts.items():
            if isinstance(mount, str) and not buckets.is_uri(mount) and not os.path.exists(os.path.expanduser(mount)):
                problems.append(_missing(("file_mounts", path), f"{mount!r} does not exist"))
        for path, storage in self.storage_mounts.items():
            for source in storage.local_sources:
                if not os.path.exists(os.path.expanduser(source)):
                    problems.append(_missing(("file_mounts", path, "source"), f"{source!r} does not exist"))
        return problems

    def __rshift__(self, after: Task) -> Task:
        """`a >> b`, within `with Dag():` — `b` runs once `a` has succeeded. Gives `b`, so chains can be written."""
        dag = open_dag.get()
        if dag is None:
            raise TaskError([Problem("", "a >> b outside of a Dag", "write it within `with Dag() as dag:`")])
        dag.add_edge(self, after)
        return after

    def __eq__(self, other: object) -> bool:
        return self._config == other._config if isinstance(other, Task) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a task can change

    def __repr__(self) -> str:
        return f"Task({self.to_yaml_config(redact_secrets=True)!r})"

    @classmethod
    def _from_document(cls, document: Document, envs: Variables | None, secrets: Variables | None) -> Self:
        task = cls.from_document(document, envs=envs, secrets=secrets)
        task._announce()
        return task

    def _adopt(self, config: Config, warnings: Sequence[Problem]) -> None:
        self._config = config
        self._warnings = _still_true((), warnings)

    def _announce(self) -> None:
        dag = open_dag.get()
        if dag is not None:
            dag.add(self)

    def _mounts(self) -> dict[str, Mount]:
        return copy.deepcopy(self._config.get("file_mounts", {}))


def _only(documents: list[Document]) -> Document:
    if len(documents) > 1:
        message = f"{len(documents)} documents: a pipeline, not a task"
        raise TaskError([Problem("", message, "read it with Dag.from_yaml", file=documents[0].file)])
    return documents[0]


def _still_true(old: Sequence[Problem], new: Sequence[Problem]) -> tuple[Problem, ...]:
    """The new warnings, each once, and in the old form where there is one: that one knows its line in the YAML."""

    def subject(warning: Problem) -> tuple[str, str, str]:
        # Of the alternatives of `resources`, each of which may say it, the field is enough.
        return warning.field.partition(".")[0], warning.field.rpartition(".")[2], warning.message

    found = {subject(warning): warning for warning in reversed([*old, *new])}
    return tuple(found[key] for key in dict.fromkeys(subject(warning) for warning in new))


def _script(script: str | Sequence[str] | None) -> str | Sequence[str] | None:
    return "\n".join(script) if isinstance(script, list | tuple) else script


def _mount_configs(mounts: Mapping[str, Mount | Storage] | None) -> dict[str, Mount]:
    return {
        path: mount.to_yaml_config() if isinstance(mount, Storage) else mount for path, mount in (mounts or {}).items()
    }


def _is_storage(mount: Mount) -> TypeGuard[dict[str, Any]]:
    return isinstance(mount, dict) and "upload" not in mount


def _missing(path: tuple[str, ...], message: str) -> Problem:
    return Problem(field_name(path), message, f"relative paths start at {os.getcwd()}")
