"""Checkpoints: what a model is made of on disk, and how a rank reads only its own slices of it.

`config`, `gguf_file`, `errors` and `packaged` import no torch, so that HTTP processes may use them.
"""
