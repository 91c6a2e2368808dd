"""Checks bodies against the SDK's models of Azure: names, types, required and read-only fields, enums."""

from __future__ import annotations

import sys
import types
import typing
from enum import Enum
from functools import cache
from typing import Any

from support.fakes.azure.responses import Invalid

# Enumerations of which the SDK lacks the newest members.
OPEN = {"VirtualMachineSizeTypes"}
PLAIN: dict[type, tuple[type, ...]] = {str: (str,), int: (int,), bool: (bool,), float: (int, float)}


def virtual_machine(body: Any) -> None:
    """Raises Invalid unless `VirtualMachines.CreateOrUpdate` accepts the body."""
    from azure.mgmt.compute import models

    check(models.VirtualMachine, body, "VirtualMachine")


def virtual_machine_update(body: Any) -> None:
    """Raises Invalid unless `VirtualMachines.Update` accepts the body."""
    from azure.mgmt.compute import models

    check(models.VirtualMachineUpdate, body, "VirtualMachineUpdate")


def virtual_network(body: Any) -> None:
    """Raises Invalid unless `VirtualNetworks.CreateOrUpdate` accepts the body."""
    from azure.mgmt.network import models

    check(models.VirtualNetwork, body, "VirtualNetwork")


def holding(kind: str, body: Any) -> None:
    """Raises Invalid unless CreateOrUpdate of that kind, such as `Microsoft.Compute/disks`, accepts the body."""
    from azure.mgmt.compute import models as compute
    from azure.mgmt.network import models as network

    name = {"disks": "Disk", "networkInterfaces": "NetworkInterface", "publicIPAddresses": "PublicIPAddress"}.get(
        kind.rpartition("/")[2], "NetworkSecurityGroup"
    )
    check(getattr(compute if name == "Disk" else network, name), body, name)


def check(model: Any, value: Any, where: str) -> None:
    """Raises Invalid unless the value is one of the model. `where` names it in errors."""
    if not isinstance(value, dict):
        raise Invalid("InvalidRequestContent", f"{where} is no object: {value!r}")
    fields = _fields(model)
    for name, inner in value.items():
        if name not in fields:
            raise Invalid("InvalidRequestContent", f"Could not find member '{name}' on object of type '{where}'.")
        kind, is_written, _ = fields[name]
        if not is_written:
            raise Invalid("InvalidRequestContent", f"{where}.{name} is read-only.")
        _check_value(kind, inner, f"{where}.{name}")
    required = sorted(name for name, (_, is_written, is_required) in fields.items() if is_required and is_written)
    for name in required:
        if value.get(name) is None:
            raise Invalid("InvalidParameter", f"Required parameter '{where}.{name}' is missing (null).")


def _check_value(kind: Any, value: Any, where: str) -> None:
    choices = _choices(kind)
    enums = [one for one in choices if isinstance(one, type) and issubclass(one, Enum)]
    if enums:
        if not any(one.__name__ in OPEN or value in [member.value for member in one] for one in enums):
            raise Invalid("InvalidParameter", f"The value {value!r} of parameter {where} is invalid.")
        return
    (one,) = choices
    origin = typing.get_origin(one)
    if one in PLAIN:
        if not isinstance(value, PLAIN[one]) or (isinstance(value, bool) and one is not bool):
            raise Invalid("InvalidRequestContent", f"{where}: {value!r} is no {one.__name__}.")
    elif origin is list:
        if not isinstance(value, list):
            raise Invalid("InvalidRequestContent", f"{where} is no list: {value!r}")
        for number, inner in enumerate(value):
            _check_value(typing.get_args(one)[0], inner, f"{where}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            raise Invalid("InvalidRequestContent", f"{where} is no object: {value!r}")
        for name, inner in value.items():
            _check_value(typing.get_args(one)[1], inner, f"{where}.{name}")
    else:
        check(one, value, where)


def _choices(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        named = [one for one in typing.get_args(kind) if one is not types.NoneType]
        enums = [one for one in named if isinstance(one, type) and issubclass(one, Enum)]
        return enums or named
    return [kind]


@cache
def _fields(model: Any) -> dict[str, tuple[Any, bool, bool]]:
    """Name in JSON → (type, whether a client may write it, whether it must)."""
    model({})  # the SDK computes the fields of a model on its first use
    models = sys.modules[model.__module__.rpartition(".")[0]]
    hints = typing.get_type_hints(model, {**vars(sys.modules[model.__module__]), "_models": models})
    fields = {}
    for name, one in model._attr_to_rest_field.items():
        is_written = one._visibility is None or bool({"create", "update"} & set(one._visibility))
        is_required = types.NoneType not in typing.get_args(hints[name])
        fields[one._rest_name] = (hints[name], is_written, is_required)
    return fields
