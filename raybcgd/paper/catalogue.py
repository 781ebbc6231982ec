"""All experiments of the papers, and where their configs are."""

from pathlib import Path

import raybcgd
from raybcgd.errors import ConfigError
from raybcgd.paper.block_cyclic import EXPERIMENTS as BLOCK_CYCLIC
from raybcgd.paper.fedbcgd import EXPERIMENTS as FEDBCGD
from raybcgd.paper.fedpvr import EXPERIMENTS as FEDPVR
from raybcgd.paper.published import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (*FEDBCGD, *FEDPVR, *BLOCK_CYCLIC)


def select(
    paper: str | None = None,
    name: str | None = None,
    model: str | None = None,
    data: str | None = None,
    rho: float | None = None,
) -> list[Experiment]:
    """Return the experiments that match. None matches all."""
    wanted = {"paper": paper, "name": name, "model": model, "data": data, "rho": rho}
    found = list(EXPERIMENTS)
    for key, value in wanted.items():
        if value is None:
            continue
        known = dict.fromkeys(str(getattr(experiment, key)) for experiment in found)
        found = [experiment for experiment in found if getattr(experiment, key) == value]
        if not found:
            values = ", ".join(one for one in known if one != "None")
            fix = f"use one of {values}" if values else f"remove --{key}"
            raise ConfigError(f"no experiment has {key} {value}; {fix}")
    return found


def config_folder(given: Path | None = None) -> Path:
    """Return the folder of the configs: `given`, or jobs/configs in the current folder or next to the package."""
    here, source = Path("jobs/configs"), Path(raybcgd.__file__).parent.parent / "jobs" / "configs"
    folder = given or next((path for path in (here, source) if path.is_dir()), here)
    if not folder.is_dir():
        raise ConfigError(f"there are no configs in {folder}; pass the folder jobs/configs with --configs")
    return folder
