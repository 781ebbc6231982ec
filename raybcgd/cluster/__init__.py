"""Cluster files from one values file: Kubernetes objects, or a file for `ray up`."""
