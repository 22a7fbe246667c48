"""The studies that come with the software, one readable TOML each."""
