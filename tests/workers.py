"""Worker processes as new but for their imports: forks of a server that has them, 3 seconds sooner each."""

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
    process = Worker(target=work, args=arguments)
    process.start()
    return process
