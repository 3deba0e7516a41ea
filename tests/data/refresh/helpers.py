"""Settings of a small refresh, and a refresh without other processes, for tests that make many."""

from data.refresh import RefreshSettings


def settings_for(folder, source, vocabulary_file, corpus="c", **options):
    """Settings to refresh a corpus from one source into a workspace of the folder."""
    shared = {"source": (str(source),), "tokenizer": str(vocabulary_file), "workers": 1}
    return RefreshSettings(corpus=corpus, workspace=folder / "w", **shared | options)


class InProcess:
    """A `data.refresh.Runner` that does all of the work in this process."""

    workers = 2

    def stage(self, name, label, work):
        return work()

    def map(self, work):
        return [result for batch in work.batches for result in work.function(batch.items)]
