"""Search: which permitted bundles and tools a step needs, ranked by their texts, the run's history and past steps.

`text` and `words` make terms, `documents` says what is indexed, `ranking` ranks over an `index`, `evidence` says what
a ranking rests on, `memory` and `fit` learn from past steps. Pure: the library behind `Index` is an adapter's.
"""
