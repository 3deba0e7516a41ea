"""What the tests of pretraining share."""

from dataclasses import replace


def with_options(settings, **options):
    """The settings with other values; a dict changes options within their group."""
    values = {
        name: replace(getattr(settings, name), **value) if isinstance(value, dict) else value
        for name, value in options.items()
    }
    return replace(settings, **values)
