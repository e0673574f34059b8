"""Fuzzing: every place where bytes or values come from outside, given what nobody would send.

A target is a function of bytes. It may raise a `FieldwiseError`, which is a refusal; anything else
it raises is a finding, and so is an answer that differs from a plain one (an `AssertionError`).
`python -m fuzz` searches with atheris; `tests/test_fuzz.py` replays what was found, and needs none.
"""
