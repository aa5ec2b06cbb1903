"""The Python processes of a pipeline's tasks, by what they do: the reader of a long batch, its writer."""

import contextlib

import psutil

from tests.support.brokers import BrokerProcess
from tests.support.pipelines import Pipeline


def workers(pipeline: Pipeline) -> list[psutil.Process]:
    """Python processes of Spark below a driver, without those that have ended."""
    assert pipeline.process is not None
    found = []
    for one in psutil.Process(pipeline.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            if one.status() != psutil.STATUS_ZOMBIE and any(word.startswith("pyspark.") for word in one.cmdline()):
                found.append(one)
    return found


def ports_of(process: psutil.Process) -> set[int]:
    """The ports that a process is connected to."""
    with contextlib.suppress(psutil.Error):
        return {
            one.raddr.port
            for one in process.net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr
        }
    return set()


def writers(pipeline: Pipeline, target: BrokerProcess) -> list[psutil.Process]:
    """Workers with a connection to a destination that has no link of its own."""
    return [one for one in workers(pipeline) if target.pulsar_port in ports_of(one)]


def readers(pipeline: Pipeline, source: BrokerProcess, target: BrokerProcess) -> list[psutil.Process]:
    """Workers with a connection to a source, and none to the destination."""
    found = []
    for one in workers(pipeline):
        ports = ports_of(one)
        if source.pulsar_port in ports and target.pulsar_port not in ports:
            found.append(one)
    return found
