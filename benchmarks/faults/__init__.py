"""The fault suite: from one snapshot a clean branch and a branch for every fault, for every method.

    python -m benchmarks.faults benchmarks/faults/smoke.yaml --workers 2 --collect

A task is trained clean under a method to a quarter of its updates and saved with all that decides what comes next. From
there one branch goes on clean, and every other one is struck by a fault 100 updates later. Branches of one snapshot
differ in nothing but the fault, so they are compared pair by pair.

- :mod:`reading` turns a YAML file into a :mod:`suite` of tasks, methods, seeds and faults; :mod:`jobs` are made of it.
- :mod:`play` runs a job in a Trainer; :mod:`isolation` repeats a fault on frozen replay.
- :mod:`schedule` keeps workers busy until all is done or the time is over; :mod:`forecast` knows how long jobs take.
- :mod:`verdict` says what survived; :mod:`collect`, :mod:`tables` and :mod:`picture` show it.
"""

import time

BEGAN = time.monotonic()
"""When the program began: importing torch is part of the minutes that it may take."""
