"""`[track]`: experiment trackers that follow a run."""

from raybcgd.section import Section


class TrackConfig(Section):
    """`[track]`: experiment trackers that follow a run. A tracker that fails is reported once and never stops a run."""

    tensorboard: bool = False
    """Write TensorBoard events to the folder `tensorboard` in the run folder. Needs raybcgd[tensorboard]."""
    mlflow: str | None = None
    """Address of an MLflow server or store, such as http://127.0.0.1:5000. Needs raybcgd[mlflow]."""
    wandb: str | None = None
    """Name of a Weights & Biases project. Needs raybcgd[wandb]; set WANDB_MODE=offline to upload later."""
