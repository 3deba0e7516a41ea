"""Print docs/options.md, a page of every option of every job, made from the declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from data.refresh import RefreshSettings
from flows.orchestration.settings import JOBS

INTRODUCTION = """\
# Options

Made from the declarations by `python -m flows.orchestration.options_page`. An option has the same name
everywhere: `--quality.min-characters 50` on a command line, `quality: {min_characters: 50}` in a recipe, and
`-p quality='{"min_characters": 50}'` for a deployment. To give several values, repeat the option; numbers may
also be separated by commas. `--cleaning.no-fold-width` switches an option off that is on.
"""
HEADER = "| option | default | values | meaning |\n|---|---|---|---|"
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
Schema = dict[str, Any]  # a JSON schema


def page() -> str:
    """The page as Markdown."""
    return "\n".join([INTRODUCTION, *(line for name in JOBS for line in _job(name))])


def _job(name: str) -> Iterator[str]:
    options = JOBS[name]
    schema = TypeAdapter(options).json_schema()
    yield from (f"## {name}", "", (options.__doc__ or "").partition("\n")[0], "")
    yield from _table(schema, {}, "", schema.get("$defs", {}))
    if issubclass(options, RefreshSettings):
        yield from _recipe()


def _recipe() -> Iterator[str]:
    """A recipe with every key."""
    settings = RefreshSettings(corpus="law", source=("laws.jsonl.gz",), tokenizer="vocab.txt", workers=2)
    keys = {name: value for name, value in to_jsonable_python(settings).items() if name != "workspace"}
    content = yaml.safe_dump(keys, sort_keys=False)
    yield from ("All keys of a recipe, with their defaults:", "", f"```yaml\n{content}```", "")


def _table(schema: Schema, defaults: Schema, prefix: str, definitions: Schema) -> Iterator[str]:
    """The options of a class, required ones first, then its groups."""
    required = schema.get("required", ())
    properties = sorted(schema["properties"].items(), key=lambda item: item[0] not in required)
    yield HEADER
    for name, field in properties:
        if "$ref" not in field:
            default = "required" if name in required else _default(defaults.get(name, field.get("default")))
            text = " ".join(field["description"].split())
            cells = (f"`--{prefix}{name}`".replace("_", "-"), default, _values(field), text)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    for name, field in properties:
        if "$ref" in field:
            group, inner = f"{prefix}{name}", definitions[field["$ref"].rpartition("/")[2]]
            own = defaults.get(name, field.get("default", {}))
            yield from (f"**{group.replace('_', '-')}**: {field['description']}", "")
            yield from _table(inner, own, f"{group}.", definitions)


def _default(value: object) -> str:
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if value is None or value == "":
        return ""
    return f"`{'yes' if value is True else 'no' if value is False else value}`"


def _values(field: Schema) -> str:
    """The type of an option's value, its choices or its bounds."""
    kind = next(one for one in field.get("anyOf", [field]) if one.get("type") != "null")
    if kind.get("type") == "array":
        return f"{_values(kind['items'])}; several"
    if choices := kind.get("enum"):
        return ", ".join(f"`{choice}`" for choice in choices)
    name = {"boolean": "yes or no", "string": "text"}.get(kind["type"], kind["type"])
    bounds = [f"{word} {kind[key]:,}" for key, word in BOUNDS.items() if key in kind]
    return " ".join([name, *bounds])


if __name__ == "__main__":
    print(page(), end="")
