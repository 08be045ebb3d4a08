"""Which spec is fastest for a problem: a model, a search on a GPU, and the tables that it leaves."""
