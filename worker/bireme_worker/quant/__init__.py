"""Quantized linear layers: how each format is stored, how it is read, and what multiplies by it.

A format is read into one of two matrices (integers in groups, or fp8) that stay packed in memory; a kernel for a device
takes the place of their ``multiply``.
"""
