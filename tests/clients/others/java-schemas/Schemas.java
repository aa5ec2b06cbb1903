// The official Java client with every type of schema: written in one cluster, read in another (or the same).
//
//     Schemas WRITE_URL READ_URL PREFIX
//
// One line for each step: "ok NAME", or "FAIL NAME: why". Topics begin with PREFIX.

import com.google.protobuf.Api;
import com.google.protobuf.Method;
import com.google.protobuf.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.Arrays;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException.IncompatibleSchemaException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SchemaSerializationException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

public final class Schemas {
    private static final int PATIENCE_S = 60;

    public static final class Flight {
        public String carrier;
        public int number;

        static Flight of(String carrier, int number) {
            var made = new Flight();
            made.carrier = carrier;
            made.number = number;
            return made;
        }
    }

    /** A later version: one field more, which may be missing. */
    public static final class Delayed {
        public String carrier;
        public int number;
        public Integer delay;

        static Delayed of(String carrier, int number, Integer delay) {
            var made = new Delayed();
            made.carrier = carrier;
            made.number = number;
            made.delay = delay;
            return made;
        }
    }

    /** Compatible with neither. */
    public static final class Clash {
        public List<String> carrier;
        public int number;
    }

    private interface Step {
        void run() throws Exception;
    }

    private final PulsarClient writer;
    private final PulsarClient reader;
    private final String prefix;

    private Schemas(PulsarClient writer, PulsarClient reader, String prefix) {
        this.writer = writer;
        this.reader = reader;
        this.prefix = prefix;
    }

    private static void step(String name, Step step) {
        try {
            step.run();
            System.out.println("ok " + name);
        } catch (Throwable why) {
            System.out.println("FAIL " + name + ": " + why.toString().replace('\n', ' ') + " at " + why.getStackTrace()[0]);
        }
    }

    private static void check(boolean holds, Object what) {
        if (!holds) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    private String topic(String name) {
        return "persistent://public/default/" + prefix + "-" + name;
    }

    private <T> Consumer<T> subscribe(Schema<T> schema, String topic, String name) throws Exception {
        return reader.newConsumer(schema).topic(topic).subscriptionName(name)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        check(message != null, "no message came");
        return message;
    }

    private void refused(Schema<?> schema, String topic) throws Exception {
        try (Producer<?> taken = writer.newProducer(schema).topic(topic).create()) {
            throw new AssertionError("the schema was taken");
        } catch (IncompatibleSchemaException expected) {
            check(expected.getMessage() != null, "no reason");
        }
    }

    /** One value there and back, by its own schema and by AUTO_CONSUME. */
    private <T> void round(String name, Schema<T> schema, T value) {
        step(name, () -> {
            String topic = topic(name);
            boolean bytes = value instanceof byte[];
            try (Producer<T> producer = writer.newProducer(schema).topic(topic).create()) {
                producer.send(value);
            }
            try (Consumer<T> consumer = subscribe(schema, topic, "own")) {
                Message<T> message = next(consumer);
                T got = message.getValue();
                check(bytes ? Arrays.equals((byte[]) value, (byte[]) got) : value.equals(got), value + " became " + got);
                check(bytes || message.getSchemaVersion().length == 8, "no version");
            }
            if (bytes) {
                return;
            }
            try (Consumer<GenericRecord> consumer = subscribe(Schema.AUTO_CONSUME(), topic, "auto")) {
                GenericRecord record = next(consumer).getValue();
                check(record.getSchemaType() == schema.getSchemaInfo().getType(), record.getSchemaType());
                check(record.getNativeObject() != null, "no value");
            }
        });
    }

    private void plain() {
        round("BYTES", Schema.BYTES, new byte[] {0, 1, -1});
        round("STRING", Schema.STRING, "h\u00ebllo");
        round("BOOLEAN", Schema.BOOL, true);
        round("INT8", Schema.INT8, (byte) -3);
        round("INT16", Schema.INT16, (short) -300);
        round("INT32", Schema.INT32, 70_000);
        round("INT64", Schema.INT64, 1L << 40);
        round("FLOAT", Schema.FLOAT, 1.5f);
        round("DOUBLE", Schema.DOUBLE, 2.5);
        round("DATE", Schema.DATE, new Date(1_700_000_000_000L));
        round("TIME", Schema.TIME, new java.sql.Time(1_700_000_000_000L));
        round("TIMESTAMP", Schema.TIMESTAMP, new java.sql.Timestamp(1_700_000_000_000L));
        round("INSTANT", Schema.INSTANT, Instant.ofEpochSecond(1_700_000_000L, 123));
        round("LOCAL_DATE", Schema.LOCAL_DATE, LocalDate.of(2026, 11, 21));
        round("LOCAL_TIME", Schema.LOCAL_TIME, LocalTime.of(1, 2, 3));
        round("LOCAL_DATE_TIME", Schema.LOCAL_DATE_TIME, LocalDateTime.of(2026, 11, 21, 1, 2, 3));
    }

    private void protobuf() {
        Api api = Api.newBuilder().setName("n").addMethods(Method.newBuilder().setName("m")).build();
        step("PROTOBUF", () -> {
            Schema<Api> schema = Schema.PROTOBUF(Api.class);
            try (Producer<Api> producer = writer.newProducer(schema).topic(topic("PROTOBUF")).create()) {
                producer.send(api);
            }
            try (Consumer<Api> consumer = subscribe(schema, topic("PROTOBUF"), "own")) {
                check(api.equals(next(consumer).getValue()), "it differs");
            }
        });
        round("PROTOBUF_NATIVE", Schema.PROTOBUF_NATIVE(Api.class), api);
        step("PROTOBUF_NATIVE keeps its message", () -> {
            refused(Schema.PROTOBUF_NATIVE(Timestamp.class), topic("PROTOBUF_NATIVE"));
        });
    }

    private void keyValue(KeyValueEncodingType encoding) {
        step("KEY_VALUE " + encoding, () -> {
            String topic = topic("KEY_VALUE-" + encoding);
            var old = Schema.KeyValue(Schema.STRING, Schema.AVRO(Flight.class), encoding);
            var later = Schema.KeyValue(Schema.STRING, Schema.AVRO(Delayed.class), encoding);
            try (var producer = writer.newProducer(old).topic(topic).create()) {
                producer.send(new KeyValue<>("k1", Flight.of("A", 1)));
            }
            try (var producer = writer.newProducer(later).topic(topic).create()) {
                producer.send(new KeyValue<>("k2", Delayed.of("B", 2, 3)));
            }
            try (var consumer = subscribe(later, topic, "own")) {
                var first = next(consumer).getValue();
                check(first.getKey().equals("k1") && first.getValue().delay == null, first);
                var second = next(consumer).getValue();
                check(second.getKey().equals("k2") && second.getValue().delay == 3, second);
            }
            try (var consumer = subscribe(Schema.AUTO_CONSUME(), topic, "auto")) {
                for (int n = 1; n <= 2; n++) {
                    var pair = (KeyValue<?, ?>) next(consumer).getValue().getNativeObject();
                    check(pair.getKey().equals("k" + n), pair);
                    check(((GenericRecord) pair.getValue()).getField("number").equals(n), pair);
                }
            }
            refused(Schema.KeyValue(Schema.INT32, Schema.AVRO(Flight.class), encoding), topic);
        });
    }

    private void records(String kind, Schema<Flight> flight, Schema<Delayed> delayed, Schema<Clash> clash) {
        step(kind + ": a schema for each message (GET_OR_CREATE_SCHEMA)", () -> {
            String topic = topic("each-" + kind);
            try (var producer = writer.newProducer().topic(topic).create()) {
                for (int n = 0; n < 2; n++) {
                    producer.newMessage(flight).value(Flight.of("A", 0)).send();
                    producer.newMessage(delayed).value(Delayed.of("B", 1, 7)).send();
                }
                try {
                    producer.newMessage(clash).value(new Clash()).send();
                    throw new AssertionError("an incompatible schema was taken");
                } catch (IncompatibleSchemaException expected) {
                    producer.newMessage(flight).value(Flight.of("A", 0)).send();
                }
            }
            try (var consumer = subscribe(delayed, topic, "own")) {
                for (int n = 0; n < 5; n++) {
                    Delayed value = next(consumer).getValue();
                    check(value.number == n % 2 && (n % 2 == 0 ? value.delay == null : value.delay == 7), n);
                }
            }
            try (var all = reader.newReader(Schema.AUTO_CONSUME()).topic(topic).startMessageId(MessageId.earliest).create()) {
                for (int n = 0; n < 5; n++) {
                    var fields = all.readNext(PATIENCE_S, TimeUnit.SECONDS).getValue().getFields();
                    check(fields.size() == 2 + n % 2, fields);
                }
            }
        });
        step(kind + ": AUTO_PRODUCE", () -> {
            String topic = topic("auto-" + kind);
            writer.newProducer(flight).topic(topic).create().close();
            try (var producer = writer.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create()) {
                producer.send(flight.encode(Flight.of("A", 5)));
                if (kind.equals("AVRO")) {
                    try {
                        producer.send(new byte[] {-1, -1, -1});
                        throw new AssertionError("nonsense was taken");
                    } catch (SchemaSerializationException expected) {
                        check(expected.getMessage() != null, "no reason");
                    }
                }
            }
            try (var consumer = subscribe(flight, topic, "own")) {
                Message<Flight> message = next(consumer);
                check(message.getValue().number == 5 && message.getSchemaVersion() != null, message.getValue());
            }
        });
        step(kind + ": retry and dead letters", () -> {
            String topic = topic("dead-" + kind);
            try (var producer = writer.newProducer(flight).topic(topic).create()) {
                producer.send(Flight.of("A", 9));
            }
            var policy = DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic(topic + "-DLQ")
                .retryLetterTopic(topic + "-RETRY").initialSubscriptionName("init").build();
            try (var consumer = reader.newConsumer(flight).topic(topic).subscriptionName("s").enableRetry(true)
                    .subscriptionType(SubscriptionType.Shared).deadLetterPolicy(policy)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
                for (int n = 0; n < 2; n++) {
                    consumer.reconsumeLater(next(consumer), 10, TimeUnit.MILLISECONDS);
                }
                try (var dead = subscribe(flight, topic + "-DLQ", "init")) {
                    Message<Flight> letter = next(dead);
                    check(letter.getValue().carrier.equals("A") && letter.getSchemaVersion() != null, letter);
                }
            }
        });
    }

    private void wholes() {
        step("compressed chunks", () -> {
            String topic = topic("chunks");
            var text = new StringBuilder();
            var random = new Random(1);
            while (text.length() < 12 << 20) {
                text.append(Long.toHexString(random.nextLong()));
            }
            var schema = Schema.AVRO(Flight.class);
            try (var producer = writer.newProducer(schema).topic(topic).enableBatching(false).enableChunking(true)
                    .compressionType(CompressionType.LZ4).create()) {
                producer.send(Flight.of(text.toString(), 1));
            }
            try (var consumer = subscribe(schema, topic, "own")) {
                check(next(consumer).getValue().carrier.contentEquals(text), "it differs");
            }
        });
        step("AUTO_CONSUME of two topics with different schemas", () -> {
            try (var one = writer.newProducer(Schema.AVRO(Flight.class)).topic(topic("many-1")).create();
                    var two = writer.newProducer(Schema.JSON(Delayed.class)).topic(topic("many-2")).create()) {
                one.send(Flight.of("A", 1));
                two.send(Delayed.of("B", 2, 3));
            }
            Set<Object> seen = new HashSet<>();
            try (var consumer = reader.newConsumer(Schema.AUTO_CONSUME()).topics(List.of(topic("many-1"), topic("many-2")))
                    .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
                for (int n = 0; n < 2; n++) {
                    seen.add(next(consumer).getValue().getField("number"));
                }
            }
            check(seen.equals(Set.of(1, 2)), seen);
        });
    }

    public static void main(String[] arguments) throws Exception {
        try (var writer = PulsarClient.builder().serviceUrl(arguments[0]).build();
                var reader = PulsarClient.builder().serviceUrl(arguments[1]).build()) {
            var all = new Schemas(writer, reader, arguments[2]);
            all.plain();
            all.protobuf();
            for (var encoding : KeyValueEncodingType.values()) {
                all.keyValue(encoding);
            }
            all.records("AVRO", Schema.AVRO(Flight.class), Schema.AVRO(Delayed.class), Schema.AVRO(Clash.class));
            all.records("JSON", Schema.JSON(Flight.class), Schema.JSON(Delayed.class), Schema.JSON(Clash.class));
            all.wholes();
        }
        System.exit(0);
    }
}
