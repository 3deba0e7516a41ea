import json
from dataclasses import replace
from pathlib import Path

import pytest

from data.cleaning import CleaningRules, GuardRules
from data.errors import ConfigError, InputError
from data.refresh import RefreshSettings, describe_result, load_recipe, plan_refresh, preview
from data.sources import SourceSpec
from tests.corpora import ask, refresh_here, refresh_settings, texts_of


def write(folder, content):
    path = folder / "recipe.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_recipe_holds_what_the_settings_do(tmp_path):
    recipe = load_recipe(
        write(
            tmp_path,
            "corpus: 法律\nsource:\n  - raw/*.txt\n  - {path: b.csv, text_field: body}\n  - s3://bucket/c.jsonl\n"
            "instances: {sop: off}\nmasking: {rate: 0.2}\nquality: {min_characters: 9, blocklist: ads.txt}\n"
            "cleaning: {simplify: true, scrub: [phone]}\nduplicates: {near: null}\n"
            "guard: {files: [dev.tsv]}\ndictionary: terms.txt\n",
        )
    )
    settings = RefreshSettings(**recipe)
    assert settings.corpus == "法律" and settings.instances.sop == "off" and settings.masking.rate == 0.2
    assert settings.source == (
        str(tmp_path / "raw/*.txt"),
        SourceSpec(path=str(tmp_path / "b.csv"), text_field="body"),
        "s3://bucket/c.jsonl",
    )
    assert settings.cleaning == CleaningRules(simplify=True, scrub=("phone",))
    assert settings.quality.min_characters == 9 and settings.quality.blocklist == str(tmp_path / "ads.txt")
    assert settings.duplicates.near is None and settings.guard.files == (str(tmp_path / "dev.tsv"),)
    assert settings.dictionary == (str(tmp_path / "terms.txt"),)


def test_a_recipes_folder_is_no_pattern_and_its_vocabulary_lies_beside_it(tmp_path, vocabulary_file):
    folder = tmp_path / "语料[1]"
    folder.mkdir()
    (folder / "vocab.txt").write_bytes(Path(vocabulary_file).read_bytes())
    (folder / "a.md").write_text("第一篇讲采茶。要趁早上采。", encoding="utf-8")
    recipe = load_recipe(write(folder, 'corpus: c\nsource: "*.md"\ntokenizer: vocab.txt\n'))
    plan = plan_refresh(RefreshSettings(**recipe, workspace=tmp_path / "w"))
    assert [file.place for file in plan.files] == [str(folder / "a.md")]
    assert plan.tokenizer_path == folder / "vocab.txt"


@pytest.mark.parametrize(
    "content, messages",
    [
        (
            "masking: {rate: high}\nmax_seq_length: 1.5\nunknown: 1\n",
            [
                "masking.rate='high': it must be a valid number",
                "max_seq_length=1.5",
                "unknown unknown, known",
            ],
        ),
        (
            "quality: {min_han: 1}\ncleaning: yes\n",
            ["unknown quality.min_han; did you mean min_han_share?", "cleaning=True: it must be"],
        ),
        ("guard: {xyz: 1}\n", ["unknown guard.xyz, known are files, "]),
        ("seed: 1\nguard: {ngram: 6, ngram: 7}\n", ["'ngram' is given twice", "line 2"]),
        (
            "corpus: !!python/object/apply:os.getcwd []\n",
            ["constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd'", "line 1"],
        ),
        (
            "max_seq_length: 9999\nquality: {min_characters: 0}\nseed: x\n",
            [
                "seed='x': it must be a valid integer",
                "max_seq_length=9999: it must be less than or equal to 512",
                "quality.min_characters=0: it must be greater than or equal to 1",
            ],
        ),
        ("corpus: c\nworkspace: w\n", ["a recipe names no workspace: give --workspace"]),
        ("- a\n- b\n", ["it must hold names and values"]),
        ("corpus: [\n", ["is not a recipe"]),
        ("instances: {sop: maybe}\n", ["instances.sop='maybe': it must be 'auto', 'on' or 'off'"]),
    ],
)
def test_every_bad_value_is_named(tmp_path, content, messages):
    with pytest.raises(InputError) as refused:
        load_recipe(write(tmp_path, content))
    assert all(message in str(refused.value) for message in messages), refused.value


def test_values_out_of_range_are_refused():
    message = "max_seq_length=1000000: it must be .*; instances.sop='no': it must be .*; instances.copies=0"
    with pytest.raises(ConfigError, match=message):
        RefreshSettings(corpus="c", max_seq_length=1_000_000, instances={"copies": 0, "sop": "no"})
    with pytest.raises(ConfigError, match="corpus '../c': use 1 to 64 letters"):
        RefreshSettings(corpus="../c")


def test_files_of_a_recipe_count_by_their_content(tmp_path, samples, vocabulary_file):
    terms = tmp_path / "terms.txt"
    terms.write_text("炒青\n", encoding="utf-8")
    settings = refresh_settings(
        tmp_path / "w", samples / "tea.jsonl", vocabulary_file, dictionary=(str(terms),)
    )
    before = plan_refresh(settings).recipe_hash
    moved = tmp_path / "moved.txt"
    moved.write_bytes(terms.read_bytes())
    assert plan_refresh(replace(settings, dictionary=(str(moved),), workers=9)).recipe_hash == before
    terms.write_text("炒青\n茶汤色\n", encoding="utf-8")
    assert plan_refresh(settings).recipe_hash != before
    splits = [str(samples / f"tea_topics_{name}.tsv") for name in ("dev", "test")]
    guarded = [
        plan_refresh(replace(settings, guard=GuardRules(files=tuple(files)))).recipe_hash
        for files in (splits, splits[::-1], splits[:1])
    ]
    assert guarded[0] == guarded[1] != guarded[2]  # in whatever order


def test_each_source_is_read_in_its_own_way(tmp_path, vocabulary_file):
    (tmp_path / "a.csv").write_text("body,text\n茶要慢慢喝。,别的话在这里。\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("body,text\n水要慢慢烧。,炒茶要快一点。\n", encoding="utf-8")
    path = write(tmp_path, "corpus: c\nworkers: 1\nsource: [{path: a.csv, text_field: body}, b.csv]\n")
    settings = RefreshSettings(**load_recipe(path), workspace=tmp_path / "w", tokenizer=str(vocabulary_file))
    assert "anew" not in describe_result(refresh_here(settings))[1]
    assert texts_of(settings.workspace, "c") == ["炒茶要快一点。", "茶要慢慢喝。"]
    anew = describe_result(refresh_here(replace(settings, seed=1)))
    assert "0 reused: everything anew, as the recipe" in anew[1]


def write_fields(path, number):
    row = {"text": f"第{number}篇讲茶要慢慢喝。水要慢慢烧。", "body": f"第{number}篇正文说的是炒茶。火要小。"}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    return str(path)


@pytest.fixture
def fields(tmp_path, vocabulary_file):
    """A corpus of two files of one name; of the first the text is read, of the second the body."""
    paths = [write_fields(tmp_path / folder / "x.jsonl", n) for n, folder in enumerate("ab")]
    specs = tuple(SourceSpec(path=p, text_field=f) for p, f in zip(paths, ["text", "body"], strict=True))
    settings = replace(refresh_settings(tmp_path / "w", tmp_path, vocabulary_file), source=specs)
    refresh_here(settings)
    return settings


def test_a_new_source_with_its_own_field_leaves_the_others_as_they_are(fields, tmp_path):
    path = write_fields(tmp_path / "c" / "y.jsonl", 2)
    more = replace(fields, source=(*fields.source, SourceSpec(path=path, text_field="body")))
    changes = preview(plan_refresh(more))
    assert not changes.recipe_changed and changes.read == (path,) and changes.unchanged == 2
    assert not preview(plan_refresh(fields)).read


def test_another_field_of_one_of_two_files_of_a_name_is_read(fields):
    first, second = fields.source
    changed = replace(fields, source=(replace(first, text_field="body"), second))
    changes = preview(plan_refresh(changed))
    assert not changes.recipe_changed and changes.read == (first.path,)
    result = refresh_here(changed)
    assert result.is_new and result.removed_documents == 1
    assert all("正文" in text for text in texts_of(fields.workspace))
    ((recipe,),) = ask(fields.workspace, "select recipe->>'sources' from versions where version = 2")
    assert [source["text_field"] for source in json.loads(recipe)] == ["body", "body"]


def test_the_example_in_the_file_is_a_recipe(tmp_path):
    import data.refresh.settings

    example = data.refresh.settings.__doc__.split("```yaml\n")[1].split("```")[0]
    assert load_recipe(write(tmp_path, example))["corpus"] == "law"
    assert Path(load_recipe(write(tmp_path, example))["dictionary"][0]).name == "terms.txt"
