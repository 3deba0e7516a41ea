"""What each kind of task trains and predicts."""

from albert.learners.encoding import Chosen, Encoded
from albert.learners.finding import find_learner
from albert.learners.learner import Learner, Predictions

__all__ = ["Chosen", "Encoded", "Learner", "Predictions", "find_learner"]
