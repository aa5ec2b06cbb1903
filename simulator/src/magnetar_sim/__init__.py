"""A simulated world around the brokers' own machines: one seed makes a world, and replays it exactly.

    options      what kind of world is wanted; context: what its parts share, drawn from the seed
    clock        one virtual time, a skewed wall clock for each cluster, timers in their order
    disk         segments in `host.memory_files`, a metadata store; both forget what was not durable
    host         what drives a broker's machines here and in the tests, and files in memory
    cluster      one real `broker.Broker` over its disk, driven through frames; dies at any moment and starts again
    connections  a network that is slow and breaks, producers and consumers, and a pipeline that does all that Spark may do
    observers    what these report, and to whom
    memory       what was published, is where, and may count as acknowledged where: the world's own memory
    actions      what users and operators do, and what goes wrong
    world        puts these together: a storm, then a calm
    checkers     one promise a file
    planted      rules of the product that are left out, to see that checkers notice
    runner       gives worlds their checkers, stories and planted bugs; command: the command line

The parts of a world do not know the world: they get what they need by constructor. Wide actions, stories and checkers know it;
it does not know them, its runner gives them to it.

`python -m magnetar_sim --help`, or `make sim SEEDS=...`.
"""
