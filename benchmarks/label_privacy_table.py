def published(lines, out): return ""
