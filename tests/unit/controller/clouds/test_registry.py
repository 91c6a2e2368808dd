"""The installed clouds: how they are found, configured and, if they are broken, reported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from perdure.controller.clouds import registry
from perdure.controller.clouds.base.protocol import Cloud
from perdure.controller.clouds.registry import build_clouds
from perdure.controller.runtime.clock import ManualClock
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import read_settings
from perdure.recovery.market.unavailable import FaultKind
from perdure.sdk.spec import infra
from support.helpers import cloud_packages

Install = Callable[..., None]
DESCRIPTOR = """
from perdure.controller.clouds.base.descriptor import CloudDescriptor

def build(context):
    {build}

DESCRIPTOR = CloudDescriptor({arguments}, build=build)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package that provides the cloud `acme`."""

    def install(source: str, *, package: str = "acme-cloud", value: str = "acme:DESCRIPTOR") -> None:
        site = tmp_path / f"site-{package}"
        cloud_packages.install(site, monkeypatch, package=package, modules={"acme": source}, clouds={"acme": value})

    return install


def acme(build: str = "raise RuntimeError('no')", arguments: str = "name='acme'") -> str:
    return DESCRIPTOR.format(build=build, arguments=arguments)


# ---- Perdure's own clouds ----


def test_build_clouds__includes_the_local_cloud_by_default(tmp_path: Path) -> None:
    clouds: dict[str, Cloud] = build_clouds({}, tmp_path, ManualClock())
    assert clouds["local"].unusable() is None
    assert all(name == cloud.name for name, cloud in clouds.items())


def test_build_clouds__reads_the_section_of_a_cloud(tmp_path: Path) -> None:
    clouds = build_clouds({"local": {"accelerators": {"V100": 2}}}, tmp_path, ManualClock())
    assert ("V100", 2.0) in {offer.accelerators for offer in clouds["local"].offers()}
    with pytest.raises(ValueError, match=r"local\.accelerators\.V100"):
        build_clouds({"local": {"accelerators": {"V100": "two"}}}, tmp_path, ManualClock())


def test_build_clouds__names_every_invalid_section_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text := "aws: {nope: 1}\nlocal: {zonez: {}}\ngcp: {project: p, nope: 1}\n")
    with pytest.raises(SettingsError) as caught:
        build_clouds(yaml.safe_load(text), tmp_path, ManualClock())
    assert {line.split(": ")[1] for line in str(caught.value).splitlines()} == {"aws.nope", "local.zonez", "gcp.nope"}


def test_build_clouds__turns_the_local_cloud_off(tmp_path: Path) -> None:
    unusable = build_clouds({"local": False}, tmp_path, ManualClock())["local"].unusable()
    assert unusable is not None
    assert "local: false" in unusable


def test_build_clouds__needs_a_shared_folder_for_several_controllers(tmp_path: Path) -> None:
    unusable = build_clouds({}, tmp_path, ManualClock(), has_local=False)["local"].unusable()
    assert unusable is not None
    assert "local.directory" in unusable


@pytest.mark.parametrize("name", ["aws", "gcp", "azure", "kubernetes"])
def test_build_clouds__says_why_a_cloud_is_unavailable(tmp_path: Path, name: str) -> None:
    cloud = build_clouds({}, tmp_path, ManualClock())[name]
    unusable = cloud.unusable()
    assert unusable is not None
    assert name in unusable
    assert not cloud.offers()
    assert not cloud.list_owned("c")
    with pytest.raises(NotImplementedError) as caught:
        cloud.describe("r", ["i"])
    fault = cloud.classify(caught.value)
    assert fault.kind is FaultKind.AVOID_CLOUD
    assert fault.whole_cloud


def test_build_clouds__imports_no_sdk_and_no_unused_cloud(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from perdure.controller.runtime.clock import ManualClock;"
        "from perdure.controller.clouds.registry import build_clouds;"
        f"build_clouds({{'local': False}}, pathlib.Path({str(tmp_path)!r}), ManualClock());"
        "print([m for m in ('boto3', 'google.cloud', 'azure', 'kubernetes') if m in sys.modules],"
        "[m for m in sys.modules if m.startswith('perdure.controller.clouds') and m.endswith(('.cloud', '.settings'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", registry.descriptors())
def test_descriptors__document_their_default_of_concurrent_calls(name: str) -> None:
    descriptor = registry.descriptors()[name]
    defaults = {key.path: key.default for key in descriptor.config_keys()}
    assert defaults[f"{name}.max_concurrent_calls"] == str(descriptor.max_concurrent_calls)


# ---- clouds of other packages ----


def test_descriptors__include_an_installed_package(install: Install, tmp_path: Path) -> None:
    assert "acme" not in registry.descriptors()
    install(acme())
    assert registry.descriptors()["acme"].name == "acme"
    assert infra.cloud_name("acme") == "acme"
    (tmp_path / "config.yaml").write_text("acme: {max_machines: 3, colour: red}")
    settings = read_settings(tmp_path, {})
    assert settings.sections["acme"]["colour"] == "red"
    assert settings.quotas.max_machines == {"acme": 3}


def test_build_clouds__passes_a_package_its_own_keys(install: Install, tmp_path: Path) -> None:
    install(acme("raise ValueError(context.section)"))
    section = {"colour": "red", "max_machines": 3, "max_concurrent_calls": 2}
    unusable = build_clouds({"acme": section}, tmp_path, ManualClock())["acme"].unusable()
    assert unusable is not None
    assert "{'colour': 'red'}" in unusable


def test_build_clouds__needs_a_section_for_a_package(install: Install, tmp_path: Path) -> None:
    install(acme())
    unusable = build_clouds({}, tmp_path, ManualClock())["acme"].unusable()
    assert unusable is not None
    assert "add a section `acme:`" in unusable


def test_build_clouds__reports_a_setting_with_its_line(install: Install, tmp_path: Path) -> None:
    raising = (
        "from perdure.controller.clouds.base.config_section import Section; Section(context.section, 'acme', known=())"
    )
    install(acme(raising))
    (tmp_path / "config.yaml").write_text("acme:\n  colour: red\n")
    with pytest.raises(SettingsError, match=r"config\.yaml:2: acme\.colour: no such setting"):
        build_clouds({"acme": {"colour": "red"}}, tmp_path, ManualClock())


@pytest.mark.parametrize(
    ("source", "value", "expected"),
    [
        ("import no_such_sdk", "acme:DESCRIPTOR", "ModuleNotFoundError: No module named 'no_such_sdk'"),
        ("", "acme:DESCRIPTOR", "AttributeError"),
        ("DESCRIPTOR = 'acme'", "acme:DESCRIPTOR", "acme:DESCRIPTOR is not a CloudDescriptor"),
        (acme(arguments="name='other'"), "acme:DESCRIPTOR", "has the name 'other'"),
        (acme(arguments="name='acme', no_such_field=1"), "acme:DESCRIPTOR", "no_such_field"),
    ],
)
def test_broken_packages__name_package_and_error(
    install: Install, tmp_path: Path, source: str, value: str, expected: str
) -> None:
    install(source, value=value)
    clouds = build_clouds({"acme": {}}, tmp_path, ManualClock())
    unusable = clouds["acme"].unusable()
    assert unusable == registry.broken_packages()["acme"]
    assert "the package acme-cloud provides the cloud acme but cannot be loaded" in unusable
    assert expected in unusable
    assert clouds["local"].unusable() is None, "other clouds are not affected"


def test_broken_packages__report_two_packages_with_one_cloud(install: Install, tmp_path: Path) -> None:
    install(acme())
    install(acme(), package="other-cloud", value="acme:DESCRIPTOR ")
    unusable = build_clouds({"acme": {}}, tmp_path, ManualClock())["acme"].unusable()
    assert unusable is not None
    assert "the package acme-cloud" in unusable
    assert "the package other-cloud" in unusable


def test_build_clouds__survives_a_cloud_that_cannot_be_built(install: Install, tmp_path: Path) -> None:
    install(acme("import no_such_sdk"))
    clouds = build_clouds({"acme": {}}, tmp_path, ManualClock())
    unusable = clouds["acme"].unusable()
    assert unusable is not None
    assert "No module named 'no_such_sdk'" in unusable
    assert clouds["local"].unusable() is None


@pytest.mark.parametrize("source", ["import no_such_sdk", acme("import no_such_sdk")], ids=["package", "build"])
def test_broken_cloud__says_nothing_about_its_machines(install: Install, tmp_path: Path, source: str) -> None:
    install(source)
    cloud = build_clouds({"acme": {}}, tmp_path, ManualClock())["acme"]
    assert not cloud.offers()
    for call in (
        lambda: cloud.list_owned("c"),
        lambda: cloud.describe("r", ["i"]),
        lambda: cloud.terminate("r", ["i"]),
    ):
        with pytest.raises(NotImplementedError, match="no_such_sdk") as caught:
            call()
        fault = cloud.classify(caught.value)
        assert fault.kind is FaultKind.AMBIGUOUS
        assert fault.whole_cloud
        assert "no_such_sdk" in fault.message


def test_find_cloud__uninstalled_cloud_is_broken(tmp_path: Path) -> None:
    clouds = build_clouds({}, tmp_path, ManualClock())
    assert registry.find_cloud(clouds, "local") is clouds["local"]
    cloud = registry.find_cloud(clouds, "acme")
    with pytest.raises(NotImplementedError, match="no installed package provides the cloud acme"):
        cloud.list_owned("c")
