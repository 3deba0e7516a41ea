"""Labelled tasks: what they are, and their examples from the files their publishers give."""

from albert.tasks.definition import Kind, Task, load_task, shipped_tasks
from albert.tasks.examples import AnyExample, ChoiceExample, Example, SpanExample, Split, TaggedExample
from albert.tasks.reading import TaskData, read_split, read_task

__all__ = [
    "AnyExample",
    "ChoiceExample",
    "Example",
    "Kind",
    "SpanExample",
    "Split",
    "TaggedExample",
    "Task",
    "TaskData",
    "load_task",
    "read_split",
    "read_task",
    "shipped_tasks",
]
