"""The chips' facts: encodings, layouts, limits. Pure Python: no NumPy, no CUDA."""
