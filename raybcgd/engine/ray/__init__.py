"""Client hosts and the coordinator as Ray actors."""
