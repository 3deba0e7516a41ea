"""A command's arguments, a flow's parameters and a settings record are three faces of one thing."""

import errno
import importlib
import inspect
from concurrent.futures.process import BrokenProcessPool

import pytest
from prefect.exceptions import ParameterTypeError
from prefect.task_engine import TaskRunTimeoutError

from flows.orchestration.arguments import COMMANDS, make_parser
from flows.orchestration.artifacts import artifact_key
from flows.orchestration.command import disk_trouble, trouble


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


def sample(shown, definitions):
    """What a person may type for a parameter of a form."""
    found = sorted(choices(shown, definitions))
    if found:
        return found[0]
    kinds = {one.get("type"): one for one in shown.get("anyOf", [shown])}
    if "array" in kinds:
        return ",".join([sample(kinds["array"]["items"], definitions)] * kinds["array"].get("minItems", 1))
    number = kinds.get("integer", kinds.get("number"))
    return str(number.get("maximum", 0.5 if "number" in kinds else 128)) if number else "x"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_typed_is_what_the_flow_takes(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    schema = flow.parameters.model_dump()
    typed = []
    for action in make_parser(command)._actions[1:]:
        value = sample(schema["properties"][action.dest], schema.get("definitions", {}))
        typed += action.option_strings if action.nargs == 0 else [*action.option_strings, value]
    parsed = vars(make_parser(command).parse_args(typed))
    assert flow.validate_parameters(parsed) == parsed
    wrong = {name for name, value in parsed.items() if isinstance(value, list) and not value}
    assert not wrong


@pytest.mark.parametrize("command", COMMANDS)
def test_prefect_takes_the_flows_parameters(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    schema = flow.parameters.model_dump()
    assert set(schema["properties"]) == set(inspect.signature(flow.fn).parameters)


def choices(shown, definitions):
    """What a parameter of a form may be; empty where that is not a list."""
    found = set(shown.get("enum", ()))
    parts = [*shown.get("anyOf", ()), *([shown["items"]] if "items" in shown else [])]
    for part in parts:
        found |= choices(part, definitions)
    if "$ref" in shown:
        found |= choices(definitions[shown["$ref"].rpartition("/")[2]], definitions)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_form_offers_the_choices_of_the_command(command):
    flow = getattr(importlib.import_module(f"flows.{command}"), command)
    schema = flow.parameters.model_dump()
    for action in make_parser(command)._actions:
        if action.choices:
            shown = schema["properties"][action.dest]
            assert choices(shown, schema.get("definitions", {})) == set(action.choices), action.dest


def test_an_option_is_written_out():
    with pytest.raises(SystemExit):
        make_parser("refresh_corpus").parse_args(["--corp", "tea"])


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
            if kind.get("type") in ("integer", "number") and "enum" not in kind:
                assert "minimum" in kind or "exclusiveMinimum" in kind, name


def test_a_full_or_read_only_disk_is_told_in_a_line_and_other_errors_are_not_taken_for_one():
    told = disk_trouble(OSError(errno.EROFS, "Read-only file system", "/w/catalog.duckdb"))
    assert told == "/w/catalog.duckdb cannot be written to or read (Read-only file system)"
    for number in (errno.EACCES, errno.EPERM):
        assert "cannot be written to or read" in disk_trouble(OSError(number, "of another user", "/w"))
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert "the disk is full" in disk_trouble(OSError(number, "in another language"))
    # as DuckDB and Arrow say it
    assert "the disk is full" in disk_trouble(
        RuntimeError("IO Error: could not write: No space left on device")
    )
    assert disk_trouble(OSError(errno.ECONNREFUSED, "Connection refused")) is None


def test_a_value_beyond_the_bounds_of_a_form_is_told_in_a_line():
    flow = importlib.import_module("flows.end_to_end").end_to_end
    with pytest.raises(ParameterTypeError) as wrong:
        flow.validate_parameters({"steps": 0, "copies": 101})
    told = (
        "steps: Input should be greater than or equal to 1; copies: Input should be less than or equal to 100"
    )
    assert trouble(wrong.value) == told


def test_a_lost_worker_and_a_task_that_hangs_are_told_in_a_line_and_a_mistake_is_not():
    assert "longer than --task-hours" in trouble(TaskRunTimeoutError("Scope timed out"))
    assert "with fewer --workers" in trouble(BrokenProcessPool("a process was terminated abruptly"))
    assert trouble(ValueError("a mistake of the program")) is None
