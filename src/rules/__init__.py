"""The judgement, pure: values in, a verdict out. No socket, file, clock, randomness or log."""
