"""The codec: bytes to frames, methods, tables and content, and back. Stateless."""
