"""What benchmarks/compare.py compares: the arms, and what is made of their times."""
