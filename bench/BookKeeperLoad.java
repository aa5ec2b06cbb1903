import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * What bookies take from Java's own client: a loop that adds entries to one ledger, with so many unconfirmed at most.
 *
 * Arguments: URI ENSEMBLE WRITE_QUORUM ACK_QUORUM. Each line of the standard input is a run: COUNT BYTES WINDOW. Each run has a ledger
 * of its own, which is deleted after it; its answer is the line of its nanoseconds, from the first add to the last confirmation.
 * The process lives as long as its input, so that later runs find compiled code.
 */
public class BookKeeperLoad {
    private static final byte[] PASSWORD = "secret".getBytes();

    public static void main(String[] words) {
        try {
            run(words);
            System.exit(0);
        } catch (Exception error) {
            // The client's threads would keep the process alive.
            System.err.println(error.toString().lines().findFirst().get());
            System.exit(1);
        }
    }

    private static void run(String[] words) throws Exception {
        ClientConfiguration settings = new ClientConfiguration().setMetadataServiceUri(words[0]);
        settings.setUseV2WireProtocol(true);
        settings.setNumChannelsPerBookie(1);
        try (BookKeeper client = new BookKeeper(settings)) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] parts = line.split(" ");
                LedgerHandle ledger = client.createLedger(
                        Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]),
                        BookKeeper.DigestType.CRC32C, PASSWORD);
                System.out.println(
                        load(ledger, Integer.parseInt(parts[0]), Integer.parseInt(parts[1]), Integer.parseInt(parts[2])));
                ledger.close();
                client.deleteLedger(ledger.getId());
            }
        }
    }

    private static long load(LedgerHandle ledger, int count, int bytes, int window) throws Exception {
        byte[] content = new byte[bytes];
        new Random(1).nextBytes(content);
        Semaphore room = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        long began = System.nanoTime();
        for (int number = 0; number < count; number++) {
            room.acquire();
            ledger.asyncAddEntry(content, (code, handle, entry, context) -> {
                if (code != 0) {
                    failed.compareAndSet(0, code);
                }
                room.release();
            }, null);
        }
        if (!room.tryAcquire(window, 60, TimeUnit.SECONDS) || failed.get() != 0) {
            throw new IllegalStateException("code " + failed.get() + " of an add");
        }
        return System.nanoTime() - began;
    }
}
