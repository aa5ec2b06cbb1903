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
from magnetar.spark.pulsar.decoding import SCHEMA
from magnetar.spark.pulsar.options import read_options, write_options
from magnetar.spark.pulsar.sink import BatchWriter, StreamWriter
from magnetar.spark.pulsar.source import BatchReader, StreamReader
from magnetar.spark.worker import settle

FORMAT = "pulsar"


class PulsarFormat(DataSource):
    """See docs/spark.md for options and columns."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """What `format(...)` is given."""
        return FORMAT

    def schema(self) -> str:
        """Of rows that are read."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        return BatchReader(read_options(self.options, streaming=False), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`."""
        return StreamReader(read_options(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For `df.write`."""
        if overwrite:
            raise ConfigError("mode overwrite is not possible with topics: allowed is append")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """For `df.writeStream`."""
        return StreamWriter(write_options(self.options), schema)


def columns_of(schema: StructType) -> list[str]:
    """The columns that are wanted: those of the format, or some of them.

    Raises:
        ConfigError: another one, or of another type.
    """
    known = dict(column.split(" ") for column in SCHEMA.split(", "))
    for field in schema.fields:
        if field.name not in known or field.dataType.simpleString() != known[field.name]:
            raise ConfigError(
                f"column {field.name} {field.dataType.simpleString()}: values are read as value binary (typed columns come with "
                f"schemas in a later release; until then from_json or from_avro of value); the columns are: {SCHEMA}"
            )
    return [field.name for field in schema]
