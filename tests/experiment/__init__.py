"""What machine failures cost: workers, leaders and drivers killed under load, ours and Structured Streaming in turn.

After the evaluation of resilience in Storm@Twitter (SIGMOD 2014, https://doi.org/10.1145/2588555.2595641),
whose machines were taken away while throughput and latency were drawn. `python -m tests.experiment --help`.
"""
