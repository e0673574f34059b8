"""How the property tests draw: the same cases in every `make test`, new ones in `make test-all`."""

from hypothesis import settings

settings.register_profile("same", derandomize=True, max_examples=60, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("same")
