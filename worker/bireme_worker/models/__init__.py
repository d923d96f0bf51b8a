"""Models as the ranks run them: one file per family, built from sharded layers.

A model is built on the meta device, each weight says which slices of which checkpoint tensors fill it, and `load` reads
just those. `registry` maps an architecture to its file, `stages` splits the layers over the pipeline.
"""
