import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import data.refresh.settings
from data.cleaning import CleaningRules, GuardRules
from data.errors import InputError
from data.refresh import (
    RefreshSettings,
    describe_changes,
    describe_result,
    load_recipe,
    plan_refresh,
    preview,
)
from data.sources import SourceSpec

RECIPE = """\
corpus: 法律
source: [raw/*.txt, {path: b.csv, text_field: body}, "s3://bucket/c.jsonl"]
instances: {sop: off}
masking: {rate: 0.2}
quality: {min_characters: 9, blocklist: ads.txt}
cleaning: {simplify: true, scrub: [phone]}
duplicates: {near: null}
guard: {files: dev.tsv}
dictionary: ~terms.txt
"""


def test_a_recipe_holds_what_the_settings_do_and_the_example_in_the_file_is_one(tmp_path, write):
    settings = RefreshSettings(**load_recipe(write("recipe.yaml", RECIPE)))
    assert settings.corpus == "法律" and settings.instances.sop == "off" and settings.masking.rate == 0.2
    assert settings.source == (
        str(tmp_path / "raw/*.txt"),
        SourceSpec(path=str(tmp_path / "b.csv"), text_field="body"),
        "s3://bucket/c.jsonl",
    )
    assert settings.cleaning == CleaningRules(simplify=True, scrub=("phone",))
    assert settings.quality.min_characters == 9 and settings.quality.blocklist == str(tmp_path / "ads.txt")
    assert settings.duplicates.near is None and settings.guard.files == (str(tmp_path / "dev.tsv"),)
    assert settings.dictionary == (str(tmp_path / "~terms.txt"),)
    example = data.refresh.settings.__doc__.split("```yaml\n")[1].split("```")[0]
    recipe = load_recipe(str(write("recipe.yaml", example)))
    assert recipe["corpus"] == "law" and Path(recipe["dictionary"][0]).name == "terms.txt"
    with pytest.raises(TypeError, match=r"^RefreshSettings.__init__\(\) takes 1 positional argument"):
        RefreshSettings("raw.txt", corpus="c")  # which pydantic alone takes for the workspace


def test_a_recipes_folder_is_no_pattern_and_its_vocabulary_lies_beside_it(tmp_path, write, vocabulary_file):
    folder = tmp_path / "语料[1]"
    folder.mkdir()
    (folder / "vocab.txt").write_bytes(vocabulary_file.read_bytes())
    write(f"{folder.name}/a.md", "第一篇讲采茶。要趁早上采。")
    recipe = write(f"{folder.name}/recipe.yaml", 'corpus: c\nsource: "*.md"\ntokenizer: vocab.txt\n')
    plan = plan_refresh(RefreshSettings(**load_recipe(recipe), workspace=tmp_path / "w"))
    assert [file.place for file in plan.files] == [str(folder / "a.md")]
    assert plan.tokenizer_path == folder / "vocab.txt"


@pytest.mark.parametrize(
    "content, messages",
    [
        (
            "masking: {rate: high}\nmax_seq_length: 1.5\nunknown: 1\n",
            ["masking.rate='high': it must be a", "max_seq_length=1.5", "unknown unknown, known"],
        ),
        (
            "quality: {min_han: 1}\ncleaning: yes\n",
            ["unknown quality.min_han; did you mean min_han_share?", "cleaning=True: it must be"],
        ),
        ("seed: 1\nguard: {ngram: 6, ngram: 7}\n", ["'ngram' is given twice", "line 2"]),
        ("corpus: !!python/object/apply:os.getcwd []\n", ["the tag 'tag:yaml.org,2002:python/", "line 1"]),
        (
            "max_seq_length: 9999\nquality: {min_characters: 0}\nseed: x\n",
            ["seed='x': it must be", "max_seq_length=9999: it", "quality.min_characters=0: it must be"],
        ),
        ("corpus: c\nworkspace: w\n", ["a recipe names no workspace: give --workspace"]),
        ("corpus: ../c\n", ["corpus '../c': use 1 to 64 letters"]),
        ("- a\n- b\n", ["it must hold names and values"]),
        ("corpus: [\n", ["is not a recipe"]),
        ("duplicates: {near: on}\n", ["duplicates.near='on': it must be a valid number"]),
        (
            "instances: {sop: maybe, copies: 0}\n",
            ["instances.sop='maybe': it must be 'auto', 'on' or 'off'; instances.copies=0: it must"],
        ),
    ],
)
def test_every_bad_value_is_named(write, content, messages):
    with pytest.raises(InputError) as refused:
        load_recipe(write("recipe.yaml", content))
    assert all(message in str(refused.value) for message in messages), refused.value


def test_files_of_a_recipe_count_by_their_content(tea, samples, tmp_path, write):
    shutil.copy(samples / "tea.jsonl", tea.raw)
    splits = [str(samples / f"tea_topics_{name}.tsv") for name in ("dev", "test")]

    def recipe_hash(words, *guarded, **changes):
        guard = GuardRules(files=tuple(guarded))
        return tea.plan(dictionary=words, guard=guard, **changes).recipe_hash

    words, moved = write("terms.txt", "炒青\n"), write("moved.txt", "炒青\n")
    before = recipe_hash(words)
    assert recipe_hash(moved, workers=9) == before
    write("terms.txt", "炒青\n茶汤色\n")
    assert recipe_hash(words) != before
    # in whatever order
    assert recipe_hash(words, *splits) == recipe_hash(words, *splits[::-1]) != recipe_hash(words, splits[0])


OWN = "{path: a.csv, text_field: body}"


@pytest.mark.parametrize("sources", [f"., {OWN}", f"{OWN}, ."])
def test_a_file_has_its_own_settings_where_its_folder_is_named_too(tmp_path, write, sources):
    for name in ("a.csv", "b.csv"):
        write(name, "body,text\n茶要慢慢喝。,别的话在这里。\n")
    recipe = load_recipe(write("recipe.yaml", f"corpus: c\nsource: [{sources}]\ntokenizer: tiny-zh\n"))
    plan = plan_refresh(RefreshSettings(**recipe, workspace=tmp_path / "w"))
    fields = {Path(file.uri).name: file.reading.text_field for file in plan.files}
    assert fields["a.csv"] == "body" and fields["b.csv"] is None


def write_fields(folder, number):
    row = {"text": f"第{number}篇讲茶要慢慢喝。水要慢慢烧。", "body": f"第{number}篇正文说的是炒茶。火要小。"}
    folder.mkdir()
    (folder / "x.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    return str(folder / "x.jsonl")


def test_only_a_new_source_or_one_of_which_another_field_is_asked_for_is_read(tea, tmp_path):
    """Two files have one name; of the first the text is read, of the second the body."""
    paths = [write_fields(tea.raw / name, number) for number, name in enumerate("ab")]
    specs = zip(paths, ("text", "body"), strict=True)
    fields = tea.changed(source=tuple(SourceSpec(path=path, text_field=field) for path, field in specs))
    assert "anew" not in describe_result(fields.refresh())[1]
    path = write_fields(tmp_path / "c", 2)
    more = (*fields.settings.source, SourceSpec(path=path, text_field="body"))
    assert ["正文" in text for text in fields.texts()] == [False, True]
    changes = preview(fields.plan(source=more))
    assert not changes.anew and changes.read == (path,) and changes.unchanged == 2
    assert not preview(fields.plan()).read
    first, second = fields.settings.source
    changed = fields.changed(source=(replace(first, text_field="body"), second))
    changes = preview(changed.plan())
    assert not changes.anew and changes.read == (first.path,)
    result = changed.refresh()
    assert result.is_new and result.removed_documents == 1
    assert all("正文" in text for text in changed.texts())
    ((recipe,),) = changed.ask("select recipe->>'sources' from versions where version = 2")
    assert [source["text_field"] for source in json.loads(recipe)] == ["body", "body"]
    quality = replace(changed.settings.quality, min_characters=11)
    why = "anew, as seed, quality.min_characters changed"
    assert why in describe_changes(preview(changed.plan(seed=1, quality=quality)))
    assert f"0 reused: everything {why};" in describe_result(changed.refresh(seed=1, quality=quality))[1]


def test_the_only_vocabulary_of_a_workspace_is_taken(tea, tokenizer, samples):
    tokenizer.save(tea.place.tokenizers / "only")
    (tea.place.tokenizers / ".DS_Store").touch()  # as macOS leaves in a folder that was looked at
    plan = tea.plan(tokenizer=None, source=(str(samples / "tea.jsonl"),))
    assert plan.tokenizer_path == tea.place.tokenizers / "only" / "vocab.txt"
