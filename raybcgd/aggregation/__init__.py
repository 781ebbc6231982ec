"""Exact, order-independent aggregation of uploads, on the hosts or on the coordinator."""
