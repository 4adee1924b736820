"""Learning from run directories: pure functions from records to labels, fits, proposals and a report of all of them.

    records ─► past_steps ─► label_steps ─► learn ─► Learning: a memory, a calibration, proposals, and what they do
                                                     to the newest runs, which were held back

Nothing in here takes effect. `adapters.learned_files` keeps what a person accepted; `LearnedValues` are in force.
"""
