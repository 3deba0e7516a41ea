"""A refresh without other processes, for tests that make many."""


class InProcess:
    """A `data.refresh.Runner` that does all of the work in this process."""

    workers = 2

    def stage(self, name, label, work):
        return work()

    def map(self, work):
        return [result for batch in work.batches for result in work.function(batch.items)]
