"""`--one-process` serves what prefect.yaml says."""

import importlib
import inspect
import runpy

import yaml

from flows.orchestration import lifecycle as workers
from flows.orchestration.deployments import FILE, load


def test_each_deployment_of_the_file_is_served_with_all_it_says():
    written = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    served = load()
    assert len(written) == len(served) > 5
    for entry, made in zip(written, served, strict=True):
        flow = entry["entrypoint"].rpartition(":")[2].replace("_", "-")
        assert (made.flow_name, made.name, made.tags) == (flow, entry["name"], entry["tags"])
        assert made.description == entry["description"]
        assert made.parameters == entry.get("parameters", {})
        times = [(one.schedule.cron, one.schedule.timezone, one.slug, one.active) for one in made.schedules]
        told = ("cron", "timezone", "slug", "active")
        assert times == [tuple(one[name] for name in told) for one in entry.get("schedules", [])]
        limit = entry.get("concurrency_limit", {})
        assert made.concurrency_limit == limit.get("limit")
        strategy = made.concurrency_options and made.concurrency_options.collision_strategy.value
        assert strategy == limit.get("collision_strategy")


def test_each_flow_of_the_file_ends_with_its_worker():
    for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]:
        path, _, name = entry["entrypoint"].partition(":")
        function = getattr(importlib.import_module(f"flows.{path.rpartition('/')[2][:-3]}"), name).fn
        assert inspect.getsourcefile(function.__code__) == workers.__file__, name


def test_as_many_runs_as_asked_for_are_begun_at_a_time(monkeypatch):
    asked = []
    monkeypatch.setattr("prefect.serve", lambda *made, limit: asked.append((len(made), limit)))
    for arguments in ([], ["--limit", "2"]):
        monkeypatch.setattr("sys.argv", ["deployments", *arguments])
        runpy.run_path(workers.__file__.replace("lifecycle.py", "deployments.py"), run_name="__main__")
    assert asked == [(len(load()), 4), (len(load()), 2)]
