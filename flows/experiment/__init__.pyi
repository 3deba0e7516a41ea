from .arms import ARCHITECTURES as ARCHITECTURES
from .arms import EXPERIMENTS as EXPERIMENTS
from .arms import Arm as Arm
from .arms import ExperimentFiles as ExperimentFiles
from .arms import Sizes as Sizes
from .arms import first_lines as first_lines
from .arms import write_sentences as write_sentences
from .flawed_control import double_labels as double_labels
