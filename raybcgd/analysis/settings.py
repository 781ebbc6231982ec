"""`[analysis]`: the analysis of a run's last checkpoint."""

from typing import Annotated

from pydantic import Field

from raybcgd.section import Section


class AnalysisConfig(Section):
    """`[analysis]`: CKA between client models, and conformal prediction sets."""

    cka_clients: Annotated[int, Field(ge=0)] = 4
    """Number of client models to compare with CKA. 0 or 1: no CKA."""
    cka_samples: Annotated[int, Field(ge=2)] = 256
    """Test samples for CKA."""
    conformal_levels: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.9,)
    """Target coverages of the prediction sets. Every level is evaluated."""
    calibration_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Fraction of the test data held out to calibrate the prediction sets."""
