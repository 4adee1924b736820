"""Learns from run directories: pure functions from records to labels, fits, proposals and a report.

    records ─► past_steps ─► label_steps ─► learn ─► Learning

`Learning` holds a memory, a calibration, proposals, and their effect on the newest runs, which were
held back.

Nothing here takes effect. `adapters.learned_files` stores what a person accepted; `LearnedValues`
are in force.
"""
