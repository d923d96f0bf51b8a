"""Triton kernels of the GPU: attention over the paged cache, the element-wise chains of a layer, the plain draw.

Each module has its kernels and one launcher per kernel. Nothing here allocates but outputs, asks the device for a value
or depends on a context length on the host, so that all of it can be captured in a graph. Imported only beside a GPU.
"""
