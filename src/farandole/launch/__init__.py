"""Start a job's ranks, watch them, and tell the truth about how they ended.

Runs without the core and without a framework.
"""
