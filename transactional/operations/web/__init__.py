"""The common parts of HTTP servers: the address, the limits on connections, and the check of access."""
