"""The paper's studies, one readable TOML each."""
