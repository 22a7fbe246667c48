"""`cvfl plan`: which compressor and how many local iterations suit a federation and its network."""
