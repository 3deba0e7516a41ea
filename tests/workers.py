"""Worker processes that begin with their imports done: forks of a server that has them, and saves up to three
seconds each. Otherwise each is as new. Commands spawn theirs.
"""

import os
from multiprocessing.context import ForkServerContext, ForkServerProcess

PRELOADED = [
    "albert.finetuning.training",
    "albert.pretraining",
    "data.refresh.run",
    "tests.data.helpers",  # which loads the dictionary of words
    "tests.workers",
]


class Worker(ForkServerProcess):
    """With the environment that the test has now; the server's is of its start."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.environment = dict(os.environ)

    def run(self):
        os.environ.clear()
        os.environ.update(self.environment)
        super().run()


class PreloadedContext(ForkServerContext):
    Process = Worker


def begin(work, *arguments):
    """Begin a function in a process of its own."""
    process = Worker(target=work, args=arguments)
    process.start()
    return process
