from .discovery import MIN_COHESION as MIN_COHESION
from .discovery import MIN_COUNT as MIN_COUNT
from .discovery import MIN_FREEDOM as MIN_FREEDOM
from .discovery import Word as Word
from .discovery import discover_words as discover_words
from .discovery import write_dictionary as write_dictionary
from .segmenter import Segmenter as Segmenter
from .similar_words import find_similar_words as find_similar_words
