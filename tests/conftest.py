"""One thread, and Hypothesis without surprises: no deadline, no database, the same examples on every run.

``pytest --hypothesis-profile=explore`` draws new and more examples.
"""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

_COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("sp4", derandomize=True, max_examples=20, **_COMMON)
settings.register_profile("explore", max_examples=300, print_blob=True, **_COMMON)
settings.load_profile("sp4")
