import re
import subprocess
import sys
import tomllib
from collections import Counter

import yaml

from flows.orchestration.settings import JOBS
from tests import ROOT


def test_every_requirement_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    wanted = [*project["dependencies"], *(name for name in extras if not name.startswith("jixu"))]
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").split()
    pinned = {pin.split("==")[0] for pin in pins}
    names = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in wanted}
    assert names <= pinned, names - pinned


def test_every_job_has_a_deployment_and_schedules_are_in_the_time_of_china():
    declared = (ROOT / "prefect.yaml").read_text()
    assert (ROOT / "flows/orchestration/prefect.yaml").read_text() == declared  # of an installed jixu
    deployments = yaml.safe_load(declared)["deployments"]
    flows = {one["entrypoint"].rpartition(":")[2].replace("_", "-") for one in deployments}
    assert flows == {*JOBS, "rerun-crashed"}
    schedules = [schedule for one in deployments for schedule in one.get("schedules", [])]
    assert {schedule["timezone"] for schedule in schedules} == {"Asia/Shanghai"}


def test_a_folder_named_data_where_a_notebook_lies_hides_nothing_of_jixu(tmp_path):
    (tmp_path / "data").mkdir()
    subprocess.run([sys.executable, "-c", "from data import RefreshSettings"], cwd=tmp_path, check=True)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1100


def test_samples_have_the_promised_sizes_and_kinds_and_no_example_is_in_two_splits():
    files = [p for p in (ROOT / "data/samples").iterdir() if p.suffix in (".txt", ".jsonl", ".tsv")]
    splits = [f"tea_topics_{split}.tsv" for split in ("train", "train_48", "dev", "test")]
    assert sorted(file.name for file in files) == sorted(["general.txt", "tea.jsonl", *splits])
    assert 200_000 <= sum(file.stat().st_size for file in files) <= 400_000
    few, train, dev, test = (
        (ROOT / f"data/samples/tea_topics_{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        for name in ("train_48", "train", "dev", "test")
    )
    texts = [line.split("\t")[0] for line in (*train, *dev, *test)]
    assert len(texts) == len(set(texts))
    assert len(few) == 48 and set(few) <= set(train)
    assert {Counter(line.split("\t")[1] for line in few)[label] for label in ("种植", "品鉴")} == {8}
