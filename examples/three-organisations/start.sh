#!/usr/bin/env bash
# A hospital, a bank and an insurer, each its own process with its own table and certificate, train one model.
# Try it: stop a party with kill -9 and start its line again; the run goes on and ends in the same bits.
set -euo pipefail
cd "$(dirname "$0")"
python make_tables.py
[ -f certs/ca.crt ] || cvfl certs certs --server localhost --server 127.0.0.1 --party hospital --party bank --party insurer
cvfl terms terms.toml --as hospital --certificates certs  # signed; in life one of them sends it to the others
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for name in hospital bank insurer; do
  cvfl party "$name.toml" --name "$name" --out "models" --log-json > "$name.log" 2>&1 &
done
cvfl server server.toml "$@"
wait
ls models

# The same roles score people whom nobody has a label of; the hospital, which had the label, writes scores.csv.
for name in hospital bank insurer; do
  cvfl party "$name.toml" --name "$name" --predict --model models --set "party.$name.table=new_$name.csv" \
    --log-json >> "$name.log" 2>&1 &
done
cvfl server server.toml --predict --model "$(ls -td runs/server-0* | head -n 1)"
wait
head -n 4 scores.csv

# And they serve: whoever asks at the hospital's door for a person gets a score while they wait.
run="$(ls -td runs/server-0* | head -n 1)"
cvfl server server.toml --serve --model "$run" --log-json >> server.log 2>&1 &
for name in bank insurer; do
  cvfl party "$name.toml" --name "$name" --serve --model models --set "party.$name.table=new_$name.csv" \
    --log-json >> "$name.log" 2>&1 &
done
cvfl serve hospital.toml --name hospital --model models --set party.hospital.table=new_hospital.csv \
  --http "${DOOR:=127.0.0.1:8080}" --log-json >> hospital.log 2>&1 &
until curl -sf "http://$DOOR/v2/health/ready" > /dev/null; do sleep 0.2; done
curl -s "http://$DOOR/predict" -d "{\"ids\": [\"$(sed -n 2p scores.csv | cut -d, -f1 | tr -d '\"')\"]}"
echo
