"""The Ray engine: the coordinator and the client hosts as actors."""
