"""Rules for the bound on gradients, compared on synthetic gradients: minutes, no environment.

    python -m benchmarks.synthetic

``streams`` makes the gradients; ``candidates`` names the rules, which are the library's with other constants and those
of ``rules``, ``vote``, ``bulk``, ``moments``, ``elements`` and ``on_alarm``; ``adam`` feeds the ones to the others;
``figures`` says what came of it, ``measure`` and ``sensitivity`` for which; ``report``, ``result`` and ``targets``
write it down.
"""
