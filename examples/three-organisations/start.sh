#!/usr/bin/env bash
# A hospital, a bank and an insurer, each its own process with its own table and certificate, train one model.
# Try it: stop a party with kill -9 and start its line again; the run goes on and ends in the same bits.
set -euo pipefail
cd "$(dirname "$0")"
python make_tables.py
[ -f certs/ca.crt ] || cvfl certs certs --server localhost --server 127.0.0.1 --party hospital --party bank --party insurer
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for name in hospital bank insurer; do
  cvfl party "$name.toml" --name "$name" --out "models" --log-json > "$name.log" 2>&1 &
done
cvfl server server.toml "$@"
wait
ls models
