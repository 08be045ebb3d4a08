"""Timing kernels on a GPU beside cuBLAS, so that the figures can be trusted and repeated."""
