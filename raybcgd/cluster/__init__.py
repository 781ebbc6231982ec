"""Cluster files from one file of values: Kubernetes objects, or a file for `ray up`."""
