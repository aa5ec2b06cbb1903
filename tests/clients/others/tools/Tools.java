import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;
import org.apache.pulsar.client.cli.PulsarClientTool;

/**
 * pulsar-admin and pulsar-client, command after command in one process: a virtual machine for each would take seconds.
 *
 * <p>The argument is the tools' own client.conf. A line of standard input is {"tool": "admin" or "client", "words": [...]}; the
 * answer is {"code": ..., "text": ...}: the exit code, and what the tool printed.
 */
public final class Tools {
    private static final Class<?> ADMIN = PulsarAdminTool.class;

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        call("setAllowSystemExit", new Class<?>[] {boolean.class}, false);
        Gson gson = new Gson();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonObject command = gson.fromJson(line, JsonObject.class);
            String[] words = gson.fromJson(command.get("words"), String[].class);
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(said, true, "UTF-8");
            System.setOut(both);
            System.setErr(both);
            int code;
            try {
                code = command.get("tool").getAsString().equals("admin") ? admin(args[0], words) : client(args[0], words);
            } finally {
                System.setOut(answers);
                System.setErr(errors);
            }
            answers.println(gson.toJson(Map.of("code", code, "text", said.toString("UTF-8"))));
            answers.flush();
        }
        System.exit(0); // clients that the tools leave open have threads
    }

    private static int admin(String conf, String[] words) throws Exception {
        call("resetLastExitCode", new Class<?>[0]);
        String[] all = new String[words.length + 1];
        all[0] = conf;
        System.arraycopy(words, 0, all, 1, words.length);
        PulsarAdminTool.execute(all);
        return (Integer) call("getLastExitCode", new Class<?>[0]);
    }

    private static int client(String conf, String[] words) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(conf)) {
            properties.load(file);
        }
        return new PulsarClientTool(properties).run(words);
    }

    /** What the tool's own tests use to keep it from ending the process. */
    private static Object call(String name, Class<?>[] types, Object... arguments) throws Exception {
        Method method = ADMIN.getDeclaredMethod(name, types);
        method.setAccessible(true);
        try {
            return method.invoke(null, arguments);
        } catch (InvocationTargetException error) {
            throw new IllegalStateException(error.getCause());
        }
    }
}
