"""A command's arguments, a flow's parameters and a settings record are three faces of one thing."""

import errno
import importlib
import inspect

import pytest

from flows.arguments import COMMANDS, make_parser
from flows.artifacts import artifact_key
from flows.cli import disk_trouble


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_arguments_are_its_flows_parameters(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    parameters = inspect.signature(flow.fn).parameters
    actions = {a.dest: a for a in make_parser(command)._actions if a.dest != "help"}
    assert set(actions) == set(parameters)
    for name, action in actions.items():
        default = parameters[name].default
        if not action.required and name not in ("workspace", "workers"):
            assert action.default == default, name


@pytest.mark.parametrize("command", COMMANDS)
def test_prefect_takes_the_flows_parameters(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    schema = flow.parameters.model_dump()
    assert set(schema["properties"]) == set(inspect.signature(flow.fn).parameters)


def test_artifact_keys_are_what_prefect_allows():
    assert artifact_key("funnel", "Law 2024_v1") == "funnel-law-2024-v1"
    assert artifact_key("funnel", "法律").startswith("funnel-") and artifact_key(
        "funnel", "法律"
    ) != artifact_key("funnel", "茶")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_form_of_a_deployment_says_what_each_parameter_is(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    schema = flow.parameters.model_dump()["properties"]
    for name, shown in schema.items():
        # pydantic puts what `Annotated` says of an optional parameter beside its alternatives
        assert shown.get("description"), name
        kinds = shown.get("anyOf", [shown])
        for kind in kinds:
            if kind.get("type") == "integer" and "enum" not in kind:
                assert "minimum" in kind or "exclusiveMinimum" in kind, name


def test_a_full_or_read_only_disk_is_told_in_a_line_and_other_errors_are_not_taken_for_one():
    told = disk_trouble(OSError(errno.EROFS, "Read-only file system", "/w/catalog.duckdb"))
    assert told == "/w/catalog.duckdb cannot be written to or read (Read-only file system)"
    # as DuckDB and Arrow say it
    assert "the disk is full" in disk_trouble(
        RuntimeError("IO Error: could not write: No space left on device")
    )
    assert disk_trouble(OSError(errno.ECONNREFUSED, "Connection refused")) is None
