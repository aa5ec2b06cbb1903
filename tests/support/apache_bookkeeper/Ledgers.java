import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Java's own client of ledgers, for tests. kit.py runs this file from its source. It does several ledgers in one run, since its start
 * takes seconds. FILE has the settings of the client.
 *
 * write FILE E QW QA DIGEST,... PASSWORD COUNT BYTES V2  writes and closes a ledger for each digest; prints their ids
 * leave ...                                              the same, without closing them
 * read FILE PASSWORD LEDGER:DIGEST ...                   opens them without recovery; for each entry prints ledger:base64
 * recover ...                                            the same with recovery
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
        ClientConfiguration settings = new ClientConfiguration();
        settings.loadConf(new File(words[1]).toURI().toURL());
        boolean writes = words[0].equals("write") || words[0].equals("leave");
        settings.setUseV2WireProtocol(writes && Boolean.parseBoolean(words[9]));
        BookKeeper client = new BookKeeper(settings);
        if (writes) {
            for (String digest : words[5].split(",")) {
                LedgerHandle ledger = client.createLedger(
                        Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]),
                        digest(digest), words[6].getBytes(StandardCharsets.UTF_8));
                int bytes = Integer.parseInt(words[8]);
                for (int number = 0; number < Integer.parseInt(words[7]); number++) {
                    ledger.addEntry(content(number, bytes));
                }
                System.out.println(ledger.getId());
                if (words[0].equals("write")) {
                    ledger.close();
                }
            }
            if (words[0].equals("leave")) {
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
        } else {
            byte[] password = words[2].getBytes(StandardCharsets.UTF_8);
            for (int at = 3; at < words.length; at++) {
                String[] parts = words[at].split(":");
                long id = Long.parseLong(parts[0]);
                BookKeeper.DigestType digest = digest(parts[1]);
                LedgerHandle ledger = words[0].equals("recover")
                        ? client.openLedger(id, digest, password) : client.openLedgerNoRecovery(id, digest, password);
                long last = ledger.getLastAddConfirmed();
                if (last >= 0) {
                    for (var entries = ledger.readEntries(0, last); entries.hasMoreElements();) {
                        LedgerEntry entry = entries.nextElement();
                        System.out.println(id + ":" + Base64.getEncoder().encodeToString(entry.getEntry()));
                    }
                }
            }
        }
        client.close();
    }

    /** The name in the stored metadata is HMAC, that in Java's client MAC. */
    private static BookKeeper.DigestType digest(String name) {
        return BookKeeper.DigestType.valueOf(name.equals("HMAC") ? "MAC" : name);
    }

    private static byte[] content(int number, int bytes) {
        byte[] made = new byte[bytes];
        for (int at = 0; at < bytes; at++) {
            made[at] = (byte) (number + at);
        }
        return made;
    }
}
