"""Ways to start a process somewhere. Each gives a job that answers poll, signal, wait and has its output."""
