"""An option is declared once: the form, the command line and the recipe are made from its declaration."""

import importlib
from dataclasses import fields, is_dataclass

import pytest
from pydantic_core import to_jsonable_python

from flows.orchestration.command import read_options
from flows.orchestration.settings import JOBS
from tests.commands import typed_as

REQUIRED = {
    "refresh-corpus": {"corpus": "茶"},
    "continued-pretraining": {"corpus": "茶"},
    "fine-tune": {"task": "lcqmc", "model": ["a"]},
    "train-tokenizer": {},
    "end-to-end": {},
    "lcqmc-experiment": {
        "general": ["a"],
        **{
            one: {"name": one, "text": ["a"], "task": "lcqmc", "train": "a", "dev": "b", "test": "c"}
            for one in ("first", "second")
        },
    },
}


def flow_of(name):
    module = name.replace("-", "_")
    return getattr(importlib.import_module(f"flows.{module}"), module)


@pytest.mark.parametrize("name", JOBS)
def test_a_command_and_a_form_give_the_same_options(name):
    """Every option, at a value other than its default."""
    schema = flow_of(name).parameters.model_dump()
    values = REQUIRED[name] | {
        key: other_value(shown, schema["definitions"])
        for key, shown in schema["properties"].items()
        if key not in (*REQUIRED[name], "recipe", "learning_rate")
    }
    if name == "continued-pretraining":
        values |= {"learning_rate": 0.5}
        values["objective"] |= {"masking": "dynamic", "mask_rates": "0.3,0.15"}
    if name == "refresh-corpus":
        values["duplicates"]["near"] = 0.7
    if "fine_tuning" in values:
        del values["fine_tuning"]["learning_rate"]  # a sweep stands in its place
    typed = read_options(name, typed_as(values))
    given = JOBS[name](**flow_of(name).validate_parameters(values))
    assert typed == given != JOBS[name](**REQUIRED[name])
    assert JOBS[name](**to_jsonable_python(typed)) == typed


def other_value(shown, definitions):
    """A value that is not the default."""
    if "$ref" in shown or "allOf" in shown:
        inner = definitions[(shown.get("$ref") or shown["allOf"][0]["$ref"]).rpartition("/")[2]]
        return {name: other_value(part, definitions) for name, part in inner["properties"].items()}
    default = shown.get("default")
    kind = next(part for part in shown.get("anyOf", [shown]) if part.get("type") != "null")
    if "enum" in kind:
        return next(choice for choice in kind["enum"] if choice != default)
    if kind["type"] == "array":
        items = kind.get("items", {})
        return [other_value(items.get("anyOf", [items])[0], definitions)]
    if kind["type"] == "boolean":
        return True
    if kind["type"] in ("integer", "number"):
        step = 1 if kind["type"] == "integer" else 0.125
        low = kind.get("minimum", kind.get("exclusiveMinimum", 0))
        return low + step if default != low + step else low + 2 * step
    return "7.5" if kind.get("format") else "x7"


@pytest.mark.parametrize("name", JOBS)
def test_a_form_describes_and_bounds_each_option_and_its_first_level_holds_a_dozen_beside_groups(name):
    schema = flow_of(name).parameters.model_dump()
    assert set(schema["required"] or ()) == set(REQUIRED[name])
    shown = dict(schema["properties"])
    for definition in schema["definitions"].values():
        if definition["type"] == "object":
            shown |= definition["properties"]
    for key, part in shown.items():
        assert part.get("description"), key
        for kind in part.get("anyOf", [part]):
            if kind.get("type") in ("integer", "number") and "enum" not in kind:
                assert "minimum" in kind or "exclusiveMinimum" in kind, key
    made = JOBS[name](**REQUIRED[name])
    first = [one.name for one in fields(made) if not is_dataclass(getattr(made, one.name))]
    assert len(first) <= 15, first


def test_what_is_typed_takes_precedence_over_the_recipe(tmp_path, write):
    lines = "corpus: 茶", "source: x.txt", "seed: 3", "max_seq_length: 64"
    recipe = write("tea.yaml", "\n".join([*lines, "quality: {min_characters: 9, min_han_share: 0.5}"]))
    typed = [f"--recipe={recipe}", "--max-seq-length", "128", "--quality.min-characters=7"]
    assert read_options("refresh-corpus", [*typed, "--help"]) is None
    options = read_options("refresh-corpus", [*typed, "--duplicates.near", "off"])
    settings = options.settings()
    assert (settings.corpus, settings.seed, settings.max_seq_length) == ("茶", 3, 128)
    assert (settings.quality.min_characters, settings.quality.min_han_share) == (7, 0.5)
    assert settings.duplicates.near is None and settings.source == (str(tmp_path / "x.txt"),)
    # a form submits every value: what equals its default leaves the recipe's
    form = JOBS["refresh-corpus"](corpus="茶", recipe=str(recipe), quality={"min_characters": 7})
    assert form.settings().max_seq_length == 64
    assert (form.settings().quality.min_characters, form.settings().quality.min_han_share) == (7, 0.5)
