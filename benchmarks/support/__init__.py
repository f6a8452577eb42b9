"""What the benchmarks share: models, engines in processes of their own, the peak, rows of JSON."""
