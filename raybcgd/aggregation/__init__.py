"""Exact, order-free aggregation of uploads, on the hosts or on the coordinator."""
