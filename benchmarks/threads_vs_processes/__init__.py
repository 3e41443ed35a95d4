"""Several drafters in one interpreter against several interpreters, side by side.

python -m benchmarks.threads_vs_processes --size small --gpus 1 --seconds 300
python -m benchmarks.threads_vs_processes.report benchmarks/results/threads_vs_processes-*.json

The first runs cells (`cells.py`), each in fresh interpreters (`worker.py`), and writes a result file after every cell;
the second writes the tables of `docs/why-processes.md` and its plot from such files.
"""
