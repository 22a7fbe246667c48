"""What roles agree on before the first round: the handshake, its terms, who may take part, rows and labels."""
