"""Search: ranks the permitted bundles and tools for a step by their texts, the run's history and
past steps.

`text` makes terms, `documents` defines what is indexed, `ranking` ranks over an `index`,
`sufficiency` judges a ranking, `memory` and `fit` learn from past steps. Pure: the library behind
`Index` is in an adapter.
"""
