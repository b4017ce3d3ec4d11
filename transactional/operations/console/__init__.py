"""`transactional ui`: pages that show the topologies of a store, drawn on the server."""
