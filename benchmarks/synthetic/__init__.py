"""Rules for the bound on gradients, compared on synthetic gradients: minutes, no environment.

    python -m benchmarks.synthetic

``streams`` makes the gradients; ``rules``, ``elements`` and ``on_alarm`` are the candidates; ``adam`` feeds the ones to
the others; ``figures`` says what came of it; ``report`` and ``recommendation`` write it down.
"""
