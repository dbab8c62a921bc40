"""The gateway in several processes: the daemon's own, and workers that accept on the same sockets."""
