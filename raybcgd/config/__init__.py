"""The config of an experiment: schema, files and error messages. Imports only light `settings.py` files."""

from raybcgd.config.files import load_config, load_run_config, make_config, run_tables
from raybcgd.config.schema import Config
from raybcgd.config.trust import resume_command

__all__ = ["Config", "load_config", "load_run_config", "make_config", "resume_command", "run_tables"]
