"""Faults in real processes, aimed at states of the protocol.

A run is started with role modules of this package: each is the real role with `mines.pass_by(state)` put in at the
states listed in `states.py`. The driver arms one mine at a time; the process that passes it first is killed, stopped
or held for an operator's restart. In production code there is no hook.

    python -m tests.chaos --seed 0 --kills 200
"""
