"""The source of a restore as a Spark format, `magnetar-restore`. Options: `work` (JSON), `origin`, `address`, `token_file`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from magnetar.core.addresses import BrokerAddresses
from magnetar.jobs.restore import FORMAT, SCHEMA, Work, read_topic
from magnetar.runtime.network.link_client import LinkClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the format known to a session."""
    spark.dataSource.register(RestoreSource)


class RestoreSource(DataSource):
    """Messages of one origin, as a peer of it holds them."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The schema of the rows."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch read."""
        return RestoreReader(
            self.options["work"], self.options["origin"], self.options["address"], self.options["token_file"]
        )


class RestoreReader(DataSourceReader):
    """One task a topic, in the order of its log. The token goes to the tasks within this object, which Spark pickles."""

    def __init__(self, work: str, origin: str, address: str, token_file: str) -> None:
        self._work = msgspec.json.decode(work, type=list[Work])
        self._origin, self._address = origin, address
        self._token = Path(token_file).read_text().strip()

    def partitions(self) -> list[InputPartition]:
        """One for each topic."""
        return [InputPartition(msgspec.json.encode(work)) for work in self._work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one topic."""
        work = msgspec.json.decode(partition.value, type=Work)
        addresses = BrokerAddresses.parse(self._address)
        return read_topic(lambda: LinkClient.connect(addresses, self._token), work, self._origin)
