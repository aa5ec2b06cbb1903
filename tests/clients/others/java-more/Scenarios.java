import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/**
 * What applications do with the Java client beyond publishing and consuming, each with a topic of its own.
 *
 * <p>Arguments: the broker's address, the name of a scenario. Ends with code 0, or with 1 and a trace of what was otherwise.
 */
public final class Scenarios {
    interface Scenario {
        void run(PulsarClient client, String topic) throws Exception;
    }

    private static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    public static void main(String[] args) throws Exception {
        if (args.length == 1) {
            System.out.println(String.join("\n", ALL.keySet()));
            return;
        }
        String topic = args[1].contains("nonPersistent") ? "non-persistent" : "persistent";
        topic += "://public/default/java-" + args[1];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            ALL.get(args[1]).run(client, topic);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    static {
        ALL.put("tableView", Scenarios::tableView);
        ALL.put("tableViewOfPartitions", Scenarios::tableViewOfPartitions);
        ALL.put("compacted", Scenarios::compacted);
        ALL.put("reader", Scenarios::reader);
        ALL.put("readerFromTime", Scenarios::readerFromTime);
        ALL.put("readerOfKeys", Scenarios::readerOfKeys);
        ALL.put("readerOfPartitions", Scenarios::readerOfPartitions);
        ALL.put("seekByTime", Scenarios::seekByTime);
        ALL.put("seekInside", Scenarios::seekInside);
        ALL.put("seekByFunction", Scenarios::seekByFunction);
        ALL.put("ackTimeout", Scenarios::ackTimeout);
        ALL.put("ackReceipts", Scenarios::ackReceipts);
        ALL.put("batchIndex", Scenarios::batchIndex);
        ALL.put("batchReceive", Scenarios::batchReceive);
        ALL.put("deadLetters", Scenarios::deadLetters);
        ALL.put("delayed", Scenarios::delayed);
        ALL.put("exclusiveProducers", Scenarios::exclusiveProducers);
        ALL.put("keyBased", Scenarios::keyBased);
        ALL.put("stickyRanges", Scenarios::stickyRanges);
        ALL.put("failover", Scenarios::failover);
        ALL.put("listeners", Scenarios::listeners);
        ALL.put("paused", Scenarios::paused);
        ALL.put("nonDurable", Scenarios::nonDurable);
        ALL.put("nonPersistent", Scenarios::nonPersistent);
        ALL.put("patterns", Scenarios::patterns);
        ALL.put("partitionsGrow", Scenarios::partitionsGrow);
        ALL.put("lastIds", Scenarios::lastIds);
        ALL.put("sequenceIds", Scenarios::sequenceIds);
        ALL.put("properties", Scenarios::properties);
        ALL.put("schemas", Scenarios::schemas);
        ALL.put("unsubscribe", Scenarios::unsubscribe);
        ALL.put("refusals", Scenarios::refusals);
        ALL.put("transactions", Scenarios::transactions);
        ALL.put("zeroQueue", Scenarios::zeroQueue);
        ALL.put("closedAndBack", Scenarios::closedAndBack);
    }

    // ------------------------------------------------------------------------------------------------------------- helpers

    private static void same(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    private static void holds(boolean what, String otherwise) {
        if (!what) {
            throw new AssertionError(otherwise);
        }
    }

    private static <E extends Exception> void fails(Class<E> how, CallableThing thing) throws Exception {
        try {
            thing.call();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            holds(how.isInstance(cause), "failed by " + cause + " instead of " + how.getSimpleName());
            return;
        }
        throw new AssertionError("did not fail by " + how.getSimpleName());
    }

    interface CallableThing {
        Object call() throws Exception;
    }

    private static Producer<String> producer(PulsarClient client, String topic, boolean batches) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(batches)
                .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).batchingMaxMessages(10).create();
    }

    private static ConsumerBuilder<String> consumer(PulsarClient client, String topic, SubscriptionType type) {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static List<MessageId> publish(Producer<String> producer, int from, int to) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = from; number < to; number++) {
            sent.add(producer.newMessage().key("k" + number % 7).value("" + number).sendAsync());
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> one : sent) {
            ids.add(one.get(30, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static List<String> values(Consumer<String> consumer, int count, boolean acknowledge) throws Exception {
        List<String> found = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            holds(message != null, "only " + found + " came");
            found.add(message.getValue());
            if (acknowledge) {
                consumer.acknowledge(message);
            }
        }
        return found;
    }

    private static List<String> numbers(int from, int to) {
        List<String> made = new ArrayList<>();
        for (int number = from; number < to; number++) {
            made.add("" + number);
        }
        return made;
    }

    private static void nothing(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(500, TimeUnit.MILLISECONDS);
        holds(message == null, "a message that should not be there");
    }

    private static void eventually(CallableThing holds) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (!Boolean.TRUE.equals(holds.call())) {
            holds(System.nanoTime() < end, "not within 30 s");
            Thread.sleep(20);
        }
    }

    private static void rest(PulsarClient client, String topic, String path, String body) throws Exception {
        // The REST address is told by the environment: the client itself never needs it.
        String url = System.getenv("MAGNETAR_REST") + "/admin/v2/" + topic.replace("://", "/") + path;
        java.net.http.HttpRequest request = java.net.http.HttpRequest.newBuilder(java.net.URI.create(url))
                .header("Content-Type", "application/json")
                .method(body == null ? "POST" : "PUT",
                        java.net.http.HttpRequest.BodyPublishers.ofString(body == null ? "" : body))
                .build();
        java.net.http.HttpResponse<String> answer = java.net.http.HttpClient.newHttpClient()
                .send(request, java.net.http.HttpResponse.BodyHandlers.ofString());
        holds(answer.statusCode() < 300, url + ": " + answer.statusCode() + " " + answer.body());
    }

    // ----------------------------------------------------------------------------------------------------------- scenarios

    private static void tableView(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        publish(producer, 0, 100);
        TableView<String> view = client.newTableView(Schema.STRING).topic(topic)
                .autoUpdatePartitionsInterval(60, TimeUnit.SECONDS).create();
        same(7, view.size());
        same("99", view.get("k1"));
        producer.newMessage().key("new").value("one").send();
        view.refreshAsync().get(30, TimeUnit.SECONDS);
        same("one", view.get("new"));
        producer.newMessage().key("new").value(null).send();
        view.refreshAsync().get(30, TimeUnit.SECONDS);
        holds(!view.containsKey("new"), "a deletion was not seen");
        view.close();
    }

    private static void tableViewOfPartitions(PulsarClient client, String topic) throws Exception {
        rest(client, topic, "/partitions", "3");
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 50);
        TableView<String> view = client.newTableView(Schema.STRING).topic(topic).create();
        same(7, view.size());
        publish(producer, 50, 100);
        view.refreshAsync().get(30, TimeUnit.SECONDS);
        same("99", view.get("k1"));
        view.close();
    }

    private static void compacted(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 70);
        producer.newMessage().key("k0").value(null).send();
        rest(client, topic, "/compaction", "");
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Exclusive).readCompacted(true).subscribe();
        eventually(() -> {
            consumer.seek(MessageId.earliest);
            Set<String> keys = new HashSet<>();
            int count = 0;
            for (Message<String> m = consumer.receive(2, TimeUnit.SECONDS); m != null; m = consumer.receive(500, TimeUnit.MILLISECONDS)) {
                keys.add(m.getKey());
                count++;
            }
            return count == 6 && keys.size() == 6 && !keys.contains("k0");
        });
    }

    private static void reader(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        List<MessageId> ids = publish(producer, 0, 35);
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest).create()) {
            for (int number = 0; number < 35; number++) {
                holds(reader.hasMessageAvailable(), "no message is said to be there");
                same("" + number, reader.readNext(30, TimeUnit.SECONDS).getValue());
            }
            holds(!reader.hasMessageAvailable(), "a message is said to be there");
        }
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(ids.get(13)).create()) {
            same("14", reader.readNext(30, TimeUnit.SECONDS).getValue());
        }
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(ids.get(13))
                .startMessageIdInclusive().create()) {
            same("13", reader.readNext(30, TimeUnit.SECONDS).getValue());
        }
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.latest).create()) {
            holds(!reader.hasMessageAvailable(), "a message is said to be there");
            publish(producer, 35, 36);
            same("35", reader.readNext(30, TimeUnit.SECONDS).getValue());
        }
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.latest)
                .startMessageIdInclusive().create()) {
            holds(reader.hasMessageAvailable(), "the last message is not said to be there");
            same("35", reader.readNext(30, TimeUnit.SECONDS).getValue());
        }
    }

    private static void readerFromTime(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 10);
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic)
                .startMessageFromRollbackDuration(1, TimeUnit.HOURS).create()) {
            same("0", reader.readNext(30, TimeUnit.SECONDS).getValue());
        }
    }

    private static void readerOfKeys(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 70);
        int seen = 0;
        for (Range range : List.of(Range.of(0, 25_000), Range.of(25_001, 65_535))) {
            try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest)
                    .keyHashRange(range).create()) {
                Set<String> keys = new HashSet<>();
                while (reader.hasMessageAvailable()) {
                    Message<String> message = reader.readNext(1, TimeUnit.SECONDS);
                    if (message == null) {
                        break; // what is left is of other keys
                    }
                    keys.add(message.getKey());
                    seen++;
                }
                holds(keys.size() < 7, "a range had all keys");
            }
        }
        same(70, seen);
    }

    private static void readerOfPartitions(PulsarClient client, String topic) throws Exception {
        rest(client, topic, "/partitions", "3");
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 30);
        try (Reader<String> reader = client.newReader(Schema.STRING).topic(topic).startMessageId(MessageId.earliest).create()) {
            Set<String> found = new HashSet<>();
            while (reader.hasMessageAvailable()) {
                found.add(reader.readNext(30, TimeUnit.SECONDS).getValue());
            }
            same(new HashSet<>(numbers(0, 30)), found);
            reader.seek(MessageId.earliest);
            holds(reader.hasMessageAvailable(), "nothing is there after seeking");
        }
    }

    private static void seekByTime(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        publish(producer, 0, 5);
        Thread.sleep(50);
        long middle = System.currentTimeMillis();
        publish(producer, 5, 10);
        same(numbers(0, 10), values(consumer, 10, true));
        consumer.seek(middle);
        same(numbers(5, 10), values(consumer, 5, true));
        consumer.seek(0L);
        same(numbers(0, 10), values(consumer, 10, true));
    }

    private static void seekInside(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        List<MessageId> ids = publish(producer, 0, 30);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Exclusive).subscribe();
        same(numbers(0, 30), values(consumer, 30, false));
        consumer.seek(ids.get(14));
        same(numbers(15, 30), values(consumer, 15, false));
        Consumer<String> inclusive = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("inclusive")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).startMessageIdInclusive().subscribe();
        inclusive.seek(ids.get(14));
        same(numbers(14, 30), values(inclusive, 16, false));
    }

    private static void seekByFunction(PulsarClient client, String topic) throws Exception {
        rest(client, topic, "/partitions", "2");
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 20);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        values(consumer, 20, true);
        consumer.seek(partition -> partition.endsWith("-0") ? MessageId.earliest : MessageId.latest);
        Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
        holds(message != null && message.getTopicName().endsWith("-partition-0"), "the wrong partition: " + message);
    }

    private static void ackTimeout(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 5);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS)
                .ackTimeoutTickTime(200, TimeUnit.MILLISECONDS).subscribe();
        same(numbers(0, 5), values(consumer, 5, false));
        for (int number = 0; number < 5; number++) {
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            same(1, message.getRedeliveryCount());
            consumer.acknowledge(message);
        }
        nothing(consumer);
    }

    private static void ackReceipts(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 20);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe();
        List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            acknowledged.add(consumer.acknowledgeAsync(consumer.receive(30, TimeUnit.SECONDS)));
        }
        CompletableFuture.allOf(acknowledged.toArray(new CompletableFuture[0])).get(30, TimeUnit.SECONDS);
        consumer.close();
        Consumer<String> again = consumer(client, topic, SubscriptionType.Shared).subscribe();
        nothing(again);
    }

    private static void batchIndex(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        publish(producer, 0, 10);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true).subscribe();
        for (int number = 0; number < 10; number++) {
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            if (number % 3 == 0) {
                consumer.acknowledge(message);
            }
        }
        consumer.close();
        Consumer<String> again = consumer(client, topic, SubscriptionType.Shared).enableBatchIndexAcknowledgment(true).subscribe();
        same(List.of("1", "2", "4", "5", "7", "8"), values(again, 6, true));
        nothing(again);
    }

    private static void batchReceive(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 30);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared)
                .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(10).timeout(5, TimeUnit.SECONDS).build()).subscribe();
        int count = 0;
        for (int turn = 0; turn < 3; turn++) {
            var messages = consumer.batchReceive();
            count += messages.size();
            consumer.acknowledge(messages);
        }
        same(30, count);
    }

    private static void deadLetters(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 3);
        Consumer<String> letters = client.newConsumer(Schema.STRING).topic(topic + "-s-DLQ").subscriptionName("l").subscribe();
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
        for (int number = 0; number < 9; number++) {
            consumer.negativeAcknowledge(consumer.receive(30, TimeUnit.SECONDS));
        }
        Thread reading = new Thread(() -> {
            try {
                consumer.receive(30, TimeUnit.SECONDS);
            } catch (PulsarClientException error) {
                // it is closed at the end
            }
        });
        reading.start();
        same(new HashSet<>(numbers(0, 3)), new HashSet<>(values(letters, 3, true)));
        consumer.close();
    }

    private static void delayed(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        long start = System.currentTimeMillis();
        producer.newMessage().value("late").deliverAfter(1500, TimeUnit.MILLISECONDS).send();
        producer.newMessage().value("at").deliverAt(start + 800).send();
        producer.newMessage().value("now").send();
        same(List.of("now", "at", "late"), values(consumer, 3, true));
        holds(System.currentTimeMillis() - start >= 1500, "a delayed message came too early");
    }

    private static void exclusiveProducers(PulsarClient client, String topic) throws Exception {
        Producer<String> first = client.newProducer(Schema.STRING).topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
        fails(PulsarClientException.ProducerFencedException.class,
                () -> client.newProducer(Schema.STRING).topic(topic).accessMode(ProducerAccessMode.Exclusive).create());
        fails(PulsarClientException.ProducerBusyException.class, () -> client.newProducer(Schema.STRING).topic(topic).create());
        CompletableFuture<Producer<String>> waiting = client.newProducer(Schema.STRING).topic(topic)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        first.send("one");
        holds(!waiting.isDone(), "did not wait");
        first.close();
        Producer<String> second = waiting.get(30, TimeUnit.SECONDS);
        second.send("two");
        Producer<String> third = client.newProducer(Schema.STRING).topic(topic)
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create();
        third.send("three");
        fails(PulsarClientException.class, () -> second.send("four"));
    }

    private static void keyBased(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).batcherBuilder(BatcherBuilder.KEY_BASED)
                .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create();
        Map<String, Set<Integer>> owners = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        List<Consumer<String>> consumers = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            int me = number;
            consumers.add(consumer(client, topic, SubscriptionType.Key_Shared).messageListener((who, message) -> {
                owners.computeIfAbsent(message.getKey(), key -> ConcurrentHashMap.newKeySet()).add(me);
                who.acknowledgeAsync(message);
                count.incrementAndGet();
            }).subscribe());
        }
        publish(producer, 0, 300);
        eventually(() -> count.get() == 300);
        owners.forEach((key, who) -> same(1, who.size()));
    }

    private static void stickyRanges(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> low = consumer(client, topic, SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(0, 32_767))).subscribe();
        Consumer<String> high = consumer(client, topic, SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(32_768, 65_535))).subscribe();
        fails(PulsarClientException.ConsumerAssignException.class, () -> consumer(client, topic, SubscriptionType.Key_Shared)
                .keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(Range.of(5, 6))).subscribe());
        publish(producer, 0, 70);
        Map<String, Integer> seen = new HashMap<>();
        for (Consumer<String> one : List.of(low, high)) {
            for (Message<String> m = one.receive(2, TimeUnit.SECONDS); m != null; m = one.receive(500, TimeUnit.MILLISECONDS)) {
                seen.merge(m.getValue(), 1, Integer::sum);
            }
        }
        same(70, seen.size());
    }

    private static void failover(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> first = consumer(client, topic, SubscriptionType.Failover).consumerName("a").subscribe();
        Consumer<String> second = consumer(client, topic, SubscriptionType.Failover).consumerName("b").subscribe();
        publish(producer, 0, 10);
        same(numbers(0, 5), values(first, 5, true));
        first.close();
        List<String> rest = values(second, 5, true);
        same(numbers(5, 10), rest);
    }

    private static void listeners(PulsarClient client, String topic) throws Exception {
        CountDownLatch latch = new CountDownLatch(100);
        consumer(client, topic, SubscriptionType.Shared).messageListener((who, message) -> {
            who.acknowledgeAsync(message);
            latch.countDown();
        }).subscribe();
        publish(producer(client, topic, true), 0, 100);
        holds(latch.await(30, TimeUnit.SECONDS), "not all came");
    }

    private static void paused(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        AtomicInteger count = new AtomicInteger();
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).receiverQueueSize(5)
                .messageListener((who, message) -> {
                    count.incrementAndGet();
                    who.acknowledgeAsync(message);
                }).subscribe();
        consumer.pause();
        publish(producer, 0, 50);
        holds(count.get() <= 10, "a paused consumer got " + count.get());
        consumer.resume();
        eventually(() -> count.get() == 50);
    }

    private static void nonDurable(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 5);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Exclusive)
                .subscriptionMode(SubscriptionMode.NonDurable).subscribe();
        same(numbers(0, 5), values(consumer, 5, true));
        consumer.close();
        Consumer<String> again = consumer(client, topic, SubscriptionType.Exclusive)
                .subscriptionMode(SubscriptionMode.NonDurable).subscribe();
        same(numbers(0, 5), values(again, 5, true));
    }

    private static void nonPersistent(PulsarClient client, String topic) throws Exception {
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        publish(producer(client, topic, true), 0, 50);
        same(new HashSet<>(numbers(0, 50)), new HashSet<>(values(consumer, 50, true)));
    }

    private static void patterns(PulsarClient client, String topic) throws Exception {
        Producer<String> one = producer(client, topic + "-one", false);
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topicsPattern(topic + "-.*").subscriptionName("s")
                .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        publish(one, 0, 3);
        same(numbers(0, 3), values(consumer, 3, true));
        Producer<String> two = producer(client, topic + "-two", false);
        publish(two, 3, 6);
        same(numbers(3, 6), values(consumer, 3, true));
    }

    private static void partitionsGrow(PulsarClient client, String topic) throws Exception {
        rest(client, topic, "/partitions", "1");
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).enableBatching(false)
                .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
        String url = System.getenv("MAGNETAR_REST") + "/admin/v2/" + topic.replace("://", "/") + "/partitions";
        java.net.http.HttpClient.newHttpClient().send(java.net.http.HttpRequest.newBuilder(java.net.URI.create(url))
                .header("Content-Type", "application/json").POST(java.net.http.HttpRequest.BodyPublishers.ofString("3")).build(),
                java.net.http.HttpResponse.BodyHandlers.ofString());
        same(3, client.getPartitionsForTopic(topic).get().size());
        Set<String> used = new HashSet<>();
        eventually(() -> {
            producer.newMessage().value("x").send();
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            consumer.acknowledge(message);
            used.add(message.getTopicName());
            return used.size() == 3;
        });
    }

    private static void lastIds(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        List<MessageId> ids = publish(producer, 0, 25);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Exclusive).subscribe();
        var last = consumer.getLastMessageIds();
        same(1, last.size());
        MessageIdAdv expected = (MessageIdAdv) ids.get(24);
        MessageIdAdv found = (MessageIdAdv) last.get(0);
        same(expected.getLedgerId(), found.getLedgerId());
        same(expected.getEntryId(), found.getEntryId());
        same(expected.getBatchIndex(), found.getBatchIndex());
    }

    private static void sequenceIds(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).producerName("p").initialSequenceId(41).create();
        producer.newMessage().value("a").sequenceId(50).send();
        same(50L, producer.getLastSequenceId());
        producer.close();
        Producer<String> again = client.newProducer(Schema.STRING).topic(topic).producerName("p").create();
        holds(again.getLastSequenceId() == -1L || again.getLastSequenceId() == 50L, "last is " + again.getLastSequenceId());
    }

    private static void properties(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, true);
        byte[] ordering = {1, 2, 3};
        producer.newMessage().value("v").key("k").orderingKey(ordering).property("a", "b").property("ü", "é").eventTime(123).send();
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
        same("k", message.getKey());
        same(Map.of("a", "b", "ü", "é"), message.getProperties());
        same(123L, message.getEventTime());
        holds(Arrays.equals(ordering, message.getOrderingKey()), "the ordering key is another");
        holds(Math.abs(message.getPublishTime() - System.currentTimeMillis()) < 60_000, "published at " + message.getPublishTime());
        same(producer.getProducerName(), message.getProducerName());
    }

    private static void schemas(PulsarClient client, String topic) throws Exception {
        Producer<Flight> producer = client.newProducer(Schema.AVRO(Flight.class)).topic(topic).create();
        Flight flight = new Flight();
        flight.number = 7;
        producer.send(flight);
        Consumer<org.apache.pulsar.client.api.schema.GenericRecord> any = client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                .subscriptionName("any").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        same(7, any.receive(30, TimeUnit.SECONDS).getValue().getField("number"));
        Producer<byte[]> raw = client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create();
        raw.send(Schema.AVRO(Flight.class).encode(flight));
        same(7, any.receive(30, TimeUnit.SECONDS).getValue().getField("number"));
        fails(PulsarClientException.IncompatibleSchemaException.class,
                () -> client.newProducer(Schema.JSON(Other.class)).topic(topic).create());
    }

    /** A record. */
    public static class Flight {
        public int number;
    }

    /** Another one. */
    public static class Other {
        public String text;
    }

    private static void unsubscribe(PulsarClient client, String topic) throws Exception {
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        Consumer<String> other = consumer(client, topic, SubscriptionType.Shared).subscribe();
        fails(PulsarClientException.class, () -> {
            consumer.unsubscribe();
            return null;
        });
        publish(producer(client, topic, false), 0, 4);
        other.close();
        consumer.unsubscribe();
        Consumer<String> fresh = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        nothing(fresh);
    }

    private static void refusals(PulsarClient client, String topic) throws Exception {
        consumer(client, topic, SubscriptionType.Exclusive).subscribe();
        fails(PulsarClientException.ConsumerBusyException.class, () -> consumer(client, topic, SubscriptionType.Exclusive).subscribe());
        fails(PulsarClientException.ConsumerBusyException.class, () -> consumer(client, topic, SubscriptionType.Shared).subscribe());
        Producer<String> named = client.newProducer(Schema.STRING).topic(topic).producerName("n").create();
        fails(PulsarClientException.ProducerBusyException.class,
                () -> client.newProducer(Schema.STRING).topic(topic).producerName("n").create());
        fails(PulsarClientException.class, () -> client.newProducer(Schema.STRING).topic("persistent://nobody/there/t").create());
        rest(client, topic, "/terminate", null);
        fails(PulsarClientException.TopicTerminatedException.class, () -> named.newMessage().value("x").send());
        fails(PulsarClientException.TopicTerminatedException.class, () -> client.newProducer(Schema.STRING).topic(topic).create());
    }

    private static void transactions(PulsarClient client, String topic) throws Exception {
        // Refused at once, not waited for.
        String url = "pulsar://" + System.getenv("MAGNETAR_PULSAR");
        fails(PulsarClientException.class, () -> PulsarClient.builder().serviceUrl(url).enableTransaction(true)
                .operationTimeout(20, TimeUnit.SECONDS).build());
        publish(producer(client, topic, false), 0, 1);
    }

    private static void zeroQueue(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        publish(producer, 0, 10);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).receiverQueueSize(0).subscribe();
        Consumer<String> other = consumer(client, topic, SubscriptionType.Shared).receiverQueueSize(0).subscribe();
        List<String> found = new ArrayList<>();
        for (Consumer<String> one : List.of(consumer, other)) {
            for (int number = 0; number < 5; number++) {
                Message<String> message = one.receive();
                found.add(message.getValue());
                one.acknowledge(message);
            }
        }
        same(numbers(0, 10), found);
    }

    private static void closedAndBack(PulsarClient client, String topic) throws Exception {
        Producer<String> producer = producer(client, topic, false);
        Consumer<String> consumer = consumer(client, topic, SubscriptionType.Shared).subscribe();
        publish(producer, 0, 10);
        values(consumer, 3, true);
        rest(client, topic, "/unload", "");
        publish(producer, 10, 20);
        Set<String> found = new HashSet<>();
        while (found.size() < 17) {
            Message<String> message = consumer.receive(30, TimeUnit.SECONDS);
            holds(message != null, "only " + found + " came");
            found.add(message.getValue());
            consumer.acknowledge(message);
        }
        holds(consumer.isConnected() && producer.isConnected(), "somebody is not connected");
    }
}
