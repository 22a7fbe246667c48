"""Train four organisations together in ten lines."""

import cvfl

config = cvfl.configure(
    data={"name": "digits", "parties": 4},
    compressor="lattice:bits=2",
    step_size={"eta": 0.1},
    batch_size=128,
    epochs=20,
)
result = cvfl.train(config)
print(f"test accuracy {result.summary['metrics']['test']['accuracy']:.3f}", result.summary["bytes"])
