"""What `import cvfl` offers: a federation, its runs, and how to read recorded ones."""
