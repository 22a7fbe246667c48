"""The smallest run: four organisations, real data, trained and measured. Run it with: python examples/quickstart.py"""

import cvfl

federation = cvfl.Federation.from_data_set("digits", parties=4)
run = federation.fit(compressor="auto", epochs=20, step_size={"eta": 0.1}, optimizer={"name": "sgd"}, batch_size=128)
print(f"test accuracy {run.metrics.test.accuracy:.3f}, {run.bytes.total / 1e6:.2f} MB in all")
print(run.report("report.html"))
