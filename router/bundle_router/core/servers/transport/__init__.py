"""Rules about tool servers without their communication: bounds, lifetimes, queues, leases, blocks.

Pure.
"""
