"""`[analysis]`: what is worked out from a run's last checkpoint when it has ended."""

from typing import Annotated

from pydantic import Field

from raybcgd.section import Section


class AnalysisConfig(Section):
    """What to work out, and on how much of the test data."""

    cka_clients: Annotated[int, Field(ge=0)] = 4
    """How many clients' models to compare; 0 or 1: none."""
    cka_samples: Annotated[int, Field(ge=2)] = 256
    """The test samples on which their features are compared."""
    conformal_level: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """kappa, the share of samples whose prediction set shall hold their label."""
    calibration_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The part of the test data that is held out to find the threshold of these sets."""
