"""The entry point of the format `pulsar`."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from magnetar.core.errors import ConfigError
from magnetar.spark.options import read_options, write_options
from magnetar.spark.schemas import chosen, schema_of
from magnetar.spark.sink import BatchWriter, StreamWriter
from magnetar.spark.source import BatchReader, StreamReader
from magnetar.spark_session.worker import settle

FORMAT = "pulsar"


class PulsarFormat(DataSource):
    """See docs/spark.md for options and columns."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The schema of rows that are read: the fields of the topics' schema, or values as binary."""
        return schema_of(read_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `spark.read`."""
        options = read_options(self.options, streaming=False)
        return BatchReader(options, *chosen(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of `spark.readStream`."""
        options = read_options(self.options, streaming=True)
        return StreamReader(options, *chosen(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of `df.write`."""
        if overwrite:
            raise ConfigError("mode overwrite is not possible with topics: allowed is append")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """The writer of `df.writeStream`."""
        return StreamWriter(write_options(self.options), schema)
