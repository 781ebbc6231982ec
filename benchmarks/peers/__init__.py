"""Other simulators on the same workloads. They run in `.bench-venv`, which does not contain raybcgd."""
