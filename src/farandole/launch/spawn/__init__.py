"""Ways to start a process somewhere. Each gives a job that answers poll and signal, and has its output."""
