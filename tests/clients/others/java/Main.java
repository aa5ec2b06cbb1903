// The official Java client as a program that obeys: one JSON command a line on standard input, one JSON answer a line.
// What the commands mean is told in ../conversation.py, which speaks to the program of every language.

import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

public final class Main {
    private static final int PATIENCE_S = 60;

    static final class Command {
        String op = "";
        String topic = "";
        String subscription = "";
        String type = "Shared";
        String compression = "";
        String acknowledge = "";
        int from;
        int count;
        int size;
        int retries;
        int period;
        boolean batch;
        boolean chunk;
    }

    private final PulsarClient client;
    private final Consumer<Map<String, ?>> say;
    private org.apache.pulsar.client.api.Consumer<byte[]> consumer;

    private Main(PulsarClient client, Consumer<Map<String, ?>> say) {
        this.client = client;
        this.say = say;
    }

    private static byte[] payload(int number, int size) {
        var text = new StringBuilder().append(number);
        while (text.length() < size) {
            text.append('.');
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    private static int number(byte[] payload) {
        var text = new String(payload, StandardCharsets.UTF_8);
        var end = text.indexOf('.');
        return Integer.parseInt(end < 0 ? text : text.substring(0, end));
    }

    private Producer<byte[]> producer(Command c) throws PulsarClientException {
        var made = client.newProducer().topic(c.topic).enableBatching(c.batch).enableChunking(c.chunk)
                .blockIfQueueFull(true).sendTimeout(PATIENCE_S, TimeUnit.SECONDS);
        switch (c.compression) {
            case "LZ4" -> made.compressionType(CompressionType.LZ4);
            case "ZLib" -> made.compressionType(CompressionType.ZLIB);
            case "ZSTD" -> made.compressionType(CompressionType.ZSTD);
            case "Snappy" -> made.compressionType(CompressionType.SNAPPY);
            default -> { }
        }
        return made.create();
    }

    /** Publishes with many on the way and waits for every receipt. */
    private static void send(Producer<byte[]> producer, int from, int count, int size) throws Exception {
        var receipts = new ArrayList<CompletableFuture<MessageId>>();
        for (int n = from; n < from + count; n++) {
            receipts.add(producer.newMessage().value(payload(n, size)).key("key-" + n % 7)
                    .property("number", Integer.toString(n)).sendAsync());
        }
        producer.flush();
        CompletableFuture.allOf(receipts.toArray(new CompletableFuture<?>[0])).get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static Map<String, Object> described(Message<byte[]> message) {
        var id = (MessageIdAdv) message.getMessageId();
        return Map.of(
                "number", number(message.getData()),
                "size", message.getData().length,
                "key", message.getKey(),
                "property", message.getProperty("number"),
                "redelivered", message.getRedeliveryCount(),
                "id", id.getLedgerId() + ":" + id.getEntryId() + ":" + id.getBatchIndex());
    }

    private Map<String, ?> subscribe(Command c) throws PulsarClientException {
        if (consumer != null) {
            consumer.close();
        }
        var made = client.newConsumer().topic(c.topic).subscriptionName(c.subscription)
                .subscriptionType(SubscriptionType.valueOf(c.type))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS);
        if (c.retries > 0) {
            made.enableRetry(true).deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(c.retries).build());
        }
        consumer = made.subscribe();
        return Map.of();
    }

    private Map<String, ?> pattern(Command c) throws PulsarClientException {
        if (consumer != null) {
            consumer.close();
        }
        consumer = client.newConsumer().topicsPattern(c.topic).subscriptionName(c.subscription)
                .subscriptionType(SubscriptionType.valueOf(c.type))
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .patternAutoDiscoveryPeriod(c.period, TimeUnit.SECONDS)
                .subscribe();
        return Map.of();
    }

    private Message<byte[]> next() throws PulsarClientException {
        var message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new IllegalStateException("no message within " + PATIENCE_S + " s");
        }
        return message;
    }

    private Map<String, ?> consume(Command c) throws PulsarClientException {
        var seen = new ArrayList<Map<String, Object>>();
        while (seen.size() < c.count) {
            var message = next();
            seen.add(described(message));
            switch (c.acknowledge) {
                case "individual" -> consumer.acknowledge(message);
                case "negative" -> consumer.negativeAcknowledge(message);
                case "later" -> consumer.reconsumeLater(message, 200, TimeUnit.MILLISECONDS);
                case "cumulative" -> {
                    if (seen.size() == c.count) {
                        consumer.acknowledgeCumulative(message);
                    }
                }
                default -> { }
            }
        }
        return Map.of("messages", seen);
    }

    private Map<String, ?> read(Command c) throws Exception {
        List<Map<String, Object>> seen = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(c.topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                seen.add(described(reader.readNext(PATIENCE_S, TimeUnit.SECONDS)));
            }
        }
        return Map.of("messages", seen);
    }

    /** Publishes and consumes at the same time; at half it says so, and goes on while whoever asked breaks something. */
    private Map<String, ?> stream(Command c) throws Exception {
        var seen = new HashMap<Integer, Integer>();
        var half = new CountDownLatch(1);
        int first = c.count / 2;
        try (var producer = producer(c)) {
            var sent = CompletableFuture.runAsync(() -> {
                try {
                    send(producer, c.from, first, c.size);
                    half.await();
                    send(producer, c.from + first, c.count - first, c.size);
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
            while (seen.size() < c.count) {
                var message = next();
                seen.merge(number(message.getData()), 1, Integer::sum);
                consumer.acknowledge(message);
                if (seen.size() == first && half.getCount() > 0) {
                    say.accept(Map.of("half", true));
                    half.countDown();
                }
            }
            sent.get(PATIENCE_S, TimeUnit.SECONDS);
        }
        int again = seen.values().stream().mapToInt(times -> times - 1).sum();
        return Map.of("distinct", seen.size(), "again", again);
    }

    private Map<String, ?> obey(Command c) throws Exception {
        switch (c.op) {
            case "publish":
                try (var producer = producer(c)) {
                    send(producer, c.from, c.count, c.size);
                }
                return Map.of("sent", c.count);
            case "subscribe":
                return subscribe(c);
            case "pattern":
                return pattern(c);
            case "consume":
                return consume(c);
            case "seek":
                consumer.seek(MessageId.earliest);
                return Map.of();
            case "read":
                return read(c);
            case "stream":
                return stream(c);
            case "unsubscribe":
                consumer.unsubscribe();
                consumer = null;
                return Map.of();
            default:
                throw new IllegalArgumentException("no such command: " + c.op);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var gson = new Gson();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (var client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            var program = new Main(client, answer -> out.println(gson.toJson(answer)));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Map<String, ?> answer;
                try {
                    answer = program.obey(gson.fromJson(line, Command.class));
                } catch (Exception failure) {
                    answer = Map.of("error", failure.toString());
                }
                program.say.accept(answer);
            }
        }
        System.exit(0);
    }
}
