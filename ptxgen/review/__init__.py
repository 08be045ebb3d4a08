"""What a reviewer works with: the committed PTX and its freshness."""
