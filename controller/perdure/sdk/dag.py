"""The tasks of a job, in the order in which they run."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextvars import Token
from typing import Any, Self

from perdure.sdk.spec import overrides
from perdure.sdk.spec.problem_list import Report
from perdure.sdk.spec.problems import Problem, TaskError
from perdure.sdk.spec.task_fields import HEADER, HEADER_FIELDS
from perdure.sdk.spec.validators import validate
from perdure.sdk.spec.yaml_reader import Document, read_file, read_text
from perdure.sdk.task import Task, TaskCollector, Variables, current_dag


class Dag:
    """A job: one task, or a pipeline of several, each started after the one before has succeeded.

    with Dag() as dag:
        Task("train", run="…") >> Task("evaluate", run="…")
    """

    def __init__(self, name: str | None = None, tasks: Sequence[Task] = ()) -> None:
        self.name = name
        self.tasks: list[Task] = list(tasks)
        self._header_warnings: tuple[str, ...] = ()
        self._edges: list[tuple[Task, Task]] = []
        self._token: Token[TaskCollector | None] | None = None
        self.name_tasks()

    @classmethod
    def from_yaml(
        cls,
        source: str | os.PathLike[str],
        *,
        envs: Variables | None = None,
        secrets: Variables | None = None,
        name: str | None = None,
    ) -> Self:
        """The job of a YAML file, or of YAML text (a string with a line break, or that names no file but holds `: `).

        `envs` and `secrets` replace those of every task, `name` that of the job. Raises TaskError with the problems of
        all documents.
        """
        is_text = isinstance(source, str) and ("\n" in source or (": " in source and not os.path.exists(source)))
        documents = read_text(os.fspath(source)) if is_text else read_file(source)
        return cls.from_documents(documents, envs=envs, secrets=secrets, name=name)

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Document],
        *,
        envs: Variables | None = None,
        secrets: Variables | None = None,
        name: str | None = None,
    ) -> Self:
        """As `from_yaml`, from documents that were already read."""
        problems: list[Problem] = []
        given = {"envs": dict(envs or {}), "secrets": dict(secrets or {})}
        header = None
        if len(documents) > 1 and _is_header(documents[0].value):
            header, documents = documents[0], documents[1:]
        header_name, header_warnings = _parse_header(header, problems) if header else (None, ())
        tasks = []
        for document in documents:
            try:
                tasks.append(Task.from_document(document, **given))
            except TaskError as error:
                problems += error.problems
        if problems:
            raise TaskError(problems)
        dag = cls(name or header_name, tasks)
        dag._header_warnings = header_warnings
        return dag

    @classmethod
    def from_command(cls, command: str | Sequence[str], *, name: str | None = None) -> Self:
        """A job of one task that runs a shell command."""
        run = command if isinstance(command, str) else " ".join(command)
        return cls(name, [Task.from_document(Document({"name": name, "run": run}))])

    @property
    def warnings(self) -> tuple[str, ...]:
        """The fields that have no effect, one line each."""
        of_tasks = (warning for task in self.tasks for warning in task.warnings)
        return tuple(dict.fromkeys((*self._header_warnings, *of_tasks)))

    def ignoring(self, fields: Collection[str]) -> Dag:
        """A copy whose tasks lack those of their `unsupported` fields that `fields` names. Raises TaskError."""
        dag = Dag(tasks=[task.ignoring(fields) for task in self.tasks])
        dag.name, dag._header_warnings = self.name, self._header_warnings
        return dag

    def add(self, task: Task) -> None:
        if not any(task is known for known in self.tasks):
            self.tasks.append(task)

    def add_edge(self, before: Task, after: Task) -> None:
        """Run `after` when `before` has succeeded."""
        self.add(before)
        self.add(after)
        self._edges.append((before, after))

    def override(self, **given: Any) -> Self:
        """Override fields of every task from the command line; `spec.overrides.OVERRIDES` lists the names.

        None means not given; the text "none" removes the value of the YAML. `name` is the job's. Raises TaskError,
        which names the fields as options (`--gpus`), without changing anything.
        """
        changed = [overrides.apply(task.to_yaml_config(), given) for task in self.tasks]
        name = [fields.pop("name", None) for fields in changed]
        for task, fields in zip(self.tasks, changed, strict=True):
            Task.from_document(Document(task.to_yaml_config() | fields))  # validate all tasks before changing any
        for task, fields in zip(self.tasks, changed, strict=True):
            task.update(**fields)
        if name and name[0]:
            self._rename(name[0])
        return self

    def name_tasks(self) -> None:
        """Give a job and its only task the same name. In a pipeline, unnamed tasks become `<job>-<i>`."""
        if len(self.tasks) == 1:
            task = self.tasks[0]
            self.name = self.name or task.name
            if task.name != self.name:
                task.name = self.name
        elif self.name:
            for index, task in enumerate(self.tasks):
                task.name = task.name or f"{self.name}-{index}"

    def to_yaml_configs(self) -> list[dict[str, Any]]:
        """The canonical configurations of the tasks, in order."""
        return [task.to_yaml_config() for task in self.tasks]

    def __enter__(self) -> Self:
        self._token = current_dag.set(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._token is not None
        current_dag.reset(self._token)
        if kind is None:
            self.tasks = self._in_order()
            self.name_tasks()

    def __repr__(self) -> str:
        return f"Dag(name={self.name!r}, tasks={self.tasks!r})"

    def _rename(self, name: str) -> None:
        for index, task in enumerate(self.tasks):
            if len(self.tasks) == 1 or task.name == f"{self.name}-{index}":
                task.name = None
        self.name = name
        self.name_tasks()

    def _in_order(self) -> list[Task]:
        """The tasks in the order of the edges. Raises TaskError unless these form one chain through all tasks."""
        successor = {id(before): after for before, after in self._edges}
        followers = {id(after) for _, after in self._edges}
        firsts = [task for task in self.tasks if id(task) not in followers]
        chain = firsts[:1]
        while chain and len(chain) <= len(self.tasks) and id(chain[-1]) in successor:
            chain.append(successor[id(chain[-1])])
        if len(chain) != len(self.tasks) or len(self._edges) > len(successor):
            fix = "connect every task once: `a >> b >> c`"
            raise TaskError([Problem("", f"the {len(self.tasks)} tasks of the Dag are not one chain", fix)])
        return chain


def _is_header(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and value.keys() <= HEADER_FIELDS.keys()


def _parse_header(document: Document, problems: list[Problem]) -> tuple[str | None, tuple[str, ...]]:
    """The name of the job and the warnings of the header. Adds its problems to `problems`."""
    report = Report(document)
    header = validate(HEADER, document.value, (), report)
    if header.get("execution") == "parallel":
        message = "job groups, whose tasks run at the same time, are not supported yet"
        report.add_problem(("execution",), message, "remove it to run the tasks in order, or launch a job for each")
    problems += report.problems
    name = str(header["name"]) if header.get("name") else None
    return name, tuple(map(str, report.warnings))
