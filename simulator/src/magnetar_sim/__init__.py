"""A simulated world around the brokers' own machines: one seed makes a world, and replays it exactly.

    clock      one virtual time, a skewed wall clock for each cluster, timers in their order
    net        connections that are slow, break, and stall while sites cannot reach each other
    disk       segments in `host.memory_files`, a metadata store; both forget what was not durable
    cluster    one real `broker.Broker` over its disk, driven through frames; dies at any moment and starts again
    pipeline   what Spark does: late, twice, half, out of order
    clients    producers and consumers that speak the protocol
    workload   what people do, faults: what happens to them
    truth      what was published, is where, and was acknowledged: the world's own memory
    acks       what may count as acknowledged where; updates: the same in snapshot mode
    checkers   one promise a file; a world is given them

`python -m magnetar_sim --help`, or `make sim SEEDS=...`.
"""
