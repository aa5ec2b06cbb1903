import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Java's own client of ledgers, for tests. kit.py runs this file from its source.
 *
 * write URI E QW QA DIGEST PASSWORD COUNT BYTES V2  writes and closes a ledger; prints its id
 * leave ...                                         the same, without closing it
 * read URI LEDGER DIGEST PASSWORD                   opens it without recovery and prints each entry in base64
 * recover URI LEDGER DIGEST PASSWORD                the same with recovery
 * delete URI LEDGER
 */
public class Ledgers {
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
        ClientConfiguration settings = new ClientConfiguration().setMetadataServiceUri(words[1]);
        boolean writes = words[0].equals("write") || words[0].equals("leave");
        settings.setUseV2WireProtocol(writes && Boolean.parseBoolean(words[9]));
        BookKeeper client = new BookKeeper(settings);
        if (writes) {
            LedgerHandle ledger = client.createLedger(
                    Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]),
                    BookKeeper.DigestType.valueOf(words[5]), words[6].getBytes(StandardCharsets.UTF_8));
            int bytes = Integer.parseInt(words[8]);
            for (int number = 0; number < Integer.parseInt(words[7]); number++) {
                ledger.addEntry(content(number, bytes));
            }
            System.out.println(ledger.getId());
            if (words[0].equals("leave")) {
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
            ledger.close();
        } else if (words[0].equals("delete")) {
            client.deleteLedger(Long.parseLong(words[2]));
        } else {
            long id = Long.parseLong(words[2]);
            BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(words[3]);
            byte[] password = words[4].getBytes(StandardCharsets.UTF_8);
            LedgerHandle ledger = words[0].equals("recover")
                    ? client.openLedger(id, digest, password) : client.openLedgerNoRecovery(id, digest, password);
            long last = ledger.getLastAddConfirmed();
            if (last >= 0) {
                for (var entries = ledger.readEntries(0, last); entries.hasMoreElements();) {
                    LedgerEntry entry = entries.nextElement();
                    System.out.println(Base64.getEncoder().encodeToString(entry.getEntry()));
                }
            }
        }
        client.close();
    }

    private static byte[] content(int number, int bytes) {
        byte[] made = new byte[bytes];
        for (int at = 0; at < bytes; at++) {
            made[at] = (byte) (number + at);
        }
        return made;
    }
}
