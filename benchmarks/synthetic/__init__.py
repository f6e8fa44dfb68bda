"""Rules for the bound on gradients, compared on synthetic gradients: seconds, no environment.

    python -m benchmarks.synthetic

``streams`` makes the gradients, ``rules`` are the candidates, ``adam`` feeds the ones to the others, ``figures`` says
what came of it, ``report`` writes it down.
"""
