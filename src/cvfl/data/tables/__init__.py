"""The parties' own tables: reading, splitting and preparing them."""
