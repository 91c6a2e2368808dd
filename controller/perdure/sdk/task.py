"""A task YAML as an object.

A task holds its canonical configuration, which the client sends to the controller. Every change is validated like YAML,
so any `Task` object can be launched.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol, Self, TypeGuard, TypeVar

from perdure.sdk.resources import Alternatives, Resources
from perdure.sdk.spec import buckets, overrides
from perdure.sdk.spec.parse_task import Config, parse_task
from perdure.sdk.spec.problems import Problem, TaskError, UnsupportedField, field_name
from perdure.sdk.spec.yaml_reader import Document, read_file, read_text
from perdure.sdk.storage import Storage

Variables = Mapping[str, object] | Iterable[tuple[str, object]]
Mount = str | dict[str, Any]
Noted = TypeVar("Noted", bound=Problem)


class TaskCollector(Protocol):
    """The `with Dag():` block that collects the tasks created in it."""

    def add(self, task: Task) -> None: ...

    def add_edge(self, before: Task, after: Task) -> None: ...


current_dag: ContextVar[TaskCollector | None] = ContextVar("current_dag", default=None)


class Task:
    """What to run, on which machines, with which files and variables. Methods that take values raise TaskError."""

    _document: Document | None = None  # the YAML that the task was read from, if any

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
        notify: str | Sequence[str] | Mapping[str, Any] | None = None,
        api_server_access: bool | None = None,
        config: dict[str, Any] | None = None,
        runtime: dict[str, str] | None = None,
    ) -> None:
        mounts = {**_mount_configs(file_mounts), **_mount_configs(storage_mounts)}
        given: Config = {
            "name": name,
            "workdir": workdir,
            "num_nodes": num_nodes,
            "resources": Alternatives.from_resources(resources).to_yaml_config(),
            "file_mounts": mounts,
            "volumes": volumes,
            "setup": _script(setup),
            "run": _script(run),
            "envs": dict(envs) if envs else None,
            "secrets": dict(secrets) if secrets else None,
            "event_callback": event_callback,
            "notify": notify,
            "api_server_access": api_server_access,
            "config": config,
            "runtime": runtime,
        }
        self._adopt(*parse_task(Document(given)))
        self._add_to_current_dag()

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """The task of a file with one document. `envs` and `secrets` replace those of the YAML."""
        return cls._from_document(_single_document(read_file(path)), envs, secrets)

    @classmethod
    def from_yaml_str(cls, text: str, *, envs: Variables | None = None, secrets: Variables | None = None) -> Self:
        """As `from_yaml`, from the YAML itself."""
        return cls._from_document(_single_document(read_text(text)), envs, secrets)

    @classmethod
    def from_yaml_config(
        cls, config: Mapping[str, Any], *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """As `from_yaml`, from the mapping that the YAML contains."""
        return cls._from_document(Document(dict(config)), envs, secrets)

    @classmethod
    def from_document(
        cls, document: Document, *, envs: Variables | None = None, secrets: Variables | None = None
    ) -> Self:
        """As `from_yaml`, from one document of a text. The task is not added to an open `with Dag()`."""
        task = cls.__new__(cls)
        task._adopt(*parse_task(document, envs=dict(envs or {}), secrets=dict(secrets or {})))
        task._document = document
        return task

    def to_yaml_config(self, *, redact_secrets: bool = False) -> Config:
        """The canonical configuration: plain JSON values. `Task.from_yaml_config` of it gives an equal task."""
        config = copy.deepcopy(self._config)
        if redact_secrets and "secrets" in config:
            config["secrets"] = dict.fromkeys(config["secrets"], "<redacted>")
        return config

    # The fields of the task, as copies: change a task through its methods.

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
        """Path on the node → a local path, a bucket's URI (copied), or `{"upload", "is_file"}`."""
        return {path: mount for path, mount in self._mounts().items() if not _is_storage(mount)}

    @property
    def storage_mounts(self) -> dict[str, Storage]:
        """Path on the node → a bucket."""
        mounts = self._mounts().items()
        return {path: Storage.from_yaml_config(mount) for path, mount in mounts if _is_storage(mount)}

    @property
    def resources(self) -> Alternatives:
        return Alternatives.from_canonical(self._config.get("resources"))

    @property
    def priority(self) -> int:
        """-1000 to 1000; jobs with a higher priority are placed first."""
        return self.resources.options[0].priority or 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """The fields of the task that have no effect, one line each."""
        return tuple(str(warning) for warning in self._warnings)

    @property
    def warning_details(self) -> tuple[Problem, ...]:
        """`warnings` with their parts."""
        return self._warnings

    @property
    def unsupported(self) -> tuple[UnsupportedField, ...]:
        """The fields for which a launch is refused: without them, results could be lost or something else would run."""
        return self._unsupported

    def ignoring(self, fields: Collection[str]) -> Self:
        """A copy without those of `unsupported` that `fields` names; its warnings say so. Raises TaskError."""
        options = overrides.ignored_options(fields)
        dropped = [field for field in self._unsupported if field.option in options]
        if not dropped:
            return self
        config = overrides.without(self.to_yaml_config(), {field.option for field in dropped})
        config, warnings, unsupported = parse_task(Document(config))
        notes = [
            Problem(field.field, f"ignored: {field.message}", file=field.file, line=field.line, column=field.column)
            for field in dropped
        ]
        task = copy.copy(self)
        task._adopt(config, (*_merge(self._warnings, warnings), *notes), _merge(self._unsupported, unsupported))
        return task

    def update(self, **fields: Any) -> Self:
        """Set whole fields of the YAML; None removes one. If the result is wrong, the task does not change."""
        config, warnings, unsupported = parse_task(Document(self.to_yaml_config() | fields))
        self._adopt(config, _merge(self._warnings, warnings), _merge(self._unsupported, unsupported))
        return self

    def set_resources(self, resources: Resources | Iterable[Resources]) -> Self:
        return self.update(resources=Alternatives.from_resources(resources).to_yaml_config())

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
        """The problems of the task's local paths. Relative ones start at the current directory."""
        problems = []
        if isinstance(self.workdir, str) and not os.path.isdir(os.path.expanduser(self.workdir)):
            kind = "is not a directory" if os.path.exists(os.path.expanduser(self.workdir)) else "does not exist"
            problems.append(self._missing(("workdir",), self.workdir, kind))
        for path, mount in self.file_mounts.items():
            if isinstance(mount, str) and not buckets.is_uri(mount) and not os.path.exists(os.path.expanduser(mount)):
                problems.append(self._missing(("file_mounts", path), mount))
        for path, storage in self.storage_mounts.items():
            for source in storage.local_sources:
                if not os.path.exists(os.path.expanduser(source)):
                    problems.append(self._missing(("file_mounts", path, "source"), source))
        return problems

    def __rshift__(self, after: Task) -> Task:
        """`a >> b` within `with Dag():` runs `b` after `a` has succeeded. Returns `b`, to allow chains."""
        dag = current_dag.get()
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
        task._add_to_current_dag()
        return task

    def _adopt(self, config: Config, warnings: Sequence[Problem], unsupported: Sequence[UnsupportedField] = ()) -> None:
        self._config = config
        self._warnings = _merge((), warnings)
        self._unsupported = _merge((), unsupported)

    def _add_to_current_dag(self) -> None:
        dag = current_dag.get()
        if dag is not None:
            dag.add(self)

    def _missing(self, path: tuple[str, ...], given: str, kind: str = "does not exist") -> Problem:
        """The problem of a local path, with its place in the YAML unless an option or a program gave the path."""
        fix = "" if os.path.isabs(os.path.expanduser(given)) else f"relative paths start at {os.getcwd()}"
        if variable := re.search(r"\$(?:\{(\w+)\}|(\w+))", given):
            fix = f"{variable[0]} is replaced only if {variable[1] or variable[2]} is in `envs`, or given as --env"
        return self.placed(path, Problem("", f"{given!r} {kind}", fix), given)

    def placed(self, path: tuple[str, ...], problem: Problem, given: str) -> Problem:
        """`problem` of the value `given` at `path`, with its place in the YAML if the value is written there."""
        problem = replace(problem, field=field_name(path))
        written = _value_at(self._document, path) if self._document else None
        if self._document is None or given not in (written if isinstance(written, list) else [written]):
            return problem
        position = self._document.position(path)
        return replace(problem, file=self._document.file, line=position.line if position else None)

    def _mounts(self) -> dict[str, Mount]:
        return copy.deepcopy(self._config.get("file_mounts", {}))


def _single_document(documents: list[Document]) -> Document:
    if len(documents) > 1:
        message = f"{len(documents)} documents: a pipeline, not a task"
        raise TaskError([Problem("", message, "read it with Dag.from_yaml", file=documents[0].file)])
    return documents[0]


def _merge(old: Sequence[Noted], new: Sequence[Noted]) -> tuple[Noted, ...]:
    """The new problems without duplicates. The old form of a problem is kept, since it has a line in the YAML."""
    by_subject = {problem.subject: problem for problem in reversed([*old, *new])}
    return tuple(by_subject[key] for key in dict.fromkeys(problem.subject for problem in new))


def _script(script: str | Sequence[str] | None) -> str | Sequence[str] | None:
    return "\n".join(script) if isinstance(script, list | tuple) else script


def _mount_configs(mounts: Mapping[str, Mount | Storage] | None) -> dict[str, Mount]:
    return {
        path: mount.to_yaml_config() if isinstance(mount, Storage) else mount for path, mount in (mounts or {}).items()
    }


def _is_storage(mount: Mount) -> TypeGuard[dict[str, Any]]:
    return isinstance(mount, dict) and "upload" not in mount


def _value_at(document: Document, path: tuple[str, ...]) -> Any:
    value = document.value
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
