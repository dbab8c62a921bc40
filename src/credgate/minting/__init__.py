"""Tokens that are had for another secret, by calls of the gateway's own; none of it is ever in a jail."""
