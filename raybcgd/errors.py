"""The two ways a run can stop that are the user's to mend, as opposed to a defect of ours."""


class ConfigError(ValueError):
    """A setting, a file or a data set is wrong; the message is one line that names it and the fix."""


class RunError(RuntimeError):
    """A run that was set up correctly could not go on; the message is one line that says where and why."""
